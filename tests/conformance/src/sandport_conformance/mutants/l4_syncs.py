"""Workers whose syncs hold up, mix or outlive what they should not, or that stumble over what is in the way."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

from . import mutant
from .archive_in import Source
from .archive_out import Packer
from .files import Files
from .healthy import Call, Healthy, Json
from .l4_streams import Gathered
from .leases import Leases
from .refusals import Cancelled, Refusal

_KEPT = 100 << 20

# ------------------------------------------------------------------ cancel


class DeafToCancel(Files):
    """Does not hear of a cancel."""

    def break_off(self, connection: object) -> None:
        pass


@mutant("SYNC-21/in", "SYNC-21/out")
class GoesOnWhenCancelled(Healthy):
    """Moves a whole tree before it answers a cancel."""

    files_class = DeafToCancel


class AnswersForItself(Files):
    """Leaves what runs alone."""

    def sync_in(self, call: Call) -> Json:
        return self.until_cancelled(call, super().sync_in)

    def sync_out(self, call: Call) -> Json:
        return self.until_cancelled(call, super().sync_out)

    def break_off(self, connection: object) -> None:
        self.woken.set()

    def until_cancelled(self, call: Call, handler: object) -> Json:
        """Wait for a handler, or for a cancel."""
        self.woken = threading.Event()
        found: list[Json] = []

        def serve() -> None:
            found.append(handler(call))  # type: ignore[operator]
            self.woken.set()

        threading.Thread(target=serve, daemon=True).start()
        self.woken.wait()
        if call.cancelled.is_set():
            raise Cancelled
        return found[0]


@mutant("SYNC-21/in", "SYNC-21/out")
class MovesOnBehindACancel(Healthy):
    """Answers a cancel at once, and goes on behind the answer."""

    files_class = AnswersForItself


# ------------------------------------------------------------------ many at once


class InTurn(Files):
    """Serves one at a time."""

    def __init__(self, leases: Leases) -> None:
        super().__init__(leases)
        self.turn = threading.Lock()

    def sync_in(self, call: Call) -> Json:
        with self.turn:
            return super().sync_in(call)

    def sync_out(self, call: Call) -> Json:
        with self.turn:
            return super().sync_out(call)


@mutant("SYNC-22", "SYNC-23")
class SyncsInTurn(Healthy):
    """Moves one tree after the other."""

    files_class = InTurn


class OnePlace(Files):
    """Has one place for what comes."""

    def path_of(self, call: Call) -> bytes:
        path = super().path_of(call)
        if call.method == "syncIn":
            self.path = path
        return path

    def unpack(self, call: Call, source: Source, top: int) -> None:
        os.close(top)
        pieces = list(iter(lambda: source.some(1 << 16), b""))
        super().unpack(call, Gathered(b"".join(pieces)), self.open_top(self.path))


@mutant("SYNC-22")
class KeepsOnePath(Healthy):
    """Unpacks to the path of the latest call."""

    files_class = OnePlace


class Locked(Leases):
    """Has one lock for all."""

    def __init__(self, state_dir: str, store_id: str, worker: Healthy) -> None:
        super().__init__(state_dir, store_id, worker)
        self.one = threading.Lock()

    def sync_in(self, call: Call) -> Json:
        with self.one:
            return super().sync_in(call)

    def execute(self, call: Call) -> Json:
        with self.one:
            return super().execute(call)


@mutant("SYNC-23")
class LocksTheSandbox(Healthy):
    """Runs no command while files come in."""

    leases_class = Locked


class Keeping(Source):
    """A stream that keeps what was read from it, up to a bound that spares the machine."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.kept: list[bytes] = []

    def some(self, most: int) -> bytes:
        data = super().some(most)
        if self.total < _KEPT:
            self.kept.append(data)
        return data


class KeepsArchives(Files):
    """Keeps what comes."""

    source_class = Keeping


@mutant("SYNC-26/in")
class GathersArchives(Healthy):
    """Keeps an archive in memory while it unpacks it."""

    files_class = KeepsArchives


class KeepsFiles(Packer):
    """Keeps what it reads."""

    def content(self, descriptor: int, size: int, name: bytes) -> Iterator[bytes]:
        kept, total = [], 0
        for data in super().content(descriptor, size, name):
            total += len(data)
            if total < _KEPT:
                kept.append(data)
            yield data


@mutant("SYNC-26/out")
class GathersFiles(Healthy):
    """Keeps each file in memory while it sends it."""

    packer_class = KeepsFiles


# ------------------------------------------------------------------ what is not there


class EmptyForNothing(Files):
    """Takes what is not there for nothing."""

    def path_of(self, call: Call) -> bytes:
        path = super().path_of(call)
        if call.method == "syncOut" and not os.path.lexists(path):
            os.makedirs(path)
        return path


@mutant("SYNC-20")
class SendsNothingForWhatIsMissing(Healthy):
    """Sends an empty archive for a path that is not there."""

    files_class = EmptyForNothing


class Unsure(Files):
    """Says nothing of the effect."""

    def sync_out(self, call: Call) -> Json:
        path = self.path_of(call)
        if not os.path.lexists(path):
            raise Refusal("PathNotFound", "there is nothing", dispatched="unknown")
        return super().sync_out(call)


@mutant("SYNC-20")
class IsUnsureOfWhatIsMissing(Healthy):
    """Says that a path is not there, and that something may have happened."""

    files_class = Unsure


class PathFirst(Files):
    """Makes the path first."""

    def path_of(self, call: Call) -> bytes:
        path = super().path_of(call)
        if call.method == "syncIn":
            os.makedirs(path, exist_ok=True)
        return path


@mutant("SYNC-24")
class MakesThePathFirst(Healthy):
    """Makes the path of a `syncIn` before it tries the socket."""

    files_class = PathFirst


class OwnFault(Files):
    """Does not look what went wrong."""

    def connect(self, connection: object, call: Call) -> None:
        try:
            super().connect(connection, call)  # type: ignore[arg-type]
        except OSError as error:
            raise RuntimeError(f"connect: {error}") from error


@mutant("SYNC-24")
class TakesASocketForItsOwnFault(Healthy):
    """Answers Internal where it cannot reach the socket."""

    files_class = OwnFault


class AnySandbox(Files):
    """Looks at no list."""

    def path_of(self, call: Call) -> bytes:
        sandbox_id = call.params["sandboxId"]
        if sandbox_id in self.leases.attached:
            return super().path_of(call)
        return os.path.join(os.fsencode(self.leases.root.parent), call.params["path"].encode())


@mutant("SYNC-25")
class SyncsWithoutALease(Healthy):
    """Moves files of a sandbox that it has not attached."""

    files_class = AnySandbox


# ------------------------------------------------------------------ what is in the way


class OpensAll(Packer):
    """Opens what is no directory."""

    def pack_other(self, path: bytes, name: bytes) -> Iterator[bytes]:
        with open(path, "rb"):  # a FIFO: until somebody writes to it
            return iter(())


@mutant("SYNC-27")
class WaitsForAFifo(Healthy):
    """Opens a FIFO and waits."""

    packer_class = OpensAll


class Strict(Packer):
    """Packs files only."""

    def pack_other(self, path: bytes, name: bytes) -> Iterator[bytes]:
        raise ConnectionAbortedError(f"{name!r} is no file")


@mutant("SYNC-27")
class GivesUpAtAFifo(Healthy):
    """Gives up a tree that has something else than files."""

    packer_class = Strict


class AsMuchAsThereIs(Packer):
    """Sends what there is."""

    def content(self, descriptor: int, size: int, name: bytes) -> Iterator[bytes]:
        while data := os.read(descriptor, 1 << 16):
            yield data


@mutant("SYNC-28")
class SendsWhatThereIs(Healthy):
    """Sends a file to its end, whatever size it has announced."""

    packer_class = AsMuchAsThereIs


class NoMore(Packer):
    """Sends at most what was announced."""

    def content(self, descriptor: int, size: int, name: bytes) -> Iterator[bytes]:
        while size and (data := os.read(descriptor, min(size, 1 << 16))):
            size -= len(data)
            yield data


@mutant("SYNC-28")
class SendsTooLittle(Healthy):
    """Sends less than it has announced of a file that becomes shorter."""

    packer_class = NoMore
