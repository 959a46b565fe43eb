"""Give back what large messages took: the C library keeps freed memory of that size for the next time.

A worker lives for days and may see one frame of 16 MiB in its life; without this it would stay that large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

TRAFFIC_BYTES = 8 * 1024 * 1024
"""Bytes in and out after which it is worth a look."""
IDLE_S = 1.0
"""From there to the look, so that a busy worker does not give back what it is about to need."""


class MemoryTrimmer:
    """Counts bytes, and calls malloc_trim a moment after many have passed."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._passed = 0
        self._trim: Callable[[int], object] | None = None

    def count(self, size: int) -> None:
        """So many bytes went in or out."""
        self._passed += size
        if self._passed >= TRAFFIC_BYTES:
            self._passed = -(1 << 62)  # nothing is counted until the look
            self._loop.call_later(IDLE_S, self._look)

    def _look(self) -> None:
        self._passed = 0
        if self._trim is None:
            # Here and not above: most workers never need it.
            import ctypes

            # A C library that is not glibc has none, and gives memory back by itself.
            self._trim = getattr(ctypes.CDLL(None), "malloc_trim", bool)
        self._trim(0)
