"""Closes one of its pipes in an execute, `stdin` or `stdout` by its argument, and lives on."""

import os
import threading
from typing import Any

from tests.integration.workers.speaker import Message, Speaker


class Closer(Speaker):
    """Can be neither heard nor told any more."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["execute"] = self.close

    def close(self, message: Message) -> Any:
        os.close(0 if self.arguments == ["stdin"] else 1)
        threading.Event().wait()


if __name__ == "__main__":
    Closer().serve()
