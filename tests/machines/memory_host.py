"""A host without a process: its book over a journal, a disk and workers in memory, and how it is killed or closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from sandport.lease.book import Book
from sandport.lease.delays import Delays
from sandport.log import Log
from sandport.numbers import Timing
from sandport.store.sqlite import SqliteStore

from .memory_disk import InlineWriter
from .memory_worker import MemoryWorkers

if TYPE_CHECKING:
    from .lease_world import LeaseWorld

TIMING = Timing()


class HostSim:
    """One host: a book, its writer, its workers."""

    def __init__(self, world: LeaseWorld, number: int) -> None:
        self.world = world
        self.instance = f"in{number:026d}"
        self.writer = InlineWriter(world.db, world.loop)
        self.store = SqliteStore(self.writer, world.clock, Path("memory"), world.store_id)  # type: ignore[arg-type]
        self.workers = MemoryWorkers(world.loop, world.vendor, world.store_id, self._late)
        self.alive = True
        self.book = Book(
            self.store,
            self.instance,
            world,
            lambda provider, tenant: self.workers,
            is_run_live=world.is_run_live,
            timing=TIMING,
            delays=Delays(),
            clock=world.clock,
            log=Log(world.take_log, threshold="debug"),
        )
        self.running = world.task(self.book.run())

    def _late(self, method: str, params: Any, result: Raw | None) -> None:
        if method == "acquireLease" and self.alive:
            self.book.late(params.sandbox_id)

    def kill(self) -> None:
        """Its process is gone; what its workers had begun at the vendor goes on there."""
        self.alive = False
        self.writer.dead = True
        for worker in self.workers.all:
            worker.silenced = True

    async def close(self) -> None:
        """As `Host` does it."""
        passed = asyncio.ensure_future(self.book.passed.wait())
        await asyncio.wait((passed,), timeout=TIMING.close_grace_s)
        passed.cancel()
        await self.book.finish(TIMING.close_grace_s)
        self.book.clean_up.closing = True
        self.workers.closed = True
        self.running.cancel()
        for worker in self.workers.all:
            worker.crash()
        await asyncio.wait((self.running,))
        await self.book.finish()
        self.alive = False
