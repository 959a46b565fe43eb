"""Answers every execute with an error of the code and effect that its arguments say, and counts them."""

from typing import Any

from tests.integration.workers.speaker import Message, Refused, Speaker


class Failing(Speaker):
    """Never succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers["execute"] = self.execute

    def execute(self, message: Message) -> Any:
        self.record("executes")
        raise Refused(int(self.arguments[0]), "it did not work", dispatched=self.arguments[1], retry="now")


if __name__ == "__main__":
    Failing().serve()
