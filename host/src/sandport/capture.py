"""Output that nobody iterates: head and tail are kept, everything is counted, all of it may go to a file."""

from __future__ import annotations

from collections import deque
from typing import BinaryIO

from sandport_protocol.errors import Kept
from sandport_protocol.v1 import StreamEnd

from .outcome import Captured

_LARGE_PIECE_BYTES = 4096


class Capture:
    """Keeps at most `limit_bytes` of one stream: the first half of it as it comes, the last half as a window.

    Args:
        limit_bytes: How much is kept in memory.
        spill: An open file that takes every byte, or None.
    """

    def __init__(self, limit_bytes: int, spill: BinaryIO | None = None) -> None:
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        # Small pieces go into a buffer: one may be a single byte, and as an object of its own cost fifty.
        self._head = bytearray()
        self._tail: deque[bytes | bytearray] = deque()
        self._tail_bytes = 0
        self._spill = spill
        self.total_bytes = 0

    def take(self, data: bytes) -> None:
        """Keep or count a piece.

        Raises:
            OSError: The spill file could not take it.
        """
        self.total_bytes += len(data)
        if self._spill is not None:
            self._spill.write(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data and self._tail_limit:
            self._add_to_tail(data)

    def _add_to_tail(self, data: bytes) -> None:
        """Large pieces are kept as they came and dropped whole: no byte is copied before somebody asks."""
        tail = self._tail
        if len(data) >= _LARGE_PIECE_BYTES:
            tail.append(data)
        elif tail and isinstance(tail[-1], bytearray) and len(tail[-1]) < _LARGE_PIECE_BYTES:
            tail[-1] += data
        else:
            tail.append(bytearray(data))
        self._tail_bytes += len(data)
        while self._tail_bytes - len(tail[0]) >= self._tail_limit:
            self._tail_bytes -= len(tail.popleft())

    def _parts(self) -> tuple[bytes, bytes, int]:
        head = bytes(self._head)
        tail = b"".join(self._tail)[-self._tail_limit :] if self._tail_limit else b""
        dropped = self.total_bytes - len(head) - len(tail)
        return (head + tail, b"", 0) if dropped == 0 else (head, tail, dropped)

    def captured(self, end: StreamEnd, spilled_to: str | None = None) -> Captured:
        """What an outcome says of the stream."""
        data, tail, dropped = self._parts()
        return Captured(
            data=data,
            tail=tail,
            total_bytes=self.total_bytes,
            dropped_bytes=dropped,
            end=end,
            spilled_to=spilled_to,
        )

    def kept(self) -> Kept:
        """What an error says of the stream."""
        data, tail, dropped = self._parts()
        return Kept(total_bytes=self.total_bytes, data=data, tail=tail, dropped_bytes=dropped)
