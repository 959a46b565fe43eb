"""Writes down every way in which it is asked to stop: SIGINT, SIGTERM, SIGHUP, shutdown, the end of its input."""

import signal
from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker


class Counter(Speaker):
    """Its execute lasts until it is cancelled, or the worker is asked to stop."""

    def __init__(self) -> None:
        super().__init__()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.told)
        self.handlers |= {"shutdown": self.shutdown, "execute": self.execute, "cancel": self.cancel}

    def told(self, number: int, frame: Any) -> None:
        self.record("stop", how=signal.Signals(number).name)

    def shutdown(self, message: Message) -> Message:
        self.record("stop", how="shutdown")
        return {}

    def execute(self, message: Message) -> Any:
        self.record("executes")
        return LATER

    def cancel(self, message: Message) -> None:
        self.record("cancelled")
        self.refuse(message["params"]["id"], -32026, "stopped", condition="Cancelled", dispatched="yes")


def main() -> None:
    counter = Counter()
    counter.serve()
    counter.record("stop", how="end of input")


if __name__ == "__main__":
    main()
