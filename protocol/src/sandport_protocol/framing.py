"""Bytes to lines and back, with a ceiling that is counted while reading.

A frame is one line, split on byte 0x0A only: U+2028, U+0085, a lone CR and the like are content. Carriage returns
before the line feed need no care, JSON counts them as white space.
"""

from __future__ import annotations

_SMALL_BYTES = 4096
"""A chunk below this is added to a buffer; as an object of its own it could cost many times its bytes."""
_LARGE_BYTES = 16 * 1024 * 1024
"""Beyond the default ceiling an unfinished line is one buffer."""
_SAMPLE_BYTES = 64
"""How much of a line that is too long is kept, for the message."""
_MORE_THAN_A_READ_BYTES = 512 * 1024
"""Event loops read into a new buffer of up to 256 KiB and cut it to what came."""


class LineSplitter:
    """Cuts a stream of bytes into lines, holding at most one unfinished line and never more than the ceiling."""

    def __init__(self, max_frame_bytes: int) -> None:
        # glibc maps a buffer of that size anew each time: three system calls and a page fault for every small message,
        # a third of the time that a call takes. It does not any more once a larger one was freed.
        bytes(_MORE_THAN_A_READ_BYTES)
        self.max_frame_bytes = max_frame_bytes
        self._parts: list[bytes | bytearray] = []
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
        # By find, which looks at many bytes at once; split looks at each one, and costs a large frame a tenth of its
        # time.
        end = data.find(b"\n")
        if end < 0:
            self._hold(data)
            return []
        lines: list[bytes] = []
        start = 0
        ceiling = self.max_frame_bytes
        if self._parts:
            if self._length + end > ceiling:
                self._hold(data[:end])
                return []
            self._parts.append(data[:end])
            lines.append(b"".join(self._parts))
            self._parts = []
            self._length = 0
            start = end + 1
            end = data.find(b"\n", start)
        while end >= 0:
            if end - start > ceiling:
                self._hold(data[start:end])
                return lines
            lines.append(data[start:end])
            start = end + 1
            end = data.find(b"\n", start)
        self._hold(data[start:])
        return lines

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of the unfinished line: as it is where it is large, so that it is copied once, in the join."""
        if not piece:
            return
        self._length += len(piece)
        if self._length > self.max_frame_bytes:
            # The same bytes however they came: no more than the ceiling, which any cut passes first.
            size = min(_SAMPLE_BYTES, self.max_frame_bytes)
            parts = [*self._parts[:size], piece]  # none is empty: these have the first bytes
            self.overflow = b"".join(part[:size] for part in parts)[:size]
            self._parts = []
            self._length = 0
        elif self._length > _LARGE_BYTES:
            # In one buffer, which the C library maps for itself: hundreds of pieces would leave its heap full of holes,
            # and the process as large as its largest message ever after.
            if len(self._parts) != 1 or not isinstance(self._parts[0], bytearray):
                self._parts = [bytearray().join(self._parts)]
            self._parts[0] += piece
        elif len(piece) >= _SMALL_BYTES:
            self._parts.append(piece)
        elif self._parts and isinstance(self._parts[-1], bytearray):
            self._parts[-1] += piece
        else:
            self._parts.append(bytearray(piece))
