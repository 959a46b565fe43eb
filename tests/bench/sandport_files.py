"""Measures trees into a sandbox that is no directory of this machine, through the embedder's own surface."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Self

from sandport import Host
from sandport.configuration import Configuration

from .order import Order
from .rows_commands import memory_folder


class SandportFiles:
    """A leased sandbox of the provider fake, in memory.

    Args:
        socket: Whether archives go over a socket; without, over a command.
    """

    def __init__(self, *, socket: bool) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._socket = socket

    async def __aenter__(self) -> Self:
        home = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sandport-bench-", dir=memory_folder()))
        # A configuration of its own: nothing that this user has configured is in force.
        host = await self._stack.enter_async_context(Host.open(Configuration(), home=Path(home, "state")))
        self._sandbox = await self._stack.enter_async_context(host.lease("fake", config={"sync": self._socket}))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""
        if order.do != "sync in":
            raise ValueError(f"files do not do {order.do!r}")
        # What the far side can do is found out once for a sandbox, and is no part of a copy.
        await self._sandbox.sync_in(__file__, "first.py")
        begun = time.perf_counter()
        result = await self._sandbox.sync_in(order.path, "target")
        took = time.perf_counter() - begun
        if result.total_bytes != order.size_bytes:
            raise RuntimeError(f"{result.total_bytes} of {order.size_bytes} bytes arrived in {os.fspath(order.path)}")
        outcome = await self._sandbox.execute(["rm", "-rf", "target"])
        if not outcome.ok:
            raise RuntimeError(f"rm ended {outcome}")
        return (took,)
