"""Measures the reference pair."""

from __future__ import annotations

import gc
import time
from typing import Self

from . import blocks
from .order import Order
from .ref_pair import RefClient


class RefCalls:
    """The floor of a call."""

    def __init__(self, *, allocator_ready: bool = False) -> None:
        self._client = RefClient(allocator_ready=allocator_ready)

    async def __aenter__(self) -> Self:
        await self._client.start()
        await self._client.echo("up")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.stop()

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""
        gc.collect()
        text = blocks.text_of(order.size_bytes)
        match order.do:
            case "calls" | "large":
                return await blocks.sequential(self._client.echo, text, order.count, self._client.worker_pid)
            case "in flight":
                return await blocks.in_flight(self._client.echo, text, order.count, self._client.worker_pid)
            case "memory":
                return blocks.memory(self._client.worker_pid)
            case "start":
                return tuple([await self._start() for _ in range(order.count)])
        raise ValueError(f"the reference pair does not do {order.do!r}")

    async def _start(self) -> float:
        """Seconds from the spawn to the first answer."""
        client = RefClient()
        begun = time.perf_counter()
        await client.start()
        await client.echo("up")
        took = time.perf_counter() - begun
        await client.stop()
        return took
