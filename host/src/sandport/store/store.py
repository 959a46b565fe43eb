"""What the host asks of a store; SQLite satisfies it on one machine.

Each method is one transaction: when it returns, what it did is on disk; when it raises, it did nothing (see `errors`
for the one exception, a disk that fails while it confirms). Each change names the generation of the sandbox (`ref`) and
who acts (`by`, an instance's id), compares state, generation and owner in the statement that changes them, and raises
Stale with the row as it is now where they are not what the move needs. Each change but the coming and going of uses
leaves a receipt. A lease that has not ended and its sandbox always have the same owner.

Cancel, for every method: the caller goes on at once, the transaction may be committed all the same. Repeat, unless a
method says otherwise: raises Stale, since the row is past the state that the move starts from.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from .records import Leased, LeaseRow, Receipt, Ref, SandboxRow, SandboxState, Use, What

NOBODY: frozenset[str] = frozenset()


class Store(Protocol):
    """Sandboxes and leases, for several processes at once.

    Attributes:
        store_id: Minted with the store; every vendor resource of it carries this id.
    """

    @property
    def store_id(self) -> str:
        """The store's own id."""
        ...

    async def aclose(self) -> None:
        """Write down what was asked for so far, and close; bounded.

        Repeat: does nothing.
        """
        ...

    # --- getting a sandbox ---

    async def request(self, sandbox: SandboxRow, lease: LeaseRow) -> None:
        """Write down that a sandbox will be created: both rows, and that the owner uses the lease.

        Args:
            sandbox: `intended`, with an owner. Its times are set here.
            lease: `requested`, of the same sandbox, generation and owner.

        Raises:
            NameTaken: A lease that has not ended has the name.
            Stale: A row has one of the ids already.
            ValueError: The rows do not fit each other.
        """
        ...

    async def creating(self, ref: Ref, *, by: str, provider_version: str, settle_ms: int) -> None:
        """The vendor will be asked now; intended -> creating."""
        ...

    async def created(
        self,
        ref: Ref,
        lease_id: str,
        *,
        by: str,
        handle: str,
        lease_result: bytes,
        expires_at_ms: int | None = None,
    ) -> None:
        """The vendor answered; creating -> leased, the lease is active."""
        ...

    async def refused(self, ref: Ref, lease_id: str, *, by: str, reason: str) -> None:
        """It is certain that nothing was created; intended or creating -> gone, the lease has ended."""
        ...

    async def doubtful(self, ref: Ref, *, by: str, reason: str) -> None:
        """Nobody knows whether it was created; creating -> doubtful, the lease has ended.

        It is due for clean-up at once, quiet since now, and stays `by`'s.
        """
        ...

    async def rest(self, ref: Ref, lease_id: str, *, by: str, reason: str) -> None:
        """The lease has ended and the sandbox may serve another; leased -> idle, nobody's.

        Raises:
            InUse: Another instance uses the lease.
        """
        ...

    async def reuse(self, ref: Ref, lease: LeaseRow, *, by: str) -> SandboxRow:
        """Lease an idle sandbox again, as the next generation; idle -> leased. `by` is the only one who gets it.

        Args:
            ref: The generation that rests.
            lease: The new lease: of generation `ref.generation + 1`, owned by `by`.

        Raises:
            NameTaken: A lease that has not ended has the name.
            ValueError: The lease does not fit.
        """
        ...

    # --- ending it ---

    async def ending(
        self, ref: Ref, *, by: str, reason: str, force: bool = False, dead: Collection[str] = NOBODY
    ) -> SandboxRow:
        """The vendor will be asked to end it; leased, idle, doubtful or creating -> ending, the lease has ended.

        The row must be `by`'s or nobody's, and is `by`'s afterwards.

        Args:
            ref: Which one.
            by: Who acts.
            reason: Why the lease ended.
            force: Whatever its owner and its users; they lose it.
            dead: Instances that are known to be dead: what they own or use counts for nothing.

        Returns:
            The row as it is now.

        Raises:
            InUse: Another instance uses the lease.
            Stale: Also: another instance owns it, and no use says why.
        """
        ...

    async def gone(self, ref: Ref, *, by: str, what: What = "destroyed", detail: str = "") -> None:
        """It does not exist (any more); ending, doubtful or creating -> gone. The row must be `by`'s.

        Args:
            ref: Which one.
            by: Who acts.
            what: What the receipt says: `destroyed` by us, or seen to be `gone`.
            detail: How that is known.
        """
        ...

    async def seen(self, ref: Ref, *, by: str, handle: str | None = None) -> None:
        """A doubtful one was listed by its vendor: it is quiet since now only. The row must be `by`'s.

        Repeat: the same again, with the new time.
        """
        ...

    async def failed(self, ref: Ref, *, by: str, error: str, due_at_ms: int, counts: bool = True) -> None:
        """An attempt to end it failed: it is nobody's, and due again later. ending, doubtful or creating; `by`'s.

        Args:
            ref: Which one.
            by: Who acts.
            error: What happened; kept on the row.
            due_at_ms: When to try again.
            counts: Whether it was an attempt; a worker that is not there is none.
        """
        ...

    async def claim(self, ref: Ref, *, by: str, dead: Collection[str] = NOBODY) -> SandboxRow:
        """Take a row of any state but gone that is nobody's or a dead instance's; of several, one gets it.

        The lease of its generation, where it has not ended, goes with it; what dead ones used of it is used no more.

        Args:
            ref: Which one.
            by: Who acts.
            dead: Instances that are known to be dead.

        Returns:
            The row as it is now, owned by `by`.

        Raises:
            Stale: A live instance has it, or it is gone.

        Repeat: returns the row; two tasks of one instance are not kept apart.
        """
        ...

    async def forget(self, sandbox_id: str, *, by: str, reason: str) -> None:
        """The operator's exit: gone as far as the store is concerned, whatever the state, generation and owner.

        Raises:
            Stale: There is no such row, or it is gone.
        """
        ...

    # --- using a lease ---

    async def use(self, lease_id: str, *, by: str) -> Leased:
        """`by` uses an active lease from now on; until `unuse` nobody else ends it without force.

        Returns:
            The lease and its sandbox as they are now.

        Raises:
            LeaseUnknown: There is no such lease.
            Stale: It is not active.

        Repeat: counts: each use needs its `unuse`.
        """
        ...

    async def unuse(self, lease_id: str, *, by: str) -> None:
        """One use is over; nothing happens where there is none (any more)."""
        ...

    async def unuse_all(self, instances: Collection[str]) -> int:
        """Whatever these dead instances used is used no more.

        Returns:
            How many uses were dropped.

        Repeat: drops none.
        """
        ...

    async def keep(self, lease_id: str, *, by: str, name: str | None = None, kept: bool = True) -> LeaseRow:
        """Have a lease outlive its block, or not; and give it a name. It must be `by`'s or nobody's.

        Args:
            lease_id: Which one; it has not ended.
            by: Who acts.
            name: A new name; None leaves the one that it has.
            kept: Whether it is kept. One that was nobody's and is kept no more is `by`'s.

        Raises:
            LeaseUnknown: There is no such lease.
            NameTaken: Another lease that has not ended has the name.
            Stale: It has ended, or is somebody else's.

        Repeat: the same again.
        """
        ...

    async def release(self, lease_id: str, *, by: str) -> None:
        """The block of a kept lease is over: lease and sandbox are nobody's, and `by` uses it once less.

        Raises:
            LeaseUnknown: There is no such lease.
            Stale: It is not active, not kept, or not `by`'s.
        """
        ...

    # --- reading ---

    async def sandbox(self, sandbox_id: str) -> SandboxRow | None:
        """The row of this id, also a gone one; None where there is none."""
        ...

    async def lease(self, which: str) -> LeaseRow:
        """The lease that somebody means.

        Args:
            which: An id, a name, a sandbox's id, or the beginning of an id (four characters at least). A name or a
                sandbox means its lease that has not ended, else the latest. A beginning is looked for among those that
                have not ended, then among the others.

        Raises:
            LeaseUnknown: No lease is called this, or several begin with it.
        """
        ...

    async def leased(self, which: str) -> Leased:
        """The lease that somebody means, and its sandbox, read at one moment.

        Raises:
            LeaseUnknown: See `lease`.
        """
        ...

    async def sandboxes(
        self, *, states: Collection[SandboxState] | None = None, owners: Collection[str | None] | None = None
    ) -> list[SandboxRow]:
        """All rows, oldest first.

        Args:
            states: Only those in one of these states; by default all but gone.
            owners: Only those of one of these owners (None among them: nobody's); by default of any.
        """
        ...

    async def leases(self, *, ended: bool = False) -> list[LeaseRow]:
        """The leases that have not ended, or all, oldest first."""
        ...

    async def uses(self, lease_id: str | None = None) -> list[Use]:
        """Who uses a lease; or all uses."""
        ...

    async def receipts(self, sandbox_id: str) -> list[Receipt]:
        """What was done to a sandbox, in that order."""
        ...

    async def work(self, now_ms: int, *, by: str, dead: Collection[str] = NOBODY) -> list[SandboxRow]:
        """What clean-up should look at: rows whose next attempt is due, the longest due first.

        - of dead owners: every row that is not gone;
        - nobody's: what is intended, creating, ending or doubtful, and what is past the end that its provider attests;
        - `by`'s own: what is ending or doubtful; the caller knows which of them it has in hand.
        """
        ...

    async def next_due_ms(self) -> int | None:
        """When the first of nobody's rows is up for clean-up; it may have passed. None where none waits."""
        ...

    async def owners(self) -> frozenset[str]:
        """All instances that own something that is not over, or use something."""
        ...

    async def counts(self) -> dict[SandboxState, int]:
        """How many sandboxes are in each state; every state is there."""
        ...

    # --- upkeep ---

    async def prune(self, older_than_ms: int) -> int:
        """Drop sandboxes that were gone before this time, with their leases and receipts, some hundreds at once.

        Returns:
            How many sandboxes were dropped.

        Repeat: drops none.
        """
        ...
