"""Sends output without regard to credit where the program is called `flood`, and up to its credit for `fill`."""

from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker, exited

PIECE = 64 * 1024


class Overdrawer(Speaker):
    """Every other program says `ok`."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers |= {"execute": self.execute, "cancel": self.cancel}

    def execute(self, message: Message) -> Any:
        request, program = message["id"], message["params"]["argv"][0]
        credit = self.hello["limits"]["creditBytes"]
        if program not in ("flood", "fill"):
            return self.succeed(message, b"ok")
        size = credit if program == "fill" else 64 * credit
        for offset in range(0, size, PIECE):
            self.output(request, "stdout", offset, b"x" * PIECE)
        if program == "flood":
            return LATER
        self.output(request, "stdout", size, end="seen")
        self.output(request, "stderr", 0, end="seen")
        return exited(0, stdout=size)

    def cancel(self, message: Message) -> None:
        request = message["params"]["id"]
        if request in self.open:
            self.record("cancelled", id=request)
            self.refuse(request, -32026, "stopped", condition="Cancelled", dispatched="yes")


if __name__ == "__main__":
    Overdrawer().serve()
