"""Bytes from one file to another, by the cheapest way that both file systems allow, piece by piece.

copy_file_range first (on some file systems it shares the blocks and copies nothing), sendfile if it is refused, plain
reading and writing if that is refused too.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["BLOCK_BYTES", "PIECE_BYTES", "KernelCopy", "through_memory"]

PIECE_BYTES: Final = 8 << 20
"""Between two pieces the caller may stop the copy."""

BLOCK_BYTES: Final = 1 << 20
"""What is in memory at once, where the kernel offers no way."""

_REFUSED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)
"""What the kernel says of a pair of files for which it does not offer a way; the next way tells real faults."""

_Way = Callable[[int, int, int, int, int], int]


class KernelCopy:
    """Copies pieces of files, and remembers which way works."""

    def __init__(self) -> None:
        self._ways = _kernel_ways()

    def piece(self, source_fd: int, target_fd: int, source: int, target: int, size_bytes: int) -> int:
        """Copy up to so many bytes.

        Args:
            source_fd, target_fd: The files.
            source, target: Where the bytes are, and where they belong.
            size_bytes: How many, at most `PIECE_BYTES`.

        Returns:
            How many were copied; 0 at the end of the source.

        Raises:
            OSError: As the system said.
        """
        while self._ways:
            try:
                copied = self._ways[0](source_fd, target_fd, source, target, size_bytes)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                del self._ways[0]
                continue
            if copied:
                return copied
            # The end of the file, or a file system that says so when it means no; reading decides.
            break
        return through_memory(source_fd, target_fd, source, target, size_bytes)


def through_memory(source_fd: int, target_fd: int, source: int, target: int, size_bytes: int) -> int:
    """As `KernelCopy.piece`, by reading and writing: for a small piece the cheapest way."""
    data = os.pread(source_fd, min(size_bytes, BLOCK_BYTES), source)
    return os.pwrite(target_fd, data, target) if data else 0


def _kernel_ways() -> list[_Way]:
    if sys.platform != "linux":
        return []

    def by_range(source_fd: int, target_fd: int, source: int, target: int, size_bytes: int) -> int:
        return os.copy_file_range(source_fd, target_fd, size_bytes, source, target)

    def by_sendfile(source_fd: int, target_fd: int, source: int, target: int, size_bytes: int) -> int:
        os.lseek(target_fd, target, os.SEEK_SET)
        return os.sendfile(target_fd, source_fd, source, size_bytes)

    return [by_range, by_sendfile]
