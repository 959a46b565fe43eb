"""A worker without a process: the host's `WorkerClient`, the SDK's `Dispatcher`, and no pipe between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from sandport.errors import WorkerStartFailed
from sandport.worker.client import WorkerClient
from sandport.worker.report import CrashReport
from sandport_protocol.limits import Limits
from sandport_protocol.v1 import InitializeParams, InitializeResult, PeerInfo
from sandport_sdk.dispatch import Dispatcher

from .memory_vendor import Life, MemoryVendor, provider_of

LIMITS = Limits()
OnLate = Callable[[str, Any, Raw | None], None]
"""Told of an answer that came after its caller had gone: the method, its params, the result."""


class MemoryWorker:
    """What the lease layer needs of a worker, over a client and a dispatcher without a pipe."""

    def __init__(self, loop: asyncio.AbstractEventLoop, vendor: MemoryVendor, on_late: OnLate) -> None:
        self._loop = loop
        self.life = Life(self.crash)
        self.client = WorkerClient(
            "memory", limits=LIMITS, log=lambda level, line: None, on_late=on_late, on_fatal=lambda why: self.crash()
        )
        self.client.write_to(_Pipe(self._to_worker))
        self._dispatcher = Dispatcher(
            provider_of(vendor, self.life), lambda data: self._loop.call_soon(self._to_host, bytes(data))
        )
        self.hello: InitializeResult = None  # type: ignore[assignment]
        self.silenced = False
        """Its host was killed."""

    @property
    def usable(self) -> bool:
        """Whether calls may be sent to it."""
        return not self.life.over and not self.silenced

    @property
    def groups(self) -> frozenset[str]:
        """It has no optional ones."""
        return frozenset()

    async def prove_alive(self) -> None:
        """It is never stuck."""

    def _to_worker(self, data: bytes) -> None:
        if not self.silenced:
            self._loop.call_soon(self._worker_reads, data)

    def _worker_reads(self, data: bytes) -> None:
        if not self.life.over and not self._dispatcher.ended.done():
            self._dispatcher.receive(data)

    def _to_host(self, data: bytes) -> None:
        if not self.life.over and not self.silenced:
            self.client.data_received(data)

    def crash(self) -> None:
        """Its process is gone."""
        if not self.life.over:
            self.life.over = True
            if not self.silenced:
                report = CrashReport(id="c", provider="memory", pid=1, signal=9, uptime_s=1.0, phase="serving")
                self._loop.call_soon(self.client.close, report, "it crashed")

    async def greet(self, store_id: str) -> None:
        """Say hello."""
        self.hello = await self.client.hello(
            InitializeParams(
                protocol_versions=(1,),
                host=PeerInfo(name="world", version="0"),
                store_id=store_id,
                state_dir="/",
                limits=LIMITS,
            )
        )
        await self.client.ready


class _Pipe(asyncio.WriteTransport):
    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write

    def write(self, data: Any) -> None:
        self._write(bytes(data))

    def is_closing(self) -> bool:
        return False


class MemoryWorkers:
    """One worker at a time, started again on demand."""

    def __init__(self, loop: asyncio.AbstractEventLoop, vendor: MemoryVendor, store_id: str, on_late: OnLate) -> None:
        self._loop = loop
        self._vendor = vendor
        self._store_id = store_id
        self._on_late = on_late
        self._starting = asyncio.Lock()
        self.current: MemoryWorker | None = None
        self.all: list[MemoryWorker] = []
        self.closed = False

    async def worker(self) -> Any:
        """The one that serves."""
        async with self._starting:
            if self.closed:
                raise WorkerStartFailed("the host is closing; no memory worker is started")
            if self.current is None or not self.current.usable:
                self.current = MemoryWorker(self._loop, self._vendor, self._on_late)
                self.all.append(self.current)
                await self.current.greet(self._store_id)
            return self.current
