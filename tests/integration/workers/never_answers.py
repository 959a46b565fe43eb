"""Takes every execute and never answers it. `--confirms`: a cancel is. `--forgets`: its pongs do not list it.
`--deaf`: after the first execute it answers nothing any more, pings included."""

import threading
from typing import Any

from tests.integration.workers.speaker import LATER, Message, Speaker


class Sphinx(Speaker):
    """Silent on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.handlers |= {"execute": self.execute, "cancel": self.cancel}
        if "--forgets" in self.arguments:
            self.handlers["ping"] = lambda message: {"open": []}

    def execute(self, message: Message) -> Any:
        self.output(message["id"], "stdout", 0, b"partial")
        self.record("executes", id=message["id"], open=len(self.open))
        if "--deaf" in self.arguments:
            threading.Event().wait()
        if "--forgets" in self.arguments:
            self.write(b"junk\n")
        return LATER

    def cancel(self, message: Message) -> None:
        request = message["params"]["id"]
        if "--confirms" in self.arguments and request in self.open:
            self.refuse(request, -32026, "stopped", condition="Cancelled", dispatched="yes")
        self.record("cancelled", id=request, open=len(self.open))


if __name__ == "__main__":
    Sphinx().serve()
