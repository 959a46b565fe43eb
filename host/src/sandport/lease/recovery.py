"""What dead hosts of this store left: proven dead by the kernel, their workers ended, their rows sorted.

An owner is dead when its lock can be had, and its workers are ended before its rows are looked at: a create that one
of them still had under way could otherwise appear after everybody had stopped looking.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct

from sandport import instances
from sandport.log import Log
from sandport.store.errors import Stale
from sandport.store.records import SandboxRow
from sandport.store.store import Store
from sandport.worker import survivors

ORPHANS_S = 3.0
"""Workers of a dead host end by themselves within the SDK's drain; after that they are killed."""

IsRunLive = Callable[[str], bool | Awaitable[bool]]
"""Whether the run of this id goes on although the process that leased for it is dead."""


class Sorted(Struct, frozen=True, kw_only=True):
    """What was found out, and done in the journal alone."""

    dead: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    """Sandboxes of dead owners that go on: kept, or of a run that the embedder says is live."""


class Recovery:
    """Finds dead owners and sorts what they left.

    Args:
        store: The journal.
        instance: Who acts.
        root: The home, where instances are.
        is_run_live: The embedder's word on runs; without it the leases of a dead owner end.
        log: Where what is found is noted.
    """

    def __init__(self, store: Store, instance: str, root: Path, *, is_run_live: IsRunLive | None, log: Log) -> None:
        self._store = store
        self._instance = instance
        self._root = root
        self._is_run_live = is_run_live
        self._log = log
        self._workers_ended: set[str] = set()

    async def sort(self) -> Sorted:
        """Look for dead owners, end their workers, let go or take over what goes on.

        Raises:
            StoreUnusable: The journal cannot be read or written.

        Repeat: finds the same, less what was cleaned up meanwhile.
        """
        owners = await self._store.owners() - {self._instance}
        dead, idle = await asyncio.to_thread(self._look, owners)
        # Those that own nothing may have left a worker that does not end.
        await self._end_workers(dead | idle)
        if idle:
            await asyncio.to_thread(instances.clear_dead, self._root, owners)
        if not dead:
            return Sorted()
        spared = set()
        for row in await self._store.sandboxes(owners=dead):
            if row.state == "leased" and await self._goes_on(row, dead):
                spared.add(row.id)
        await self._store.unuse_all(dead)
        return Sorted(dead=dead, spared=frozenset(spared))

    def _look(self, owners: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
        """Dead instances that own something, and dead ones that own nothing; asks the kernel, so in a thread."""
        try:
            known = {name for name in os.listdir(self._root / "instances") if instances.INSTANCE_ID.fullmatch(name)}
        except FileNotFoundError:
            known = set()
        dead = instances.dead(self._root, (known | owners) - {self._instance})
        return dead & owners, dead - owners

    async def _end_workers(self, dead: frozenset[str]) -> None:
        for instance in dead - self._workers_ended:
            self._log("info", f"host {instance} is dead; what it left is cleaned up")
            left = await survivors.end_workers(self._root, instance, patience_s=ORPHANS_S)
            for survivor in left:
                self._log("warning", f"something of a dead host still runs and is left alone: {survivor}")
            self._workers_ended.add(instance)

    async def _goes_on(self, row: SandboxRow, dead: frozenset[str]) -> bool:
        lease = await self._store.lease(row.id)
        if lease.state != "active":
            return False
        try:
            if lease.kept:
                await self._store.claim(row.ref, by=self._instance, dead=dead)
                await self._store.release(lease.id, by=self._instance)
                return True
            if lease.run is None or not await self._lives(lease.run):
                return False
            await self._store.claim(row.ref, by=self._instance, dead=dead)
        except Stale:
            return True  # another host was faster, and its rows are not for us
        self._log("info", f"lease {lease.id} goes on: its run {lease.run!r} lives", sandbox=row.id)
        return True

    async def _lives(self, run: str) -> bool:
        if self._is_run_live is None:
            return False
        answer = self._is_run_live(run)
        return await answer if inspect.isawaitable(answer) else bool(answer)

    async def clear(self) -> None:
        """Forget instances that are dead and that no row names any more."""
        await asyncio.to_thread(instances.clear_dead, self._root, await self._store.owners())
