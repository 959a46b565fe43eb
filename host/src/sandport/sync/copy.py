"""Joins the reading side and the writing side: entries and bytes from a scanner into a target tree."""

from __future__ import annotations

import contextlib
import enum
import os
import stat

import msgspec

from sandport.sync.entries import (
    DIRECTORY_MODE_BITS,
    FILE_MODE_BITS,
    DirectoryEntry,
    FileEntry,
    LinkEntry,
)
from sandport.sync.errors import SourceMissingError, SyncError, TooLargeError, failure, printable
from sandport.sync.fast_lane import FastLane, Sharing, wrong_size
from sandport.sync.ledger import Ledger
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths, Mirror
from sandport.sync.paths import leads_out
from sandport.sync.pump import Pump
from sandport.sync.rehearsal import RehearsalTree
from sandport.sync.result import SkipKind, SyncResult
from sandport.sync.scan import Scanner, Totals, measure, was_changed
from sandport.sync.selection import Selection
from sandport.sync.small_files import ONE_STEP_BYTES, SMALL_BYTES, read_on
from sandport.sync.target import TargetTree

__all__ = ["Account", "Bounds", "LinkRule", "copy_file", "copy_tree", "count_tree", "too_large"]


class LinkRule(enum.Enum):
    """Which symbolic links are written."""

    ANY = "any"
    INSIDE = "inside"
    """Only those that cannot lead out of the copied tree."""


class Bounds(msgspec.Struct, frozen=True):
    """What a copy may take from its source; None is no ceiling."""

    links: LinkRule = LinkRule.ANY
    max_bytes: int | None = None
    max_entries: int | None = None


class Account(Ledger):
    """A ledger that also knows which paths the source holds, for a mirror that asks after the copy.

    Args:
        known: Takes what is not copied and must stay in the target all the same; None if nothing is mirrored.
    """

    def __init__(self, known: KnownPaths | None = None) -> None:
        super().__init__()
        self.known = known

    def skip(self, path: bytes, reason: str, kind: SkipKind) -> None:
        """Note what cannot be copied."""
        super().skip(path, reason, kind)
        self._keep(path)

    def refuse(self, path: bytes, reason: str) -> None:
        """Note a link that is not written."""
        super().refuse(path, reason)
        self._keep(path)

    def change(self, path: bytes, reason: str) -> None:
        """Note what was changed while it was read."""
        super().change(path, reason)
        self._keep(path)

    def _keep(self, path: bytes) -> None:
        if self.known is not None:
            self.known.add(path)


def count_tree(
    source_fd: int,
    meter: Meter,
    bounds: Bounds,
    *,
    avoid: tuple[int, int] | None,
    selection: Selection | None = None,
    follow_symlinks: bool = False,
) -> Totals:
    """Count a tree before it is copied.

    Args:
        source_fd: The tree, opened for reading.
        meter: May stop the count.
        bounds: The ceilings.
        avoid: Device and inode of a directory that the copy will not enter.
        selection: What is left out.
        follow_symlinks: Whether what a link leads to is copied in its place.

    Raises:
        TooLargeError: The tree is past a ceiling.
    """
    return measure(
        source_fd,
        poll=meter.poll,
        max_entries=bounds.max_entries,
        max_bytes=bounds.max_bytes,
        avoid=avoid,
        selection=selection,
        follow_symlinks=follow_symlinks,
    )


def copy_tree(
    source_fd: int,
    tree: TargetTree | RehearsalTree,
    top: bytes | None,
    *,
    meter: Meter,
    bounds: Bounds,
    account: Account,
    mirror: Mirror | None = None,
    selection: Selection | None = None,
    follow_symlinks: bool = False,
    totals: Totals | None = None,
    sharing: Sharing | None = None,
) -> SyncResult:
    """Copy the contents of one directory into another.

    Args:
        source_fd: The source, opened for reading.
        tree: Where to; it is completed, or put away when the copy fails. Of a rehearsal nothing is written.
        top: The name in `tree` of the directory to copy into, or None for the directory that `tree` starts with.
        meter: Polled and told of the progress.
        bounds: What may be taken.
        account: What the result is made of; for a mirror it needs its `known`.
        mirror: Removes from the target what is not in the source, once all is copied; None if all stays.
        selection: What is left out.
        follow_symlinks: Whether what a link leads to is copied in its place.
        totals: What `count_tree` found, if it was asked.
        sharing: When a second process is started, and how, if not as ever.

    Raises:
        SyncError: In any of its forms.
    """
    status = os.fstat(source_fd)
    with tree:
        if top is not None:
            mode = status.st_mode & DIRECTORY_MODE_BITS
            tree.enter(DirectoryEntry(top, mode, status.st_mtime_ns), adopt=False)
        avoid = tree.identity
        if avoid == (status.st_dev, status.st_ino):
            raise SyncError("source and target are the same directory; choose another target", path=tree.path_of())
        mirrors = mirror is not None and not tree.fresh
        if mirror is not None and mirrors and tree.fd is not None:
            mirror.check(tree.fd, tree.path_of())
        if totals is None and meter.reports:
            totals = count_tree(
                source_fd, meter, bounds, avoid=avoid, selection=selection, follow_symlinks=follow_symlinks
            )
        if totals is not None:
            meter.begin(files_total=totals.files, bytes_total=totals.total_bytes)
        scanner = Scanner(
            source_fd,
            account,
            poll=meter.poll,
            max_entries=bounds.max_entries,
            avoid=avoid,
            selection=selection,
            follow_symlinks=follow_symlinks,
        )
        _TreeCopy(scanner, tree, account, meter, bounds).run(sharing or Sharing())
        if mirror is not None and mirrors and tree.fd is not None and account.known is not None:
            _require_source(source_fd, tree)
            mirror.prune(tree.fd, account.known, label=tree.path_of())
    meter.finish()
    return account.result()


def _require_source(source_fd: int, tree: TargetTree | RehearsalTree) -> None:
    """Nothing is deleted on the word of a source that is being taken away."""
    if os.fstat(source_fd).st_nlink == 0:
        raise SourceMissingError(
            f"the source was removed while it was copied, so nothing was deleted from {printable(tree.path_of())}; "
            "copy again from where it is now",
            path=tree.path_of(),
        )


class _TreeCopy:
    """One run from a scanner into a tree."""

    def __init__(
        self, scanner: Scanner, tree: TargetTree | RehearsalTree, account: Account, meter: Meter, bounds: Bounds
    ) -> None:
        self._scanner = scanner
        self._tree = tree
        self._account = account
        self._known = account.known
        self._written = None if isinstance(tree, RehearsalTree) else tree
        self._meter = meter
        self._links = bounds.links
        self._max_bytes = bounds.max_bytes
        self._pump = Pump(meter.advance)

    def run(self, sharing: Sharing) -> None:
        if self._written is None:
            self._run()
            return
        lane = FastLane(
            self._scanner,
            self._written,
            self._account,
            known=self._known,
            meter=self._meter,
            max_bytes=self._max_bytes,
            sharing=sharing,
        )
        # What it has begun is over before the tree is completed or put away.
        with lane:
            self._scanner.taker = lane
            self._run()

    def _run(self) -> None:
        tree = self._tree
        with contextlib.closing(self._scanner.entries()) as entries:
            for entry in entries:
                if isinstance(entry, FileEntry):
                    self._file(entry)
                elif isinstance(entry, LinkEntry):
                    self._link(entry)
                elif isinstance(entry, DirectoryEntry):
                    tree.enter(entry)
                    self._account.directories += 1
                    if self._known is not None:
                        self._known.add_directory(self._scanner.path_of(b""))
                else:
                    tree.leave()

    def _file(self, entry: FileEntry) -> None:
        account, scanner = self._account, self._scanner
        size_bytes = entry.size_bytes
        if self._max_bytes is not None and account.total_bytes + size_bytes > self._max_bytes:
            raise too_large(self._max_bytes, scanner.path_of(entry.name))
        if self._written is None:
            copied = self._rehearse(entry)
        elif size_bytes > SMALL_BYTES:
            copied = self._pump_through(entry, self._written)
        else:
            try:
                # A byte more shows a file that has grown, and one of the kernel's own, whose sizes mean nothing.
                data = os.read(scanner.descriptor, size_bytes + 1)
                if len(data) < size_bytes:
                    data = read_on(scanner.descriptor, data, size_bytes)
                elif size_bytes <= ONE_STEP_BYTES:
                    # Its size was the one that was told, and it was read at once: a second look would tell nothing.
                    scanner.settled = len(data) == size_bytes
            except OSError as error:
                raise failure(error, scanner.path_of(entry.name), "read") from error
            copied = len(data)
            if copied > size_bytes:
                data = data[:size_bytes]
            self._written.put(entry, data)
            self._meter.advance(len(data))
        if self._known is not None:
            self._known.add(scanner.path_of(entry.name))
        account.files += 1
        account.total_bytes += min(copied, size_bytes)
        if copied != size_bytes:
            account.change(scanner.path_of(entry.name), wrong_size(size_bytes))
            scanner.settled = True  # it is told
        self._meter.file_done()

    def _pump_through(self, entry: FileEntry, tree: TargetTree) -> int:
        target_fd = tree.stage(entry)
        try:
            copied = self._pump.copy(self._scanner.descriptor, target_fd, entry.size_bytes)
        except OSError as error:
            raise failure(error, tree.path_of(entry.name), "copy into") from error
        tree.commit(entry)
        return copied

    def _rehearse(self, entry: FileEntry) -> int:
        assert isinstance(self._tree, RehearsalTree)
        self._tree.put(entry)
        self._meter.advance(entry.size_bytes)
        return entry.size_bytes

    def _link(self, entry: LinkEntry) -> None:
        reason = None
        if self._links is LinkRule.INSIDE:
            reason = leads_out(entry.target, self._scanner.depth)
        if reason is None:
            if isinstance(self._tree, RehearsalTree):
                self._tree.put(entry)
            else:
                self._tree.link(entry)
            self._account.links += 1
            if self._known is not None:
                self._known.add(self._scanner.path_of(entry.name))
        else:
            self._account.refuse(self._scanner.path_of(entry.name), reason)


def copy_file(
    source_fd: int,
    tree: TargetTree | RehearsalTree,
    name: bytes,
    *,
    path: bytes,
    mode: int | None,
    meter: Meter,
    account: Account,
    max_bytes: int | None = None,
) -> SyncResult:
    """Copy one file.

    Args:
        source_fd: The source, opened for reading without waiting.
        tree: Where to; it is completed, or put away when the copy fails. Of a rehearsal nothing is written.
        name: The file's name there.
        path: How messages and the result call the source.
        mode: Permission bits in place of the source's own.
        meter: Polled and told of the progress.
        account: What the result is made of.
        max_bytes: The largest size to take.

    Raises:
        SyncError: In any of its forms.
    """
    before = os.fstat(source_fd)
    if not stat.S_ISREG(before.st_mode):
        raise SourceMissingError(f"{printable(path)} was replaced while it was opened; copy again", path=path)
    size_bytes = before.st_size
    if max_bytes is not None and size_bytes > max_bytes:
        raise too_large(max_bytes, path)
    meter.poll()
    meter.begin(files_total=1, bytes_total=size_bytes)
    wanted = before.st_mode & FILE_MODE_BITS if mode is None else mode
    entry = FileEntry(name, wanted, size_bytes, before.st_mtime_ns)
    account.total_bytes = _one_file(source_fd, tree, entry, meter)
    account.files = 1
    if account.total_bytes != size_bytes:
        account.change(path, wrong_size(size_bytes))
    elif was_changed(before, os.fstat(source_fd)):
        account.change(path, "it was written to while it was read")
    meter.file_done()
    meter.finish()
    return account.result()


def _one_file(source_fd: int, tree: TargetTree | RehearsalTree, entry: FileEntry, meter: Meter) -> int:
    if isinstance(tree, RehearsalTree):
        with tree:
            tree.put(entry)
        meter.advance(entry.size_bytes)
        return entry.size_bytes
    with tree:
        target_fd = tree.stage(entry)
        try:
            copied = Pump(meter.advance).copy(source_fd, target_fd, entry.size_bytes)
        except OSError as error:
            raise failure(error, tree.path_of(entry.name), "copy into") from error
        tree.commit(entry)
    return copied


def too_large(max_bytes: int, path: bytes) -> TooLargeError:
    """The error for a source that is past its ceiling on bytes."""
    return TooLargeError(
        f"the source holds more than {max_bytes:,} bytes; copy a smaller part, or raise max_bytes", path=path
    )
