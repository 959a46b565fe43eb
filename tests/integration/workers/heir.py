"""Writes down at its start which of the workers before it are still alive; SIGTERM and the end of input do not end it.

`--never-ready`: it says hello and nothing more. With `--dies` it ends with 3 on an execute.
"""

import contextlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

from tests.integration.workers.speaker import Message, Speaker


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat[stat.rindex(b")") + 2 :].split()[0] not in (b"Z", b"X")
    return False


class Heir(Speaker):
    """One of several generations."""

    def __init__(self, journal: Path) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().__init__()
        earlier = {json.loads(line)["pid"] for line in journal.read_bytes().splitlines()} if journal.exists() else set()
        self.record("inherits", alive=[pid for pid in earlier if runs(pid)])
        if "--never-ready" in self.arguments:
            self.handlers["initialized"] = lambda message: None
        if "--dies" in self.arguments:
            self.handlers["execute"] = self.die

    def die(self, message: Message) -> Any:
        os._exit(3)


def main() -> None:
    import sys

    Heir(Path(sys.argv[2])).serve()
    while True:
        threading.Event().wait(60)


if __name__ == "__main__":
    main()
