"""Measures a client that can do nothing but echo, and its server: the reference pair, and each peer.

The peers run it in an environment of their own, so it knows nothing of ours.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Protocol, Self

from . import blocks
from .order import Order


class Client(Protocol):
    """A client, which starts its server."""

    worker_pid: int

    async def start(self) -> None:
        """Start the server, with whatever hello there is."""

    async def echo(self, text: str) -> str:
        """One call of many that are open."""

    async def echo_alone(self, text: str) -> str:
        """One call while no other is open."""

    async def stop(self) -> None:
        """End the server."""


class EchoCalls:
    """The same orders that the product carries out.

    Args:
        client: A new client, whose server has not been started.
    """

    def __init__(self, client: Callable[[], Client]) -> None:
        self._new = client
        self._client = client()

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
                return await blocks.sequential(self._client.echo_alone, text, order.count, self._client.worker_pid)
            case "in flight":
                return await blocks.in_flight(self._client.echo, text, order.count, self._client.worker_pid)
            case "memory":
                return blocks.memory(self._client.worker_pid)
            case "start":
                return tuple([await self._start() for _ in range(order.count)])
        raise ValueError(f"a client that echoes does not do {order.do!r}")

    async def _start(self) -> float:
        """Seconds from the spawn to the first answer; the client's imports are not counted."""
        client = self._new()
        begun = time.perf_counter()
        await client.start()
        await client.echo("up")
        took = time.perf_counter() - begun
        await client.stop()
        return took
