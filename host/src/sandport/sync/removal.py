"""Removes a tree of scratch, of any depth, without following a link."""

from __future__ import annotations

import os
import stat

from sandport.sync.descent import Descent
from sandport.sync.rights import OWNER_RIGHTS, open_for_filling

__all__ = ["remove_tree"]


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
                fd, status = open_for_filling(child, descent.fd)
                descent.push(child, fd, (status.st_dev, status.st_ino))
                if status.st_mode & OWNER_RIGHTS != OWNER_RIGHTS:
                    os.fchmod(fd, stat.S_IMODE(status.st_mode) | OWNER_RIGHTS)
                waiting.append(_unlink_files(fd))
                continue
            waiting.pop()
            if waiting:
                level = descent.pop()
                os.close(level.fd)
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
                os.unlink(item.name, dir_fd=fd)
    return directories
