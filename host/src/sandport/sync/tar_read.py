"""Reads tar archives that may come from an enemy: one member after the other, in flat memory.

Taken are the old form without a magic, ustar, pax (records before one member and before all), GNU's long names and
numbers, and GNU's four forms of sparse files. Whatever else stands there is an `ArchiveBrokenError` that says where.
An archive is whole only when its end mark was seen, two blocks of zeros: all else is an `ArchiveTruncatedError`.

Nothing is judged here that has to do with a file system: absolute paths, `..`, devices are the caller's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, Self

from sandport.sync.errors import failure
from sandport.sync.tar_format import (
    BLOCK_BYTES,
    LONGEST_PATH_BYTES,
    LONGEST_RECORDS_BYTES,
    MOST_HEADERS,
    NANOSECONDS,
    ZERO_BLOCK,
    ArchiveBrokenError,
    ArchiveTruncatedError,
    Extents,
    Kind,
    Member,
    sum_of,
)
from sandport.sync.tar_records import (
    Records,
    read_decimal,
    read_extents_of_block,
    read_extents_of_data,
    read_extents_of_record,
    read_number,
    read_records,
    read_time,
)

__all__ = ["TarReader"]

_CHUNK_BYTES: Final = 128 << 10
_SHORT_CHUNK_BYTES: Final = 8 << 10

_KINDS: Final = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,
    b"S": Kind.FILE,
    b"1": Kind.HARD_LINK,
    b"2": Kind.LINK,
    b"3": Kind.DEVICE,
    b"4": Kind.DEVICE,
    b"5": Kind.DIRECTORY,
    b"D": Kind.DIRECTORY,
    b"6": Kind.FIFO,
}

_SPACES: Final = 8 * ord(" ")
"""What the checksum's own field counts in its sum."""

_WITHOUT_DATA: Final = frozenset(b"123456")
"""Types after whose header no data follow, whatever size it gives: some writers put the size of a target there."""

_OLD_MAP: Final = slice(386, 482)
_OLD_MAP_GOES_ON: Final = 482
_OLD_REAL_SIZE: Final = slice(483, 495)
_EXTENSION_MAP: Final = slice(0, 504)
_EXTENSION_GOES_ON: Final = 504


class TarReader:
    """Reads one archive.

    Args:
        read: Gives at most so many bytes, at least one, and none at the end.

    Attributes:
        complete: Whether the end mark was seen.
        common_time: The time that a header for all members has given them, as it was written.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.complete = False
        self._window = _Window(read, None, _CHUNK_BYTES, 0)
        self._fd: int | None = None
        self._left = 0
        self._skip = 0
        self.common_time: bytes | None = None

    @classmethod
    def of_file(cls, fd: int, *, offset: int = 0) -> Self:
        """A reader of an archive in a file, which skips over data without reading them.

        Args:
            fd: The file, which nobody changes meanwhile. Its position is neither used nor moved.
            offset: Where in it the first header begins.
        """
        place = _Place(fd, offset)
        reader = cls(place.read)
        reader._window = _Window(place.read, place.skip, _SHORT_CHUNK_BYTES if offset else _CHUNK_BYTES, offset)
        reader._fd = fd
        return reader

    def members(self) -> Iterator[Member]:
        """The members in their order. While one is the current one, `read` gives its data.

        Raises:
            ArchiveBrokenError: Something is not what the format allows, or past its ceiling.
            ArchiveTruncatedError: The archive ends without its end mark.
            SyncError: A file cannot be read.
            Exception: What `read` raised.
        """
        while (member := self._next()) is not None:
            yield member

    def read(self, size_bytes: int) -> bytes:
        """Take the next bytes of the current member's data: so many, or what is left of them.

        Raises:
            ArchiveTruncatedError: The archive ends before.
        """
        taken = min(size_bytes, self._left)
        self._left -= taken
        return self._window.take(taken)

    def go_to(self, member: Member) -> None:
        """Make a member the current one that this archive's headers are known to describe, further on in it."""
        self._window.skip(member.data_offset - self._window.offset)
        self._left, self._skip = member.stored_bytes, -member.stored_bytes % BLOCK_BYTES

    def member_at(self, offset: int) -> Member:
        """Read the headers of an earlier member once more, in an archive in a file.

        Args:
            offset: The member's `offset`.

        Raises:
            ArchiveBrokenError: There is none.
        """
        if self._fd is None:
            raise ValueError("only a reader of a file can go back")
        reader = TarReader.of_file(self._fd, offset=offset)
        reader.common_time = self.common_time
        member = reader._next()
        if member is None:
            raise ArchiveBrokenError("the archive holds no member there", offset=offset)
        return member

    # Headers

    def _next(self) -> Member | None:
        window = self._window
        if self._left or self._skip:
            window.skip(self._left + self._skip)
            self._left = self._skip = 0
        start = window.offset
        path = target = None
        records = Records()
        for _ in range(MOST_HEADERS + 1):
            block = window.take(BLOCK_BYTES)
            if block == ZERO_BLOCK:
                self._end(start)
                return None
            try:
                field = block[148:156]
                if read_number(field) != sum_of(block) - sum(field) + _SPACES and not _signed_sum_fits(block):
                    self._broken("a header's checksum is wrong", window.offset - BLOCK_BYTES)
                size_bytes = read_number(block[124:136])
            except ValueError as error:
                self._broken(f"a header's numbers cannot be read: {error}", window.offset - BLOCK_BYTES, error)
            kind = block[156:157]
            if kind in b"xXgLK":
                body = self._body(size_bytes, LONGEST_RECORDS_BYTES if kind in b"xXg" else LONGEST_PATH_BYTES + 1)
                if kind == b"L":
                    path = body.partition(b"\0")[0]
                elif kind == b"K":
                    target = body.partition(b"\0")[0]
                else:
                    found = self._records(body, start)
                    if kind == b"g":
                        # A path, a size or a map that all members have in common would make no sense.
                        self.common_time = found.get(b"mtime", self.common_time)
                        if path is None and target is None and not records:
                            start = window.offset
                    else:
                        records = found
                continue
            try:
                return self._member(block, kind, size_bytes, path, target, records, start)
            except ValueError as error:
                self._broken(f"a member's header cannot be read: {error}", start, error)
        return self._broken(f"more than {MOST_HEADERS} headers describe one member", start)

    def _end(self, start: int) -> None:
        window = self._window
        if window.offset != start + BLOCK_BYTES:
            self._broken("headers that describe a member have no member after them", start)
        if window.take(BLOCK_BYTES) != ZERO_BLOCK:
            self._broken("a block of zeros stands alone", start)
        self.complete = True

    def _body(self, size_bytes: int, most_bytes: int) -> bytes:
        window = self._window
        if not 0 <= size_bytes <= most_bytes:
            self._broken(f"a header says that {size_bytes:,} bytes describe a member", window.offset - BLOCK_BYTES)
        return window.take(size_bytes + -size_bytes % BLOCK_BYTES)[:size_bytes]

    def _records(self, body: bytes, start: int) -> Records:
        try:
            return read_records(body)
        except ValueError as error:
            self._broken(f"pax records cannot be read: {error}", start, error)

    def _member(
        self,
        block: bytes,
        type_flag: bytes,
        size_bytes: int,
        path: bytes | None,
        target: bytes | None,
        records: Records,
        start: int,
    ) -> Member:
        if type_flag == b"M":
            raise ValueError("it goes on from another volume")
        path = records.get(b"path") or path
        if path is None:
            path = _name_of(block)
        kind = _KINDS.get(type_flag, Kind.OTHER)
        if kind is Kind.FILE and path.endswith(b"/"):
            # No directory by its type, but by its name: the oldest form had no type for it.
            kind = Kind.DIRECTORY
        if kind is Kind.LINK or kind is Kind.HARD_LINK:
            target = records.get(b"linkpath") or target
            if target is None:
                target = block[157:257].partition(b"\0")[0]
        else:
            target = b""
        if value := records.get(b"mtime", self.common_time):
            mtime_ns = read_time(value)
        else:
            mtime_ns = read_number(block[136:148]) * NANOSECONDS
        if type_flag[0] in _WITHOUT_DATA:
            size_bytes = 0
        elif value := records.get(b"size"):
            size_bytes = read_decimal(value)
        if size_bytes < 0:
            raise ValueError("its size is negative")
        extents: Extents | None = None
        real_bytes = size_bytes if kind is Kind.FILE else 0
        if kind is Kind.FILE and (type_flag == b"S" or (records and records.may_be_sparse)):
            self._left = size_bytes
            extents = self._extents(block, type_flag, records)
            if extents is not None:
                path = records.get(b"GNU.sparse.name") or path
                real_bytes, size_bytes = self._check_extents(extents, block, type_flag, records)
        self._left, self._skip = size_bytes, -size_bytes % BLOCK_BYTES
        offset = self._window.offset
        mode = read_number(block[100:108]) & 0o7777
        return Member(path, kind, mode, real_bytes, mtime_ns, target, extents, start, offset, size_bytes)

    # Sparse files

    def _extents(self, block: bytes, type_flag: bytes, records: Records) -> Extents | None:
        if type_flag == b"S":
            extents = Extents()
            read_extents_of_block(extents, block[_OLD_MAP])
            goes_on = block[_OLD_MAP_GOES_ON]
            while goes_on:
                block = self._window.take(BLOCK_BYTES)
                if not read_extents_of_block(extents, block[_EXTENSION_MAP]):
                    raise ValueError("a sparse map goes on without pieces")
                goes_on = block[_EXTENSION_GOES_ON]
            return extents
        major = records.get(b"GNU.sparse.major")
        if major is not None and (major, records.get(b"GNU.sparse.minor")) != (b"0", b"1"):
            if (major, records.get(b"GNU.sparse.minor")) != (b"1", b"0"):
                raise ValueError("it is sparse in a form that is not known")
            return read_extents_of_data(self._block_of_data)
        if (text := records.get(b"GNU.sparse.map")) is not None:
            return read_extents_of_record(text)
        return records.extents

    def _block_of_data(self) -> bytes:
        if self._left < BLOCK_BYTES:
            raise ValueError("a sparse map is cut off")
        self._left -= BLOCK_BYTES
        return self._window.take(BLOCK_BYTES)

    def _check_extents(self, extents: Extents, block: bytes, type_flag: bytes, records: Records) -> tuple[int, int]:
        """The size of a sparse file, and how many bytes of it are stored."""
        if type_flag == b"S":
            real_bytes = read_number(block[_OLD_REAL_SIZE])
        else:
            real_bytes = read_decimal(records.get(b"GNU.sparse.realsize") or records.get(b"GNU.sparse.size") or b"")
        if real_bytes < 0 or (extents and extents.offsets[-1] + extents.sizes[-1] > real_bytes):
            raise ValueError("a sparse file's data lie past its end")
        if sum(extents.sizes) != self._left:
            raise ValueError("a sparse file's data are not as long as its map says")
        return real_bytes, self._left

    def _broken(self, what: str, offset: int, cause: Exception | None = None) -> NoReturn:
        raise ArchiveBrokenError(
            f"the archive is broken at byte {offset:,}: {what}; what wrote it is at fault, or the transfer",
            offset=offset,
        ) from cause


def _signed_sum_fits(block: bytes) -> bool:
    """Whether the checksum is that of a writer that took bytes for signed numbers, as some old ones did."""
    signed = sum(byte - 256 if byte > 127 else byte for byte in block[:148] + block[156:])
    return read_number(block[148:156]) == signed + _SPACES


def _name_of(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0" and block[345]:
        return block[345:500].partition(b"\0")[0] + b"/" + name
    return name


class _Place:
    """A position in a file."""

    def __init__(self, fd: int, offset: int) -> None:
        self._fd = fd
        self._offset = offset
        self._size_bytes = os.fstat(fd).st_size

    def read(self, size_bytes: int) -> bytes:
        try:
            data = os.pread(self._fd, size_bytes, self._offset)
        except OSError as error:
            raise failure(error, b"the archive", "read") from error
        self._offset += len(data)
        return data

    def skip(self, size_bytes: int) -> int:
        """Go forward, but not past the end; how far it went."""
        went = min(size_bytes, max(self._size_bytes - self._offset, 0))
        self._offset += went
        return went


class _Window:
    """The part of an archive that is in memory, and the way through the rest of it."""

    def __init__(
        self, read: Callable[[int], bytes], skip: Callable[[int], int] | None, chunk_bytes: int, offset: int
    ) -> None:
        self.offset = offset
        self._read = read
        self._skip = skip
        self._chunk_bytes = chunk_bytes
        self._chunk = b""
        self._at = 0

    def take(self, size_bytes: int) -> bytes:
        """The next bytes, exactly so many; never asked for more than fit in memory."""
        at = self._at
        end = at + size_bytes
        if end > len(self._chunk):
            self._fill(size_bytes)
            at, end = 0, size_bytes
        self._at = end
        self.offset += size_bytes
        return self._chunk[at:end]

    def skip(self, size_bytes: int) -> None:
        """Pass over bytes, as many as there may be."""
        held = len(self._chunk) - self._at
        if size_bytes <= held:
            self._at += size_bytes
            self.offset += size_bytes
            return
        self._chunk, self._at = b"", 0
        self.offset += held
        left = size_bytes - held
        while left:
            went = self._skip(left) if self._skip is not None else len(self._read(min(left, self._chunk_bytes)))
            if not went:
                self._cut_off(self.offset)
            left -= went
            self.offset += went

    def _fill(self, size_bytes: int) -> None:
        data = bytearray(memoryview(self._chunk)[self._at :])
        while len(data) < size_bytes:
            piece = self._read(max(size_bytes - len(data), self._chunk_bytes))
            if not piece:
                self._cut_off(self.offset + len(data))
            data += piece
        self._chunk, self._at = bytes(data), 0

    def _cut_off(self, offset: int) -> NoReturn:
        raise ArchiveTruncatedError(
            f"the archive ends after {offset:,} bytes, without its end mark, so the transfer was cut off; sync again",
            offset=offset,
        )
