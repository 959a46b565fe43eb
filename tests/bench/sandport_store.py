"""Measures the store, as the host calls it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from sandport.store.records import LeaseRow, SandboxRow
from sandport.store.sqlite import SqliteStore

from . import lease_rows
from .order import Order


class SandportStore:
    """A store in a file, every change durable."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sandport-bench-"))
        self._store = await SqliteStore.open(Path(folder, "store.db"))
        self._stack.push_async_callback(self._store.aclose)
        self._next = 0
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""
        rows = [_rows(number) for number in range(self._next, self._next + order.count)]
        self._next += order.count
        match order.do:
            case "acquires":
                begun = time.perf_counter()
                waiting = iter(rows)
                await asyncio.gather(*(self._acquire_each(waiting) for _ in range(order.callers)))
                return (time.perf_counter() - begun,)
            case "requests":
                return tuple([await self._request(sandbox, lease) for sandbox, lease in rows])
        raise ValueError(f"a store does not do {order.do!r}")

    async def _acquire_each(self, rows: Iterator[tuple[SandboxRow, LeaseRow]]) -> None:
        for sandbox, lease in rows:
            await self._store.request(sandbox, lease)
            await self._store.creating(sandbox.ref, by=lease_rows.OWNER, provider_version="1.0", settle_ms=1000)
            await self._store.created(
                sandbox.ref,
                lease.id,
                by=lease_rows.OWNER,
                handle=lease_rows.HANDLE,
                lease_result=lease_rows.RESULT,
                expires_at_ms=5,
            )

    async def _request(self, sandbox: SandboxRow, lease: LeaseRow) -> float:
        begun = time.perf_counter()
        await self._store.request(sandbox, lease)
        return time.perf_counter() - begun


def _rows(number: int) -> tuple[SandboxRow, LeaseRow]:
    sandbox = SandboxRow(
        id=lease_rows.id_of("sp", number),
        provider="local",
        environment="local",
        config=lease_rows.CONFIG,
        owner=lease_rows.OWNER,
    )
    lease = LeaseRow(
        id=lease_rows.id_of("le", number),
        sandbox_id=sandbox.id,
        environment="local",
        owner=lease_rows.OWNER,
        run="run-1",
    )
    return sandbox, lease
