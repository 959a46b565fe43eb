"""Keeps a whole archive on the disk that its contents will go to, before any of them is believed."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final, Self

from sandport.sync.errors import SyncError, TooLargeError, failure
from sandport.sync.scratch import scratch_name

__all__ = ["Spool"]

_TEMPORARY: Final = getattr(os, "O_TMPFILE", 0)
_OPEN: Final = os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
_MODE: Final = 0o600
_NAME_ATTEMPTS: Final = 64
_UNKNOWN: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS})
"""What a file system or kernel says that makes no files without a name."""

_CLOSED: Final = -1


class Spool:
    """A file without a name, that is gone with its last descriptor, whatever happens to this process.

    Use it as a context manager, or close it.

    Args:
        fd: The file, empty, opened for reading and writing; from here on this object's to close.
        max_bytes: How much it takes; None is no ceiling.

    Attributes:
        fd: The file. Its position is at the end of what was written.
        size_bytes: How much was written.
    """

    def __init__(self, fd: int, *, max_bytes: int | None) -> None:
        self.fd = fd
        self.size_bytes = 0
        self._max_bytes = max_bytes

    @classmethod
    def beside(cls, directory_fd: int, *, max_bytes: int | None) -> Self:
        """Make one on the file system of a directory, where the archive's contents will go.

        Args:
            directory_fd: The directory, opened for reading; stays the caller's to close.
            max_bytes: How much of an archive to take, headers included.

        Raises:
            SyncError: The system refuses.
        """
        try:
            return cls(_open_nameless(directory_fd), max_bytes=max_bytes)
        except OSError as error:
            raise failure(error, b"the archive that is staged there", "create") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Add to the archive, all of it.

        Raises:
            TooLargeError: It would pass the ceiling; nothing of `data` was kept.
            SpaceExhaustedError: The target's file system is full.
            SyncError: The system refuses.
        """
        view = memoryview(data)
        if self._max_bytes is not None and self.size_bytes + len(view) > self._max_bytes:
            raise TooLargeError(
                f"the archive of the source is longer than {self._max_bytes:,} bytes; copy a smaller part, or raise "
                "max_bytes"
            )
        try:
            while view:
                written = os.write(self.fd, view)
                self.size_bytes += written
                view = view[written:]
        except OSError as error:
            raise failure(error, b"the archive that is staged there", "write") from error

    def close(self) -> None:
        """Give the room back. Repeat: does nothing."""
        if self.fd != _CLOSED:
            fd, self.fd = self.fd, _CLOSED
            os.close(fd)


def _open_nameless(directory_fd: int) -> int:
    if _TEMPORARY:
        try:
            return os.open(b".", _OPEN | _TEMPORARY, _MODE, dir_fd=directory_fd)
        except OSError as error:
            if error.errno not in _UNKNOWN:
                raise
    for _ in range(_NAME_ATTEMPTS):
        name = scratch_name()
        try:
            fd = os.open(name, _OPEN | os.O_CREAT | os.O_NOFOLLOW, _MODE, dir_fd=directory_fd)
        except FileExistsError:
            continue
        try:
            with contextlib.suppress(FileNotFoundError):  # another copy took it for left over: it has no name any more
                os.unlink(name, dir_fd=directory_fd)
        except OSError:
            os.close(fd)
            raise
        return fd
    raise SyncError("every scratch name beside the target is taken at once; stop the program that takes them")
