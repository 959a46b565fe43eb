"""Holds the interpreter's lock in an execute, for as many milliseconds as its program's first argument says.

Pings are answered by a thread of their own, so only the lock keeps them waiting: that is what a vendor's client written
in C does to a worker.
"""

import ctypes
import queue
import threading
import time
from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker


class Holder(Speaker):
    """Works on calls in one thread, and answers pings in another."""

    def __init__(self) -> None:
        super().__init__()
        # Unlike CDLL this does not let go of the lock.
        self._libc = ctypes.PyDLL(None)
        self._work: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.handlers["execute"] = self.execute
        threading.Thread(target=self.work, daemon=True).start()

    def execute(self, message: Message) -> Any:
        self._work.put(message)
        return LATER

    def work(self) -> None:
        while True:
            message = self._work.get()
            held_ms = int(message["params"]["argv"][1])
            self.record("holds", ms=held_ms)
            end = time.monotonic() + held_ms / 1000
            # In one wait, unless a signal ends it: between two of them the lock could be let go.
            while (left_s := end - time.monotonic()) > 0:
                self._libc.poll(None, 0, int(left_s * 1000) + 1)
            self.record("held")
            self.answer(message["id"], self.succeed(message))


if __name__ == "__main__":
    Holder().serve()
