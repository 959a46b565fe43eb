"""The healthy worker's writer of archives: a directory, or one thing, as a stream of pieces."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from sandport_conformance.tar_blocks import END, LONGEST_NAME_BYTES, extended, header

from .archive_in import PIECE_BYTES

_BLOCK = 512


class Packer:
    """Packs one path; what is no file, directory or link is left out.

    Args:
        path: What to pack.

    Attributes:
        notes: What a person should know of the archive.
    """

    def __init__(self, path: bytes) -> None:
        self.path = path
        self.notes: list[str] = []

    def pieces(self) -> Iterator[bytes]:
        """The archive."""
        if stat.S_ISDIR(os.lstat(self.path).st_mode):
            yield from self.contents(self.path, b"")
        else:
            yield from self.pack(self.path, os.path.basename(self.path))
        yield self.end()

    def end(self) -> bytes:
        """The end mark."""
        return END

    def contents(self, folder: bytes, prefix: bytes) -> Iterator[bytes]:
        """What is in a directory, and below it."""
        for name in sorted(self.names_in(folder)):
            yield from self.pack(os.path.join(folder, name), prefix + name)

    def names_in(self, folder: bytes) -> list[bytes]:
        """What is in a directory."""
        return os.listdir(folder)

    def pack(self, path: bytes, name: bytes) -> Iterator[bytes]:
        """One thing, with what is in it."""
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            yield self.head(name + b"/", b"5", status)
            yield from self.contents(path, name + b"/")
        elif stat.S_ISLNK(status.st_mode):
            yield from self.pack_link(path, name, status)
        elif stat.S_ISREG(status.st_mode):
            yield from self.pack_file(path, name)
        else:
            yield from self.pack_other(path, name)

    def pack_link(self, path: bytes, name: bytes, status: os.stat_result) -> Iterator[bytes]:
        """A link."""
        yield self.head(name, b"2", status, target=os.readlink(path))

    def pack_other(self, path: bytes, name: bytes) -> Iterator[bytes]:
        """What is neither file nor directory nor link."""
        self.notes.append(f"left out, for it is no file: {os.fsdecode(name)}")
        return iter(())

    def pack_file(self, path: bytes, name: bytes) -> Iterator[bytes]:
        """A file, in the size that it has now, whatever becomes of it meanwhile."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            yield self.head(name, b"0", status, size=status.st_size)
            yield from self.content(descriptor, status.st_size, name)
            if -status.st_size % _BLOCK:
                yield bytes(-status.st_size % _BLOCK)
        finally:
            os.close(descriptor)

    def content(self, descriptor: int, size: int, name: bytes) -> Iterator[bytes]:
        """A file's content, neither more nor less than was announced."""
        left = size
        while left:
            data = os.read(descriptor, min(left, PIECE_BYTES))
            if not data:
                self.notes.append(f"became shorter while it was read: {os.fsdecode(name)}")
            yield (data := data or bytes(min(left, PIECE_BYTES)))
            left -= len(data)

    def head(self, name: bytes, type_: bytes, status: os.stat_result, *, size: int = 0, target: bytes = b"") -> bytes:
        """A header, with a record for what does not fit into it."""
        records = {}
        if len(name) > LONGEST_NAME_BYTES:
            records[b"path"] = name
        if len(target) > LONGEST_NAME_BYTES:
            records[b"linkpath"] = target
        mode, mtime_s = self.mode_of(status), self.time_of(status)
        return extended(records) + header(
            name, type_=type_, size=size, mode=mode, mtime_s=mtime_s, target=target, owner=status.st_uid
        )

    def mode_of(self, status: os.stat_result) -> int:
        """The mode that the archive says."""
        return status.st_mode & 0o7777

    def time_of(self, status: os.stat_result) -> int:
        """The time that the archive says."""
        return int(status.st_mtime)
