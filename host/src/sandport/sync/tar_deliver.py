"""The bytes of one file from an archive to where they belong, by the cheapest way that both file systems allow.

As in `pump`, with the difference that an archive has the bytes at another place than the file: by copy_file_range,
else sendfile, else reading and writing.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

from sandport.sync.pump import SMALL_BYTES
from sandport.sync.tar_format import ArchiveTruncatedError, Member

__all__ = ["Delivery"]

_PIECE_BYTES: Final = 8 << 20
_BLOCK_BYTES: Final = 1 << 20

_REFUSED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)
"""What the kernel says of a pair of files for which it does not offer a way; the next way tells real faults."""

_Way = Callable[[int, int, int, int, int], int]


class Delivery:
    """Writes the data of members into files, and remembers which way works.

    Args:
        archive_fd: The archive, in a file.
        advance: Told of each piece, in bytes, holes included; may raise to stop.
    """

    def __init__(self, archive_fd: int, advance: Callable[[int], None]) -> None:
        self.advance = advance
        self._archive_fd = archive_fd
        self._ways: list[_Way] = _kernel_ways()

    def put(self, member: Member, target_fd: int) -> None:
        """Write one file.

        Args:
            member: What the archive says of it.
            target_fd: The file, empty, opened for writing.

        Raises:
            ArchiveTruncatedError: The archive ends before.
            OSError: As the system said.
        """
        stored, extents = member.stored_bytes, member.extents
        if extents is None:
            self._stretch(member.data_offset, target_fd, 0, stored)
            return
        source, position = member.data_offset, 0
        for offset, size_bytes in extents:
            self.advance(offset - position)
            self._stretch(source, target_fd, offset, size_bytes)
            source += size_bytes
            position = offset + size_bytes
        os.ftruncate(target_fd, member.size_bytes)
        self.advance(member.size_bytes - position)

    def _stretch(self, source: int, target_fd: int, offset: int, size_bytes: int) -> None:
        done = 0
        while done < size_bytes:
            moved = self._piece(source + done, target_fd, offset + done, min(size_bytes - done, _PIECE_BYTES))
            done += moved
            self.advance(moved)

    def _piece(self, source: int, target_fd: int, offset: int, size_bytes: int) -> int:
        while self._ways and size_bytes > SMALL_BYTES:
            try:
                moved = self._ways[0](self._archive_fd, target_fd, source, offset, size_bytes)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                del self._ways[0]
                continue
            if moved:
                return moved
            # A file system that says it has nothing when it means no; reading decides.
            break
        return os.pwrite(target_fd, self._read(source, min(size_bytes, _BLOCK_BYTES)), offset)

    def _read(self, offset: int, size_bytes: int) -> bytes:
        data = os.pread(self._archive_fd, size_bytes, offset)
        if not data and size_bytes:
            raise ArchiveTruncatedError("the archive became shorter while it was read", offset=offset)
        return data


def _kernel_ways() -> list[_Way]:
    if sys.platform != "linux":
        return []

    def by_range(source_fd: int, target_fd: int, source: int, offset: int, size_bytes: int) -> int:
        return os.copy_file_range(source_fd, target_fd, size_bytes, source, offset)

    def by_sendfile(source_fd: int, target_fd: int, source: int, offset: int, size_bytes: int) -> int:
        os.lseek(target_fd, offset, os.SEEK_SET)
        return os.sendfile(target_fd, source_fd, source, size_bytes)

    return [by_range, by_sendfile]
