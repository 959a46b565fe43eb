"""Ends with a code when its arguments say: WHEN CODE [N]. With `execute`, once N of them are open."""

import os
import sys
from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker, log


class Mortal(Speaker):
    """Ends at one moment of its life."""

    def __init__(self) -> None:
        super().__init__()
        self.when, self.code = self.arguments[0], int(self.arguments[1])
        self.count = int(self.arguments[2]) if len(self.arguments) > 2 else 1
        for method in ("initialize", "initialized", "shutdown", "acquireLease"):
            if self.when == method:
                self.handlers[method] = self.die
        if self.when == "execute":
            self.handlers["execute"] = self.execute

    def die(self, message: Message | None = None) -> Any:
        log("the last words")
        self.record("dies")
        os._exit(self.code)

    def execute(self, message: Message) -> Any:
        self.output(message["id"], "stdout", 0, b"partial")
        self.count -= 1
        if self.count == 0:
            self.die()
        return LATER


def main() -> None:
    if sys.argv[-2:-1] == ["import"]:
        raise ImportError("no module named 'vendor'")
    Mortal().serve()


if __name__ == "__main__":
    main()
