"""Workers that count a stream wrongly, answer too early, or take half an archive for a whole one."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from . import mutant
from .archive_in import PIECE_BYTES, Cut, Malformed, Member, Source, Unpacker
from .archive_out import Packer
from .files import Files
from .healthy import Call, Healthy, Json

# ------------------------------------------------------------------ what is counted


class ToTheEndMark(Files):
    """Reads to the end mark."""

    def read_rest(self, source: Source) -> None:
        pass


@mutant("SYNC-16/in")
class StopsAtTheEndMark(Healthy):
    """Closes the socket when it has read the end mark."""

    files_class = ToTheEndMark


class WholeBlocks(Files):
    """Counts roughly."""

    def counted(self, total: int) -> int:
        return total - total % 10_240


@mutant("SYNC-16/in", "SYNC-16/out")
class CountsInRecords(Healthy):
    """Counts whole records of a tape."""

    files_class = WholeBlocks


class Twice(Files):
    """Connects to see whether it can."""

    def connect(self, connection: socket.socket, call: Call) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as first:
            super().connect(first, call)
        super().connect(connection, call)


@mutant("SYNC-16/in", "SYNC-16/out")
class ConnectsTwice(Healthy):
    """Connects once to look, and once more to move something."""

    files_class = Twice


class Polite(Files):
    """Says something to the host."""

    def read_rest(self, source: Source) -> None:
        super().read_rest(source)
        source.connection.sendall(b"OK")


@mutant("SYNC-16/in")
class ConfirmsInTheSocket(Healthy):
    """Writes a word of its own to the socket of a `syncIn`."""

    files_class = Polite


# ------------------------------------------------------------------ whole, and in place


class Endless(Packer):
    """Writes no end mark."""

    def end(self) -> bytes:
        return b""


@mutant("SYNC-18")
class SendsNoEndMark(Healthy):
    """Ends an archive with its last member."""

    packer_class = Endless


class InTheBackground(Files):
    """Sends later."""

    def sync_out(self, call: Call) -> Json:
        size = sum(map(len, Packer(self.path_of(call)).pieces()))
        threading.Thread(target=super().sync_out, args=(call,), daemon=True).start()
        return {"bytes": size}


@mutant("SYNC-18")
class AnswersBeforeItSends(Healthy):
    """Answers how much there is, and sends it then."""

    files_class = InTheBackground


class KeepsOpen(Files):
    """Forgets its connections."""

    kept: list[socket.socket]

    def close(self, connection: socket.socket) -> None:
        self.kept = [*getattr(self, "kept", []), connection]


@mutant("SYNC-18")
class LeavesConnectionsOpen(Healthy):
    """Answers, and leaves the connection open."""

    files_class = KeepsOpen


class Gathered(Source):
    """A stream that was read already."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self.total = len(data)

    def some(self, most: int) -> bytes:
        return self._data.read(min(most, PIECE_BYTES))


class UnpacksLater(Files):
    """Unpacks later."""

    def sync_in(self, call: Call) -> Json:
        path = self.path_of(call)
        with self.connected(call) as connection:
            pieces = list(iter(lambda: connection.recv(PIECE_BYTES), b""))
        threading.Thread(target=self.unpack_later, args=(call, b"".join(pieces), path), daemon=True).start()
        return {"bytes": sum(map(len, pieces))}

    def unpack_later(self, call: Call, data: bytes, path: bytes) -> None:
        """Unpack what was gathered."""
        time.sleep(0.3)
        self.unpack(call, Gathered(data), self.open_top(path))


@mutant("SYNC-19")
class AnswersBeforeItUnpacks(Healthy):
    """Answers when it has the archive, and unpacks it then."""

    files_class = UnpacksLater


class FinishesLater(Unpacker):
    """Leaves the last things for later."""

    def run(self) -> None:
        for member in self.members():
            self.put(member)
        self.forget_parent()
        top = os.dup(self.top)
        threading.Thread(target=self.finish, args=(top,), daemon=True).start()

    def finish(self, top: int) -> None:
        """What `run` should have done."""
        time.sleep(0.3)
        self.top = top
        with suppress(OSError):
            for parts, member in reversed(self.directories):
                self.finish_directory(parts, member)
        os.close(top)


@mutant("SYNC-19")
class FinishesBehindTheAnswer(Healthy):
    """Answers before the directories have their modes and times."""

    unpacker_class = FinishesLater


# ------------------------------------------------------------------ what is not whole


class LikeTar(Unpacker):
    """Takes the end between two members for the end."""

    def members(self) -> Iterator[Member]:
        members = super().members()
        while True:
            before = self.source.total
            try:
                member = next(members)
            except StopIteration:
                return
            except Cut:
                if self.source.total == before and before:
                    return
                raise
            yield member


@mutant("SYNC-17/cut")
class EndsBetweenMembers(Healthy):
    """Takes a stream that ends between two members for a whole archive, as tar does."""

    unpacker_class = LikeTar


class Patient(Unpacker):
    """Takes what there is."""

    def run(self) -> None:
        with suppress(Cut):
            super().run()


@mutant("SYNC-17/cut")
class TakesWhatThereIs(Healthy):
    """Answers a result for a stream that was cut."""

    unpacker_class = Patient


class Once(Files):
    """Gives up for good."""

    def refuse(self, error: Exception) -> None:
        if isinstance(error, Cut):
            os._exit(1)
        super().refuse(error)


@mutant("SYNC-17/cut")
class EndsWithTheStream(Healthy):
    """Ends where a stream was cut."""

    files_class = Once


class Unsummed(Unpacker):
    """Looks at no sums."""

    def check_sum(self, block: bytes) -> None:
        pass


@mutant("SYNC-17/malformed")
class LooksAtNoSums(Healthy):
    """Unpacks members whose headers are damaged."""

    unpacker_class = Unsummed


class Searching(Unpacker):
    """Looks for the next header."""

    def read_header(self, block: bytes) -> Member:
        while True:
            try:
                return super().read_header(block)
            except Malformed:
                block = self.source.exactly(512)
                if not any(block):
                    return Member(b"./", b"5", 0o755, 0, 0, b"", 0)


@mutant("SYNC-17/malformed")
class PassesOverDamage(Healthy):
    """Passes over what it cannot read, and goes on with the next header that it can."""

    unpacker_class = Searching


class Dying(Files):
    """Does not ignore SIGPIPE."""

    def refuse(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError | ConnectionResetError):
            os._exit(141)
        super().refuse(error)


@mutant("SYNC-17/unread")
class DiesOfSigpipe(Healthy):
    """Ends where a host closes its end of a socket."""

    files_class = Dying


class Unbothered(Files):
    """Answers all the same."""

    def refuse(self, error: Exception) -> None:
        if not isinstance(error, ConnectionError):
            super().refuse(error)


@mutant("SYNC-17/unread")
class AnswersAResultUnread(Healthy):
    """Answers a result where the host has closed the socket before the end."""

    files_class = Unbothered
