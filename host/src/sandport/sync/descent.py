"""A way down into a tree of directories of any depth, by descriptors, with few of them open.

Paths longer than PATH_MAX cannot be named, and a path can be swapped under a program that names it; so each step
opens one name relative to the directory above it, without following links. Only the root and the innermost levels
stay open. Going up past them opens `..` and believes it only if device and inode are those seen on the way down:
who owns the tree may have moved the directory to another place in between.
"""

from __future__ import annotations

import os
from typing import ClassVar, Final

from sandport.sync.errors import TreeMovedError, printable

__all__ = ["OPEN_DIRECTORY", "Descent", "Identity", "Level"]

OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""O_DIRECTORY makes the call fail on anything else before it is opened, so nothing here can block or act."""

_KEPT_OPEN: Final = 32
_CLOSED: Final = -1

Identity = tuple[int, int]
"""Device and inode."""


class Level:
    """One directory on the way down."""

    __slots__ = ("fd", "identity", "name", "shown")

    def __init__(self, name: bytes, shown: bytes, fd: int, identity: Identity) -> None:
        self.name = name
        self.shown = shown
        self.fd = fd
        self.identity = identity


class Descent:
    """The current directory of a walk, and the way back up.

    Args:
        root_fd: A directory opened for reading. It stays the caller's to close.
    """

    _steps_by: ClassVar[int] = OPEN_DIRECTORY
    """How a directory is opened that was passed on the way down."""

    def __init__(self, root_fd: int) -> None:
        status = os.fstat(root_fd)
        self.fd = root_fd
        self._levels = [Level(b"", b"", root_fd, (status.st_dev, status.st_ino))]
        self._lowest_open = 1

    @property
    def depth(self) -> int:
        """How many directories below the root."""
        return len(self._levels) - 1

    @property
    def identity(self) -> Identity:
        """Device and inode of the current directory."""
        return self._levels[-1].identity

    def path_of(self, name: bytes = b"", *, below: int = 0) -> bytes:
        """Spell the path of a name in the current directory, relative to the root or to a directory `below` it."""
        names = [level.shown for level in self._levels[1 + below :]]
        if name:
            names.append(name)
        return b"/".join(names)

    def push(self, name: bytes, fd: int, identity: Identity, *, shown: bytes | None = None) -> None:
        """Make an opened child the current directory; from here on its descriptor is this object's to close.

        Args:
            name: The name it was opened by.
            fd: Its descriptor.
            identity: Its device and inode.
            shown: The name it has in `path_of`, if it is to have another one in the end.
        """
        self._levels.append(Level(name, name if shown is None else shown, fd, identity))
        self.fd = fd
        if len(self._levels) - self._lowest_open > _KEPT_OPEN:
            oldest = self._levels[self._lowest_open]
            self._lowest_open += 1
            os.close(oldest.fd)
            oldest.fd = _CLOSED

    def pop(self) -> Level:
        """Go one level up.

        Returns:
            The level that was left; its descriptor is still open, and now the caller's to close.

        Raises:
            TreeMovedError: The directory above cannot be found again. The current one stays as it was.
        """
        child, parent = self._levels[-1], self._levels[-2]
        if parent.fd == _CLOSED:
            parent.fd = self._reopen(len(self._levels) - 2, child.fd)
            self._lowest_open = len(self._levels) - 2
        self._levels.pop()
        self.fd = parent.fd
        return child

    def close(self) -> None:
        """Close every descriptor but the root's."""
        for level in self._levels[1:]:
            if level.fd != _CLOSED:
                os.close(level.fd)
        del self._levels[1:]
        self._lowest_open = 1
        self.fd = self._levels[0].fd

    def _reopen(self, index: int, child_fd: int) -> int:
        wanted = self._levels[index].identity
        try:
            fd = os.open(b"..", OPEN_DIRECTORY, dir_fd=child_fd)
        except OSError:
            # Without the right to search the child there is no `..` to open; the names from the root remain.
            fd = _CLOSED
        if fd != _CLOSED:
            if _identity(fd) == wanted:
                return fd
            os.close(fd)
        fd = self._walk_from_root(index)
        if fd != _CLOSED:
            if _identity(fd) == wanted:
                return fd
            os.close(fd)
        path = b"/".join(level.shown for level in self._levels[1:])
        raise TreeMovedError(
            f"{printable(path)} was moved away while it was copied; stop what moves it, then copy again", path=path
        )

    def _walk_from_root(self, index: int) -> int:
        fd = os.dup(self._levels[0].fd)
        for level in self._levels[1 : index + 1]:
            above = fd
            try:
                fd = os.open(level.name, self._steps_by, dir_fd=above)
            except OSError:
                # Gone, replaced or forbidden: the caller says so, with the path of what was lost.
                return _CLOSED
            finally:
                os.close(above)
        return fd


def _identity(fd: int) -> Identity:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
