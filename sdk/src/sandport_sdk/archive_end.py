"""Whether an archive that passes by is whole: looks at tar headers, at nothing else, and keeps nothing.

A program that unpacks cannot be asked: at the end of its input most take what came so far for all of it.
"""

from __future__ import annotations

BLOCK = 512
PAX_BYTES = 4 * 1024 * 1024
"""More than any `x` record has, of which a name of 4,096 bytes and the map of a sparse file are the longest."""

_ZEROS = bytes(BLOCK)
_EMPTY_KINDS = frozenset(b"123456")
"""Links, devices, directories, FIFOs: whatever their header says of a size, no content follows."""
_ABOUT_THE_NEXT = frozenset(b"xgLKXNV")
"""Members that only say something about the one that follows."""


class ArchiveEnd:
    """Follows a tar stream from header to header.

    Attributes:
        is_complete: Whether the end mark, two blocks of zeros, was seen. What comes after it is not looked at.
        fault: Why the stream cannot be followed any further; None where it can.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.fault: str | None = None
        self._skip = 0
        self._header = bytearray()
        self._record: bytearray | None = None
        """Of an `x` member, what came of its content so far."""
        self._record_left = 0
        self._padding = 0
        self._size: int | None = None
        """What a record said of the next member's size."""
        self._zero_blocks = 0
        self._sparse_map_goes_on = False
        self._sparse_left = 0

    def feed(self, data: memoryview) -> None:
        """The next bytes of the stream, cut anywhere."""
        at, size = 0, len(data)
        while at < size and not self.is_complete and self.fault is None:
            if self._skip:
                step = min(self._skip, size - at)
                self._skip -= step
                at += step
            elif self._record is not None:
                step = min(self._record_left, size - at)
                self._record += data[at : at + step]
                self._record_left -= step
                at += step
                if not self._record_left:
                    self._read_record(bytes(self._record))
            elif not self._header and size - at >= BLOCK:
                block = bytes(data[at : at + BLOCK])
                at += BLOCK
                self._take(block)
            else:
                step = min(BLOCK - len(self._header), size - at)
                self._header += data[at : at + step]
                at += step
                if len(self._header) == BLOCK:
                    block = bytes(self._header)
                    self._header.clear()
                    self._take(block)

    def _take(self, block: bytes) -> None:
        if self._sparse_map_goes_on:
            self._sparse_map_goes_on = bool(block[504])
            if not self._sparse_map_goes_on:
                self._skip = self._sparse_left
            return
        if block == _ZEROS:
            self._zero_blocks += 1
            self.is_complete = self._zero_blocks == 2
            return
        self._zero_blocks = 0
        size, kind = _number(block[124:136]), block[156]
        if size is None or size < 0:
            self.fault = "a header has a size that is no number"
        elif kind == ord("x"):
            self._begin_record(size)
        elif kind in _ABOUT_THE_NEXT:
            self._skip = _padded(size)
        else:
            if self._size is not None:
                size, self._size = self._size, None
            content = 0 if kind in _EMPTY_KINDS else _padded(size)
            if kind == ord("S") and block[482]:
                self._sparse_map_goes_on, self._sparse_left = True, content
            else:
                self._skip = content

    def _begin_record(self, size: int) -> None:
        if size > PAX_BYTES:
            self.fault = f"a record of {size} bytes is longer than {PAX_BYTES}"
        elif size:
            self._record, self._record_left = bytearray(), size
            self._padding = _padded(size) - size

    def _read_record(self, text: bytes) -> None:
        self._record = None
        self._skip = self._padding
        if b"size=" not in text:
            return  # as of nearly every file: that the rest makes sense is the affair of the program that unpacks
        while text:
            length, _, rest = text.partition(b" ")
            if not length.isdigit() or not len(length) + 1 < int(length) <= len(text):
                self.fault = "a pax record has a length that does not fit"
                return
            name, _, value = rest[: int(length) - len(length) - 2].partition(b"=")
            if name == b"size":
                if not value.isdigit():
                    self.fault = "a pax record has a size that is no number"
                    return
                self._size = int(value)
            text = text[int(length) :]


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _number(field: bytes) -> int | None:
    """A number of a header: octal digits, or base 256 where the first bit is set; None where it is neither."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") - (1 << 95) if field[0] == 0x80 else None
    digits = field.strip(b" \0")
    if not digits:
        return 0
    try:
        return int(digits, 8)
    except ValueError:
        return None
