"""The healthy worker's reader of archives: takes one from a stream, member by member, into a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from sandport_conformance.tar_blocks import BLOCK

if TYPE_CHECKING:
    import socket
    import threading

PIECE_BYTES = 1 << 16
_NO_FOLLOW = os.O_NOFOLLOW | os.O_CLOEXEC
_LONG_NAMES = {b"L": "path", b"K": "linkpath"}
_MOST_RECORD_BYTES = 1 << 20


class Cut(Exception):
    """The stream ended before the archive's end mark."""


class Malformed(Exception):
    """What came is no archive."""


class LeadsOut(Exception):
    """A member's name leads out of the directory."""


class Refused(Exception):
    """A member cannot be put in its place."""


class Source:
    """A stream that is read to its end and counted."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.total = 0

    def some(self, most: int) -> bytes:
        """At most so many bytes; none at the end of the stream."""
        data = self.connection.recv(min(most, PIECE_BYTES))
        self.total += len(data)
        return data

    def exactly(self, size: int) -> bytes:
        """So many bytes."""
        pieces = []
        while size:
            data = self.some(size)
            if not data:
                raise Cut(f"the stream ended after {self.total} bytes, {size} before they were enough")
            pieces.append(data)
            size -= len(data)
        return b"".join(pieces)

    def pass_over(self, size: int) -> None:
        """Leave out so many bytes."""
        while size:
            size -= len(self.exactly(min(size, PIECE_BYTES)))

    def rest(self) -> None:
        """Read what follows the archive."""
        while self.some(PIECE_BYTES):
            pass


class Member:
    """What an archive says of one entry; its content follows in the stream."""

    def __init__(
        self, path: bytes, type_: bytes, mode: int, size: int, mtime_ns: int, target: bytes, owner: int
    ) -> None:
        self.path, self.type, self.mode, self.size = path, type_, mode, size
        self.mtime_ns, self.target, self.owner = mtime_ns, target, owner
        self.records: dict[str, bytes] = {}

    @property
    def parts(self) -> list[bytes]:
        """The names on the way to it."""
        return [part for part in self.path.split(b"/") if part not in (b"", b".")]


class Unpacker:
    """Unpacks one archive.

    Args:
        source: Where it comes from.
        top: A descriptor of the directory that it goes into.
        cancelled: Set when nothing more shall be unpacked.
    """

    def __init__(self, source: Source, top: int, cancelled: threading.Event) -> None:
        self.source, self.top, self.cancelled = source, top, cancelled
        self.directories: list[tuple[list[bytes], Member]] = []
        self._parent: tuple[list[bytes], int] | None = None

    def run(self) -> None:
        """Unpack everything, then give the directories the modes and times that the archive says."""
        try:
            for member in self.members():
                if self.cancelled.is_set():
                    return
                self.put(member)
            for parts, member in reversed(self.directories):
                self.finish_directory(parts, member)
        finally:
            self.forget_parent()

    # -------------------------------------------------------------- reading

    def members(self) -> Iterator[Member]:
        """The members; each one's content has to be read before the next is asked for."""
        records: dict[str, bytes] = {}
        while True:
            block = self.source.exactly(BLOCK)
            if not any(block):
                self.read_end()
                return
            member = self.read_header(block)
            if member.type in (b"x", b"g", *_LONG_NAMES):
                body = self.read_body(member.size)
                if member.type == b"x":
                    records |= self.records_in(body)
                elif member.type in _LONG_NAMES:
                    records[_LONG_NAMES[member.type]] = body.rstrip(b"\0")
                continue
            self.apply(records, member)
            records = {}
            yield member

    def read_end(self) -> None:
        """The second block of the end mark."""
        if any(self.source.exactly(BLOCK)):
            raise Malformed("a single block of zeros in the middle of the archive")

    def read_header(self, block: bytes) -> Member:
        """A header."""
        self.check_sum(block)
        name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
        if prefix and block[257:263] == b"ustar\0":
            name = prefix + b"/" + name
        try:
            mode, owner, size, mtime = (
                int(block[begin:end].strip(b" \0") or b"0", 8)
                for begin, end in ((100, 108), (108, 116), (124, 136), (136, 148))
            )
        except ValueError as error:
            raise Malformed(f"a header with a number that is none: {error}") from error
        target = block[157:257].partition(b"\0")[0]
        return Member(name, block[156:157], mode & 0o7777, size, mtime * 10**9, target, owner)

    def check_sum(self, block: bytes) -> None:
        """Raise where a header is damaged."""
        try:
            wanted = int(block[148:156].strip(b" \0") or b"0", 8)
        except ValueError as error:
            raise Malformed("a header without a checksum") from error
        if sum(block) - sum(block[148:156]) + 8 * 0x20 != wanted:
            raise Malformed("a header with a wrong checksum")

    def read_body(self, size: int) -> bytes:
        """The content of a member that belongs to the next one."""
        if size > _MOST_RECORD_BYTES:
            raise Malformed(f"a header of {size} bytes")
        body = self.source.exactly(size)
        self.source.pass_over(-size % BLOCK)
        return body

    def records_in(self, body: bytes) -> dict[str, bytes]:
        """The records of a pax header."""
        found = {}
        while body:
            try:
                size = int(body.partition(b" ")[0])
                name, _, value = body[:size].partition(b" ")[2].partition(b"=")
            except ValueError as error:
                raise Malformed("a record without a length") from error
            if not 0 < size <= len(body):
                raise Malformed("a record that is longer than its header")
            found[name.decode("utf-8", "replace")] = value[:-1]
            body = body[size:]
        return found

    def apply(self, records: dict[str, bytes], member: Member) -> None:
        """Let records override a header."""
        member.records = records
        member.path = records.get("GNU.sparse.name", records.get("path", member.path))
        member.target = records.get("linkpath", member.target)
        try:
            member.size = int(records.get("size", member.size))
            if "mtime" in records:
                whole, _, fraction = records["mtime"].partition(b".")
                member.mtime_ns = int(whole) * 10**9 + int(fraction[:9].ljust(9, b"0"))
        except ValueError as error:
            raise Malformed(f"a record with a number that is none: {error}") from error

    def content(self, member: Member) -> Iterator[tuple[int, bytes]]:
        """The content of a file, piece by piece, each with where it belongs."""
        left = member.size
        runs = [(0, member.size)]
        if self.is_sparse(member):
            numbers, left = self.read_map(left)
            runs = list(zip(numbers[::2], numbers[1::2], strict=True))
        for begin, size in runs:
            at = begin
            while at < begin + size:
                data = self.source.exactly(min(begin + size - at, PIECE_BYTES))
                yield at, data
                at += len(data)
                left -= len(data)
        self.source.pass_over(left + -member.size % BLOCK)

    def is_sparse(self, member: Member) -> bool:
        """Whether a member begins with a map of what there is."""
        return "GNU.sparse.realsize" in member.records

    def read_map(self, left: int) -> tuple[list[int], int]:
        """The numbers of a map, and how much of the content is left after it."""
        text = b""
        while True:
            text += self.source.exactly(BLOCK)
            left -= BLOCK
            *lines, _ = text.split(b"\n")
            if lines and len(lines) > 2 * int(lines[0]):
                return [int(line) for line in lines[1 : 1 + 2 * int(lines[0])]], left

    # -------------------------------------------------------------- writing

    def put(self, member: Member) -> None:
        """Put a member in its place."""
        parts = self.parts_of(member)
        if member.type == b"5":
            self.make_directory(parts, member)
        elif member.type in (b"0", b"\0", b"7"):
            self.make_file(parts, member)
        elif member.type == b"2":
            self.make_link(parts, member)
            self.source.pass_over(member.size)
        else:
            raise Refused(f"{member.path!r} is a member of type {member.type!r}")

    def parts_of(self, member: Member) -> list[bytes]:
        """The names on the way to a member, all of which lead down."""
        if member.path.startswith(b"/") or b".." in member.path.split(b"/"):
            raise LeadsOut(os.fsdecode(member.path))
        return member.parts

    def open_parent(self, parts: list[bytes]) -> int:
        """A descriptor of the directory that a member goes into, made where it is missing; no link is followed."""
        if self._parent is not None and self._parent[0] == parts[:-1]:
            return self._parent[1]
        self.forget_parent()
        descriptor = os.dup(self.top)
        for part in parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, 0o777, dir_fd=descriptor)
            below = self.step(part, descriptor)
            os.close(descriptor)
            descriptor = below
        self._parent = (parts[:-1], descriptor)
        return descriptor

    def step(self, part: bytes, descriptor: int) -> int:
        """Open a directory on the way to a member."""
        try:
            return os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NO_FOLLOW, dir_fd=descriptor)
        except OSError as error:
            os.close(descriptor)
            raise Refused(f"{os.fsdecode(part)} on the way to a member is no directory: {error}") from error

    def forget_parent(self) -> None:
        """Close the directory that was opened last."""
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None

    def make_directory(self, parts: list[bytes], member: Member) -> None:
        """Make a directory, or keep the one that is there."""
        if parts:
            parent = self.open_parent(parts)
            self.clear_for_directory(parts[-1], parent)
            with suppress(FileExistsError):
                os.mkdir(parts[-1], 0o700, dir_fd=parent)
        self.directories.append((parts, member))

    def clear_for_directory(self, name: bytes, parent: int) -> None:
        """Remove a link that stands where a directory goes."""
        with suppress(FileNotFoundError):
            if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=parent)

    def clear(self, name: bytes, parent: int) -> None:
        """Remove the file or link that stands where another one goes."""
        try:
            os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Refused(f"{os.fsdecode(name)} is a directory, and a file in the archive: {error}") from error

    def make_file(self, parts: list[bytes], member: Member) -> None:
        """Make a file anew."""
        parent = self.open_parent(parts)
        self.clear(parts[-1], parent)
        descriptor = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o600, dir_fd=parent)
        try:
            self.fill(descriptor, member)
            self.finish_file(descriptor, member)
        finally:
            os.close(descriptor)

    def fill(self, descriptor: int, member: Member) -> None:
        """Write a file's content, and leave its holes."""
        for begin, data in self.content(member):
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], begin + written)
        if self.is_sparse(member):
            os.ftruncate(descriptor, int(member.records["GNU.sparse.realsize"]))

    def finish_file(self, descriptor: int, member: Member) -> None:
        """Give a file its mode and its time."""
        os.fchmod(descriptor, self.mode_of(member))
        os.utime(descriptor, ns=(member.mtime_ns, member.mtime_ns))

    def mode_of(self, member: Member) -> int:
        """The mode that something gets."""
        return member.mode

    def finish_directory(self, parts: list[bytes], member: Member) -> None:
        """Give a directory its mode and its time, now that nothing comes into it any more."""
        descriptor = os.dup(self.top)
        for part in parts:
            below = self.step(part, descriptor)
            os.close(descriptor)
            descriptor = below
        try:
            self.finish_file(descriptor, member)
        finally:
            os.close(descriptor)

    def make_link(self, parts: list[bytes], member: Member) -> None:
        """Make a link anew, wherever it leads."""
        parent = self.open_parent(parts)
        self.clear(parts[-1], parent)
        os.symlink(member.target, parts[-1], dir_fd=parent)
