"""Keep what large messages took at hand while they come, and give it back afterwards.

The C library does neither. What one frame of 16 MiB took it gives back with the last of it, and the next frame has to
be given 13,000 pages anew, a third of the time that a worker takes for it; but a heap that once was large it may keep.
A worker lives for days and may see one such frame in its life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

TRAFFIC_BYTES = 8 * 1024 * 1024
"""Bytes in and out after which it is worth the while."""
LOOKS_S = (1.0, 4.0, 16.0, 64.0)
"""From the last of them to the giving back, so that a busy worker does not give back what it is about to need; and to
giving back again, for what a handler was still at."""
AT_HAND_BYTES = 31 * 1024 * 1024
"""Buffers of up to so much come out of the heap, and up to twice as much is kept; 32 MiB is the C library's most."""
AFTERWARDS_BYTES = 4 * 1024 * 1024
"""The same after the giving back: messages of 1 MiB still map nothing anew."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class MemoryTrimmer:
    """Counts bytes, and has the C library keep memory for a moment after many have passed."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._passed = 0
        self._look: TimerHandle | None = None
        self._mallopt: Callable[[int, int], object] | None = None
        self._trim: Callable[[int], object] = bool

    def count(self, size: int) -> None:
        """So many bytes went in or out."""
        self._passed += size
        if self._passed >= TRAFFIC_BYTES:
            self._passed = 0
            if self._mallopt is not None:
                self._keep(AT_HAND_BYTES)
            elif self._look is None:
                # The C library goes by the largest buffer that was ever freed. Mapped, and never touched.
                bytes(AT_HAND_BYTES)
            if self._look is not None:
                self._look.cancel()
            self._look = self._loop.call_later(LOOKS_S[0], self._give_back, LOOKS_S[1:])

    def _give_back(self, looks_s: tuple[float, ...]) -> None:
        if self._mallopt is None:
            # Here and not above: most workers never need it.
            import ctypes

            # A C library that is not glibc has none of it, and gives memory back by itself.
            library = ctypes.CDLL(None)
            self._mallopt = getattr(library, "mallopt", lambda option, value: None)
            self._trim = getattr(library, "malloc_trim", self._trim)
        self._keep(AFTERWARDS_BYTES)
        self._trim(0)
        self._look = self._loop.call_later(looks_s[0], self._give_back, looks_s[1:]) if looks_s else None

    def _keep(self, size: int) -> None:
        assert self._mallopt is not None
        self._mallopt(_M_MMAP_THRESHOLD, size)
        self._mallopt(_M_TRIM_THRESHOLD, 2 * size)
