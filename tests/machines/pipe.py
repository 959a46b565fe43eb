"""A byte pipe that knows what every line in it means, however the bytes are cut when they are delivered."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from msgspec import Struct

_M = TypeVar("_M")


class Line(Struct, Generic[_M]):
    """One line that was delivered whole."""

    text: bytes
    """Without its line feed."""
    meaning: _M
    spoiled: bool
    """Half of another line stands before it: it says nothing any more."""


class Pipe(Generic[_M]):
    """Holds everything until it is delivered; a crash of its writer cuts it at any byte.

    Args:
        ceiling: A longer line means something as soon as it has passed it.
    """

    def __init__(self, ceiling: int = 10**9) -> None:
        self._ceiling = ceiling
        self._bytes = bytearray()
        self._lines: deque[tuple[int, Line[_M]]] = deque()
        self._half = b""
        self._delivered = 0
        self.ended = False

    def __len__(self) -> int:
        return len(self._bytes)

    def write(self, frame: bytes, meaning: _M) -> bool:
        """Put a line in; False where it cannot be read any more: behind half a line, or behind the end."""
        if self.ended:
            return False
        spoiled = bool(self._half)
        start = self._delivered + len(self._bytes) - len(self._half)
        self._bytes += frame
        text = self._half + frame[:-1]
        self._half = b""
        self._lines.append((start + min(len(text), self._ceiling) + 1, Line(text, meaning, spoiled)))
        return not spoiled

    def write_half(self, text: bytes) -> None:
        """Put in the beginning of a line that nobody will end."""
        if not self.ended:
            self._bytes += text
            self._half += text

    def deliver(self, size: int) -> tuple[bytes, list[Line[_M]]]:
        """The next bytes, and the lines of which enough has arrived now."""
        chunk = bytes(self._bytes[:size])
        del self._bytes[: len(chunk)]
        self._delivered += len(chunk)
        lines = []
        while self._lines and self._lines[0][0] <= self._delivered:
            lines.append(self._lines.popleft()[1])
        return chunk, lines

    def cut(self, keep: int) -> list[_M]:
        """End the pipe after so many more bytes; what the lines that are lost by it meant."""
        del self._bytes[keep:]
        end = self._delivered + len(self._bytes)
        lost = []
        while self._lines and self._lines[-1][0] > end:
            lost.append(self._lines.pop()[1].meaning)
        self._half = b""
        self.ended = True
        return lost
