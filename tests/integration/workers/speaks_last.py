"""Ends in the moment in which it has answered an execute: what it said must have arrived."""

import os
from typing import Any

from tests.integration.workers.speaker import Message, Speaker


class Hasty(Speaker):
    """Output, end marks and result in one breath, and then the end."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["execute"] = self.execute

    def execute(self, message: Message) -> Any:
        self.answer(message["id"], self.succeed(message, b"the last words"))
        os._exit(0)


if __name__ == "__main__":
    Hasty().serve()
