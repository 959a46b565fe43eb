"""Bytes to lines and back, with a ceiling that is counted while reading.

A frame is one line, split on byte 0x0A only: U+2028, U+0085, a lone CR and the like are content. Carriage returns
before the line feed need no care, JSON counts them as white space.
"""

from __future__ import annotations


class LineSplitter:
    """Cuts a stream of bytes into lines, holding at most one unfinished line and never more than the ceiling."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._parts: list[bytes] = []
        self._length = 0
        self.overflow: bytes | None = None
        """The first bytes of the line that passed the ceiling; nothing is read after it."""

    @property
    def pending_bytes(self) -> int:
        """How much of an unfinished line is held."""
        return self._length

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their line feeds; none after the ceiling was passed."""
        if self.overflow is not None:
            return []
        lines = data.split(b"\n")
        tail = lines.pop()
        if self._parts:
            if lines:
                self._parts.append(lines[0])
                lines[0] = b"".join(self._parts)
                self._parts = []
                self._length = 0
            else:
                self._parts.append(tail)
                self._length += len(tail)
                if self._length > self.max_frame_bytes:
                    self._overflow(b"".join(self._parts))
                return []
        ceiling = self.max_frame_bytes
        for number, line in enumerate(lines):
            if len(line) > ceiling:
                self._overflow(line)
                return lines[:number]
        if tail:
            self._parts = [tail]
            self._length = len(tail)
            if self._length > ceiling:
                self._overflow(tail)
        return lines

    def _overflow(self, line: bytes) -> None:
        self.overflow = bytes(line[: min(64, self.max_frame_bytes)])
        self._parts = []
        self._length = 0
