"""What goes out, in order: frames written at once or gathered into one write per turn of the loop.

Above: the dispatcher and the output of calls. Below: a `write` callable that takes bytes and never blocks, such as a
transport's, which says through `pause` and `resume` when its buffer is full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_LARGE = 64 * 1024
"""Bytes from which gathering costs more (a copy) than it saves (a system call)."""


class Outbox:
    """First in, first out; a frame goes out whole."""

    def __init__(self, loop: AbstractEventLoop, write: Callable[[bytes], object]) -> None:
        self._loop = loop
        self._write = write
        self._frames: list[bytes] = []
        self._size = 0
        self._paused = False
        self._callbacks: list[Callable[[], object]] = []

    @property
    def writable(self) -> bool:
        """False while the transport asks to hold back what can wait."""
        return not self._paused

    def send(self, frame: bytes) -> None:
        """Write a frame now, after everything that was gathered before it."""
        if self._frames:
            self._gather(frame)
            self.flush()
        else:
            self._write(frame)

    def gather(self, frame: bytes) -> None:
        """Write a frame in this turn of the loop, together with others."""
        if len(frame) >= _LARGE:
            self.flush()
            self._write(frame)
            return
        if not self._frames:
            self._loop.call_soon(self.flush)
        self._gather(frame)
        if self._size >= _LARGE:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        if self._frames:
            data = b"".join(self._frames)
            self._frames.clear()
            self._size = 0
            self._write(data)

    def when_writable(self, callback: Callable[[], object]) -> None:
        """Call back once, when the transport has room again."""
        self._callbacks.append(callback)

    async def wait(self) -> None:
        """Return once the transport has room."""
        while self._paused:
            room = self._loop.create_future()
            self.when_writable(lambda room=room: None if room.done() else room.set_result(None))  # type: ignore[misc]
            await room

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """The transport's buffer has room."""
        self._paused = False
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def _gather(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._size += len(frame)
