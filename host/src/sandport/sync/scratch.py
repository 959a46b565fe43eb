"""Names for what is staged, and the end of what somebody staged who was killed.

What is staged has a lock for as long as it is used; the kernel lets go of it for the dead. Who comes next into the same
directory removes what has the form of such a name and no lock. What cannot be locked, a symbolic link or a file that
may not be opened, is nobody's after an hour: it has its name for the moment between two system calls.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Collection
from typing import Final

from sandport.sync.entries import RESERVED_PREFIX
from sandport.sync.errors import TreeMovedError
from sandport.sync.removal import remove_name

__all__ = ["clear", "hold", "is_scratch", "scratch_name"]

_NAME: Final = re.compile(re.escape(RESERVED_PREFIX) + rb"[0-9a-f]{16}")
_OPEN: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NOBODYS_S: Final = 3600.0


def scratch_name() -> bytes:
    """A new name that nobody else has or copies."""
    return RESERVED_PREFIX + os.urandom(8).hex().encode("ascii")


def is_scratch(name: bytes) -> bool:
    """Whether a name is one of those that are given to what is staged."""
    return _NAME.fullmatch(name) is not None


def hold(fd: int, name: bytes, dir_fd: int | None) -> int:
    """Lock what was just made, so that nobody takes it for left over.

    Args:
        fd: It, open; stays the caller's to close.
        name: The name it has.
        dir_fd: The directory it is in, for a name that is no path.

    Returns:
        A descriptor that holds the lock until it is closed, whatever becomes of `fd`.

    Raises:
        FileExistsError: Somebody took it for left over before it was locked: make another, of another name.
    """
    held = os.dup(fd)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        except OSError:
            pass  # where there are no such locks, nobody gets one who would remove it either
        mine = os.fstat(held)
        try:
            named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        if (named.st_dev, named.st_ino) != (mine.st_dev, mine.st_ino):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    except BaseException:  # whatever it is, the descriptor is nobody's else
        os.close(held)
        raise
    return held


def clear(dir_fd: int, owners: Collection[int], *, form: re.Pattern[bytes] = _NAME) -> None:
    """Remove from a directory what was staged there by somebody who is dead.

    What cannot be removed stays, and is no failure of a copy that only comes by.

    Args:
        dir_fd: The directory, opened for reading.
        owners: Whose it must be: user ids.
        form: What its name is like.
    """
    with contextlib.suppress(OSError):  # what cannot be listed is no place to clear
        with os.scandir(dir_fd) as listing:
            names = [name for item in listing if form.fullmatch(name := os.fsencode(item.name))]
        for name in names:
            with contextlib.suppress(OSError, TreeMovedError):  # it stays
                _clear_one(dir_fd, name, owners)


def _clear_one(dir_fd: int, name: bytes, owners: Collection[int]) -> None:
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    if status.st_uid not in owners:
        return
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        fd = None
    else:
        try:
            fd = os.open(name, os.O_RDONLY | _OPEN, dir_fd=dir_fd)
        except PermissionError:
            fd = None
    if fd is None:
        if time.time() - status.st_ctime > _NOBODYS_S:
            remove_name(dir_fd, name)
        return
    try:
        now = os.fstat(fd)
        if (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who held the lock may have given it its own name before letting go.
        named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if (named.st_dev, named.st_ino) == (now.st_dev, now.st_ino):
            remove_name(dir_fd, name)
    finally:
        os.close(fd)
