"""Directories that their own owner may not write into, or not even open, and that must be filled all the same."""

from __future__ import annotations

import os
import stat
from typing import Final

from sandport.sync.descent import OPEN_DIRECTORY

__all__ = ["OWNER_RIGHTS", "give_owner_rights", "may_change_mode", "open_for_filling"]

OWNER_RIGHTS: Final = 0o700

_OPEN_HANDLE: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_for_filling(name: bytes, dir_fd: int) -> tuple[int, os.stat_result]:
    """Open a directory for reading. One that is shut for its owner is given the owner's rights.

    Args:
        name: Its name.
        dir_fd: The directory it stands in.

    Returns:
        Its descriptor, and its status from before its mode was changed.

    Raises:
        OSError: It cannot be opened, and is not this user's to change.
    """
    try:
        fd = os.open(name, OPEN_DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        handle = os.open(name, _OPEN_HANDLE, dir_fd=dir_fd)
        try:
            status = os.fstat(handle)
            if not may_change_mode(status):
                raise
            # By the descriptor, because a name could lead elsewhere by now, and a handle takes no fchmod.
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(status.st_mode) | OWNER_RIGHTS)
            return os.open(b".", OPEN_DIRECTORY, dir_fd=handle), status
        finally:
            os.close(handle)
    try:
        return fd, os.fstat(fd)
    except OSError:
        os.close(fd)
        raise


def give_owner_rights(fd: int) -> None:
    """Give a directory that was just made the rights that a umask may have taken from its owner."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & OWNER_RIGHTS != OWNER_RIGHTS:
        os.fchmod(fd, mode | OWNER_RIGHTS)


def may_change_mode(status: os.stat_result) -> bool:
    """Tell whether this user may change the mode of something."""
    return os.geteuid() in (0, status.st_uid)
