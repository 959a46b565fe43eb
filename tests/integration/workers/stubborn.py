"""Serves, and does not end: it ignores shutdown, the end of its input and SIGTERM, and writes down what it was told."""

import signal
import threading
from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker


class Stubborn(Speaker):
    """Only SIGKILL ends it."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, self.told)
        self.handlers["shutdown"] = self.ignore

    def told(self, number: int, frame: Any) -> None:
        self.record("signal", number=number)

    def ignore(self, message: Message) -> Any:
        self.record("shutdown")
        return LATER


def main() -> None:
    stubborn = Stubborn()
    stubborn.serve()
    stubborn.record("end of input")
    while True:
        threading.Event().wait(60)


if __name__ == "__main__":
    main()
