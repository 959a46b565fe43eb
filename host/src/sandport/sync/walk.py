"""The order in which a tree is visited: what both counting and copying go by.

In each directory first everything that is no directory, straight from the open listing, then its directories one
after the other. No listing is open while the walk is deeper, so open descriptors stay few; and of each directory
on the way down, only the names of the directories still to visit are held.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, TypeAlias

from sandport.sync.descent import OPEN_DIRECTORY, Descent, Identity, Level
from sandport.sync.entries import RESERVED_PREFIX
from sandport.sync.errors import SyncError, TooLargeError, failure
from sandport.sync.ledger import Ledger
from sandport.sync.scratch import is_scratch
from sandport.sync.selection import Selection

__all__ = ["Entered", "Listed", "Step", "Walk", "name_lost", "skip_reserved"]

_RESERVED_NAME: Final = os.fsdecode(RESERVED_PREFIX)

_OPEN_FOLLOWING: Final = OPEN_DIRECTORY & ~os.O_NOFOLLOW
_CLOSED: Final = -1


class Entered(NamedTuple):
    """The walk is now inside this directory; `status` is of its open descriptor."""

    name: bytes
    status: os.stat_result


class Listed:
    """All of the current directory was seen that is no directory; what follows is its directories."""

    __slots__ = ()


_LISTED: Final = Listed()

Step: TypeAlias = "os.DirEntry[str] | Entered | Listed | None"
"""Something that is no directory; a directory begins; all of those were seen; the innermost directory ends."""


class Walk:
    """One visit of a whole tree.

    Args:
        root_fd: The tree, opened for reading; stays the caller's to close.
        ledger: Takes what is left out, with the reason.
        poll: Called between entries; may raise to stop the walk.
        max_entries: How many names of any kind the tree may hold, or None for no ceiling.
        avoid: A directory not to enter, because the copy is being written there.
        selection: What is left out; a directory that is left out is not entered.
        follow_symlinks: Whether a link to a directory is entered. One that leads back to a directory above it is not.
    """

    def __init__(
        self,
        root_fd: int,
        ledger: Ledger,
        *,
        poll: Callable[[], None],
        max_entries: int | None = None,
        avoid: Identity | None = None,
        selection: Selection | None = None,
        follow_symlinks: bool = False,
    ) -> None:
        self.descent = _FollowingDescent(root_fd) if follow_symlinks else Descent(root_fd)
        self.entries_seen = 0
        self._ledger = ledger
        self._poll = poll
        self._max_entries = max_entries
        self._avoid = avoid
        self._follow_symlinks = follow_symlinks
        self._cursor = (
            None if selection is None else selection.start(root_fd, functools.partial(ledger.skip, kind="patterns"))
        )

    def steps(self) -> Generator[Step, None, None]:
        """Visit the tree once.

        Raises:
            TooLargeError: There are more than `max_entries` names.
            TreeMovedError: A directory was moved away while the walk was inside.
            SyncError: A listing cannot be read.
        """
        try:
            waiting = [(yield from self._leaves())]
            while waiting:
                if waiting[-1]:
                    entered = self._enter(waiting[-1].pop())
                    if entered is not None:
                        yield entered
                        waiting.append((yield from self._leaves()))
                    continue
                waiting.pop()
                if waiting:
                    os.close(self.descent.pop().fd)
                    if self._cursor is not None:
                        self._cursor.leave()
                    yield None
        finally:
            self.descent.close()

    def _leaves(self) -> Generator[Step, None, list[bytes]]:
        directories: list[bytes] = []
        ceiling = self._max_entries
        poll = self._poll
        follow = self._follow_symlinks
        cursor = self._cursor
        try:
            with os.scandir(self.descent.fd) as listing:
                for item in listing:
                    poll()
                    self.entries_seen += 1
                    if ceiling is not None and self.entries_seen > ceiling:
                        raise self._too_many(ceiling)
                    name = item.name
                    is_directory = item.is_dir(follow_symlinks=False) or (follow and _leads_to_directory(item))
                    if cursor is not None and cursor.excludes(os.fsencode(name), is_directory=is_directory):
                        self._ledger.exclude(self.descent.path_of(os.fsencode(name)))
                    elif name.startswith(_RESERVED_NAME):
                        skip_reserved(self.descent.path_of(os.fsencode(name)), self._ledger)
                    elif is_directory:
                        directories.append(os.fsencode(name))
                    else:
                        yield item
        except OSError as error:
            raise failure(error, self.descent.path_of(), "list") from error
        yield _LISTED
        return directories

    def _enter(self, name: bytes) -> Entered | None:
        self._poll()
        flags = _OPEN_FOLLOWING if self._follow_symlinks else OPEN_DIRECTORY
        try:
            fd = os.open(name, flags, dir_fd=self.descent.fd)
        except OSError as error:
            name_lost(error, self.descent.path_of(name), self._ledger)
            return None
        try:
            status = os.fstat(fd)
        except OSError as error:
            os.close(fd)
            raise failure(error, self.descent.path_of(name), "look at") from error
        identity = (status.st_dev, status.st_ino)
        reason = None
        if identity == self._avoid:
            reason = "it is the target of this copy"
        elif isinstance(self.descent, _FollowingDescent) and self.descent.passes(identity):
            reason = "it is a link that leads back to a directory above it"
        if reason is not None:
            os.close(fd)
            self._ledger.skip(self.descent.path_of(name), reason, "loop")
            return None
        self.descent.push(name, fd, identity)
        if self._cursor is not None:
            self._cursor.enter(name, fd)
        return Entered(name, status)

    def _too_many(self, ceiling: int) -> SyncError:
        return TooLargeError(
            f"the source holds more than {ceiling:,} entries; copy a smaller part, or raise max_entries",
            path=self.descent.path_of(),
        )


class _FollowingDescent(Descent):
    """A way down on which some steps were links."""

    # What is found is believed only if it is the directory that was there on the way down, link or not.
    _steps_by = _OPEN_FOLLOWING

    def __init__(self, root_fd: int) -> None:
        super().__init__(root_fd)
        self._passed = {self.identity}

    def passes(self, identity: Identity) -> bool:
        """Whether this directory is the current one, or above it on this way."""
        return identity in self._passed

    def push(self, name: bytes, fd: int, identity: Identity, *, shown: bytes | None = None) -> None:
        """As for any; the identity is one that was not passed yet."""
        super().push(name, fd, identity, shown=shown)
        self._passed.add(identity)

    def pop(self) -> Level:
        """As for any."""
        level = super().pop()
        self._passed.discard(level.identity)
        return level


def _leads_to_directory(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:
        # A circle of links, or nothing that may be looked at: it is no directory to enter, and is told of as a link.
        return False


def name_lost(error: OSError, path: bytes, ledger: Ledger) -> None:
    """Note why a name that was listed cannot be opened.

    Raises:
        SyncError: The reason is no property of the file, such as too many open files.
    """
    if error.errno == errno.ENOENT:
        ledger.change(path, "it was removed before it could be read")
    elif error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO):
        ledger.change(path, "it was replaced by something of another kind before it could be read")
    elif error.errno in (errno.EACCES, errno.EPERM):
        ledger.skip(path, "permission to read it was denied", "denied")
    elif error.errno == errno.EAGAIN:
        ledger.skip(path, "another program holds a lease on it", "denied")
    else:
        raise failure(error, path, "open") from error


def skip_reserved(path: bytes, ledger: Ledger) -> None:
    """Note what is not copied because of its name, which nobody else may take from us."""
    if is_scratch(os.path.basename(path)):
        ledger.skip(path, "it is what a copy has staged there, or one that was killed", "scratch")
    else:
        ledger.skip(path, "names that begin with .sandport- are reserved", "reserved")
