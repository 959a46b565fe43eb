"""What on this machine no copy may take the name of: devices, FIFOs, sockets, and links to them.

A file that is put in their place by a rename would not be written through them, as a shell's `>` does; it would be in
the way of all that use them. Of links only those to ordinary files, and to nothing, are replaced.
"""

from __future__ import annotations

import os
import stat
from typing import Final

from sandport.sync.errors import TargetBusyError, failure, printable

__all__ = ["kind_of", "refuse_special"]

_MOST_LINKS: Final = 40
"""As many as the system itself follows."""


def refuse_special(name: bytes, *, dir_fd: int | None = None, shown: bytes) -> None:
    """Look at what has a name that a file is to take; files, directories and nothing at all are no matter.

    Args:
        name: The name, or a path.
        dir_fd: The directory that it is in; None for a path of this process.
        shown: How messages call it.

    Raises:
        TargetBusyError: It is a device, a FIFO or a socket, or a link that leads to one, or to something of a process.
        SyncError: It cannot be looked at.
    """
    try:
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise failure(error, shown, "write into") from error
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return
    what = f"is a {kind_of(mode)}"
    if stat.S_ISLNK(mode):
        end = _end_of(name, dir_fd)
        if end is None:
            return
        what = f"is a link to {end}"
    raise TargetBusyError(
        f"{printable(shown)} {what}, and only files and links to files are replaced; name another target, or "
        "remove what stands there",
        path=shown,
    )


def _end_of(name: bytes, dir_fd: int | None) -> str | None:
    """What a link leads to, if that is to be left alone."""
    try:
        mode = os.stat(name, dir_fd=dir_fd).st_mode
    except OSError:
        # To nothing, in a circle, or to what may not be looked at: no program can have opened that by this name.
        return None
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return f"a {kind_of(mode)}"
    # As /dev/stdout: what it leads to differs from process to process, and is a file in some of them.
    return "something of a process" if _leads_through_proc(name, dir_fd) else None


def _leads_through_proc(name: bytes, dir_fd: int | None) -> bool:
    try:
        proc = os.stat("/proc").st_dev
        path = name if dir_fd is None else b"/proc/self/fd/%d/%b" % (dir_fd, name)
        for _ in range(_MOST_LINKS):
            path = os.path.join(os.path.dirname(path), os.readlink(path))
            status = os.lstat(path)
            if status.st_dev == proc:
                return True
            if not stat.S_ISLNK(status.st_mode):
                return False
    except OSError:
        # There is no such file system here, or the link was changed at this moment.
        return False
    return False


def kind_of(mode: int) -> str:
    """Name what a file that is neither regular, directory nor link is."""
    if stat.S_ISFIFO(mode):
        return "FIFO"
    if stat.S_ISSOCK(mode):
        return "socket"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "device"
    return "special file"
