"""Hosts over one journal and one vendor, in virtual time: what the lease layer may never do, whatever happens.

Real: the book, its clean-up and recovery, the store's SQL, the host's `WorkerClient`, the SDK's `Dispatcher`. In
memory: the disk, the pipes, the vendor. A killed host does nothing more: its journal takes nothing, and its workers
hear nothing.

Every step has arguments that JSON can say, and can be done in any state: a step that finds nothing to do does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from sandport.errors import SandportError
from sandport.lease.deaths import Dead
from sandport.lease.request import LeaseRequest
from sandport.sandbox import Sandbox
from sandport.store import file
from sandport.store.errors import InUse

from .memory_disk import Trouble
from .memory_host import HostSim
from .memory_vendor import MemoryVendor, Plan
from .virtual_loop import LoopClock, VirtualLoop

HOSTS = 2
TTL_S = 3600.0
PATIENCE_S = 2 * TTL_S
"""After so long without a fault nothing may be left that nobody wants."""


class Held(Struct):
    """One lease, as somebody outside sees it."""

    number: int
    host: HostSim
    request: LeaseRequest
    task: asyncio.Task[None] = None  # type: ignore[assignment]
    leave: asyncio.Event = None  # type: ignore[assignment]
    sandbox: Sandbox | None = None
    expires_at_s: float = 0.0
    forced: bool = False
    """Somebody ended it over its holder's head, or tried to."""
    over: bool = False
    """The block has ended."""
    run_lives: bool = False

    @property
    def id(self) -> str:
        """Of the sandbox that it got."""
        return self.sandbox.id if self.sandbox is not None else self.request.sandbox_id


class LeaseWorld:
    """Everything, from the first host to the last."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = LoopClock(self.loop)
        self.store_id = "st" + "a" * 26
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.execute("PRAGMA foreign_keys = ON")
        self._random = random.Random(0)
        file.migrate(self.db, Path("memory"))
        self.vendor = MemoryVendor(self.clock.now_s)
        self.hosts: dict[int, HostSim] = {}
        self.past: list[HostSim] = []
        self.leases: list[Held] = []
        self.logged: list[str] = []
        self._opened = 0
        self._sdk_log = logging.getLogger("sandport_sdk")
        self._sdk_level = self._sdk_log.level
        self._sdk_log.setLevel(logging.CRITICAL + 1)
        self._ran: list[asyncio.Task[Any]] = []

    # -------------------------------------------------------------- what the book asks

    async def look(self, owners: frozenset[str]) -> Dead:
        """Who is dead; one that was closed in order is, too."""
        alive = {host.instance for host in self.hosts.values() if host.alive}
        return Dead(owners=frozenset(owners - alive))

    async def end_workers(self, instance: str) -> list[str]:
        """Kill what the dead left."""
        for host in self.past:
            if host.instance == instance:
                for worker in host.workers.all:
                    worker.life.over = True
        return []

    async def clear(self, named: frozenset[str]) -> None:
        """There are no files."""

    def is_run_live(self, run: str) -> bool:
        """What the embedder says."""
        return self.leases[int(run)].run_lives

    def take_log(self, level: str, event: str, fields: dict[str, Any]) -> None:
        """Keep what must not be said."""
        if level == "critical":
            self.logged.append(event)

    def task(self, work: Any) -> asyncio.Task[Any]:
        """Run something until it ends by itself."""
        task = self.loop.create_task(work)
        self._ran.append(task)
        return task

    def in_loop(self, make: Callable[[], Any]) -> Any:
        """Call something that needs a running loop."""
        made: list[Any] = []
        self.loop.call_soon(lambda: made.append(make()))
        self.loop.turn()
        return made[0]

    # -------------------------------------------------------------- steps: hosts

    def open(self, which: int) -> None:
        """A host starts, where none of this number runs."""
        if which not in self.hosts:
            self._opened += 1
            self.hosts[which] = self.in_loop(lambda: HostSim(self, self._opened))
            self.loop.settle()

    def kill(self, which: int) -> None:
        """A host is killed."""
        host = self.hosts.pop(which, None)
        if host is not None:
            host.kill()
            self.past.append(host)
            self.loop.settle()

    def close_host(self, which: int) -> None:
        """A host is closed in order, its blocks first."""
        host = self.hosts.get(which)
        if host is None:
            return
        for held in self.leases:
            if held.host is host and not held.over:
                held.leave.set()
                held.task.cancel()
        blocks = [held.task for held in self.leases if held.host is host and not held.task.done()]

        async def whole() -> None:
            if blocks:
                await asyncio.wait(blocks)
            await host.close()

        closing = self.task(whole())
        self._run_until(closing)
        del self.hosts[which]
        self.past.append(host)
        self.loop.settle()

    def _run_until(self, task: asyncio.Task[Any]) -> None:
        limit_s = self.loop.time() + 200
        while not task.done():
            assert self.loop.time() < limit_s, f"{task!r} does not end"
            self.loop.advance(0.5)
        task.result()

    # -------------------------------------------------------------- steps: leases

    def lease(self, which: int, plan: Plan, keep: bool, lives: bool) -> None:
        """Somebody asks for a lease, and the vendor does with it what the plan says."""
        host = self.hosts.get(which)
        if host is None:
            return
        number = len(self.leases)
        letters = f"{number:026d}".translate(str.maketrans("0123456789", "abcdefghij"))
        request = LeaseRequest(
            sandbox_id=f"sp{letters}",
            lease_id=f"le{letters}",
            provider="memory",
            environment="memory",
            config=Raw(b"{}"),
            secrets={},
            env={},
            egress=None,
            workload=None,
            ttl_s=TTL_S,
            keep=keep,
            run=str(number),
        )
        held = Held(number, host, request, run_lives=lives)
        self.leases.append(held)
        held.leave = asyncio.Event()
        self.vendor.plan = plan
        held.task = self.task(self._block(held))
        self.loop.settle()
        self.vendor.plan = "works"

    async def _block(self, held: Held) -> None:
        book = held.host.book
        try:
            held.sandbox = await book.acquire(held.request, held.host.workers)
            row = await book.store.sandbox(held.id)
            held.expires_at_s = (row.expires_at_ms or 0) / 1000 if row is not None else 0.0
            try:
                with book.holding(held.sandbox):
                    await held.leave.wait()
            finally:
                held.leave.set()
                await held.sandbox.leave()
        except (SandportError, asyncio.CancelledError):
            pass
        finally:
            held.over = True

    def leave(self, pick: int) -> None:
        """A block ends."""
        blocks = [held for held in self.leases if held.host.alive and held.sandbox and not held.leave.is_set()]
        if blocks:
            blocks[pick % len(blocks)].leave.set()
            self.loop.settle()

    def cancel(self, pick: int, turns: int) -> None:
        """Somebody who asks for a lease, or holds one, is cut off, some turns later."""
        blocks = [held for held in self.leases if held.host.alive and not held.task.done()]
        if blocks:
            self.loop.turn(turns)
            held = blocks[pick % len(blocks)]
            held.leave.set()
            held.task.cancel()
            self.loop.settle()

    def end(self, which: int, pick: int, force: bool) -> None:
        """Somebody ends a lease by its id."""
        host = self.hosts.get(which)
        if host is None or not self.leases:
            return
        held = self.leases[pick % len(self.leases)]
        asking = held.host.alive and held.sandbox is None
        in_use = held.host.alive and not held.task.done() and (asking or held.host is not host)
        if (force or not in_use) and not asking:
            held.forced = True

        async def ended() -> None:
            try:
                await host.book.end(held.request.lease_id, reason="asked for", force=force)
            except InUse:
                # One that nobody ever got may be in the hands of whoever cleans up after it.
                assert in_use or held.sandbox is None, "InUse where nobody uses it"
                assert held.sandbox is None or not force, "InUse in spite of force"
            except SandportError:
                pass  # the disk, or it never was

        ending = self.task(ended())
        self.loop.settle()
        if ending.done():
            ending.result()

    def _is_held(self, held: Held) -> bool:
        return held.sandbox is not None and held.host.alive and not held.leave.is_set()

    def stop_living(self, pick: int) -> None:
        """The embedder says that a run is over."""
        if self.leases:
            self.leases[pick % len(self.leases)].run_lives = False

    # -------------------------------------------------------------- steps: what goes wrong

    def crash_worker(self, which: int) -> None:
        """The worker of a host dies."""
        host = self.hosts.get(which)
        if host is not None and host.workers.current is not None:
            host.workers.current.crash()
            self.loop.settle()

    def disk(self, which: int, trouble: Trouble) -> None:
        """The disk fails at the next write of a host."""
        host = self.hosts.get(which)
        if host is not None:
            host.writer.trouble = trouble

    def outage(self, for_s: int) -> None:
        """The vendor answers nothing else than that it is down."""
        self.vendor.down_until_s = self.clock.now_s() + for_s

    def wait(self, for_s: int) -> None:
        """Time passes."""
        self.loop.advance(for_s)

    # -------------------------------------------------------------- what must hold

    def check(self) -> None:
        """After every step."""
        self.vendor.expire()
        twice = {name for name in self.vendor.creates if self.vendor.creates.count(name) > 1}
        assert not twice, f"one id served two creates: {twice}"
        for held in self.leases:
            if self._wanted(held):
                assert held.id in self.vendor.entries, f"lease {held.number} is held, and its sandbox was destroyed"
        rows = self._rows()
        for name in self.vendor.entries:
            assert name in rows, f"no row knows of {name}"
            assert rows[name] != "gone", f"the row of {name} says that it is gone"
        assert not self.logged, self.logged
        assert not self.loop.faults, self.loop.faults

    def _rows(self) -> dict[str, str]:
        return dict(self.db.execute("SELECT id, state FROM sandbox").fetchall())

    def _wanted(self, held: Held) -> bool:
        """Whether somebody counts on the sandbox."""
        if held.sandbox is None or held.forced or self.clock.now_s() >= held.expires_at_s - 1:
            return False
        if held.request.keep:
            return True
        return self._is_held(held) or (not held.host.alive and not held.leave.is_set() and held.run_lives)

    def finish(self) -> None:
        """No more faults: whatever nobody wants must go, whatever somebody wants must stay."""
        for host in self.hosts.values():
            host.writer.trouble = None
        for held in self.leases:
            held.run_lives = False
        for which in list(self.hosts):
            self.close_host(which)
        self.open(0)
        end_s = self.clock.now_s() + PATIENCE_S
        while self.clock.now_s() < end_s and (self._unwanted() or self._pending()):
            self.loop.advance(15)
            self.check()
        assert not self._unwanted(), f"left running: {self._unwanted()}"
        assert not self._pending(), f"left in the journal: {self._pending()}"
        self.check()
        self.close_host(0)

    def _unwanted(self) -> set[str]:
        self.vendor.expire()
        return set(self.vendor.entries) - {held.id for held in self.leases if self._wanted(held)}

    def _pending(self) -> dict[str, str]:
        wanted = {held.id for held in self.leases if self._wanted(held)}
        return {name: state for name, state in self._rows().items() if state != "gone" and name not in wanted}

    def close(self) -> None:
        """Let go of everything."""
        self.loop.set_exception_handler(lambda loop, context: None)
        for host in [*self.past, *self.hosts.values()]:
            host.writer.end()
            host.workers.closed = True
            for worker in host.workers.all:
                worker.silenced = False
                worker.life.over = False
                worker.crash()
        for _ in range(20):
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.advance(60)
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.db.close()
        self.loop.close()
        self._sdk_log.setLevel(self._sdk_level)
