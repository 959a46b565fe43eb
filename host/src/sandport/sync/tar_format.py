"""What a tar archive is made of: blocks, members, numbers, records, and the errors of one that is not sound.

No library is used: Python's tarfile takes 10 to 19 times as long as tar and knows names only as text, libarchive-c
brings no library with it, and aiotarfile, the only package with wheels, has neither times, links with any bytes nor
sparse files. So the format is written here, for bytes and descriptors, at a few microseconds for each member.

Above: `tar_write` makes archives, `tar_read` takes them apart, and only these know what a block looks like. Below:
nothing. Every number that a hostile archive could drive up has its ceiling here.
"""

from __future__ import annotations

import enum
import zlib
from array import array
from collections.abc import Iterator
from typing import Final

import msgspec

from sandport.sync.errors import SyncError
from sandport_protocol.errors import Dispatched

__all__ = [
    "BLOCK_BYTES",
    "LARGEST",
    "LONGEST_PATH_BYTES",
    "LONGEST_RECORDS_BYTES",
    "MOST_EXTENTS",
    "MOST_HEADERS",
    "NANOSECONDS",
    "ZERO_BLOCK",
    "ArchiveBrokenError",
    "ArchiveError",
    "ArchiveTruncatedError",
    "Dialect",
    "Extents",
    "Kind",
    "Member",
    "padding_of",
    "sum_of",
]

BLOCK_BYTES: Final = 512
ZERO_BLOCK: Final = bytes(BLOCK_BYTES)
NANOSECONDS: Final = 1_000_000_000

LARGEST: Final = (1 << 63) - 1
"""The largest size, offset or time that an archive may speak of: what the system's own calls take."""

LONGEST_PATH_BYTES: Final = 1 << 20
"""Of a member's path or a link's target: 4,000 levels of the longest names."""

LONGEST_RECORDS_BYTES: Final = 8 << 20
"""Of the pax records before one member: room for its paths and for the extended attributes that others write."""

MOST_EXTENTS: Final = 1 << 20
"""Pieces of data in one sparse file; each takes 16 bytes of memory."""

MOST_HEADERS: Final = 16
"""Headers that only describe the member after them; writers use up to four in a row."""


class ArchiveError(SyncError):
    """An archive cannot be believed. It is looked at before anything of it is written.

    Attributes:
        offset: Where in the archive, in bytes from its beginning.
    """

    dispatched: Dispatched = "no"

    def __init__(self, message: str, *, offset: int, path: bytes = b"") -> None:
        super().__init__(message, path=path)
        self.offset = offset


class ArchiveBrokenError(ArchiveError):
    """Something in the archive is not what the format allows, or passes what anybody could need."""


class ArchiveTruncatedError(ArchiveError):
    """The archive ends before its end mark, so that nobody can tell what is missing."""


class Dialect(enum.Enum):
    """How an archive is written, by what is to read it."""

    PAX = "pax"
    """For GNU tar and for ourselves: times to the nanosecond, sparse files stay sparse."""
    PLAIN = "plain"
    """For busybox and bsdtar: GNU's long names, whole seconds, holes as zeros."""


class Kind(enum.Enum):
    """What a member is; the value is how a message calls it."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "symbolic link"
    HARD_LINK = "hard link"
    DEVICE = "device"
    FIFO = "FIFO"
    OTHER = "member of an unknown type"


class Extents:
    """Where the data of a sparse file belong: pieces in rising order, everything between them a hole."""

    __slots__ = ("offsets", "sizes")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.sizes = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.offsets, self.sizes, strict=True)

    def add(self, offset: int, size_bytes: int) -> None:
        """Put a piece after the others."""
        self.offsets.append(offset)
        self.sizes.append(size_bytes)


class Member(msgspec.Struct, frozen=True, gc=False):
    """One member of an archive, as its headers describe it. Nothing here is checked against any file system.

    Attributes:
        path: As it was written: it may be absolute, empty, hold `..`, a NUL or anything else.
        kind: What it is.
        mode: The bits as they were written, at most 12 of them.
        size_bytes: Of a file, holes included; otherwise 0.
        mtime_ns: Nanoseconds since 1970, negative before.
        link_target: Of both kinds of link; otherwise empty.
        extents: Of a sparse file, where its data belong.
        offset: Where in the archive its first header begins.
        data_offset: Where in the archive its data begin.
        stored_bytes: How many bytes of data the archive holds for it; `size_bytes` unless it is sparse.
    """

    path: bytes
    kind: Kind
    mode: int
    size_bytes: int
    mtime_ns: int
    link_target: bytes
    extents: Extents | None
    offset: int
    data_offset: int
    stored_bytes: int


def padding_of(size_bytes: int) -> int:
    """How many bytes fill the last block of so many."""
    return -size_bytes % BLOCK_BYTES


def sum_of(block: bytes) -> int:
    """Add up the bytes of at most one block.

    Adler's checksum counts the plain sum in its lower half, modulo a number that 256 bytes cannot reach.
    """
    return (zlib.adler32(block[:256], 0) & 0xFFFF) + (zlib.adler32(block[256:], 0) & 0xFFFF)
