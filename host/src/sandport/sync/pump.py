"""The bytes of one file, from descriptor to descriptor, by the cheapest way that both file systems allow.

Small files go through memory. Big ones stay in the kernel where it offers a way (`kernel_copy`), very big ones are a
matter of two threads where that is faster (`pair_copy`). Holes are skipped, not copied.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from sandport.sync.kernel_copy import BLOCK_BYTES, PIECE_BYTES, KernelCopy
from sandport.sync.pair_copy import PairCopy
from sandport.sync.small_files import SMALL_BYTES, read_on, write_all

__all__ = ["Pump"]


class Pump:
    """Copies files one after the other and remembers which way works.

    Args:
        advance: Told of each piece, in bytes, holes included; may raise to stop.
    """

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._kernel = KernelCopy()
        self._pair = PairCopy()

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
            if self._pair.suits(source_fd, target_fd, end - start):
                position = written_to = self._pair.copy(source_fd, target_fd, start, end, self._advance)
                if position < end:
                    return position
            while position < end:
                size = min(end - position, PIECE_BYTES)
                copied = self._kernel.piece(source_fd, target_fd, position, position, size)
                if not copied:
                    return position
                position += copied
                written_to = position
                self._advance(copied)
        if written_to < size_bytes:
            os.ftruncate(target_fd, size_bytes)
        return position


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
        end = start + BLOCK_BYTES
    return min(start, size_bytes), min(end, size_bytes)
