"""A worker's stderr: always drained, cut into lines, told apart by level, its end kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .levels import Level, LevelReader

__all__ = ["Emit", "Level", "LevelReader", "StderrPump"]

Emit = Callable[[Level, str], None]

_TAIL_LINES = 50


class StderrPump(asyncio.Protocol):
    """Takes what a worker writes on stderr, in pieces of at most one log line."""

    def __init__(self, emit: Emit, *, line_bytes: int) -> None:
        self._emit = emit
        self._line_bytes = line_bytes
        self._levels = LevelReader()
        self._rest = b""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, as text."""
        return tuple(self._tail)

    def data_received(self, data: bytes) -> None:
        """Split; a line longer than the ceiling is passed on in pieces."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._line(line)
        while len(self._rest) > self._line_bytes:
            size = self._cut(self._rest)
            piece, self._rest = self._rest[:size], self._rest[size:]
            self._line(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end: what has no line feed is a line too."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        if not self.ended.done():
            self.ended.set_result(None)

    def _line(self, line: bytes) -> None:
        while len(line) > self._line_bytes:
            size = self._cut(line)
            self._piece(line[:size])
            line = line[size:]
        self._piece(line)

    def _cut(self, line: bytes) -> int:
        """Where to cut a line that is too long: at the ceiling, or up to three bytes before it, between two letters."""
        size = self._line_bytes
        for back in range(min(4, size)):
            if line[size - back] & 0xC0 != 0x80:
                return size - back
        return size

    def _piece(self, piece: bytes) -> None:
        text = piece.decode("utf-8", "backslashreplace").rstrip("\r")
        level, message = self._levels.read(text)
        self._tail.append(text)
        self._emit(level, message)
