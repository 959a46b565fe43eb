"""Answers NotAttached until it was attached often enough: ARGUMENTS are how often, and what it says of the effect."""

from typing import Any

from tests.integration.workers.speaker import Message, Refused, Speaker, lease


class Forgetful(Speaker):
    """Knows a sandbox only after it was attached that many times."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted, self.dispatched = int(self.arguments[0]), self.arguments[1]
        self.attached = 0
        self.handlers |= {"execute": self.execute, "attachLease": self.attach}

    def attach(self, message: Message) -> Message:
        self.attached += 1
        return {"state": "attached", "lease": lease(message["params"]["sandboxId"])}

    def execute(self, message: Message) -> Any:
        if self.attached < self.wanted:
            raise Refused(-32011, "attach it first", condition="NotAttached", retry="now", dispatched=self.dispatched)
        self.record("executes")
        return self.succeed(message)


if __name__ == "__main__":
    Forgetful().serve()
