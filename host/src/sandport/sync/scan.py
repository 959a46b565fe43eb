"""The reading side: a tree under an open directory, as typed entries and the bytes of its files.

The tree may belong to an enemy who changes it meanwhile. Each file is opened relative to its directory, never
through a link and never waiting for a FIFO or a lease, and is looked at again by its descriptor before a byte is
taken. What the listing calls a FIFO, a socket or a device is not opened at all.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol

import msgspec

from sandport.sync.descent import Identity
from sandport.sync.entries import (
    DIRECTORY_END,
    DIRECTORY_MODE_BITS,
    FILE_MODE_BITS,
    DirectoryEntry,
    Entry,
    FileEntry,
    LinkEntry,
)
from sandport.sync.errors import TooLargeError, failure
from sandport.sync.ledger import Ledger
from sandport.sync.selection import Selection
from sandport.sync.small_files import OPEN_FILE
from sandport.sync.special import kind_of
from sandport.sync.walk import Entered, Listed, Walk, name_lost

__all__ = ["Scanner", "Taker", "Totals", "measure", "was_changed"]

_BROKEN_LINKS: Final = {
    errno.ENOENT: "it is a link to nothing, and was kept as a link",
    errno.ENOTDIR: "it is a link to nothing, and was kept as a link",
    errno.ELOOP: "it is a link that leads round in a circle, and was kept as a link",
}

_NOT_COUNTED: Final = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR})
"""Removed since it was listed, not to be seen, or a link in a circle; the copy comes by later and reports it."""

_CLOSED: Final = -1


class Totals(msgspec.Struct, frozen=True):
    """What a tree held when it was counted."""

    entries: int
    files: int
    total_bytes: int


def measure(
    root_fd: int,
    *,
    poll: Callable[[], None],
    max_entries: int | None = None,
    max_bytes: int | None = None,
    avoid: Identity | None = None,
    selection: Selection | None = None,
    follow_symlinks: bool = False,
) -> Totals:
    """Count a tree without reading a file.

    Args:
        root_fd: The tree, opened for reading; stays the caller's to close.
        poll: Called between entries; may raise to stop.
        max_entries: Ceiling on names of any kind.
        max_bytes: Ceiling on the sum of the files' sizes, holes included.
        avoid: A directory not to count.
        selection: What is left out.
        follow_symlinks: Whether what a link leads to counts in its place.

    Raises:
        TooLargeError: The tree is past a ceiling.
    """
    walk = Walk(
        root_fd,
        Ledger(),
        poll=poll,
        max_entries=max_entries,
        avoid=avoid,
        selection=selection,
        follow_symlinks=follow_symlinks,
    )
    files = total_bytes = 0
    for step in walk.steps():
        if step is None or isinstance(step, (Entered, Listed)):
            continue
        try:
            if not step.is_file(follow_symlinks=follow_symlinks):
                continue
            total_bytes += step.stat(follow_symlinks=follow_symlinks).st_size
        except OSError as error:
            if error.errno in _NOT_COUNTED:
                continue
            raise failure(error, walk.descent.path_of(os.fsencode(step.name)), "look at") from error
        files += 1
        if max_bytes is not None and total_bytes > max_bytes:
            raise TooLargeError(
                f"the source holds more than {max_bytes:,} bytes; copy a smaller part, or raise max_bytes",
                path=walk.descent.path_of(os.fsencode(step.name)),
            )
    return Totals(walk.entries_seen, files, total_bytes)


class Taker(Protocol):
    """Copies files by itself, which then are no entries."""

    def take(self, name: bytes) -> Sequence[bytes]:
        """Take a file of the current directory.

        Returns:
            Which of the files of this directory that were offered so far it leaves to be entries after all.
        """

    def rest(self) -> Sequence[bytes]:
        """There are no more files in the current directory; what is returned is as for `take`."""


class Scanner:
    """Yields the entries of one tree.

    While a `FileEntry` is the current one, `descriptor` is that file, open at its first byte. Asking for the next
    entry closes it, and notes it as changed if it is not what it was when it was opened; not where `settled` was set,
    by whoever knows that what was read is of one moment.

    Files are first offered to the `taker`, if there is one.

    Args:
        root_fd: The tree, opened for reading; stays the caller's to close.
        ledger: Takes what is skipped and what has changed.
        poll: Called between entries; may raise to stop.
        max_entries: Ceiling on names of any kind.
        avoid: A directory not to enter.
        selection: What is left out.
        follow_symlinks: Whether what a link leads to is taken in its place, wherever that is. A link to nothing stays
            one, and is noted as skipped.
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
        self._walk = Walk(
            root_fd,
            ledger,
            poll=poll,
            max_entries=max_entries,
            avoid=avoid,
            selection=selection,
            follow_symlinks=follow_symlinks,
        )
        self._follow_symlinks = follow_symlinks
        self._descent = self._walk.descent
        self._ledger = ledger
        self.descriptor = _CLOSED
        self.settled = False
        self.taker: Taker | None = None

    @property
    def fd(self) -> int:
        """The current directory."""
        return self._descent.fd

    @property
    def depth(self) -> int:
        """How many directories below the root the current entry stands."""
        return self._descent.depth

    def path_of(self, name: bytes) -> bytes:
        """Spell the path of a name in the current directory, relative to the root."""
        return self._descent.path_of(name)

    def entries(self) -> Generator[Entry, None, None]:
        """Visit the tree once. Close the generator when leaving early.

        Raises:
            TooLargeError: There are more than `max_entries` names.
            TreeMovedError: A directory was moved away while the scan was inside.
            SyncError: Something cannot be read for a reason that is not the file's own.
        """
        steps = self._walk.steps()
        taker = self.taker
        try:
            for step in steps:
                if isinstance(step, os.DirEntry):
                    if not step.is_file(follow_symlinks=False):
                        yield from self._no_file(step)
                    elif taker is None:
                        yield from self._file(os.fsencode(step.name), OPEN_FILE)
                    else:
                        for name in taker.take(os.fsencode(step.name)):
                            yield from self._file(name, OPEN_FILE)
                elif isinstance(step, Entered):
                    status = step.status
                    yield DirectoryEntry(step.name, status.st_mode & DIRECTORY_MODE_BITS, status.st_mtime_ns)
                elif step is None:
                    yield DIRECTORY_END
                elif taker is not None:
                    for name in taker.rest():
                        yield from self._file(name, OPEN_FILE)
        finally:
            steps.close()

    def _no_file(self, item: os.DirEntry[str]) -> Generator[Entry, None, None]:
        if not item.is_symlink():
            self._special(item)
        elif self._follow_symlinks:
            yield from self._followed(item)
        else:
            yield from self._link(os.fsencode(item.name))

    def _followed(self, item: os.DirEntry[str]) -> Generator[Entry, None, None]:
        """What a link leads to that is no directory, if it leads to anything."""
        name = os.fsencode(item.name)
        try:
            mode = item.stat().st_mode
        except OSError as error:
            reason = _BROKEN_LINKS.get(error.errno or 0)
            if reason is None:
                name_lost(error, self._descent.path_of(name), self._ledger)
                return
            self._ledger.skip(self._descent.path_of(name), reason, "link")
            yield from self._link(name)
            return
        if stat.S_ISREG(mode):
            yield from self._file(name, OPEN_FILE & ~os.O_NOFOLLOW)
        elif stat.S_ISDIR(mode):
            self._ledger.change(
                self._descent.path_of(name), "it was turned towards a directory before it could be read"
            )
        else:
            reason = f"it leads to a {kind_of(mode)}, which has no bytes to copy"
            self._ledger.skip(self._descent.path_of(name), reason, "special")

    def _file(self, name: bytes, flags: int) -> Generator[Entry, None, None]:
        try:
            fd = os.open(name, flags, dir_fd=self._descent.fd)
        except OSError as error:
            name_lost(error, self._descent.path_of(name), self._ledger)
            return
        try:
            before = os.fstat(fd)
            mode = before.st_mode
            if not stat.S_ISREG(mode):
                self._ledger.change(self._descent.path_of(name), f"it was replaced by a {kind_of(mode)}")
                return
            self.descriptor = fd
            self.settled = False
            yield FileEntry(name, mode & FILE_MODE_BITS, before.st_size, before.st_mtime_ns)
            if not self.settled and was_changed(before, os.fstat(fd)):
                self._ledger.change(self._descent.path_of(name), "it was written to while it was read")
        finally:
            self.descriptor = _CLOSED
            os.close(fd)

    def _link(self, name: bytes) -> Generator[Entry, None, None]:
        try:
            status = os.stat(name, dir_fd=self._descent.fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=self._descent.fd)
        except OSError as error:
            name_lost(error, self._descent.path_of(name), self._ledger)
            return
        yield LinkEntry(name, target, status.st_mtime_ns)

    def _special(self, item: os.DirEntry[str]) -> None:
        name = os.fsencode(item.name)
        try:
            mode = item.stat(follow_symlinks=False).st_mode
        except OSError as error:
            name_lost(error, self._descent.path_of(name), self._ledger)
            return
        reason = f"it is a {kind_of(mode)}, which has no bytes to copy"
        self._ledger.skip(self._descent.path_of(name), reason, "special")


def was_changed(before: os.stat_result, after: os.stat_result) -> bool:
    """Tell from two looks at one descriptor whether the file was written to in between."""
    return before.st_size != after.st_size or before.st_mtime_ns != after.st_mtime_ns
