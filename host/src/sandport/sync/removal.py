"""Removes a tree of scratch, of any depth, without following a link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Final

from sandport.sync.descent import Descent
from sandport.sync.rights import OWNER_RIGHTS, open_for_filling

__all__ = ["remove_name", "remove_tree"]

_ATTEMPTS: Final = 16
"""How often a directory is emptied that somebody else still fills; who never stops is told of."""


def remove_name(parent_fd: int, name: bytes) -> None:
    """Remove whatever has a name, a directory with all that is in it.

    Args:
        parent_fd: The directory it stands in, opened for reading.
        name: Its name there; nothing happens if it is not taken.

    Raises:
        OSError: Something could not be removed, or somebody keeps writing there.
        TreeMovedError: A directory was moved away meanwhile.
    """
    for attempt in range(_ATTEMPTS):
        try:
            try:
                os.unlink(name, dir_fd=parent_fd)
            except (IsADirectoryError, PermissionError):
                remove_tree(parent_fd, name)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def remove_tree(parent_fd: int, name: bytes) -> None:
    """Remove a directory and all that is in it.

    Args:
        parent_fd: The directory it stands in, opened for reading.
        name: Its name there.

    Raises:
        OSError: Something could not be removed, or somebody keeps writing there.
        TreeMovedError: A directory was moved away meanwhile.
    """
    descent = Descent(parent_fd)
    try:
        waiting = [[name]]
        while waiting:
            if waiting[-1]:
                child = waiting[-1].pop()
                try:
                    fd, status = open_for_filling(child, descent.fd)
                except FileNotFoundError:
                    # Somebody else removes it too.
                    continue
                descent.push(child, fd, (status.st_dev, status.st_ino))
                if status.st_mode & OWNER_RIGHTS != OWNER_RIGHTS:
                    os.fchmod(fd, stat.S_IMODE(status.st_mode) | OWNER_RIGHTS)
                waiting.append(_unlink_files(fd))
                continue
            waiting.pop()
            if waiting:
                level = descent.pop()
                os.close(level.fd)
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(level.name, dir_fd=descent.fd)
    finally:
        descent.close()


def _unlink_files(fd: int) -> list[bytes]:
    directories: list[bytes] = []
    with os.scandir(fd) as listing:
        for item in listing:
            if item.is_dir(follow_symlinks=False):
                directories.append(os.fsencode(item.name))
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(item.name, dir_fd=fd)
    return directories
