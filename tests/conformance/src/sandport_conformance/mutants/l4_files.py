"""Workers that change files on their way in or out: their content, names, modes, links or times."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from sandport_conformance.tar_blocks import LONGEST_NAME_BYTES

from . import mutant
from .archive_in import Member, Unpacker
from .archive_out import Packer
from .healthy import Healthy

# ------------------------------------------------------------------ content


class AsText(Unpacker):
    """Takes files for text."""

    def content(self, member: Member) -> Iterator[tuple[int, bytes]]:
        for at, data in super().content(member):
            yield at, data.replace(b"\r\n", b"\n\n")


@mutant("SYNC-1/in")
class UnpacksAsText(Healthy):
    """Changes the line ends of what it unpacks."""

    unpacker_class = AsText


class AtMostAFrame(Unpacker):
    """Takes a frame's size for the largest file's."""

    def content(self, member: Member) -> Iterator[tuple[int, bytes]]:
        for at, data in super().content(member):
            if at < 1 << 24:
                yield at, data


@mutant("SYNC-1/in")
class CutsLargeFiles(Healthy):
    """Writes of a file as much as a frame can hold."""

    unpacker_class = AtMostAFrame


class OneName(Packer):
    """Sends a file under one of its names."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.seen: set[int] = set()

    def pack_file(self, path: bytes, name: bytes) -> Iterator[bytes]:
        number = os.lstat(path).st_ino
        if number not in self.seen:
            self.seen.add(number)
            yield from super().pack_file(path, name)


@mutant("SYNC-1/out")
class SendsAFileOnce(Healthy):
    """Leaves out the second name of a file that has two."""

    packer_class = OneName


class ReplacesBytes(Packer):
    """Decodes what it reads."""

    def content(self, descriptor: int, size: int, name: bytes) -> Iterator[bytes]:
        for data in super().content(descriptor, size, name):
            yield data.decode("ascii", "replace").encode("ascii", "replace")


@mutant("SYNC-1/out")
class SendsText(Healthy):
    """Sends a question mark for each byte that is no ASCII."""

    packer_class = ReplacesBytes


class FirstPage(Packer):
    """Lists a directory's first page."""

    def names_in(self, folder: bytes) -> list[bytes]:
        return super().names_in(folder)[:400]


@mutant("SYNC-1/many")
class ListsAPage(Healthy):
    """Sends the first 400 files of a directory."""

    packer_class = FirstPage


# ------------------------------------------------------------------ names


class Decoded(Unpacker):
    """Takes names for UTF-8."""

    def parts_of(self, member: Member) -> list[bytes]:
        return [part.decode("utf-8", "replace").encode() for part in super().parts_of(member)]


@mutant("SYNC-2/in")
class DecodesNames(Healthy):
    """Unpacks a name that is no UTF-8 as another one."""

    unpacker_class = Decoded


class HeadersOnly(Unpacker):
    """Reads no record of a name."""

    def apply(self, records: dict[str, bytes], member: Member) -> None:
        super().apply({name: value for name, value in records.items() if name != "path"}, member)


@mutant("SYNC-2/in")
class CutsLongNames(Healthy):
    """Unpacks under the name in the header, which is cut after a hundred bytes."""

    unpacker_class = HeadersOnly


class Trimmed(Unpacker):
    """Takes blanks at the ends of a name away."""

    def parts_of(self, member: Member) -> list[bytes]:
        return [part.strip() or part for part in super().parts_of(member)]


@mutant("SYNC-2/in")
class TrimsNames(Healthy):
    """Takes away the blanks and line feeds at the ends of a name."""

    unpacker_class = Trimmed


class LineByLine(Packer):
    """Reads a listing line by line."""

    def names_in(self, folder: bytes) -> list[bytes]:
        return [name for name in super().names_in(folder) if b"\n" not in name]


@mutant("SYNC-2/out")
class PacksWhatAListingSays(Healthy):
    """Loses names with a line feed, which a listing cuts in two."""

    packer_class = LineByLine


class ShortHeaders(Packer):
    """Writes no records."""

    def head(self, name: bytes, type_: bytes, status: os.stat_result, *, size: int = 0, target: bytes = b"") -> bytes:
        return super().head(name[-LONGEST_NAME_BYTES:], type_, status, size=size, target=target)


@mutant("SYNC-2/out")
class CutsNamesItSends(Healthy):
    """Sends of a long name what a header has room for."""

    packer_class = ShortHeaders


# ------------------------------------------------------------------ modes


class UnderAUmask(Unpacker):
    """Lets a umask decide."""

    def mode_of(self, member: Member) -> int:
        return member.mode & ~0o022


@mutant("SYNC-3/in")
class LetsTheUmaskDecide(Healthy):
    """Takes away what its umask has."""

    unpacker_class = UnderAUmask


class PlainDirectories(Unpacker):
    """Gives modes to files only."""

    def mode_of(self, member: Member) -> int:
        return 0o755 if member.type == b"5" else member.mode


@mutant("SYNC-3/in")
class MakesPlainDirectories(Healthy):
    """Makes every directory with one mode."""

    unpacker_class = PlainDirectories


class OneMode(Packer):
    """Sends one mode."""

    def mode_of(self, status: os.stat_result) -> int:
        return 0o755 if stat.S_ISDIR(status.st_mode) else 0o644


@mutant("SYNC-3/out")
class SendsPlainModes(Healthy):
    """Sends everything with the usual modes."""

    packer_class = OneMode


# ------------------------------------------------------------------ links


class WhereTheyLead(Unpacker):
    """Makes links that lead somewhere."""

    def make_link(self, parts: list[bytes], member: Member) -> None:
        super().make_link(parts, member)
        try:
            os.stat(parts[-1], dir_fd=self.open_parent(parts))
        except OSError:
            os.unlink(parts[-1], dir_fd=self.open_parent(parts))


@mutant("SYNC-4/in")
class LeavesOutDanglingLinks(Healthy):
    """Makes no link to something that is not there."""

    unpacker_class = WhereTheyLead


class Tidied(Unpacker):
    """Tidies targets up."""

    def make_link(self, parts: list[bytes], member: Member) -> None:
        member.target = os.path.normpath(member.target)
        super().make_link(parts, member)


@mutant("SYNC-4/in")
class TidiesTargets(Healthy):
    """Writes a link's target in its shortest form."""

    unpacker_class = Tidied


class BehindLinks(Packer):
    """Packs what links lead to."""

    def pack_link(self, path: bytes, name: bytes, status: os.stat_result) -> Iterator[bytes]:
        if os.path.isfile(path):
            yield from self.pack_file(os.path.realpath(path), name)
        else:
            yield from super().pack_link(path, name, status)


@mutant("SYNC-4/out")
class FollowsLinksOut(Healthy):
    """Sends the file that a link leads to."""

    packer_class = BehindLinks


# ------------------------------------------------------------------ times, and what is empty


class FilesTimesOnly(Unpacker):
    """Finishes a directory where it is made."""

    def make_directory(self, parts: list[bytes], member: Member) -> None:
        super().make_directory(parts, member)
        self.finish_directory(*self.directories.pop())


@mutant("SYNC-5/in")
class SetsDirectoriesTimesFirst(Healthy):
    """Sets a directory's time before it fills it."""

    unpacker_class = FilesTimesOnly


class Now(Unpacker):
    """Sets no times."""

    def apply(self, records: dict[str, bytes], member: Member) -> None:
        super().apply(records, member)
        member.mtime_ns = time.time_ns()


@mutant("SYNC-5/in")
class UnpacksAsNew(Healthy):
    """Leaves everything with the time of the unpacking."""

    unpacker_class = Now


class PackedNow(Packer):
    """Sends one time."""

    def time_of(self, status: os.stat_result) -> int:
        return int(time.time())


@mutant("SYNC-5/out")
class SendsItsOwnTime(Healthy):
    """Sends everything with the time of the packing."""

    packer_class = PackedNow


class OnTheWay(Unpacker):
    """Makes directories as the way to files."""

    def make_directory(self, parts: list[bytes], member: Member) -> None:
        pass


@mutant("SYNC-6")
class MakesDirectoriesForFiles(Healthy):
    """Makes the directories that files are in, and no other."""

    unpacker_class = OnTheWay


class FilesOnly(Packer):
    """Sends no entry for a directory."""

    def head(self, name: bytes, type_: bytes, status: os.stat_result, *, size: int = 0, target: bytes = b"") -> bytes:
        if type_ == b"5":
            return b""
        return super().head(name, type_, status, size=size, target=target)


@mutant("SYNC-6")
class SendsFilesOnly(Healthy):
    """Sends files, with directories in their names."""

    packer_class = FilesOnly
