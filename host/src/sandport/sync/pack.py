"""Packs a tree or a file of this machine into an archive: from a scanner into a `TarWriter`.

The archive is written while the tree is read, in the order of the walk: a directory, the files and links in it, then
the directories in it.
"""

from __future__ import annotations

import contextlib
import os
import stat

from sandport.sync.copy import Bounds, LinkRule, count_tree, too_large
from sandport.sync.entries import DIRECTORY_MODE_BITS, FILE_MODE_BITS, DirectoryEntry, FileEntry, LinkEntry
from sandport.sync.errors import SourceMissingError, printable
from sandport.sync.ledger import Ledger
from sandport.sync.meter import Meter
from sandport.sync.paths import leads_out
from sandport.sync.result import SyncResult
from sandport.sync.scan import Scanner, Totals, was_changed
from sandport.sync.selection import Selection
from sandport.sync.tar_write import TarWriter

__all__ = ["pack_file", "pack_tree"]


def pack_tree(
    source_fd: int,
    writer: TarWriter,
    *,
    prefix: bytes = b"",
    with_top: bool = False,
    meter: Meter,
    bounds: Bounds,
    account: Ledger | None = None,
    selection: Selection | None = None,
    follow_symlinks: bool = False,
    totals: Totals | None = None,
) -> SyncResult:
    """Write the contents of one directory, and the end of the archive.

    Args:
        source_fd: The directory, opened for reading; stays the caller's to close.
        writer: Takes the members; ended when this returns.
        prefix: The path in the archive of what is packed, with the slash at its end; empty for members relative to
            the directory.
        with_top: Whether the directory itself is a member too, with its mode and time.
        meter: Polled and told of the progress.
        bounds: What may be taken.
        account: What the result is made of; None for one of its own.
        selection: What is left out.
        follow_symlinks: Whether what a link leads to is packed in its place.
        totals: What `count_tree` found, if it was asked.

    Raises:
        TooLargeError: The tree is past a ceiling; the archive has no end.
        SyncError: In any of its other forms; the archive has no end.
        OSError: What the writer's sink raised.
    """
    status = os.fstat(source_fd)
    if totals is None and meter.reports:
        totals = count_tree(source_fd, meter, bounds, avoid=None, selection=selection, follow_symlinks=follow_symlinks)
    if totals is not None:
        meter.begin(files_total=totals.files, bytes_total=totals.total_bytes)
    if with_top:
        writer.directory(prefix or b"./", status.st_mode & DIRECTORY_MODE_BITS, status.st_mtime_ns)
    ledger = account or Ledger()
    scanner = Scanner(
        source_fd,
        ledger,
        poll=meter.poll,
        max_entries=bounds.max_entries,
        selection=selection,
        follow_symlinks=follow_symlinks,
    )
    _TreePack(scanner, writer, prefix, ledger, meter, bounds).run()
    writer.end()
    meter.finish()
    return ledger.result()


class _TreePack:
    """One run from a scanner into a writer."""

    def __init__(
        self, scanner: Scanner, writer: TarWriter, prefix: bytes, ledger: Ledger, meter: Meter, bounds: Bounds
    ) -> None:
        self._scanner = scanner
        self._writer = writer
        self._path = prefix
        self._ledger = ledger
        self._meter = meter
        self._bounds = bounds

    def run(self) -> None:
        writer, ledger = self._writer, self._ledger
        lengths: list[int] = []
        with contextlib.closing(self._scanner.entries()) as entries:
            for entry in entries:
                if isinstance(entry, FileEntry):
                    self._file(entry)
                elif isinstance(entry, LinkEntry):
                    self._link(entry)
                elif isinstance(entry, DirectoryEntry):
                    # One path that grows and shrinks: all those on the way down would add up in a deep tree.
                    lengths.append(len(self._path))
                    self._path = b"%b%b/" % (self._path, entry.name)
                    writer.directory(self._path, entry.mode, entry.mtime_ns)
                    ledger.directories += 1
                else:
                    self._path = self._path[: lengths.pop()]

    def _file(self, entry: FileEntry) -> None:
        ledger, meter = self._ledger, self._meter
        size_bytes, ceiling = entry.size_bytes, self._bounds.max_bytes
        if ceiling is not None and ledger.total_bytes + size_bytes > ceiling:
            raise too_large(ceiling, self._scanner.path_of(entry.name))
        given = self._writer.file(
            self._path + entry.name,
            entry.mode,
            size_bytes,
            entry.mtime_ns,
            self._scanner.descriptor,
            advance=meter.advance,
        )
        ledger.files += 1
        ledger.total_bytes += size_bytes
        if given != size_bytes:
            ledger.change(self._scanner.path_of(entry.name), _wrong_size(size_bytes))
        meter.file_done()

    def _link(self, entry: LinkEntry) -> None:
        reason = None
        if self._bounds.links is LinkRule.INSIDE:
            reason = leads_out(entry.target, self._scanner.depth)
        if reason is None:
            self._writer.link(self._path + entry.name, entry.target, entry.mtime_ns)
            self._ledger.links += 1
        else:
            self._ledger.refuse(self._scanner.path_of(entry.name), reason)


def pack_file(
    source_fd: int,
    name: bytes,
    writer: TarWriter,
    *,
    mode: int | None,
    meter: Meter,
    path: bytes,
    account: Ledger | None = None,
    max_bytes: int | None = None,
) -> SyncResult:
    """Write one file, and the end of the archive.

    Args:
        source_fd: The file, opened for reading without waiting, at its first byte.
        name: Its path in the archive.
        writer: Takes it; ended when this returns.
        mode: Permission bits in place of the file's own.
        meter: Polled and told of the progress.
        path: How messages and the result call the source.
        account: What the result is made of; None for one of its own.
        max_bytes: The largest size to take.

    Raises:
        SyncError: In any of its forms; the archive has no end.
        OSError: What the writer's sink raised.
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
    given = writer.file(name, wanted, size_bytes, before.st_mtime_ns, source_fd, advance=meter.advance)
    writer.end()
    ledger = account or Ledger()
    ledger.files = 1
    ledger.total_bytes = size_bytes
    if given != size_bytes:
        ledger.change(path, _wrong_size(size_bytes))
    elif was_changed(before, os.fstat(source_fd)):
        ledger.change(path, "it was written to while it was read")
    meter.file_done()
    meter.finish()
    return ledger.result()


def _wrong_size(size_bytes: int) -> str:
    return f"it did not give the {size_bytes:,} bytes that its size promised; the rest is zeros"
