"""Starts a child that holds all of its pipes and outlives it; `--escapes` puts it in a session of its own.

It ends at once, with 0, on shutdown and at the end of its input; `--dies` lets it end with 3 on an execute.
"""

import os
import subprocess
from typing import Any

from tests.integration.workers.speaker import Message, Speaker


class Parent(Speaker):
    """One child, from the start."""

    def __init__(self) -> None:
        super().__init__()
        child = subprocess.Popen(["sleep", "600"], start_new_session="--escapes" in self.arguments)
        self.record("child", child=child.pid)
        self.handlers["shutdown"] = self.end
        if "--dies" in self.arguments:
            self.handlers["execute"] = lambda message: os._exit(3)

    def end(self, message: Message) -> Any:
        self.answer(message["id"], {})
        os._exit(0)


def main() -> None:
    Parent().serve()
    os._exit(0)


if __name__ == "__main__":
    main()
