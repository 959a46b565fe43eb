"""The bytes of one file, from descriptor to descriptor, by the cheapest way that both file systems allow.

Small files go through memory. Big ones stay in the kernel: copy_file_range first (on some file systems it shares
the blocks and copies nothing), sendfile if it is refused, plain reading and writing if that is refused too. Holes
are skipped, not copied.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["SMALL_BYTES", "Pump", "read_on", "write_all"]

SMALL_BYTES: Final = 64 << 10
"""Up to here, reading and writing costs less than asking where the holes are."""

_PIECE_BYTES: Final = 8 << 20
"""Between two pieces the caller may stop the copy."""

_BLOCK_BYTES: Final = 1 << 20

_REFUSED: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)
"""What the kernel says of a pair of files for which it does not offer a way; the next way tells real faults."""

_Way = Callable[[int, int, int, int], int]


class Pump:
    """Copies files one after the other and remembers which way works.

    Args:
        advance: Told of each piece, in bytes, holes included; may raise to stop.
    """

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._ways: list[_Way] = _kernel_ways()

    def copy(self, source_fd: int, target_fd: int, size_bytes: int) -> int:
        """Copy a file that is `size_bytes` long into one that is empty.

        Never copies past that size, so a source that grows while it is read comes to an end.

        Args:
            source_fd: A regular file, at its first byte.
            target_fd: An empty file, opened for writing.
            size_bytes: The size the source had when it was opened.

        Returns:
            How many bytes, holes included, the source really gave.

        Raises:
            OSError: As the system said.
        """
        if size_bytes <= SMALL_BYTES:
            # A byte of an empty file shows one of the kernel's own, whose sizes mean nothing.
            data = read_on(source_fd, os.read(source_fd, size_bytes or 1), size_bytes)
            if size_bytes:
                write_all(target_fd, data)
            self._advance(len(data))
            return len(data)
        return self._big(source_fd, target_fd, size_bytes)

    def _big(self, source_fd: int, target_fd: int, size_bytes: int) -> int:
        position = written_to = 0
        while position < size_bytes:
            start, end = _next_data(source_fd, position, size_bytes)
            if start > position:
                self._advance(start - position)
            position = start
            while position < end:
                copied = self._piece(source_fd, target_fd, position, min(end - position, _PIECE_BYTES))
                if not copied:
                    return position
                position += copied
                written_to = position
                self._advance(copied)
        if written_to < size_bytes:
            os.ftruncate(target_fd, size_bytes)
        return position

    def _piece(self, source_fd: int, target_fd: int, position: int, size_bytes: int) -> int:
        while self._ways:
            try:
                copied = self._ways[0](source_fd, target_fd, position, size_bytes)
            except OSError as error:
                if error.errno not in _REFUSED:
                    raise
                del self._ways[0]
                continue
            if copied:
                return copied
            # The end of the file, or a file system that says so when it means no; reading decides.
            break
        return _through_memory(source_fd, target_fd, position, size_bytes)


def read_on(fd: int, data: bytes, size_bytes: int) -> bytes:
    """Read what is still to come of a small file after its first bytes, until its end or its size."""
    while len(data) < size_bytes:
        more = os.read(fd, size_bytes - len(data))
        if not more:
            break
        data += more
    return data


def write_all(fd: int, data: bytes) -> None:
    """Write bytes to a file, as many at a time as it takes."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


def _next_data(fd: int, position: int, size_bytes: int) -> tuple[int, int]:
    """Find the next bytes that are no hole: from where, to where."""
    try:
        start = os.lseek(fd, position, os.SEEK_DATA)
        end = os.lseek(fd, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size_bytes, size_bytes
        if error.errno == errno.EINVAL:
            # A file system that does not tell its holes.
            return position, size_bytes
        raise
    if end <= start:
        # Somebody punched a hole between the two questions. Each answer must lead further, so this counts as data.
        end = start + _BLOCK_BYTES
    return min(start, size_bytes), min(end, size_bytes)


def _kernel_ways() -> list[_Way]:
    if sys.platform != "linux":
        return []

    def by_range(source_fd: int, target_fd: int, position: int, size_bytes: int) -> int:
        return os.copy_file_range(source_fd, target_fd, size_bytes, position, position)

    def by_sendfile(source_fd: int, target_fd: int, position: int, size_bytes: int) -> int:
        os.lseek(target_fd, position, os.SEEK_SET)
        return os.sendfile(target_fd, source_fd, position, size_bytes)

    return [by_range, by_sendfile]


def _through_memory(source_fd: int, target_fd: int, position: int, size_bytes: int) -> int:
    data = os.pread(source_fd, min(size_bytes, _BLOCK_BYTES), position)
    return os.pwrite(target_fd, data, position) if data else 0
