"""Workers that unpack over what they should leave, through links, or to another place."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress

from . import mutant
from .archive_in import Member, Refused, Source, Unpacker
from .archive_out import Packer
from .files import Files
from .healthy import Call, Healthy
from .programs import octets
from .refusals import Refusal

# ------------------------------------------------------------------ what is there already


class Emptied(Files):
    """Empties the directory first."""

    def open_top(self, path: bytes) -> int:
        shutil.rmtree(path, ignore_errors=True)
        return super().open_top(path)


@mutant("SYNC-7/beside")
class EmptiesFirst(Healthy):
    """Removes what is in a directory before it unpacks into it."""

    files_class = Emptied


class OwnName(Unpacker):
    """Leaves a file of its own."""

    def run(self) -> None:
        super().run()
        os.close(os.open(".unpacked", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=self.top))


@mutant("SYNC-7/beside")
class LeavesAMark(Healthy):
    """Leaves a file of its own beside what it unpacked."""

    unpacker_class = OwnName


class IntoOldFiles(Unpacker):
    """Writes into what is there."""

    def make_file(self, parts: list[bytes], member: Member) -> None:
        parent = self.open_parent(parts)
        with suppress(OSError):  # nothing is there, or a link
            descriptor = os.open(parts[-1], os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, dir_fd=parent)
            try:
                self.fill(descriptor, member)
                self.finish_file(descriptor, member)
            finally:
                os.close(descriptor)
            return
        super().make_file(parts, member)


@mutant("SYNC-7/replace")
class WritesIntoOldFiles(Healthy):
    """Writes into a file that is there, under all of its names."""

    unpacker_class = IntoOldFiles


class NewOnly(Unpacker):
    """Keeps what is there."""

    def clear(self, name: bytes, parent: int) -> None:
        pass

    def make_file(self, parts: list[bytes], member: Member) -> None:
        try:
            super().make_file(parts, member)
        except FileExistsError:
            for _ in self.content(member):
                pass


@mutant("SYNC-7/replace")
class KeepsOldFiles(Healthy):
    """Leaves a file as it is where one of its name is there."""

    unpacker_class = NewOnly


class Tolerant(Unpacker):
    """Goes on after what it cannot write."""

    def put(self, member: Member) -> None:
        try:
            super().put(member)
        except Refused:
            for _ in self.content(member):
                pass


@mutant("SYNC-14")
class PassesOverWhatFails(Healthy):
    """Answers a result where a member could not be put in its place."""

    unpacker_class = Tolerant


class Forceful(Unpacker):
    """Removes a directory that is in the way."""

    def clear(self, name: bytes, parent: int) -> None:
        shutil.rmtree(os.fsencode(f"/proc/self/fd/{parent}/") + name, ignore_errors=True)
        super().clear(name, parent)


@mutant("SYNC-14")
class RemovesDirectoriesForFiles(Healthy):
    """Removes a directory, with all that is in it, for a file of its name."""

    unpacker_class = Forceful


# ------------------------------------------------------------------ links


class Following(Unpacker):
    """Follows links on the way."""

    def step(self, part: bytes, descriptor: int) -> int:
        return os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)

    def clear_for_directory(self, name: bytes, parent: int) -> None:
        pass


@mutant("SYNC-8/planted", "SYNC-8/brought")
class WalksThroughLinks(Healthy):
    """Walks through a link to the place of a member."""

    unpacker_class = Following


class Opening(Unpacker):
    """Opens what has the name."""

    def make_file(self, parts: list[bytes], member: Member) -> None:
        parent = self.open_parent(parts)
        descriptor = os.open(parts[-1], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=parent)
        try:
            self.fill(descriptor, member)
        finally:
            os.close(descriptor)


@mutant("SYNC-8/planted", "SYNC-8/brought")
class OpensWhatHasTheName(Healthy):
    """Writes through a link that has a file's name."""

    unpacker_class = Opening


class CleanAtFirst(Unpacker):
    """Looks for links before it begins, and trusts those that it makes."""

    def __init__(self, source: Source, top: int, cancelled: threading.Event) -> None:
        super().__init__(source, top, cancelled)
        self.made: set[bytes] = set()

    def make_link(self, parts: list[bytes], member: Member) -> None:
        super().make_link(parts, member)
        self.made.add(parts[-1])

    def clear_for_directory(self, name: bytes, parent: int) -> None:
        if name not in self.made:
            super().clear_for_directory(name, parent)

    def step(self, part: bytes, descriptor: int) -> int:
        if part in self.made:
            return os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
        return super().step(part, descriptor)


@mutant("SYNC-8/brought")
class TrustsItsOwnLinks(Healthy):
    """Walks through a link that came in the archive."""

    unpacker_class = CleanAtFirst


class Joined(Unpacker):
    """Joins names to the path."""

    def parts_of(self, member: Member) -> list[bytes]:
        return member.parts


@mutant("SYNC-15")
class GoesUp(Healthy):
    """Writes to where `..` in a name leads."""

    unpacker_class = Joined


class FromTheRoot(Unpacker):
    """Takes absolute names."""

    def open_parent(self, parts: list[bytes]) -> int:
        self.forget_parent()
        return super().open_parent(parts)

    def parts_of(self, member: Member) -> list[bytes]:
        if not member.path.startswith(b"/"):
            return super().parts_of(member)
        os.close(self.top)
        self.top = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        return member.parts


@mutant("SYNC-15")
class TakesAbsoluteNames(Healthy):
    """Writes to where an absolute name leads."""

    unpacker_class = FromTheRoot


# ------------------------------------------------------------------ members


class MapAndAll(Unpacker):
    """Knows no sparse members."""

    def is_sparse(self, member: Member) -> bool:
        return False


@mutant("SYNC-9/in")
class UnpacksTheMap(Healthy):
    """Unpacks a sparse member as it is stored."""

    unpacker_class = MapAndAll


class DenseFiles(Unpacker):
    """Writes zeros."""

    def fill(self, descriptor: int, member: Member) -> None:
        if self.is_sparse(member):
            left = int(member.records["GNU.sparse.realsize"])
            while left > 0:
                left -= os.write(descriptor, b"\0" * min(left, 1 << 20))
        super().fill(descriptor, member)


@mutant("SYNC-9/room")
class FillsHoles(Healthy):
    """Fills the holes of a sparse member with zeros."""

    unpacker_class = DenseFiles


class WithoutHoles(Packer):
    """Sends data only."""

    def content(self, descriptor: int, size: int, name: bytes) -> Iterator[bytes]:
        at = sent = 0
        while at < size:
            try:
                begin = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:
                break  # a hole up to the end
            at = os.lseek(descriptor, begin, os.SEEK_HOLE)
            os.lseek(descriptor, begin, os.SEEK_SET)
            yield os.read(descriptor, at - begin)
            sent += at - begin
        yield bytes(size - sent)


@mutant("SYNC-9/out")
class ClosesHoles(Healthy):
    """Sends of a file with holes what there is, one piece after the other."""

    packer_class = WithoutHoles


class HeaderSizes(Unpacker):
    """Takes sizes from headers."""

    def apply(self, records: dict[str, bytes], member: Member) -> None:
        size = member.size
        super().apply(records, member)
        member.size = size


@mutant("SYNC-10/records")
class TakesSizesFromHeaders(Healthy):
    """Reads no record of a size."""

    unpacker_class = HeaderSizes


class HeaderLinks(Unpacker):
    """Takes targets from headers."""

    def apply(self, records: dict[str, bytes], member: Member) -> None:
        super().apply({name: value for name, value in records.items() if name != "linkpath"}, member)


@mutant("SYNC-10/records", "SYNC-4/in")
class TakesTargetsFromHeaders(Healthy):
    """Reads no record of a link's target."""

    unpacker_class = HeaderLinks


class KnownRecords(Unpacker):
    """Refuses records that it does not know."""

    def apply(self, records: dict[str, bytes], member: Member) -> None:
        if "comment" in records:
            raise Refused("a record that is called comment")
        super().apply(records, member)


@mutant("SYNC-10/records")
class StumblesOverRecords(Healthy):
    """Refuses an archive with a record that it does not know."""

    unpacker_class = KnownRecords


class NoTop(Unpacker):
    """Does not take `./` for the directory."""

    def make_directory(self, parts: list[bytes], member: Member) -> None:
        if parts:
            super().make_directory(parts, member)


@mutant("SYNC-10/top")
class LeavesTheTopAsItIs(Healthy):
    """Passes over the archive's own top."""

    unpacker_class = NoTop


# ------------------------------------------------------------------ where it goes, and whose it is


class BesideThePath(Files):
    """Starts from the sandbox's folder."""

    def path_of(self, call: Call) -> bytes:
        path = super().path_of(call)
        given = octets(call.params["path"])
        return path if given.startswith(b"/") else os.path.join(os.path.dirname(path[: -len(given) - 1]), given)


@mutant("SYNC-11/in")
class StartsElsewhere(Healthy):
    """Takes a relative path from another directory than commands do."""

    files_class = BesideThePath


class NoParents(Files):
    """Makes one directory."""

    def open_top(self, path: bytes) -> int:
        with suppress(FileExistsError, FileNotFoundError):
            os.mkdir(path)
        if not os.path.isdir(path):
            raise Refusal("PathNotFound", "the parent is not there")
        return super().open_top(path)


@mutant("SYNC-11/in")
class MakesNoParents(Healthy):
    """Refuses a path whose parent is not there."""

    files_class = NoParents


class TextPaths(Files):
    """Takes paths for text."""

    def path_of(self, call: Call) -> bytes:
        return super().path_of(call).decode("utf-8", "replace").encode()


@mutant("SYNC-11/in")
class TakesPathsForText(Healthy):
    """Unpacks into another directory where a path is no UTF-8."""

    files_class = TextPaths


class UnderItsName(Packer):
    """Sends the directory's name too."""

    def contents(self, folder: bytes, prefix: bytes) -> Iterator[bytes]:
        own = b"" if prefix else os.path.basename(folder.rstrip(b"/")) + b"/"
        yield from super().contents(folder, own + prefix)


@mutant("SYNC-12")
class SendsTheDirectoryItself(Healthy):
    """Sends a directory's contents under the directory's name."""

    packer_class = UnderItsName


class Resolved(Packer):
    """Resolves the path."""

    def __init__(self, path: bytes) -> None:
        super().__init__(os.path.realpath(path))


@mutant("SYNC-12")
class ResolvesThePath(Healthy):
    """Sends what a link leads to where it is asked for the link."""

    packer_class = Resolved


class AsTheyWere(Unpacker):
    """Gives files to whom the archive names."""

    def finish_file(self, descriptor: int, member: Member) -> None:
        super().finish_file(descriptor, member)
        os.fchown(descriptor, member.owner, -1)


@mutant("SYNC-13")
class KeepsOwners(Healthy):
    """Gives what it unpacks to the owner whom the archive names."""

    unpacker_class = AsTheyWere
