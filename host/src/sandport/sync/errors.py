"""What can go wrong while files are moved, each failure with the path it happened at and what to do.

SandportError
└── SyncError
    ├── PathOutsideRootError   a path or a link would lead out of the tree
    ├── SourceMissingError     there is nothing to copy
    ├── TargetBusyError        a directory stands where a file should go, or the other way round
    ├── TooLargeError          the source is past a ceiling; nothing over it was written
    ├── SpaceExhaustedError    the target takes no more bytes
    ├── UnsafeTargetError      a directory that is never emptied was to be; nothing was changed
    ├── TreeMovedError         a directory was moved away while the copy was inside it
    └── SyncCancelledError     the caller asked to stop
"""

from __future__ import annotations

import errno
import os

from sandport_protocol.errors import Dispatched, SandportError

__all__ = [
    "PathOutsideRootError",
    "SourceMissingError",
    "SpaceExhaustedError",
    "SyncCancelledError",
    "SyncError",
    "TargetBusyError",
    "TooLargeError",
    "TreeMovedError",
    "UnsafeTargetError",
    "failure",
    "printable",
]

_LONGEST_SHOWN = 400
"""Characters of a path in a message; a path of 2,000 levels would drown what the message says."""

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_ADVICE = {
    errno.EACCES: "give this user the right to it",
    errno.EPERM: "give this user the right to it, or remove what stands there",
    errno.EROFS: "choose a target on a file system that can be written",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close programs that hold many files open",
    errno.ENAMETOOLONG: "shorten the name, or choose a file system that takes it",
    errno.EIO: "check the disk; the system could not read or write it",
}


class SyncError(SandportError):
    """A copy did not do all that was asked; what is complete stays, so `dispatched` is unknown.

    Attributes:
        path: Where it happened, as bytes: below the tree that was copied, or the path that the caller gave.
    """

    dispatched: Dispatched = "unknown"

    def __init__(self, message: str, *, path: bytes = b"", dispatched: Dispatched | None = None) -> None:
        super().__init__(message, dispatched=dispatched)
        self.path = path


class PathOutsideRootError(SyncError):
    """A path, or a symbolic link on the way, leads out of the tree that the copy may touch."""


class SourceMissingError(SyncError):
    """What should be copied does not exist."""


class TargetBusyError(SyncError):
    """A directory stands where a file should go, or something else where a directory should go.

    On this machine also where a device, a FIFO or a socket stands, or a link to one: no copy takes their names.
    """


class TooLargeError(SyncError):
    """The source holds more bytes or entries than the caller allows; what is over was not written."""


class SpaceExhaustedError(SyncError):
    """The target's file system, quota or size limit takes no more bytes."""


class UnsafeTargetError(SyncError):
    """What was asked would delete a directory that is never emptied, such as `/`, a home, the current directory."""

    dispatched: Dispatched = "no"


class TreeMovedError(SyncError):
    """A directory was moved away while the copy was inside it, so that the way back is lost."""


class SyncCancelledError(SyncError):
    """The caller asked to stop. Files that are in place are whole; nothing staged is left."""


def printable(path: bytes) -> str:
    """Give a path a form that is safe in a message: no control characters, and of bounded length."""
    text = path.decode("utf-8", "backslashreplace")
    if len(text) > _LONGEST_SHOWN:
        half = _LONGEST_SHOWN // 2
        text = f"{text[:half]}[...]{text[-half:]}"
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return f"'{shown}'"


def failure(error: OSError, path: bytes, doing: str) -> SyncError:
    """Turn what the system said into an error of this tree.

    Args:
        error: What the system call raised.
        path: What it was about.
        doing: The verb for the message, as in "cannot <doing> 'path'".
    """
    said = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _NO_SPACE:
        message = f"cannot {doing} {printable(path)}: {said}; free space there, or choose another target"
        return SpaceExhaustedError(message, path=path)
    advice = _ADVICE.get(error.errno or 0)
    tail = f"; {advice}" if advice else ""
    return SyncError(f"cannot {doing} {printable(path)}: {said}{tail}", path=path)
