"""One lease that this host holds, from the moment that its sandbox is there to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sandport.closing import finished_within
from sandport.errors import LeaseLost, SandportError
from sandport.log import Log
from sandport.numbers import Timing
from sandport.store.errors import InUse, Stale, StoreUnusable
from sandport.store.records import Ref
from sandport.store.store import Store
from sandport.witness import NO_LEASE_WITNESS, LeaseWitness

from .attachment import Attachment
from .clean_up import CleanUp
from .request import LeaseRequest

Spawn = Callable[[Coroutine[Any, Any, bool], str], "asyncio.Task[bool]"]
"""Start a task that the host waits for before it closes the journal."""


class Tenure:
    """A lease, its journal, and the sandbox that it is a right to.

    Attributes:
        lease_id: Its id.
        ref: The generation of the sandbox that it is a right to.
        kept: Whether it outlives its block.
    """

    def __init__(
        self,
        ref: Ref,
        request: LeaseRequest,
        attachment: Attachment,
        *,
        store: Store,
        instance: str,
        clean_up: CleanUp,
        spawn: Spawn,
        timing: Timing,
        log: Log,
        witness: LeaseWitness = NO_LEASE_WITNESS,
    ) -> None:
        self.lease_id = request.lease_id
        self.kept = request.keep
        self.ref = ref
        self._request = request
        self._witness = witness
        self._attachment = attachment
        self._store = store
        self._instance = instance
        self._clean_up = clean_up
        self._spawn = spawn
        self._timing = timing
        self._log = log
        self._ending: asyncio.Task[bool] | None = None

    async def keep(self, name: str | None) -> None:
        """Have it outlive its block.

        Raises:
            NotAuthorised: A plugin refuses; nothing was changed.
            NameTaken: Another lease that has not ended has the name; nothing was changed.
            LeaseLost: It has ended.
            InUse: Another process holds it, which alone can keep it.
        """
        await self._witness.keeping(self._request, name)
        # The journal first: one that the provider keeps and no row does would be ended by the next recovery.
        try:
            await self._store.keep(self.lease_id, by=self._instance, name=name)
        except Stale as stale:
            raise _not_kept(self.lease_id, stale) from None
        self.kept = True
        await self._attachment.set_keep(True)

    async def end(self, reason: str) -> bool:
        """End the lease and the sandbox; True once that is confirmed, at most the close grace later.

        Repeat: one at a time; a second caller waits for the same end, or confirms it.
        Cancel: goes on to the end or the bound; the cancel is raised then.
        """
        self.kept = False
        if self._ending is None or (self._ending.done() and not self._confirmed()):
            self._ending = self._spawn(self._end(reason), f"sandport end {self.ref.sandbox_id}")
        grace_s = self._timing.close_grace_s
        if not await finished_within(self._ending, grace_s):
            self._log("error", f"the end of the sandbox is not confirmed after {grace_s:g} s, and still waited for")
            return False
        return self._ending.result()

    def _confirmed(self) -> bool:
        return self._ending is not None and not self._ending.cancelled() and self._ending.result()

    async def _end(self, reason: str) -> bool:
        with self._clean_up.holding(self.ref.sandbox_id):
            return await self._end_held(reason)

    async def _end_held(self, reason: str) -> bool:
        try:
            # Its own block ends it, whoever else runs a command in it.
            row = await self._store.ending(self.ref, by=self._instance, reason=reason, force=True)
        except (Stale, InUse) as stale:
            return await self._ended_elsewhere(stale)
        except StoreUnusable as error:
            self._clean_up.owed[self.ref.sandbox_id] = reason
            confirmed = await self._end_unwritten(error)
            self._witness.ended(self._request, reason, confirmed=confirmed)
            return confirmed
        try:
            attempted = await self._clean_up.settle(row, self._attachment)
        except StoreUnusable as error:
            self._log("error", f"what became of the sandbox cannot be written down, clean-up looks again: {error}")
            return False
        if attempted.end == "later":
            self._log("error", f"the end of the sandbox is not confirmed: {attempted.detail}")
        return attempted.end == "gone"

    async def _ended_elsewhere(self, why: Stale | InUse) -> bool:
        """Another process ended it, or is at it; nothing of it is ours any more."""
        self._attachment.lose("another process ended it")
        row = why.row
        gone = row is None or row.state == "gone" or row.generation != self.ref.generation
        self._witness.ended_elsewhere(self._request, confirmed=gone)
        if row is None or gone:
            return True
        self._log("warning", f"the end of the sandbox is left to another process: it is {row.state}")
        return False

    async def _end_unwritten(self, error: StoreUnusable) -> bool:
        """The journal cannot be written now: clean-up does it once it can, and the sandbox must end now."""
        self._log("error", f"the end of the lease cannot be written down: {error}")
        try:
            await self._attachment.destroy()
        except SandportError as failure:
            self._log("error", f"the end of the sandbox is not confirmed: {failure}")
            return False
        return True

    async def release(self) -> None:
        """The block is over, the lease is kept: it is nobody's now.

        Raises:
            StoreUnusable: The journal cannot be written; the next start lets it go.
        """
        try:
            # A worker may have died over `keep`: the journal has it then, and the provider has not.
            async with asyncio.timeout(self._timing.close_grace_s):
                await self._attachment.confirm_keep()
        except (SandportError, TimeoutError) as error:
            self._log("warning", f"the provider may not know that the sandbox is kept: {error}")
        try:
            await self._store.release(self.lease_id, by=self._instance)
        except Stale as stale:
            self._log("warning", f"the kept lease had ended before its block: {stale}")
            gone = stale.row is not None and stale.row.state == "gone"
            self._witness.ended_elsewhere(self._request, confirmed=gone)
        self._witness.released(self._request)


def _not_kept(lease_id: str, stale: Stale) -> SandportError:
    if stale.row is not None and stale.lease is not None and stale.lease.state != "ended":
        return InUse(
            f"lease {lease_id} cannot be kept here: it belongs to another process, which alone can keep it",
            uses=(),
            row=stale.row,
        )
    why = stale.lease.reason if stale.lease is not None else ""
    ended = f"it has ended{f' ({why})' if why else ''}"
    return LeaseLost(f"lease {lease_id} cannot be kept: {ended}; take a new one, with keep=True", dispatched="no")
