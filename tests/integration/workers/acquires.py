"""Creates sandboxes that are only names, and goes wrong while doing so, as its argument says."""

from typing import Any

from tests.integration.workers.speaker import LATER, Message, Refused, Speaker, lease


class Creator(Speaker):
    """Remembers what exists, so that a test can see what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.way = self.arguments[0]
        self.there: set[str] = set()
        self.pending: Any = None
        self.handlers |= {
            "acquireLease": self.acquire,
            "cancel": self.cancel,
            "listLeases": self.list,
            "attachLease": self.attach,
            "destroyLease": self.destroy,
        }

    def acquire(self, message: Message) -> Any:
        params = message["params"]
        self.pending = message["id"]
        self.name = params["sandboxId"]
        self.record("acquires", way=self.way)
        match self.way:
            case "refuses":
                raise Refused(-32014, "no more", condition="QuotaExceeded", dispatched="no")
            case "fails half way":
                self.there.add(self.name)
                raise Refused(-32025, "the vendor is gone", condition="Unavailable", dispatched="unknown")
            case "answers nonsense":
                self.there.add(self.name)
                return {"handle": 7}
            case "enforces something else":
                self.there.add(self.name)
                return lease(self.name) | {"egress": {"mode": "all"}}
            case "enforces what it says":
                self.there.add(self.name)
                return lease(self.name) | {"egress": params["egress"]}
        return LATER

    def cancel(self, message: Message) -> None:
        request = message["params"]["id"]
        if request != self.pending:
            return
        self.record("cancelled")
        match self.way:
            case "had nothing":
                self.refuse(request, -32026, "nothing was created", condition="Cancelled", dispatched="no")
            case "does not know":
                self.there.add(self.name)
                self.refuse(request, -32026, "perhaps", condition="Cancelled", dispatched="unknown")
            case "crosses":
                self.there.add(self.name)
                self.answer(request, lease(self.name))

    def list(self, message: Message) -> Any:
        self.record("lists")
        wanted = message["params"]["sandboxId"]
        found = [{"sandboxId": name, "handle": f"scripted:{name}"} for name in self.there if name == wanted]
        if self.way == "comes late" and self.pending in self.open:
            # The host has looked and found nothing: now the create succeeds after all.
            self.answer(message["id"], {"leases": found})
            self.there.add(self.name)
            self.answer(self.pending, lease(self.name))
            return LATER
        return {"leases": found}

    def attach(self, message: Message) -> Message:
        name = message["params"]["sandboxId"]
        return {"state": "attached", "lease": lease(name)} if name in self.there else {"state": "gone"}

    def destroy(self, message: Message) -> Message:
        name = message["params"]["sandboxId"]
        there = name in self.there
        self.there.discard(name)
        self.record("destroyed", left=len(self.there))
        return {"state": "destroyed" if there else "gone"}


if __name__ == "__main__":
    Creator().serve()
