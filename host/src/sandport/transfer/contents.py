"""The bytes of one file, read or written at once, where the sandbox is a directory on this machine."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable

from sandport.sync.entries import RESERVED_PREFIX, FileEntry
from sandport.sync.errors import SyncError, TargetBusyError, TooLargeError, failure, printable
from sandport.sync.meter import Meter
from sandport.sync.paths import find_source, open_parents, split_destination
from sandport.sync.small_files import OPEN_FILE
from sandport.sync.target import TargetTree

__all__ = ["past_ceiling", "read_below", "target_names", "write_below"]

_PIECE_BYTES = 8 << 20


def read_below(root_fd: int, path: bytes, max_bytes: int, cancelled: Callable[[], bool]) -> bytes:
    """The content of a file below a directory.

    Args:
        root_fd: The directory, opened for reading.
        path: The file, relative to it.
        max_bytes: More is refused.
        cancelled: Asked between pieces.

    Raises:
        SyncError: In any of its forms.
    """
    meter = Meter(cancelled, None)
    found = find_source(root_fd, path, poll=meter.poll)
    try:
        if stat.S_ISDIR(found.status.st_mode):
            raise SyncError(
                f"{printable(path)} is a directory; name a file, or use sync_out for the whole of it", path=path
            )
        if not stat.S_ISREG(found.status.st_mode):
            raise SyncError(f"{printable(path)} has no bytes to read: it is neither file nor directory", path=path)
        try:
            fd = os.open(found.name, OPEN_FILE, dir_fd=found.parent_fd)
        except OSError as error:
            raise failure(error, path, "read") from error
    finally:
        os.close(found.parent_fd)
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := os.read(fd, min(_PIECE_BYTES, max_bytes + 1 - size)):
            meter.poll()
            pieces.append(piece)
            size += len(piece)
            if size > max_bytes:
                raise past_ceiling(path, max_bytes)
    except OSError as error:
        raise failure(error, path, "read") from error
    finally:
        os.close(fd)
    return b"".join(pieces)


def past_ceiling(path: bytes, max_bytes: int) -> TooLargeError:
    """The error for a file that is larger than its reader wants."""
    return TooLargeError(
        f"{printable(path)} holds more than {max_bytes:,} bytes; raise max_bytes, or use sync_out", path=path
    )


def target_names(path: bytes) -> list[bytes]:
    """The names on the way to a file that is to be written, its own the last.

    Raises:
        SyncError: The path cannot be a file's.
    """
    names = split_destination(path)
    if not names or path.endswith(b"/"):
        raise TargetBusyError(f"{printable(path)} is a directory; name the file to write", path=path)
    if names[-1].startswith(RESERVED_PREFIX):
        raise SyncError(
            f"{printable(names[-1])} is refused: names that begin with .sandport- are reserved; choose another name",
            path=path,
        )
    return names


def write_below(
    root_fd: int, path: bytes, data: bytes | bytearray | memoryview, mode: int, cancelled: Callable[[], bool]
) -> None:
    """Make a file below a directory, or replace it whole.

    Args:
        root_fd: The directory, opened for reading.
        path: The file, relative to it; directories on the way are made.
        data: Its content.
        mode: Its permission bits.
        cancelled: Asked between pieces.

    Raises:
        SyncError: In any of its forms; the file is as it was.
    """
    names = target_names(path)
    meter = Meter(cancelled, None)
    status = os.fstat(root_fd)
    owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid else None
    parent_fd = open_parents(root_fd, names[:-1], owner=owner)
    try:
        # A write is to cost what it writes, and not what else is in the directory.
        with TargetTree(parent_fd, label=b"/".join(names[:-1]), owner=owner, clears=False) as tree:
            view = memoryview(data).cast("B")
            entry = FileEntry(names[-1], mode, len(view), time.time_ns())
            fd = tree.stage(entry)
            try:
                while view:
                    meter.poll()
                    view = view[os.write(fd, view[:_PIECE_BYTES]) :]
            except OSError as error:
                raise failure(error, path, "write") from error
            tree.commit(entry)
    finally:
        os.close(parent_fd)
