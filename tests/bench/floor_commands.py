"""Measures commands without a worker: asyncio's own subprocess for `true`, a bare relay for streaming."""

from __future__ import annotations

import asyncio
import time
from subprocess import DEVNULL, PIPE
from typing import Self

from . import relay
from .order import Order

TRUE = "/bin/true"


class FloorCommands:
    """The floor of a command and of its output."""

    async def __aenter__(self) -> Self:
        await self._true()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left: each command ended."""

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""
        match order.do:
            case "command":
                return tuple([await self._true() for _ in range(order.count)])
            case "stream":
                return (await asyncio.to_thread(relay.stream, "text", order.path, order.size_bytes),)
            case "stream base64":
                return (await asyncio.to_thread(relay.stream, "base64", order.path, order.size_bytes),)
        raise ValueError(f"commands do not do {order.do!r}")

    @staticmethod
    async def _true() -> float:
        """Seconds of one `true` with captured output."""
        begun = time.perf_counter()
        process = await asyncio.create_subprocess_exec(TRUE, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        await process.communicate()
        took = time.perf_counter() - begun
        if process.returncode != 0:
            raise RuntimeError(f"true ended with {process.returncode}")
        return took
