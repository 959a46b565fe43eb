"""The removal of a directory and all below it, whatever a program that owned it has done to it.

Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat


def remove_tree(parent_fd: int, name: str, *, last: str = "") -> None:
    """Remove a directory and all below it, whatever its owner did to it: modes of 000, links, any depth.

    No link is followed and no path is longer than one name: a directory that is not empty is first moved up to the
    top, so that depth costs neither descriptors nor stack. Missing is fine.

    Args:
        parent_fd: Where it is.
        name: Its name there.
        last: What in it goes last.

    Raises:
        OSError: Something cannot be removed, e.g. a mount point.
    """
    try:
        top = _open_directory(parent_fd, name)
    except FileNotFoundError:
        return
    numbers = itertools.count()
    try:
        for kept in ((last,), ()):
            full = _clear(top, top, numbers, kept)
            while full:
                entry = full.pop()
                fd = _open_directory(top, entry)
                try:
                    full += _clear(fd, top, numbers)
                finally:
                    os.close(fd)
                os.rmdir(entry, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent_fd)


def _clear(fd: int, top: int, numbers: itertools.count[int], kept: tuple[str, ...] = ()) -> list[str]:
    """Remove what is in a directory, and return the names below `top` of those that are directories with a content."""
    full = []
    for entry in os.listdir(fd):
        if entry in kept:
            continue
        try:
            os.unlink(entry, dir_fd=fd)
            continue
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
        try:
            os.rmdir(entry, dir_fd=fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            full.append(entry if fd == top else _move_up(fd, top, entry, numbers))
    return full


def _move_up(fd: int, top: int, entry: str, numbers: itertools.count[int]) -> str:
    os.close(_open_directory(fd, entry))  # Only who may write to a directory may move it.
    while True:
        name = f".removed-{next(numbers)}"
        try:
            os.rename(entry, name, src_dir_fd=fd, dst_dir_fd=top)
            return name
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise


def _open_directory(fd: int, entry: str) -> int:
    """Open a directory that is no link, giving ourselves all rights on it first."""
    path_fd = os.open(entry, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    try:
        if stat.S_IMODE(os.fstat(path_fd).st_mode) & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{path_fd}", 0o700)
        return os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(path_fd)
