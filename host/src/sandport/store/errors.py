"""How a store fails.

```text
SandportError
  Stale            the row is not what the caller thought; carries it as it is now
  InUse            another instance uses the lease; carries the uses
  UsageError
    NameTaken      a lease that has not ended has this name
    LeaseUnknown   no lease is called this; names the nearest
    StoreUnusable  the file, its folder or its disk does not do what a store needs; says what to do
      StoreTooNew    a newer Sandport wrote it
      StoreClosed    it was closed, or belongs to another process
```

None of them leaves half of what was asked for. After all but StoreUnusable nothing has changed; after StoreUnusable
`dispatched` is `no`, or `unknown` where the disk failed while it confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandport.errors import SandportError, UsageError

from .records import LeaseRow, SandboxRow, Use

__all__ = ["InUse", "LeaseUnknown", "NameTaken", "Stale", "StoreClosed", "StoreTooNew", "StoreUnusable"]


class Stale(SandportError):
    """The state, generation or owner of the row is not what the caller thought; nothing was changed.

    Attributes:
        row: The sandbox as it is now; None where there is none of this id.
        lease: The lease as it is now, where the call was about a lease.
    """

    def __init__(self, message: str, *, row: SandboxRow | None = None, lease: LeaseRow | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.lease = lease


class InUse(SandportError):
    """Another instance uses the lease; nothing was changed.

    Attributes:
        uses: Who uses it; those of the caller's own are not among them.
        row: The sandbox as it is now.
    """

    def __init__(self, message: str, *, uses: Sequence[Use], row: SandboxRow) -> None:
        super().__init__(message)
        self.uses = tuple(uses)
        self.row = row


class NameTaken(UsageError):
    """A lease that has not ended has this name.

    Attributes:
        name: The name.
        lease_id: Whose it is.
    """

    def __init__(self, name: str, lease_id: str) -> None:
        super().__init__(f"the name {name!r} belongs to lease {lease_id}; choose another, or end that lease first")
        self.name = name
        self.lease_id = lease_id


class LeaseUnknown(UsageError):
    """No lease has this id, name, sandbox or beginning of an id, or several have that beginning.

    Attributes:
        asked: What was asked for.
        nearest: Ids and names that are like it, the likeliest first; all that begin with it where several do.
    """

    def __init__(self, message: str, *, asked: str, nearest: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.asked = asked
        self.nearest = tuple(nearest)


class StoreUnusable(UsageError):
    """The store cannot be read or written; the message names the file, the cause and what to do."""


class StoreTooNew(StoreUnusable):
    """A newer Sandport wrote the store; this one does not touch it."""


class StoreClosed(StoreUnusable):
    """The store was closed, or was opened by the process that this one was forked from."""
