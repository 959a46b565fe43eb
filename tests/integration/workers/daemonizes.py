"""Leaves a daemon, as daemons are made: forked twice, a session of its own, nothing of the worker's pipes.

The daemon is there once an execute was answered; `--child` also leaves a child in the worker's own group. With `--dies`
the worker ends with 3 right after. With `--stubborn` it ends on nothing but SIGKILL.
"""

import os
import signal
import sys
import threading
from typing import Any

from tests.integration.workers.speaker import Message, Speaker


def daemon() -> int:
    """The pid of a new daemon, which runs its own program by then."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if (pid := os.fork()) != 0:
            os.write(write, str(pid).encode())
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        # Everything else closes with the new program, and tells so by the end of the pipe.
        os.execvp("sleep", ["sleep", "600"])
    os.close(write)
    os.wait()
    with open(read, "rb") as told:
        return int(told.read())


class Daemonizes(Speaker):
    """One daemon an execute."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["execute"] = self.execute
        if "--stubborn" in self.arguments:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def execute(self, message: Message) -> Any:
        self.record("daemon", daemon=daemon())
        if "--child" in self.arguments:
            self.record("child", child=os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600"))
        if "--dies" in self.arguments:
            os._exit(3)
        return self.succeed(message)


def main() -> None:
    worker = Daemonizes()
    if "--at-once" in worker.arguments:
        worker.execute({"id": 0})
    worker.serve()
    while "--stubborn" in worker.arguments:
        threading.Event().wait(60)
    sys.exit(0)


if __name__ == "__main__":
    main()
