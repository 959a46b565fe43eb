"""A target that is only looked at: what a copy would do there, and what would be in its way."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final, Self

from sandport.sync.descent import OPEN_DIRECTORY, Descent, Identity
from sandport.sync.entries import DirectoryEntry, FileEntry, LinkEntry
from sandport.sync.errors import failure
from sandport.sync.mirror import Mirror
from sandport.sync.paths import not_entered
from sandport.sync.special import refuse_special
from sandport.sync.target import in_the_way

__all__ = ["RehearsalTree"]

_NOT_ENTERED: Final = frozenset({errno.ENOTDIR, errno.ELOOP})


class RehearsalTree:
    """Takes the entries that a `TargetTree` takes, writes nothing, and raises what can be foreseen.

    Args:
        root_fd: The directory that would be written into, opened for reading; stays the caller's to close. None if it
            does not exist yet.
        label: How messages call that directory.
        mirror: Asked to remove what is in the way, and must be one that rehearses too; None if that stays.
        replaces: Whether what has the name of the copied file or tree would be replaced, whatever it is.
        spares: As for the `TargetTree` that is rehearsed.
    """

    def __init__(
        self,
        root_fd: int | None,
        *,
        label: bytes,
        mirror: Mirror | None = None,
        replaces: bool = False,
        spares: bool = False,
    ) -> None:
        self._spares = spares
        self._descent = None if root_fd is None else Descent(root_fd)
        self._missing: list[bytes] = [] if root_fd is not None else [b""]
        self._label = label
        self._mirror = mirror
        self._replaces = replaces
        self._top_depth = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descent is not None:
            self._descent.close()

    @property
    def fd(self) -> int | None:
        """The current directory, if it exists."""
        return None if self._missing or self._descent is None else self._descent.fd

    @property
    def fresh(self) -> bool:
        """Whether the current directory does not exist yet."""
        return bool(self._missing)

    @property
    def identity(self) -> Identity | None:
        """Device and inode of the current directory, if it exists."""
        return None if self._missing or self._descent is None else self._descent.identity

    def path_of(self, name: bytes = b"") -> bytes:
        """Spell the place of a name for a message."""
        parts = [self._label, self._below(), *self._missing, name]
        return os.path.join(*[part for part in parts if part]) if any(parts) else b""

    def enter(self, entry: DirectoryEntry, *, adopt: bool = True) -> None:
        """Go into a directory, whether or not it exists.

        Raises:
            PathOutsideRootError: A symbolic link has that name, and would stay.
            TargetBusyError: Something else has that name, and would stay.
            SyncError: The system refuses.
        """
        name = entry.name
        if self._missing or self._descent is None or (self._replaces and not adopt):
            self._missing.append(name)
            return
        descent = self._descent
        try:
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=descent.fd)
        except (FileNotFoundError, PermissionError):
            # Its owner would be given the right to it; what it holds cannot be told before.
            self._missing.append(name)
            return
        except OSError as error:
            if error.errno in _NOT_ENTERED and adopt and self._mirror is not None:
                self._mirror.clear(descent.fd, name, below_top=self._below_top(name), shown=self.path_of(name))
                self._missing.append(name)
                return
            raise not_entered(error, descent.fd, name, self.path_of(name)) from error
        status = os.fstat(fd)
        descent.push(name, fd, (status.st_dev, status.st_ino))
        if not adopt:
            self._top_depth = descent.depth

    def leave(self) -> None:
        """Go back up."""
        if self._missing:
            self._missing.pop()
        elif self._descent is not None:
            os.close(self._descent.pop().fd)

    def put(self, entry: FileEntry | LinkEntry) -> None:
        """See whether a file or link could take its name.

        Raises:
            TargetBusyError: A directory has that name, and would stay, or what is spared.
            SyncError: The system refuses.
        """
        if self._missing or self._descent is None:
            return
        name, fd = entry.name, self._descent.fd
        if self._spares:
            refuse_special(name, dir_fd=fd, shown=self.path_of(name))
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure(error, self.path_of(name), "write into") from error
        if not stat.S_ISDIR(status.st_mode) or self._replaces:
            return
        if self._mirror is None:
            raise in_the_way(self.path_of(name))
        self._mirror.clear(fd, name, below_top=self._below_top(name), shown=self.path_of(name))

    def _below(self) -> bytes:
        return b"" if self._descent is None else self._descent.path_of()

    def _below_top(self, name: bytes) -> bytes:
        assert self._descent is not None
        return self._descent.path_of(name, below=self._top_depth)
