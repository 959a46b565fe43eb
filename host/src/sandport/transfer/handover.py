"""Bytes from a thread that packs to the event loop that sends them, a few pieces ahead."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from sandport.sync.errors import SyncCancelledError

__all__ = ["Handover"]

_AHEAD_BYTES = 4 << 20
"""What may wait: enough that neither side waits for a turn of the other."""


class Handover:
    """A sink for an archive on one side, an iteration of its pieces on the other.

    Made on the event loop. `write`, `finish` and `fail` are for the thread and block while enough waits; the iteration
    and `abort` are for the loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._pieces: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._over = False
        self._aborted = False
        self._failure: BaseException | None = None
        self._news = asyncio.Event()

    def write(self, data: bytes | memoryview, /) -> None:
        """Hand on a piece, which must not change any more.

        Raises:
            SyncCancelledError: The other side takes no more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self._waiting_bytes < _AHEAD_BYTES)
            if self._aborted:
                raise SyncCancelledError("the copy was ended: the other side takes no more bytes")
            self._pieces.append(data)
            self._waiting_bytes += len(data)
        self._loop.call_soon_threadsafe(self._news.set)

    def finish(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._over = True
        self._loop.call_soon_threadsafe(self._news.set)

    def fail(self, error: BaseException) -> None:
        """Nothing more comes, and what came is not all: the iteration raises this."""
        with self._changed:
            self._failure = error
        self._loop.call_soon_threadsafe(self._news.set)

    def abort(self) -> None:
        """Take no more: the thread's next write, or the one that waits, raises."""
        with self._changed:
            self._aborted = True
            self._pieces.clear()
            self._changed.notify_all()
        self._news.set()

    async def pieces(self) -> AsyncIterator[bytes | memoryview]:
        """Every piece in order; ends with `finish` or `abort`, and raises what `fail` was told."""
        while True:
            self._news.clear()
            with self._changed:
                if self._failure is not None and not self._aborted:
                    raise self._failure
                if self._aborted or (self._over and not self._pieces):
                    return
                piece = self._pieces.popleft() if self._pieces else None
                if piece is not None:
                    self._waiting_bytes -= len(piece)
                    self._changed.notify_all()
            if piece is not None:
                yield piece
            else:
                await self._news.wait()
