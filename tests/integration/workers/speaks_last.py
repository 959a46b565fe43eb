"""Ends in the moment in which it has answered an execute: what it said must have arrived.

With a program of two words it first waits for a file of the first one's name, and says as many bytes more as the second
one says.
"""

import os
import time
from typing import Any

from tests.integration.workers.speaker import Message, Speaker, exited

PIECE = 64 * 1024


class Hasty(Speaker):
    """Output, end marks and result in one breath, and then the end."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["execute"] = self.execute

    def execute(self, message: Message) -> Any:
        request, words = message["id"], message["params"]["argv"]
        more = b""
        if len(words) == 2:
            while not os.path.exists(words[0]):
                time.sleep(0.005)
            more = b"x" * int(words[1])
        for offset in range(0, len(more), PIECE):
            self.output(request, "stdout", offset, more[offset : offset + PIECE])
        last = b"the last words"
        self.output(request, "stdout", len(more), last)
        self.output(request, "stdout", len(more) + len(last), end="seen")
        self.output(request, "stderr", 0, end="seen")
        self.answer(request, exited(0, stdout=len(more) + len(last)))
        os._exit(0)


if __name__ == "__main__":
    Hasty().serve()
