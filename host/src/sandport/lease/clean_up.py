"""Ending what nobody holds any more: one attempt at one sandbox, and the queue that never gives up.

```text
intended                    nothing was sent                                  -> gone
creating of a dead owner    becomes doubtful
leased of a dead owner      becomes ending
ending                      destroy; attach first where the worker must       -> gone | due later
doubtful                    list by id, destroy every match, until none was
                            seen for the provider's settle time               -> gone | due later
```

Every row is claimed in the store before it is touched, by one instance alone; whoever fails gives it back with the
time of the next attempt. Nothing here ends a sandbox that a live instance holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from msgspec import Raw, Struct

from sandport.clock import Clock
from sandport.errors import ProviderUnknown, SandportError, UsageError, WorkerStartFailed
from sandport.log import Log
from sandport.numbers import Timing
from sandport.rate_limits import RateLimits
from sandport.store.errors import InUse, Stale, StoreUnusable
from sandport.store.records import Ref, SandboxRow
from sandport.store.store import NOBODY, Store
from sandport.witness import NO_LEASE_WITNESS, LeaseWitness
from sandport.worker.stderr import Level
from sandport_protocol.errors import WireError

from .attachment import Attachment, Workers
from .delays import Delays
from .listing import listed

AT_ONCE = 8
"""Sandboxes of one provider that are ended side by side: a vendor's rate limit is near, and a person waits."""

LONGEST_RETRY_AFTER_S = 3600.0
"""What a vendor asks for beyond this is not heeded: one wrong value must not put an end off for ever."""

End = Literal["gone", "later", "not ours"]
"""Confirmed gone; tried and due again; taken, used or settled by somebody else."""


class Attempted(Struct, frozen=True):
    """What one attempt came to."""

    sandbox_id: str
    provider: str
    end: End
    """`gone`: confirmed. `later`: tried, and due again. `not ours`: another process is at it, or did it."""
    detail: str = ""
    """For a person: what was done, or why it is not confirmed."""


WorkersOf = Callable[[str, str | None], Workers]
"""The workers of a provider and a tenant.

Raises:
    UsageError: The provider is not installed or configured any more.
"""
OnDone = Callable[[Attempted, int, int], None]
"""Told of each attempt, how many are done, and of how many."""


class CleanUp:
    """Ends sandboxes by their rows.

    Args:
        store: The journal.
        instance: Who acts.
        workers_of: Where a row's worker comes from.
        still_creating: Whether the create of this id may still be under way in a worker of this host.
        limits: What holds back the calls of a credential.
        timing: Bounds of the calls.
        delays: Waits between attempts.
        clock: Whose time decides what is due and settled.
        log: Where failures are noted.
        draw: For the jitter of the delays.
        witness: Told of what came of each attempt.
    """

    def __init__(
        self,
        store: Store,
        instance: str,
        workers_of: WorkersOf,
        *,
        still_creating: Callable[[str], bool],
        limits: RateLimits,
        timing: Timing,
        delays: Delays,
        clock: Clock,
        log: Log,
        draw: random.Random,
        witness: LeaseWitness = NO_LEASE_WITNESS,
    ) -> None:
        self._store = store
        self._instance = instance
        self._workers_of = workers_of
        self._still_creating = still_creating
        self._limits = limits
        self._timing = timing
        self._delays = delays
        self._clock = clock
        self._log = log
        self._draw = draw
        self._witness = witness
        self._in_hand: set[str] = set()
        """What an attempt of this host is at: one at a time for a sandbox."""
        self._queued: set[str] = set()
        """What an attempt of this host will be at, as soon as there is a place."""
        self.owed: dict[str, str] = {}
        """Sandboxes of this host whose end could not be written down, and why they end; their rows do not say it."""
        self.closing = False
        """The host ends: what fails now is for whoever comes next, at once."""

    # -------------------------------------------------------------- what is due

    async def write_owed(self) -> None:
        """Write down what the journal could not take when it happened; `due` has it then.

        Raises:
            StoreUnusable: It still cannot.

        Repeat: writes what is left.
        """
        for sandbox_id, reason in tuple(self.owed.items()):
            if sandbox_id in self._in_hand:
                continue
            with self.holding(sandbox_id), contextlib.suppress(Stale):  # then another process has it
                row = await self._store.sandbox(sandbox_id)
                if row is not None and row.owner == self._instance:
                    await self.begin_end(row, reason)
            self.owed.pop(sandbox_id, None)

    async def begin_end(self, row: SandboxRow, reason: str, *, never_made: bool = False) -> SandboxRow | None:
        """Write down that a sandbox of this instance ends, whatever state it is in.

        Args:
            row: As it was read.
            reason: Why its lease ends.
            never_made: It is certain that its create was not sent, or refused.

        Returns:
            The row as it is now, for `settle`; None where there is nothing to end.

        Raises:
            Stale: Another process has it.
            StoreUnusable: The journal cannot be written.

        Repeat: changes nothing more.
        """
        match row.state:
            case "gone":
                return None
            case "creating" if not never_made:
                await self._store.doubtful(row.ref, by=self._instance, reason=reason)
                return await self._read(row)
            case "intended" | "creating":
                await self._refuse(row, reason)
                return None
            case "leased":
                return await self._store.ending(row.ref, by=self._instance, reason=reason, force=True)
        return row

    async def due(self, *, dead: frozenset[str] = NOBODY) -> list[SandboxRow]:
        """What should be looked at now.

        Args:
            dead: Instances that are proven dead, whose workers are gone.
        """
        return await self._store.work(self._clock.now_ms(), by=self._instance, dead=dead)

    @property
    def waiting(self) -> bool:
        """Whether something waits for a place: what is due then may be in good hands already."""
        return bool(self._queued)

    async def once(
        self, rows: Iterable[SandboxRow], *, dead: frozenset[str] = NOBODY, on_done: OnDone | None = None
    ) -> tuple[Attempted, ...]:
        """One attempt at each of these, some of each provider at a time: one that is slow holds up none but itself.

        What another pass of this host is at already is left to that one.

        Args:
            rows: As they were read.
            dead: As in `due`.
            on_done: Told as it goes on.

        Raises:
            StoreUnusable: The journal cannot be read or written.
        """
        chosen = [row for row in rows if row.id not in self._in_hand and row.id not in self._queued]
        places = {row.provider: asyncio.Semaphore(AT_ONCE) for row in chosen}
        done: list[Attempted] = []
        self._queued.update(row.id for row in chosen)

        async def one(row: SandboxRow) -> None:
            async with places[row.provider]:
                self._queued.discard(row.id)
                attempted = await self.attempt(row, dead=dead)
            done.append(attempted)
            if on_done is not None:
                on_done(attempted, len(done), len(chosen))

        try:
            ends = await asyncio.gather(*map(one, chosen), return_exceptions=True)
        finally:
            self._queued.difference_update(row.id for row in chosen)
        for end in ends:
            if isinstance(end, BaseException):
                raise end  # the journal's, and all others are the same
        return tuple(done)

    async def attempt(self, row: SandboxRow, *, dead: frozenset[str] = NOBODY) -> Attempted:
        """Claim a sandbox and try once to end it.

        Raises:
            StoreUnusable: The journal cannot be written.

        Repeat: safe; what is gone stays gone.
        Cancel: the claim stays; this instance, or one that outlives it, tries again.
        """
        if row.id in self._in_hand:
            return Attempted(row.id, row.provider, "not ours", "is being ended")
        try:
            with self.holding(row.id):
                return await self._attempt(row, dead)
        except (Stale, InUse) as refused:
            return _left(row, refused)

    async def _attempt(self, row: SandboxRow, dead: frozenset[str]) -> Attempted:
        reason = "its owner died" if row.owner in dead else "its time is over"
        if row.state in ("leased", "idle"):
            # In one step: a claim would stay where somebody turns out to use it.
            row = await self._store.ending(row.ref, by=self._instance, reason=reason, dead=dead)
            return await self._settle(row, None)
        row = await self._store.claim(row.ref, by=self._instance, dead=dead)
        if row.state == "creating":
            row = await self.begin_end(row, "its owner died while it was created") or row
        return await self._settle(row, None)

    @contextlib.contextmanager
    def holding(self, sandbox_id: str) -> Iterator[None]:
        """For the block, the queue leaves this sandbox to whoever runs it."""
        held = sandbox_id not in self._in_hand
        self._in_hand.add(sandbox_id)
        try:
            yield
        finally:
            if held:
                self._in_hand.discard(sandbox_id)

    async def settle(self, row: SandboxRow, attachment: Attachment | None = None) -> Attempted:
        """Try once to end a sandbox that this instance owns, and note what came of it; call it while `holding` it.

        Args:
            row: In the state `ending`, `doubtful` or `intended`.
            attachment: The sandbox's, where there is one already.

        Raises:
            StoreUnusable: The journal cannot be written.

        Cancel: as for `attempt`.
        """
        try:
            # Whoever calls is told, and says so itself.
            return await self._settle(row, attachment, level="debug")
        except Stale as stale:
            return _left(row, stale)

    async def _read(self, row: SandboxRow) -> SandboxRow:
        found = await self._store.sandbox(row.id)
        if found is None or found.generation != row.generation:
            raise Stale(f"sandbox {row.id} is not what it was", row=found)
        return found

    # -------------------------------------------------------------- one sandbox

    async def _settle(self, row: SandboxRow, attachment: Attachment | None, *, level: Level = "warning") -> Attempted:
        try:
            end = await self._end(row, attachment)
        except (Stale, StoreUnusable):
            raise
        except SandportError as error:
            return await self._failed(row, error, level)
        if end is None:
            return await self._unsettled(row.ref)
        if row.state == "intended":
            await self._refuse(row, "its owner died before it was created")
        else:
            await self._store.gone(row.ref, by=self._instance, what=end)
            await self._witness.row_ended(row, confirmed=True)
        return Attempted(row.id, row.provider, "gone", end)

    async def _refuse(self, row: SandboxRow, reason: str) -> None:
        lease = await self._store.lease(row.id)
        await self._store.refused(row.ref, lease.id, by=self._instance, reason=reason)

    async def _end(self, row: SandboxRow, attachment: Attachment | None) -> Literal["gone", "destroyed"] | None:
        """End it; None where it may still appear."""
        if row.state == "intended":
            return "gone"
        if row.state == "ending" and row.handle is not None:
            return await (attachment or self._attachment(row, row.handle)).destroy()
        return await self._end_by_id(row)

    async def _end_by_id(self, row: SandboxRow) -> Literal["gone", "destroyed"] | None:
        """Destroy every sandbox that the vendor lists under the id of a create whose outcome is not known."""
        open_yet = self._still_creating(row.id)
        workers = self._workers_of(row.provider, row.tenant)
        found = await listed(
            row.provider,
            workers,
            config=Raw(row.config),
            secrets=dict(row.secrets),
            tenant=row.tenant,
            sandbox_id=row.id,
            limits=self._limits,
            timing=self._timing,
        )
        for one in found:
            await self._attachment(row, one.handle).destroy()
        if found or open_yet:
            # From here on it must stay away for the whole settle time: a list may be late in both directions.
            if row.state == "doubtful":
                await self._store.seen(row.ref, by=self._instance, handle=found[0].handle if found else None)
            row = await self._read(row)
        quiet_since_ms = row.quiet_since_ms if row.quiet_since_ms is not None else row.changed_at_ms
        if open_yet or self._clock.now_ms() - quiet_since_ms < row.settle_ms:
            return None
        return "destroyed" if found else "gone"

    def _attachment(self, row: SandboxRow, handle: str) -> Attachment:
        return Attachment(
            row.provider,
            row.id,
            handle,
            config=Raw(row.config),
            secrets=dict(row.secrets),
            tenant=row.tenant,
            workers=self._workers_of(row.provider, row.tenant),
            limits=self._limits,
            timing=self._timing,
            log=self._log.bind(sandbox=row.id),
        )

    # -------------------------------------------------------------- not yet

    async def _unsettled(self, ref: Ref) -> Attempted:
        row = await self._store.sandbox(ref.sandbox_id)
        assert row is not None  # this instance has it
        now_ms = self._clock.now_ms()
        settled_ms = (row.quiet_since_ms or now_ms) + row.settle_ms
        # Looked for in between too: the sooner what appears is ended, the less it costs.
        step_ms = max(round(self._delays.first_s * 1000), row.settle_ms // 8)
        due_ms = max(now_ms + 1, min(settled_ms, now_ms + step_ms))
        detail = f"a create of unknown outcome can still appear for {max(0, settled_ms - now_ms) / 1000:.0f} s"
        return await self._later(row, detail, due_ms, counts=False)

    async def _failed(self, row: SandboxRow, error: SandportError, level: Level) -> Attempted:
        # That no worker can be had says nothing about the sandbox.
        absent = isinstance(error, (WorkerStartFailed, ProviderUnknown, UsageError))
        delay_s = self._delays.absent_s if absent else self._delays.after(row.attempts + 1, draw=self._draw)
        if isinstance(error, WireError) and error.retry_after_s is not None:
            delay_s = max(delay_s, min(error.retry_after_s, LONGEST_RETRY_AFTER_S))
        if self.closing:
            return await self._later(row, str(error), self._clock.now_ms(), counts=False)
        self._log(
            level,
            f"sandbox {row.id} at {row.provider} is not confirmed gone, the next try is in {delay_s:.0f} s: {error}",
            sandbox=row.id,
        )
        return await self._later(row, str(error), self._clock.now_ms() + round(delay_s * 1000), counts=not absent)

    async def _later(self, row: SandboxRow, detail: str, due_ms: int, *, counts: bool) -> Attempted:
        # While its create is under way in a worker of this host it stays this host's: another one would not know of
        # that, see it in no list, and take it for gone.
        if not self._still_creating(row.id):
            await self._store.failed(row.ref, by=self._instance, error=detail, due_at_ms=due_ms, counts=counts)
        await self._witness.row_ended(row, confirmed=False)
        return Attempted(row.id, row.provider, "later", detail)


def _left(row: SandboxRow, refused: Stale | InUse) -> Attempted:
    """What is left to somebody else, in words for people."""
    now = refused.row
    if isinstance(refused, InUse) or now is None or now.owner is None:
        detail = str(refused)
    else:
        detail = f"it is {now.state}, and host {now.owner} has it"
    return Attempted(row.id, row.provider, "not ours", detail)
