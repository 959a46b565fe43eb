"""Rows and stores for the tests, and two instances that share a store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from sandport.clock import VirtualClock
from sandport.store.records import Leased, LeaseRow, Ref, SandboxRow, SandboxState
from sandport.store.sqlite import SqliteStore
from sandport.store.store import Store

A, B, C = "in-a", "in-b", "in-c"
"""Instances; a store takes any text for one."""

Factory = Callable[[VirtualClock], Awaitable[Store]]
"""Opens the same store again each time, as another process would."""


def sandbox_row(sandbox_id: str, *, owner: str | None = A, tenant: str | None = None) -> SandboxRow:
    """A sandbox that is asked for."""
    return SandboxRow(
        id=sandbox_id,
        provider="local",
        environment="here",
        config=b'{"image":"x"}',
        secrets={"token": "reference"},
        tenant=tenant,
        owner=owner,
    )


def lease_row(
    lease_id: str, sandbox_id: str, *, owner: str | None = A, name: str | None = None, kept: bool = False
) -> LeaseRow:
    """The lease that it is asked for with."""
    return LeaseRow(
        id=lease_id,
        sandbox_id=sandbox_id,
        environment="here",
        owner=owner,
        name=name,
        kept=kept,
        run="run-1",
        tenant="tenant-1",
        principal="principal-1",
        workspace="workspace-1",
        work_item="item-1",
        workload="workload-1",
        env={"TEXT": "text", "BYTES": b"\xff\x00"},
    )


def next_lease(ref: Ref, lease_id: str, owner: str, *, name: str | None = None) -> LeaseRow:
    """A lease of the generation after one that rests."""
    return LeaseRow(
        id=lease_id,
        sandbox_id=ref.sandbox_id,
        generation=ref.generation + 1,
        state="active",
        environment="here",
        owner=owner,
        name=name,
    )


class Books:
    """One store opened by two instances, A and B, and ways to get a sandbox into a state."""

    def __init__(self, factory: Factory) -> None:
        self.clock = VirtualClock()
        self._factory = factory
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        self.a = await self.open()
        self.b = await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def open(self) -> Store:
        """The store once more; closed with the books."""
        store = await self._factory(self.clock)
        self._stack.push_async_callback(store.aclose)
        return store

    async def requested(self, *, by: str = A, name: str | None = None, kept: bool = False) -> Leased:
        """A sandbox that is intended."""
        number = next(self._numbers)
        sandbox_id, lease_id = f"sp{number:026}", f"le{number:026}"
        await self.a.request(
            sandbox_row(sandbox_id, owner=by), lease_row(lease_id, sandbox_id, owner=by, name=name, kept=kept)
        )
        return await self.a.leased(lease_id)

    async def creating(self, *, by: str = A, name: str | None = None, kept: bool = False) -> Leased:
        """One whose vendor is being asked."""
        ref = (await self.requested(by=by, name=name, kept=kept)).sandbox.ref
        await self.a.creating(ref, by=by, provider_version="1.2", settle_ms=5000)
        return await self.a.leased(ref.sandbox_id)

    async def leased(
        self, *, by: str = A, name: str | None = None, kept: bool = False, expires_at_ms: int | None = None
    ) -> Leased:
        """One that is there."""
        asked = await self.creating(by=by, name=name, kept=kept)
        await self.a.created(
            asked.sandbox.ref,
            asked.lease.id,
            by=by,
            handle="handle",
            lease_result=b"{}",
            expires_at_ms=expires_at_ms,
        )
        return await self.a.leased(asked.lease.id)

    async def let_go(self, *, by: str = A, name: str | None = None, expires_at_ms: int | None = None) -> Leased:
        """A kept one whose block is over."""
        had = await self.leased(by=by, name=name, kept=True, expires_at_ms=expires_at_ms)
        await self.a.release(had.lease.id, by=by)
        return await self.a.leased(had.lease.id)

    async def in_state(self, state: SandboxState, *, by: str = A) -> Leased:
        """One in any state; A's, or nobody's where it is idle or gone."""
        if state == "intended":
            return await self.requested(by=by)
        if state == "creating":
            return await self.creating(by=by)
        if state == "doubtful":
            had = await self.creating(by=by)
            await self.a.doubtful(had.sandbox.ref, by=by, reason="no answer")
            return await self.a.leased(had.lease.id)
        had = await self.leased(by=by)
        if state == "idle":
            await self.a.rest(had.sandbox.ref, had.lease.id, by=by, reason="released")
        elif state != "leased":
            await self.a.ending(had.sandbox.ref, by=by, reason="released")
            if state == "gone":
                await self.a.gone(had.sandbox.ref, by=by)
        return await self.a.leased(had.lease.id)

    async def whats(self, ref: Ref) -> list[str]:
        """What its receipts say was done."""
        return [receipt.what for receipt in await self.a.receipts(ref.sandbox_id)]


def run(path: Path, test: Callable[[SqliteStore], Awaitable[None]], *, patience_s: float = 20.0) -> None:
    """A test on a store that is open for its time."""

    async def main() -> None:
        store = await SqliteStore.open(path, clock=VirtualClock(), patience_s=patience_s)
        try:
            await test(store)
        finally:
            await store.aclose()

    asyncio.run(main())


async def request(store: SqliteStore, number: int | str) -> None:
    """A sandbox that A asks for."""
    await store.request(sandbox_row(f"sp{number}"), lease_row(f"le{number}", f"sp{number}"))
