"""Impostors through which files go: two that watch how the host sends and receives, and many that send what is wrong.

None of them answers `localRoot`, so that files come as archives.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress

from sandport_conformance.mutants.archive_in import Source
from sandport_conformance.mutants.files import Files
from sandport_conformance.mutants.healthy import Call, Json
from sandport_conformance.mutants.leases import Leases
from sandport_conformance.tar_blocks import END, header, padded

from .impostor import Impostor

PRECIOUS = "precious"
"""A file beside the journal that no archive may change."""
PRECIOUS_DATA = b"what was there before\n"
ESCAPED = "escaped"
"""Begins the name of everything that an archive tries to make in the wrong place."""


class Recorded(Source):
    """What the host sends, kept beside the journal."""

    folder = ""

    def some(self, most: int) -> bytes:
        data = super().some(most)
        with open(os.path.join(self.folder, f"sent-{id(self):x}.tar"), "ab") as kept:
            kept.write(data)
        return data


class WatchedFiles(Files):
    """Writes down where each socket of the host's stands."""

    source_class = Recorded

    def connect(self, connection: socket.socket, call: Call) -> None:
        path = call.params["socket"]
        folder = os.path.dirname(path)
        status = os.stat(folder)
        self.leases.worker.record(  # type: ignore[attr-defined]  # an impostor has a journal
            "socket",
            method=call.method,
            path=path,
            mode=stat.S_IMODE(status.st_mode),
            own=status.st_uid == os.geteuid(),
            beside=sorted(set(os.listdir(folder)) - {os.path.basename(path)}),
        )
        super().connect(connection, call)


class ElsewhereLeases(Leases):
    """Sandboxes that are no directory of the host's machine, as far as it knows."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return {**super().lease_of(sandbox_id, egress), "localRoot": None}


class Watches(Impostor):
    """Does nothing wrong, and keeps what it is sent."""

    leases_class = ElsewhereLeases
    files_class: type[Files] = WatchedFiles

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        Recorded.folder = os.path.dirname(journal)
        with suppress(FileExistsError), open(os.path.join(os.path.dirname(journal), PRECIOUS), "xb") as file:
            file.write(PRECIOUS_DATA)


# ------------------------------------------------------------------ what is wrong with what it sends


def named(name: str, data: bytes = b"out\n") -> bytes:
    """A file of an archive."""
    return header(name.encode(), type_=b"0", size=len(data)) + padded(data)


def linked(name: str, target: str, *, hard: bool = False) -> bytes:
    """A link of an archive."""
    return header(name.encode(), type_=b"1" if hard else b"2", target=target.encode())


class WrongFiles(Files):
    """Sends an archive of its own making, once."""

    def sync_out(self, call: Call) -> Json:
        worker = self.leases.worker
        assert isinstance(worker, SendsWrong)
        if not worker.once():
            return super().sync_out(call)
        data = worker.archive(os.path.dirname(worker.path))
        with self.connected(call) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            except OSError as error:  # the host has seen enough
                worker.record("refused", reason=str(error))
        return {"bytes": len(data) + worker.too_many, "notes": []}


class SendsWrong(Watches):
    """Sends one file that is in order; what is wrong is up to the class."""

    files_class = WrongFiles
    too_many = 0

    def archive(self, folder: str) -> bytes:
        """What it sends.

        Args:
            folder: Where the journal is, and what must not be touched.
        """
        return named("a") + END


class CountsTooFew(SendsWrong):
    """Says that it sent a block less than came."""

    too_many = -512


class CountsTooMany(SendsWrong):
    """Says that it sent a block more than came."""

    too_many = 512


class NoEndMark(SendsWrong):
    """Ends after its last file, without an end mark."""

    def archive(self, folder: str) -> bytes:
        return named("a")


class CutInAFile(SendsWrong):
    """Ends in the middle of a file."""

    def archive(self, folder: str) -> bytes:
        return header(b"a", type_=b"0", size=10_000) + bytes(512)


class NamesOutside(SendsWrong):
    """Sends names that are absolute, and that climb."""

    def archive(self, folder: str) -> bytes:
        return (
            named("a")
            + named(f"{folder}/{ESCAPED}-absolute")
            + named(f"../{ESCAPED}-above")
            + named(f"b/../../{ESCAPED}-winding")
            + END
        )


class LinksOutside(SendsWrong):
    """Sends links that lead out, and then files that go through them."""

    def archive(self, folder: str) -> bytes:
        return (
            linked("up", "..")
            + named(f"up/{ESCAPED}-through-a-link")
            + linked("away", folder)
            + named(f"away/{ESCAPED}-through-an-absolute-link")
            + linked("one", f"{folder}/{PRECIOUS}")
            + named("one")
            + END
        )


class HardLinksOutside(SendsWrong):
    """Sends a second name of a file that is not in the archive, and then what should be written to it."""

    def archive(self, folder: str) -> bytes:
        return (
            linked("absolute", f"{folder}/{PRECIOUS}", hard=True)
            + named("absolute")
            + linked("above", f"../{PRECIOUS}", hard=True)
            + named("above")
            + END
        )
