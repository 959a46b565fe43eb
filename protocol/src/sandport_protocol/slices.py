"""Frames on their way into a pipe's transport, a large one a slice at a time.

A transport copies what the pipe does not take at once, and copies what is left again each time that half of it is gone.
A slice is copied while the processor still has it at hand, and only one of them at a time: a frame of 16 MiB takes no
second 16 MiB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

SLICE_BYTES = 128 * 1024


class Slices:
    """First in, first out; what is small goes straight through.

    Args:
        write: Takes bytes and never blocks; says through `pause` and `resume` when it is full, also within the call.
    """

    __slots__ = ("_paused", "_rest", "_write", "pending_bytes")

    def __init__(self, write: Callable[[bytes | memoryview], object]) -> None:
        self._write = write
        self._rest: deque[memoryview] = deque()
        self._paused = False
        self.pending_bytes = 0
        """How much was not given to `write` yet."""

    def write(self, frame: bytes) -> None:
        """Send a frame behind those before it: whole, or slice by slice from here on."""
        if not self._rest and len(frame) <= SLICE_BYTES:
            self._write(frame)
            return
        self._rest.append(memoryview(frame))
        self.pending_bytes += len(frame)
        self._go_on()

    def pause(self) -> None:
        """What takes the bytes is full."""
        self._paused = True

    def resume(self) -> bool:
        """It has room again; whether it still has once it took what waited here."""
        self._paused = False
        self._go_on()
        return not self._paused

    def finish(self) -> None:
        """Send all that waits, whether or not there is room: nothing is resumed any more."""
        while self._rest:
            self._next()

    def drop(self) -> None:
        """Forget what waits, as nobody reads it; may be called by `write`."""
        self._rest.clear()
        self.pending_bytes = 0

    def _go_on(self) -> None:
        while self._rest and not self._paused:
            self._next()

    def _next(self) -> None:
        frame = self._rest.popleft()
        if len(frame) > SLICE_BYTES:
            self._rest.appendleft(frame[SLICE_BYTES:])
            frame = frame[:SLICE_BYTES]
        self.pending_bytes -= len(frame)
        self._write(frame)
