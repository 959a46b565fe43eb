"""Takes an archive apart that came from a sandbox: first looks at all of it, then writes it into a target tree.

The archive lies in a file that nobody else can change. `inspect` reads every header before anything is written, so
that what is cut off, broken or past a ceiling leaves the target as it was. `unpack` then goes through the archive
in its order: directories are entered by descriptors, one level at a time, whatever a path says; a file goes to the
disk by the kernel where that can; and where the archive names something twice, the last one stays.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from sandport.sync.copy import Account, Bounds, too_large
from sandport.sync.entries import DIRECTORY_MODE_BITS, FILE_MODE_BITS, DirectoryEntry, FileEntry, LinkEntry
from sandport.sync.errors import SourceMissingError, SyncError, TooLargeError, failure, printable
from sandport.sync.ledger import Ledger
from sandport.sync.meter import Meter
from sandport.sync.mirror import Mirror
from sandport.sync.rehearsal import RehearsalTree
from sandport.sync.result import Skipped, SyncResult
from sandport.sync.scan import Totals
from sandport.sync.selection import IGNORE_FILE_BYTES, Selection
from sandport.sync.small_files import SMALL_BYTES
from sandport.sync.tar_course import Course, Originals, plain_path, want
from sandport.sync.tar_deliver import Delivery
from sandport.sync.tar_format import ArchiveBrokenError, Kind, Member
from sandport.sync.tar_read import TarReader
from sandport.sync.target import TargetTree

__all__ = ["Inspection", "inspect", "unpack", "unpack_file"]

_UNNAMED_MODE: Final = 0o755
"""Of a directory that is made because something lies in it, and that the archive says nothing of."""

_KEPT_BYTES: Final = 8 << 20
_MEMBER_BYTES: Final = 300
"""How much memory the members of one archive may take between the two passes, and each beside its paths."""

_IGNORE_FILE: Final = b".gitignore"


class Inspection(Totals, frozen=True):
    """What an archive holds, as far as it will be taken.

    Attributes:
        entries: Its members of any kind, and each directory on the way to one that has no member of its own.
        files: Regular files, hard links included.
        total_bytes: The sizes of all these, holes included.
        top: What the archive says of the top of its tree, mode and time; None if nothing.
        unread: Ignore files whose patterns do not count, and why.
        originals: For `unpack`: what hard links lead to.
        members: For `unpack`: all of them, where they are few; none where it should read them again.
    """

    top: tuple[int, int] | None = None
    unread: tuple[Skipped, ...] = ()
    originals: frozenset[bytes] = frozenset()
    members: tuple[Member, ...] = ()


def inspect(
    spool_fd: int, *, bounds: Bounds, selection: Selection | None = None, poll: Callable[[], None]
) -> Inspection:
    """Read a whole archive without writing anything.

    Args:
        spool_fd: The archive, in a file that nobody changes.
        bounds: What may be taken.
        selection: What is left out. It learns the archive's ignore files here, if it wants them.
        poll: Called between members; may raise to stop.

    Raises:
        ArchiveTruncatedError: The archive has no end mark.
        ArchiveBrokenError: It is not sound.
        TooLargeError: It is past a ceiling.
        SyncError: It cannot be read.
    """
    unread: tuple[Skipped, ...] = ()
    if selection is not None and selection.wants(_IGNORE_FILE):
        unread = _learn(spool_fd, selection, poll)
    first = _Count(spool_fd, bounds, selection, frozenset())
    found = first.run(poll)
    if first.wanted:
        # What the links lead to is known only now, and with it how much they add.
        found = _Count(spool_fd, bounds, selection, frozenset(first.wanted)).run(poll)
    return msgspec.structs.replace(found, unread=unread) if unread else found


def _learn(spool_fd: int, selection: Selection, poll: Callable[[], None]) -> tuple[Skipped, ...]:
    """Tell a selection what the archive's ignore files hold, wherever they come in it."""
    unread = Ledger()
    reader = TarReader.of_file(spool_fd)
    for member in reader.members():
        poll()
        path = plain_path(member.path) if member.kind is Kind.FILE else None
        if path is None or not selection.wants(path):
            continue
        if member.size_bytes > IGNORE_FILE_BYTES or member.extents is not None:
            unread.skip(path, f"its patterns do not count: it is longer than {IGNORE_FILE_BYTES >> 10} KiB", "patterns")
        elif not selection.learn(path, reader.read(member.size_bytes)):
            unread.skip(path, "its patterns do not count: there are too many ignore files", "patterns")
    return unread.result().skipped


class _Count:
    """One pass that only counts.

    Args:
        originals: What hard links lead to, as an earlier pass has found it out.

    Attributes:
        wanted: What hard links lead to, as this pass finds it out.
    """

    def __init__(self, spool_fd: int, bounds: Bounds, selection: Selection | None, originals: frozenset[bytes]) -> None:
        self.wanted: set[bytes] = set()
        self._reader = TarReader.of_file(spool_fd)
        self._course = Course(Ledger(), selection, links=bounds.links)
        self._bounds = bounds
        self._known = originals
        self._originals = Originals(originals, os.fstat(spool_fd).st_size)
        self._files = 0
        self._total_bytes = 0
        self._kept: list[Member] | None = []
        self._room_bytes = _KEPT_BYTES

    def run(self, poll: Callable[[], None]) -> Inspection:
        course, max_entries = self._course, self._bounds.max_entries
        count = 0
        top: tuple[int, int] | None = None
        for member in self._reader.members():
            poll()
            count += 1
            name = course.place(member)
            if max_entries is not None and count + course.implied > max_entries:
                raise TooLargeError(
                    f"the source holds more than {max_entries:,} entries; copy a smaller part, or raise max_entries",
                    path=member.path,
                )
            kind = member.kind
            if kind is Kind.HARD_LINK:
                want(self.wanted, member)
                if name is not None:
                    self._hard_link(member)
            elif name is not None:
                if kind is Kind.FILE:
                    self._add(member, member.path)
                elif not name:
                    top = (member.mode & DIRECTORY_MODE_BITS, member.mtime_ns)
            if self._known:
                self._originals.note(member)
            if self._kept is not None:
                self._keep(member)
        return Inspection(
            count + course.implied,
            self._files,
            self._total_bytes,
            top=top,
            originals=self._known,
            members=tuple(self._kept or ()),
        )

    def _keep(self, member: Member) -> None:
        assert self._kept is not None
        self._kept.append(member)
        self._room_bytes -= len(member.path) + len(member.link_target) + _MEMBER_BYTES
        if member.extents is not None or self._room_bytes < 0 or self._reader.common_time is not None:
            self._kept = None

    def _hard_link(self, member: Member) -> None:
        offset = self._originals.find(member.link_target)
        if offset is not None:
            original = self._reader.member_at(offset)
            self._originals.charge(original)
            if original.kind is Kind.FILE:
                self._add(original, member.path)

    def _add(self, member: Member, path: bytes) -> None:
        self._files += 1
        self._total_bytes += member.size_bytes
        ceiling = self._bounds.max_bytes
        if ceiling is not None and self._total_bytes > ceiling:
            raise too_large(ceiling, path)


def unpack(
    spool_fd: int,
    tree: TargetTree | RehearsalTree,
    top: bytes | None,
    *,
    inspection: Inspection,
    meter: Meter,
    bounds: Bounds,
    account: Account,
    mirror: Mirror | None = None,
    selection: Selection | None = None,
) -> SyncResult:
    """Write the contents of an archive into a directory.

    Args:
        spool_fd: The archive, in a file that nobody changes.
        tree: Where to; it is completed, or put away when this fails. Of a rehearsal nothing is written.
        top: The name in `tree` of the directory to write into, or None for the directory that `tree` starts with.
        inspection: What `inspect` said of this archive, with the same bounds and the same selection.
        meter: Polled and told of the progress.
        bounds: Which links may be taken.
        account: What the result is made of; for a mirror it needs its `known`.
        mirror: Removes from the target what is not in the archive, once all is written; None if all stays.
        selection: What is left out.

    Raises:
        SyncError: In any of its forms.
    """
    with tree:
        if top is not None:
            mode, mtime_ns = inspection.top or (_UNNAMED_MODE, time.time_ns())
            tree.enter(DirectoryEntry(top, mode, mtime_ns), adopt=False)
        mirrors = mirror is not None and not tree.fresh
        if mirror is not None and mirrors and tree.fd is not None:
            mirror.check(tree.fd, tree.path_of())
        for notice in inspection.unread:
            account.skip(notice.path, notice.reason, notice.kind)
        meter.begin(files_total=inspection.files, bytes_total=inspection.total_bytes)
        _Unpacking(spool_fd, tree, inspection, meter, bounds, account, selection).run()
        if mirror is not None and mirrors and tree.fd is not None and account.known is not None:
            mirror.prune(tree.fd, account.known, label=tree.path_of())
    meter.finish()
    return account.result()


class _Unpacking:
    """One pass that writes."""

    def __init__(
        self,
        spool_fd: int,
        tree: TargetTree | RehearsalTree,
        inspection: Inspection,
        meter: Meter,
        bounds: Bounds,
        account: Account,
        selection: Selection | None,
    ) -> None:
        self._reader = TarReader.of_file(spool_fd)
        self._inspection = inspection
        self._tree = tree
        self._meter = meter
        self._account = account
        self._known = account.known
        self._course = Course(account, selection, links=bounds.links)
        self._follows = bool(inspection.originals)
        self._originals = Originals(inspection.originals, os.fstat(spool_fd).st_size)
        self._delivery = Delivery(spool_fd, meter.advance)

    def run(self) -> None:
        course, tree, poll = self._course, self._tree, self._meter.poll
        for member in self._members():
            poll()
            name = course.place(member)
            if name:
                if course.up or course.down:
                    self._move()
                kind = member.kind
                if kind is Kind.FILE:
                    self._file(name, member, self._reader)
                elif kind is Kind.DIRECTORY:
                    tree.enter(DirectoryEntry(name, member.mode & DIRECTORY_MODE_BITS, member.mtime_ns))
                    self._account.directories += 1
                    if self._known is not None:
                        self._known.add_directory(course.directory[:-1])
                elif kind is Kind.LINK:
                    self._link(name, member)
                else:
                    self._hard_link(name, member)
            if self._follows:
                self._originals.note(member)
        for _ in range(course.depth):
            tree.leave()

    def _members(self) -> Iterator[Member]:
        reader, kept = self._reader, self._inspection.members
        if not kept:
            yield from reader.members()
        for member in kept:
            reader.go_to(member)
            yield member

    def _move(self) -> None:
        """Go to the directory of the next member. One that has no member of its own keeps what it has."""
        course, tree = self._course, self._tree
        for _ in range(course.up):
            tree.leave()
        for count, name in enumerate(course.down, 1):
            mode, mtime_ns = _UNNAMED_MODE, time.time_ns()
            status = None if tree.fd is None else _status_of(name, tree.fd)
            if status is not None:
                mode, mtime_ns = status.st_mode & DIRECTORY_MODE_BITS, status.st_mtime_ns
            tree.enter(DirectoryEntry(name, mode, mtime_ns))
            if tree.fresh:
                self._account.directories += 1
            if self._known is not None:
                self._known.add_directory(course.path_down(count))

    def _file(self, name: bytes, member: Member, reader: TarReader | None) -> None:
        account, size_bytes = self._account, member.size_bytes
        if account.total_bytes + size_bytes > self._inspection.total_bytes:
            # Never where the archive is the one that was inspected; this is what keeps the ceiling if it is not.
            raise ArchiveBrokenError("the archive holds more than was found in it at first", offset=member.offset)
        entry = FileEntry(name, member.mode & FILE_MODE_BITS, size_bytes, member.mtime_ns)
        _write(self._tree, entry, member, self._delivery, reader)
        account.files += 1
        account.total_bytes += size_bytes
        if self._known is not None:
            self._known.add(self._course.directory + name)
        self._meter.file_done()

    def _link(self, name: bytes, member: Member) -> None:
        entry = LinkEntry(name, member.link_target, member.mtime_ns)
        if isinstance(self._tree, RehearsalTree):
            self._tree.put(entry)
        else:
            self._tree.link(entry)
        self._account.links += 1
        if self._known is not None:
            self._known.add(self._course.directory + name)

    def _hard_link(self, name: bytes, member: Member) -> None:
        """Write once more what the archive itself holds under the other name; the target is not asked."""
        course = self._course
        path = course.directory + name
        offset = self._originals.find(member.link_target)
        if offset is None:
            self._account.refuse(path, "it is a hard link to a file that the archive does not hold before it")
            return
        original = self._reader.member_at(offset)
        self._originals.charge(original)
        if original.kind is Kind.LINK:
            reason = course.refusal_of_link(original.link_target, course.depth)
            if reason is not None:
                self._account.refuse(path, reason)
                return
            self._link(name, original)
        else:
            self._file(name, original, None)


def unpack_file(
    spool_fd: int,
    tree: TargetTree | RehearsalTree,
    name: bytes,
    *,
    path: bytes,
    mode: int | None,
    meter: Meter,
    account: Account,
    max_bytes: int | None = None,
) -> SyncResult:
    """Write the one file that an archive holds. The whole archive is looked at before.

    Args:
        spool_fd: The archive, in a file that nobody changes.
        tree: Where to; it is completed, or put away when this fails. Of a rehearsal nothing is written.
        name: The file's name there.
        path: How messages and the result call the source.
        mode: Permission bits in place of the archive's.
        meter: Polled and told of the progress.
        account: What the result is made of.
        max_bytes: The largest size to take.

    Raises:
        SourceMissingError: The archive is empty.
        ArchiveTruncatedError: The archive has no end mark.
        ArchiveBrokenError: It is not sound, or holds more than one member.
        TooLargeError: The file is past the ceiling.
        SyncError: It is no file; or any of its other forms.
    """
    member = _only_file(spool_fd, path, meter.poll)
    if max_bytes is not None and member.size_bytes > max_bytes:
        raise too_large(max_bytes, path)
    meter.begin(files_total=1, bytes_total=member.size_bytes)
    wanted = member.mode & FILE_MODE_BITS if mode is None else mode
    entry = FileEntry(name, wanted, member.size_bytes, member.mtime_ns)
    with tree:
        _write(tree, entry, member, Delivery(spool_fd, meter.advance), None)
    account.files = 1
    account.total_bytes = member.size_bytes
    meter.file_done()
    meter.finish()
    return account.result()


def _only_file(spool_fd: int, path: bytes, poll: Callable[[], None]) -> Member:
    only: Member | None = None
    for member in TarReader.of_file(spool_fd).members():
        poll()
        if member.kind is not Kind.FILE:
            raise SyncError(f"{printable(path)} is a {member.kind.value}; name a file", path=path)
        if only is not None:
            raise ArchiveBrokenError(
                f"the archive of {printable(path)} holds more than this one file; copy again",
                offset=member.offset,
                path=path,
            )
        only = member
    if only is None:
        raise SourceMissingError(f"the archive of {printable(path)} holds nothing; check the path", path=path)
    return only


def _write(
    tree: TargetTree | RehearsalTree,
    entry: FileEntry,
    member: Member,
    delivery: Delivery,
    reader: TarReader | None,
) -> None:
    """Write one file.

    Args:
        tree: Where to.
        entry: What it will be there.
        member: Its data.
        delivery: The way of those that are not at hand.
        reader: The reader whose current member it is, if it is one's.
    """
    if isinstance(tree, RehearsalTree):
        tree.put(entry)
        delivery.advance(entry.size_bytes)
        return
    if reader is not None and entry.size_bytes <= SMALL_BYTES and member.extents is None:
        tree.put(entry, reader.read(entry.size_bytes))
        delivery.advance(entry.size_bytes)
        return
    target_fd = tree.stage(entry)
    try:
        delivery.put(member, target_fd)
    except OSError as error:
        raise failure(error, tree.path_of(entry.name), "copy into") from error
    tree.commit(entry)


def _status_of(name: bytes, dir_fd: int) -> os.stat_result | None:
    """What a directory has that is there already."""
    try:
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        # Not there, or not to be seen; entering it says what is wrong.
        return None
    return status if stat.S_ISDIR(status.st_mode) else None
