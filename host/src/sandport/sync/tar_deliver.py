"""The bytes of one file from an archive to where they belong, by the cheapest way that both file systems allow.

As in `pump`, with the difference that an archive has the bytes at another place than the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from sandport.sync.kernel_copy import PIECE_BYTES, KernelCopy, through_memory
from sandport.sync.small_files import SMALL_BYTES
from sandport.sync.tar_format import ArchiveTruncatedError, Member

__all__ = ["Delivery"]


class Delivery:
    """Writes the data of members into files, and remembers which way works.

    Args:
        archive_fd: The archive, in a file.
        advance: Told of each piece, in bytes, holes included; may raise to stop.
    """

    def __init__(self, archive_fd: int, advance: Callable[[int], None]) -> None:
        self.advance = advance
        self._archive_fd = archive_fd
        self._kernel = KernelCopy()

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
            size = min(size_bytes - done, PIECE_BYTES)
            copy = self._kernel.piece if size > SMALL_BYTES else through_memory
            moved = copy(self._archive_fd, target_fd, source + done, offset + done, size)
            if not moved:
                raise ArchiveTruncatedError("the archive became shorter while it was read", offset=source + done)
            done += moved
            self.advance(moved)
