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
from sandport.sync.ledger import Ledger
from sandport.sync.meter import Meter
from sandport.sync.paths import leads_out
from sandport.sync.pump import Pump
from sandport.sync.result import SyncResult
from sandport.sync.scan import Scanner, Totals, measure, was_changed
from sandport.sync.target import TargetTree

__all__ = ["Bounds", "LinkRule", "copy_file", "copy_tree", "count_tree", "too_large"]


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


def count_tree(source_fd: int, meter: Meter, bounds: Bounds, *, avoid: tuple[int, int] | None) -> Totals:
    """Count a tree before it is copied.

    Args:
        source_fd: The tree, opened for reading.
        meter: May stop the count.
        bounds: The ceilings.
        avoid: Device and inode of a directory that the copy will not enter.

    Raises:
        TooLargeError: The tree is past a ceiling.
    """
    return measure(source_fd, poll=meter.poll, max_entries=bounds.max_entries, max_bytes=bounds.max_bytes, avoid=avoid)


def copy_tree(
    source_fd: int,
    tree: TargetTree,
    top: bytes | None,
    *,
    meter: Meter,
    bounds: Bounds,
    totals: Totals | None = None,
) -> SyncResult:
    """Copy the contents of one directory into another.

    Args:
        source_fd: The source, opened for reading.
        tree: Where to; it is completed, or put away when the copy fails.
        top: The name in `tree` of the directory to copy into, or None for the directory that `tree` starts with.
        meter: Polled and told of the progress.
        bounds: What may be taken.
        totals: What `count_tree` found, if it was asked.

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
        if totals is None and meter.reports:
            totals = count_tree(source_fd, meter, bounds, avoid=avoid)
        if totals is not None:
            meter.begin(files_total=totals.files, bytes_total=totals.total_bytes)
        ledger = Ledger()
        scanner = Scanner(source_fd, ledger, poll=meter.poll, max_entries=bounds.max_entries, avoid=avoid)
        _TreeCopy(scanner, tree, ledger, meter, bounds).run()
    meter.finish()
    return ledger.result()


class _TreeCopy:
    """One run from a scanner into a tree."""

    def __init__(self, scanner: Scanner, tree: TargetTree, ledger: Ledger, meter: Meter, bounds: Bounds) -> None:
        self._scanner = scanner
        self._tree = tree
        self._ledger = ledger
        self._meter = meter
        self._bounds = bounds
        self._pump = Pump(meter.advance)

    def run(self) -> None:
        with contextlib.closing(self._scanner.entries()) as entries:
            for entry in entries:
                if isinstance(entry, FileEntry):
                    self._file(entry)
                elif isinstance(entry, LinkEntry):
                    self._link(entry)
                elif isinstance(entry, DirectoryEntry):
                    self._tree.enter(entry)
                    self._ledger.directories += 1
                else:
                    self._tree.leave()

    def _file(self, entry: FileEntry) -> None:
        ledger, tree = self._ledger, self._tree
        size_bytes, ceiling = entry.size_bytes, self._bounds.max_bytes
        if ceiling is not None and ledger.total_bytes + size_bytes > ceiling:
            raise too_large(ceiling, self._scanner.path_of(entry.name))
        target_fd = tree.stage(entry)
        try:
            copied = self._pump.copy(self._scanner.descriptor, target_fd, size_bytes)
        except OSError as error:
            raise failure(error, tree.path_of(entry.name), "copy into") from error
        tree.commit(entry)
        ledger.files += 1
        ledger.total_bytes += copied
        if copied != size_bytes:
            ledger.change(self._scanner.path_of(entry.name), _wrong_size(size_bytes))
        self._meter.file_done()

    def _link(self, entry: LinkEntry) -> None:
        reason = None
        if self._bounds.links is LinkRule.INSIDE:
            reason = leads_out(entry.target, self._scanner.depth)
        if reason is None:
            self._tree.link(entry)
            self._ledger.links += 1
        else:
            self._ledger.refuse(self._scanner.path_of(entry.name), reason)


def copy_file(
    source_fd: int,
    tree: TargetTree,
    name: bytes,
    *,
    path: bytes,
    mode: int | None,
    meter: Meter,
    max_bytes: int | None = None,
) -> SyncResult:
    """Copy one file.

    Args:
        source_fd: The source, opened for reading without waiting.
        tree: Where to; it is completed, or put away when the copy fails.
        name: The file's name there.
        path: How messages and the result call the source.
        mode: Permission bits in place of the source's own.
        meter: Polled and told of the progress.
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
    ledger = Ledger()
    with tree:
        wanted = before.st_mode & FILE_MODE_BITS if mode is None else mode
        entry = FileEntry(name, wanted, size_bytes, before.st_mtime_ns)
        target_fd = tree.stage(entry)
        try:
            ledger.total_bytes = Pump(meter.advance).copy(source_fd, target_fd, size_bytes)
        except OSError as error:
            raise failure(error, tree.path_of(name), "copy into") from error
        tree.commit(entry)
    ledger.files = 1
    if ledger.total_bytes != size_bytes:
        ledger.change(path, _wrong_size(size_bytes))
    elif was_changed(before, os.fstat(source_fd)):
        ledger.change(path, "it was written to while it was read")
    meter.file_done()
    meter.finish()
    return ledger.result()


def too_large(max_bytes: int, path: bytes) -> TooLargeError:
    """The error for a source that is past its ceiling on bytes."""
    return TooLargeError(
        f"the source holds more than {max_bytes:,} bytes; copy a smaller part, or raise max_bytes", path=path
    )


def _wrong_size(size_bytes: int) -> str:
    return f"it did not give the {size_bytes:,} bytes that its size promised"
