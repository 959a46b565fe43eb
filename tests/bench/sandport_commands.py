"""Measures commands in a sandbox of the local provider, through the embedder's own surface."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import Self

from sandport import Host
from sandport.configuration import Configuration
from sandport_protocol.v1 import StreamName

from . import relay
from .floor_commands import TRUE
from .order import Order


class SandportCommands:
    """A leased sandbox.

    Args:
        isolated: Whether bubblewrap shuts it off.
    """

    def __init__(self, *, isolated: bool = False) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._config = {"isolation": "require" if isolated else "none"}

    async def __aenter__(self) -> Self:
        home = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sandport-bench-")))
        # A configuration of its own: nothing that this user has configured is in force.
        self._host = await self._stack.enter_async_context(Host.open(Configuration(), home=home / "state"))
        self._sandbox = await self._stack.enter_async_context(self._host.lease("local", config=self._config))
        await self._true()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""
        match order.do:
            case "command":
                return tuple([await self._true() for _ in range(order.count)])
            case "first command":
                return tuple([await self._first() for _ in range(order.count)])
            case "stream":
                return (await self._iterated(order.path, order.size_bytes),)
            case "stream captured":
                return (await self._captured(order.path, order.size_bytes),)
        raise ValueError(f"commands do not do {order.do!r}")

    async def _true(self) -> float:
        """Seconds of one `true` with captured output."""
        begun = time.perf_counter()
        outcome = await self._sandbox.execute([TRUE])
        took = time.perf_counter() - begun
        if not outcome.ok:
            raise RuntimeError(f"true ended {outcome}")
        return took

    async def _first(self) -> float:
        """Seconds from asking for a sandbox of its own to the answer of its first command; the worker runs already."""
        begun = time.perf_counter()
        async with self._host.lease("local", config=self._config) as sandbox:
            outcome = await sandbox.execute([TRUE])
            took = time.perf_counter() - begun
        if not outcome.ok:
            raise RuntimeError(f"true ended {outcome}")
        return took

    async def _iterated(self, path: str, size_bytes: int) -> float:
        """Seconds from the first piece of output to the outcome, every piece handed to a sink."""
        begun, received = 0.0, 0

        def take(stream: StreamName, data: bytes) -> None:
            nonlocal begun, received
            begun = begun or time.perf_counter()
            received += len(data)

        outcome = await self._sandbox.execute(relay.head(path, size_bytes), on_output=take)
        took = time.perf_counter() - begun
        if not outcome.ok or received != size_bytes:
            raise RuntimeError(f"the sandbox brought {received} of {size_bytes} bytes: {outcome}")
        return took

    async def _captured(self, path: str, size_bytes: int) -> float:
        """Seconds from the call to the outcome, head and tail of the output kept."""
        begun = time.perf_counter()
        outcome = await self._sandbox.execute(relay.head(path, size_bytes))
        took = time.perf_counter() - begun
        if not outcome.ok or outcome.stdout.total_bytes != size_bytes:
            raise RuntimeError(f"the sandbox brought {outcome.stdout.total_bytes} of {size_bytes} bytes")
        return took
