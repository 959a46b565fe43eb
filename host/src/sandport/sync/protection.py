"""Directories that a copy never empties, whatever was asked."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from collections.abc import Sequence
from typing import Final

from sandport.sync.descent import Identity
from sandport.sync.errors import UnsafeTargetError, failure, printable

__all__ = ["Protection"]

_OPEN_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class Protection:
    """Knows which directories must not be emptied, by what they are and not by how they are called.

    A directory that holds a protected one, at any depth, is protected as well.

    Args:
        sources: Files and directories that something is copied from, as paths; those that are missing protect nothing.
        source_fds: The same, as descriptors of directories.
        state: Where the host keeps its state.
        this_machine: Whether the target is on this machine, where also `/`, the home directory, the current directory
            and what lies above it, the running Python, and the root of a git work tree are protected.

    Raises:
        SyncError: Where one of them is cannot be told.
    """

    def __init__(
        self,
        *,
        sources: Sequence[bytes] = (),
        source_fds: Sequence[int] = (),
        state: bytes | None = None,
        this_machine: bool = False,
    ) -> None:
        self._reasons: dict[Identity, str] = {}
        self._this_machine = this_machine
        for fd in source_fds:
            self._protect(_lineage(os.open(b".", _OPEN_STEP, dir_fd=fd)), "what is copied comes from there")
        for source in sources:
            self._protect(_lineage_of(source), "what is copied comes from there")
        if state is not None:
            self._protect(_lineage_of(state), "Sandport keeps its state there")
        if this_machine:
            for prefix in {sys.prefix, sys.base_prefix}:
                self._protect(_lineage_of(os.fsencode(prefix)), "the Python that runs this is there")
            here, *above = _lineage(os.open(b".", _OPEN_STEP))
            self._protect([here], "it is the current directory")
            self._protect(above, "the current directory lies below it")
            for home in _homes():
                self._protect(_lineage_of(home), "the home directory is there")
            self._protect(_lineage_of(b"/"), "it is the root of the file system")

    def check(self, fd: int, path: bytes) -> None:
        """Refuse a directory that is protected.

        Args:
            fd: The directory, opened for reading.
            path: How the message calls it.

        Raises:
            UnsafeTargetError: It is.
        """
        status = os.fstat(fd)
        reason = self._reasons.get((status.st_dev, status.st_ino))
        if reason is None and self._this_machine and _holds_git(fd, path):
            reason = "it is the root of a git work tree (it holds '.git')"
        if reason is not None:
            raise UnsafeTargetError(
                f"{printable(path)} is not emptied: {reason}; name a directory that holds nothing but the copy",
                path=path,
            )

    def _protect(self, identities: Sequence[Identity], reason: str) -> None:
        for identity in identities:
            self._reasons[identity] = reason


def _homes() -> set[bytes]:
    """What this user may call his home directory."""
    homes = {os.path.expanduser(b"~")}
    with contextlib.suppress(KeyError):  # a user without an entry has no other home than the variable's
        homes.add(os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir))
    return {home for home in homes if home.startswith(b"/")}


def _holds_git(fd: int, path: bytes) -> bool:
    try:
        os.stat(b".git", dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise failure(error, path, "look into") from error
    return True


def _lineage_of(path: bytes) -> list[Identity]:
    """The directory that a path leads to or lies in, and all above it."""
    try:
        try:
            fd = os.open(path, _OPEN_STEP)
        except (FileNotFoundError, NotADirectoryError):
            fd = os.open(os.path.dirname(os.path.realpath(path)), _OPEN_STEP)
        return _lineage(fd)
    except (FileNotFoundError, NotADirectoryError):
        # It is not there, so nothing can hold it.
        return []
    except OSError as error:
        # Where it is cannot be told, so anything could hold it.
        raise failure(error, path, "look for what must not be emptied at") from error


def _lineage(fd: int) -> list[Identity]:
    """A directory and all above it; closes the descriptor."""
    found: list[Identity] = []
    while True:
        try:
            status = os.fstat(fd)
            identity = status.st_dev, status.st_ino
            if found and found[-1] == identity:
                return found
            found.append(identity)
            above = os.open(b"..", _OPEN_STEP, dir_fd=fd)
        except (PermissionError, FileNotFoundError):
            # What may not be searched, or is no longer anywhere, ends the way up.
            return found
        finally:
            os.close(fd)
        fd = above
