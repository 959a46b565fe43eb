"""What dead hosts of this store left: their workers ended, their rows sorted.

The workers of a dead host are ended before its rows are looked at: a create that one of them still had under way could
otherwise appear after everybody had stopped looking.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from sandport.log import Log
from sandport.store.errors import Stale
from sandport.store.records import LeaseRow, SandboxRow
from sandport.store.store import Store

from .deaths import Deaths

IsRunLive = Callable[[str], bool | Awaitable[bool]]
"""Whether the run of this id goes on although the process that leased for it is dead."""


class Sorted(Struct, frozen=True, kw_only=True):
    """What was found out, and done in the journal alone."""

    dead: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    """Sandboxes of dead owners that go on: kept, or of a run that the embedder says is live or says nothing of."""


class Recovery:
    """Finds dead owners and sorts what they left.

    Args:
        store: The journal.
        instance: Who acts.
        deaths: Who knows which instances are dead.
        is_run_live: The embedder's word on runs; without it the leases of a dead owner end.
        patience_s: So long it may take; without an answer by then the run's sandbox is left alone until the next look.
        log: Where what is found is noted.
    """

    def __init__(
        self,
        store: Store,
        instance: str,
        deaths: Deaths,
        *,
        is_run_live: IsRunLive | None,
        patience_s: float,
        log: Log,
    ) -> None:
        self._store = store
        self._instance = instance
        self._deaths = deaths
        self._is_run_live = is_run_live
        self._patience_s = patience_s
        self._log = log
        self._workers_ended: set[str] = set()

    async def sort(self) -> Sorted:
        """Look for dead owners, end their workers, let go or take over what goes on.

        Raises:
            StoreUnusable: The journal cannot be read or written.

        Repeat: finds the same, less what was cleaned up meanwhile.
        """
        owners = await self._store.owners() - {self._instance}
        dead = await self._deaths.look(owners)
        # Those that own nothing may have left a worker that does not end.
        unsorted = (dead.owners | dead.others) - self._workers_ended
        await asyncio.gather(*map(self._end_workers, sorted(unsorted)))
        if dead.others:
            await self._deaths.clear(owners)
        if not dead.owners:
            return Sorted()
        rows = [row for row in await self._store.sandboxes(owners=dead.owners) if row.state == "leased"]
        leases = {row.id: await self._store.lease(row.id) for row in rows}
        runs = sorted(
            {one.run for one in leases.values() if one.state == "active" and not one.kept and one.run is not None}
        )
        # Side by side: one that does not answer takes its own time, and nobody else's.
        lives = dict(zip(runs, await asyncio.gather(*map(self._lives, runs)), strict=True))
        spared = set()
        for row in rows:
            if await self._goes_on(row, leases[row.id], lives, dead.owners):
                spared.add(row.id)
        await self._store.unuse_all(dead.owners)
        return Sorted(dead=dead.owners, spared=frozenset(spared))

    async def _end_workers(self, instance: str) -> None:
        self._log("info", f"host {instance} is dead; what it left is cleaned up")
        for left in await self._deaths.end_workers(instance):
            self._log("warning", f"something of a dead host still runs and is left alone: {left}")
        self._workers_ended.add(instance)

    async def _goes_on(
        self, row: SandboxRow, lease: LeaseRow, words: Mapping[str, bool | None], dead: frozenset[str]
    ) -> bool:
        if lease.state != "active":
            return False
        try:
            if lease.kept:
                await self._store.claim(row.ref, by=self._instance, dead=dead)
                await self._store.release(lease.id, by=self._instance)
                return True
            lives = words.get(lease.run, False) if lease.run is not None else False
            if not lives:
                return lives is None
            await self._store.claim(row.ref, by=self._instance, dead=dead)
        except Stale:
            return True  # another host was faster, and its rows are not for us
        self._log("info", f"lease {lease.id} goes on: its run {lease.run!r} lives", sandbox=row.id)
        return True

    async def _lives(self, run: str) -> bool | None:
        """The embedder's word; None where it cannot be had now: its lease is left alone, and asked for again."""
        if self._is_run_live is None:
            return False
        try:
            # Whoever ends a lease waits for it.
            async with asyncio.timeout(self._patience_s):
                answer = self._is_run_live(run)
                return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:  # noqa: BLE001 - the embedder's; all that is not of this run must go on
            self._log("error", f"is_run_live failed for the run {run!r}, whose sandbox is left alone: {error!r}")
            return None

    async def clear(self) -> None:
        """Forget instances that are dead and that no row names any more."""
        await self._deaths.clear(await self._store.owners())
