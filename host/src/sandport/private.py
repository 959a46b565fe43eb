"""Folders and files of this user alone, whatever the process's umask is.

A umask that takes from the owner as well (0177, where a service wants nobody to run what it writes) would leave folders
that their own owner cannot enter, and files that he cannot open again.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

__all__ = ["make_folder", "make_parents", "open_private"]

_FOLDER = 0o700
_FILE = 0o600


def make_folder(path: Path) -> None:
    """Make a folder (0700) in one that is there; one that has this name already stays as it is.

    Raises:
        OSError: The file system refuses, or it is no folder.
    """
    try:
        path.mkdir(mode=_FOLDER)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(_FOLDER)


def make_parents(path: Path) -> None:
    """Make what is missing above a path, with the modes that the umask leaves, but open to this user himself.

    Raises:
        OSError: As `make_folder`.
    """
    missing: list[Path] = []
    above = path.parent
    while not above.is_dir():
        missing.append(above)
        above = above.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & _FOLDER != _FOLDER:
            folder.chmod(mode | _FOLDER)


def open_private(path: Path, flags: int) -> int:
    """Open a file, which is made (0600) if the flags say so; one that others may read stays as it is.

    Returns:
        Its descriptor, which no program inherits.

    Raises:
        OSError: As the system said.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, _FILE)
    try:
        status = os.fstat(descriptor)
        if status.st_mode & _FILE != _FILE and status.st_uid == os.geteuid() and stat.S_ISREG(status.st_mode):
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode) | _FILE)
    except BaseException:  # whatever it is, the descriptor is nobody's else
        os.close(descriptor)
        raise
    return descriptor
