"""Paths below a directory that may belong to an enemy, resolved one name at a time.

The kernel never gets a path to resolve: each name is opened relative to the directory before it, without following
links. A link in a source is read and resolved here, as part of the path, so that it can only ever lead to another
place below the root, whatever is swapped meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

from sandport.sync.descent import OPEN_DIRECTORY
from sandport.sync.errors import (
    PathOutsideRootError,
    SourceMissingError,
    SyncError,
    TargetBusyError,
    failure,
    printable,
)
from sandport.sync.rights import give_owner_rights, open_for_filling

__all__ = ["Found", "find_parents", "find_source", "leads_out", "not_entered", "open_parents", "split_destination"]

_OPEN_STEP: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_LONGEST_CHAIN: Final = 40
"""Links in one path, as in the kernel."""

_MOST_STEPS: Final = 20_000
"""Names looked up for one path, links included; a path of this tree's own making needs one for each level."""


_NOWHERE: Final = (b"", b".")
"""What stands between two slashes and leads nowhere."""

_ABSOLUTE: Final = "it is absolute; name it relative to the sandbox's working directory"


class Found(NamedTuple):
    """Where a source is: `name` in the directory `parent_fd`, which is the caller's to close."""

    parent_fd: int
    name: bytes
    status: os.stat_result


def find_source(root_fd: int, path: bytes, *, poll: Callable[[], None]) -> Found:
    """Find a path below a root. Links are resolved as long as they stay below.

    Args:
        root_fd: The directory that nothing may lead out of.
        path: Relative to it; `b"."` is the root itself.
        poll: Called at every step; may raise to stop.

    Raises:
        PathOutsideRootError: The path is absolute or leads out, by itself or through a link.
        SourceMissingError: Nothing is there, or the path goes through something that is no directory.
        SyncError: The system refuses, or links go round in a circle.
    """
    if path.startswith(b"/"):
        raise _outside(path, _ABSOLUTE)
    _refuse_nul(path)
    search = _Search(root_fd, path)
    try:
        found = None
        while found is None:
            poll()
            found = search.step()
    except BaseException as error:
        # Whatever ends the search, the caller's wish to stop included, the descriptor must not stay behind.
        os.close(search.fd)
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise SourceMissingError(
                f"{printable(path)} does not exist in the sandbox; check the path, which is relative to the "
                "sandbox's working directory",
                path=path,
                dispatched="no",
            ) from error
        raise failure(error, path, "find") from error
    return found


class _Search:
    """The state of one look for a path: where it has come to, and the names that are still to follow."""

    def __init__(self, root_fd: int, path: bytes) -> None:
        self.fd = os.dup(root_fd)
        self._root_fd = root_fd
        self._path = path
        self._waiting = path.split(b"/")[::-1]
        self._walked: list[bytes] = []
        self._links = 0
        self._steps = 0

    def step(self) -> Found | None:
        """Take one name; the answer when it is the last."""
        self._steps += 1
        if self._links > _LONGEST_CHAIN or self._steps > _MOST_STEPS:
            raise SyncError(
                f"{printable(self._path)} goes through too many links; name the place that it leads to",
                path=self._path,
            )
        name = self._next_name()
        if not name:
            return Found(self.fd, b".", os.fstat(self.fd))
        if name == b"..":
            self._up()
            return None
        status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            self._follow(name)
            return None
        if all(part in _NOWHERE for part in self._waiting):
            return Found(self.fd, name, status)
        self._go(os.open(name, _OPEN_STEP, dir_fd=self.fd))
        self._walked.append(name)
        return None

    def _next_name(self) -> bytes:
        while self._waiting:
            name = self._waiting.pop()
            if name not in _NOWHERE:
                return name
        return b""

    def _up(self) -> None:
        """Go to the directory above: not by `..`, which leads elsewhere once a directory was moved."""
        if not self._walked:
            raise _outside(self._path, "it leads above the sandbox's working directory")
        self._walked.pop()
        self._steps += len(self._walked)
        fd = os.dup(self._root_fd)
        for name in self._walked:
            above = fd
            try:
                fd = os.open(name, _OPEN_STEP, dir_fd=above)
            finally:
                os.close(above)
        self._go(fd)

    def _follow(self, name: bytes) -> None:
        self._links += 1
        target = os.readlink(name, dir_fd=self.fd)
        if target.startswith(b"/"):
            raise _outside(self._path, f"{printable(name)} is a link to an absolute path; name what it means")
        self._waiting.extend(target.split(b"/")[::-1])

    def _go(self, fd: int) -> None:
        os.close(self.fd)
        self.fd = fd


def split_destination(path: bytes) -> list[bytes]:
    """Split a path below the root into names; none for the root itself.

    Raises:
        PathOutsideRootError: The path is absolute or holds `..`.
    """
    if path.startswith(b"/"):
        raise _outside(path, _ABSOLUTE)
    _refuse_nul(path)
    names = [name for name in path.split(b"/") if name not in _NOWHERE]
    if b".." in names:
        raise _outside(path, "it holds '..'; name the place itself")
    return names


def open_parents(root_fd: int, names: list[bytes], *, owner: tuple[int, int] | None = None) -> int:
    """Open a directory below the root, and make what is missing on the way.

    Args:
        root_fd: The directory to begin at.
        names: One for each level.
        owner: User and group that what is made will belong to, if not to this process's.

    Returns:
        A descriptor for reading, the caller's to close.

    Raises:
        PathOutsideRootError: A link is in the way.
        TargetBusyError: Something else that is no directory is in the way.
        SyncError: The system refuses.
    """
    fd = os.dup(root_fd)
    for count, name in enumerate(names, 1):
        above = fd
        try:
            try:
                fd = os.open(name, OPEN_DIRECTORY, dir_fd=above)
            except FileNotFoundError:
                fd = _make_directory(above, name, owner)
        except OSError as error:
            raise not_entered(error, above, name, b"/".join(names[:count])) from error
        finally:
            os.close(above)
    return fd


def find_parents(root_fd: int, names: list[bytes]) -> int | None:
    """Open a directory below the root if it exists, and make nothing.

    Raises:
        PathOutsideRootError: A link is in the way.
        TargetBusyError: Something else that is no directory is in the way.
        SyncError: The system refuses.
    """
    fd = os.dup(root_fd)
    for count, name in enumerate(names, 1):
        above = fd
        try:
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise not_entered(error, above, name, b"/".join(names[:count])) from error
        finally:
            os.close(above)
    return fd


def _make_directory(above: int, name: bytes, owner: tuple[int, int] | None) -> int:
    try:
        os.mkdir(name, dir_fd=above)
    except FileExistsError:
        # Made by somebody else at the same moment, as good.
        return os.open(name, OPEN_DIRECTORY, dir_fd=above)
    fd, _ = open_for_filling(name, above)
    try:
        status = os.fstat(fd)
        if status.st_uid == os.geteuid():
            give_owner_rights(fd)
        if owner is not None and status.st_uid == os.geteuid():
            # Where a group shares the directory above, what is made there belongs to that group.
            os.fchown(fd, owner[0], -1 if status.st_mode & stat.S_ISGID else owner[1])
    except BaseException:  # whatever it is, the descriptor is nobody's else
        os.close(fd)
        raise
    return fd


def leads_out(target: bytes, depth: int) -> str | None:
    """Tell why a link would lead out of its tree, if it would.

    `..` is believed only at the front, where it goes up through real directories. After a name, which may be a
    link itself, it could end anywhere.

    Args:
        target: What the link holds.
        depth: How many directories below the top of the tree the link stands.
    """
    if target.startswith(b"/"):
        return "it leads to an absolute path"
    names = [name for name in target.split(b"/") if name not in _NOWHERE]
    up = 0
    while up < len(names) and names[up] == b"..":
        up += 1
    if up > depth:
        return "it leads out of the copied tree"
    if b".." in names[up:]:
        return "it has '..' after a name, which may lead out of the copied tree through another link"
    return None


def _outside(path: bytes, why: str) -> PathOutsideRootError:
    return PathOutsideRootError(f"{printable(path)} is refused: {why}", path=path)


def _refuse_nul(path: bytes) -> None:
    if b"\0" in path:
        raise SyncError(f"{printable(path)} holds a NUL byte, which no path can; check the path", path=path)


def not_entered(error: OSError, dir_fd: int, name: bytes, path: bytes) -> SyncError:
    """Say why a directory that is to be written into cannot be opened.

    Args:
        error: What opening it raised.
        dir_fd: The directory it stands in.
        name: Its name there.
        path: How the message calls it.
    """
    if error.errno not in (errno.ENOTDIR, errno.ELOOP):
        return failure(error, path, "write into")
    try:
        mode = os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        # Gone again; the answer is the same as for a file.
        mode = stat.S_IFREG
    if stat.S_ISLNK(mode):
        return _outside(
            path,
            "it is a symbolic link where a directory should be, and links are not followed; remove the link, or name "
            "the directory that it leads to",
        )
    return TargetBusyError(
        f"{printable(path)} is not a directory, but a directory should be there; remove it, or choose another target",
        path=path,
    )
