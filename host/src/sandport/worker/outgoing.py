"""Frames on their way to a worker: in the order in which they were made, and together where several calls are open."""

from __future__ import annotations

import asyncio

from sandport_protocol.slices import Slices

_DIRECT_WRITES = 2
"""Up to so many open calls are written at once; more of them wait for the end of the loop's turn and go together."""
_BATCH_BYTES = 16 * 1024
"""What waits for the end of the turn is written when it is larger: only then does the pipe say that it is full, and the
worker has something to do meanwhile. With 64 KiB the two took turns: half the calls a second on two cores."""


class Outgoing:
    """The writing end of a worker's stdin."""

    __slots__ = ("_batch", "_batch_bytes", "_loop", "_slices", "transport")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.transport: asyncio.WriteTransport | None = None
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._slices = Slices(self._give)

    def write(self, frame: bytes, open_calls: int) -> None:
        """Send a call, now or with the others of this turn."""
        if open_calls <= _DIRECT_WRITES and not self._batch:
            self._send(frame)
            return
        if not self._batch:
            self._loop.call_soon(self.flush)
        self._batch.append(frame)
        self._batch_bytes += len(frame)
        if self._batch_bytes > _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send what waits."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._batch_bytes = 0
            self._send(b"".join(batch) if len(batch) > 1 else batch[0])

    def control(self, frame: bytes) -> None:
        """Send a frame that waits for no room, behind those that were made before it.

        A cancel that overtook its call would find nothing, and a pong to a ping that overtook a call would say that
        the call was lost.
        """
        self.flush()
        if frame:
            self._send(frame)

    def pause(self) -> None:
        """The pipe is full."""
        self._slices.pause()

    def resume(self) -> bool:
        """The pipe has room again; whether it still has after what was left of a large frame."""
        return self._slices.resume()

    def finish(self) -> None:
        """Give all that waits to the transport, which is to be closed."""
        self.flush()
        self._slices.finish()

    def drop(self) -> None:
        """Forget what waits: the worker is gone."""
        self._slices.drop()

    def _send(self, frame: bytes) -> None:
        if self.transport is not None:
            self._slices.write(frame)

    def _give(self, data: bytes | memoryview) -> None:
        assert self.transport is not None  # or nothing was sent
        if self.transport.is_closing():
            self.drop()  # also in the middle of a frame: asyncio would warn of each slice
        else:
            self.transport.write(data)
