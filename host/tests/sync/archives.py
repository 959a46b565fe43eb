"""Archives for the tests: built block by block, packed by the product, written and read by the programs of others.

What is built by hand here shares no code with what reads or writes archives in the product.
"""

from __future__ import annotations

import io
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from host.tests.sync.conftest import MEMORY
from host.tests.sync.trees import Seen
from sandport.sync.copy import Account, Bounds, LinkRule
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths
from sandport.sync.pack import pack_tree
from sandport.sync.result import Refused, Skipped, SyncResult
from sandport.sync.selection import Selection
from sandport.sync.spool import Spool
from sandport.sync.tar_format import Dialect, Member
from sandport.sync.tar_read import TarReader
from sandport.sync.tar_write import TarWriter
from sandport.sync.target import TargetTree
from sandport.sync.unpack import inspect, unpack

END = bytes(1024)

PLAIN_LOCALE = {**os.environ, "LC_ALL": "C"}


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def header(
    name: bytes = b"f",
    kind: bytes = b"0",
    *,
    size: int | bytes = 0,
    mode: int | bytes = 0o644,
    mtime: int | bytes = 1_600_000_000,
    target: bytes = b"",
    prefix: bytes = b"",
    magic: bytes = b"ustar\x0000",
    rest: bytes | None = None,
    checksum: bytes | None = None,
) -> bytes:
    """One block; a number can be given as the bytes of its field."""

    def number(value: int | bytes, width: int) -> bytes:
        return value.ljust(width, b"\0") if isinstance(value, bytes) else b"%0*o\0" % (width - 1, value)

    block = name.ljust(100, b"\0") + number(mode, 8) + b"0000000\0" * 2 + number(size, 12) + number(mtime, 12)
    tail = kind + target.ljust(100, b"\0") + magic.ljust(8, b"\0") + bytes(80)
    tail += prefix.ljust(167, b"\0") if rest is None else rest.ljust(167, b"\0")
    if checksum is None:
        checksum = b"%06o\0 " % (sum(block) + 8 * 32 + sum(tail))
    whole = block + checksum + tail
    assert len(whole) == 512
    return whole


def record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(b"%d %b=%b\n" % (length, key, value)) != length:
        length += 1
    return b"%d %b=%b\n" % (length, key, value)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    body = b"".join(record(key, value) for key, value in records)
    return header(b"pax", kind, size=len(body)) + padded(body)


def member(name: bytes, content: bytes = b"", **fields: int | bytes) -> bytes:
    return header(name, size=len(content), **fields) + padded(content)  # type: ignore[arg-type]


def read_all(archive: bytes) -> list[Member]:
    return list(TarReader(io.BytesIO(archive).read).members())


def unpack_bytes(
    archive: bytes,
    place: Path,
    *,
    bounds: Bounds | None = None,
    selection: Selection | None = None,
    top: bytes | None = None,
    knows: bool = False,
) -> SyncResult:
    """Go the whole way that an archive from a sandbox goes, into a directory that exists."""
    bounds = bounds or Bounds(LinkRule.INSIDE, 1 << 30, 100_000)
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Spool.beside(fd, max_bytes=1 << 30) as spool:
            spool.write(archive)
            meter = Meter(None, None)
            inspection = inspect(spool.fd, bounds=bounds, selection=selection, poll=meter.poll)
            return unpack(
                spool.fd,
                TargetTree(fd, label=os.fsencode(place)),
                top,
                inspection=inspection,
                meter=meter,
                bounds=bounds,
                account=Account(KnownPaths() if knows else None),
                selection=selection,
            )
    finally:
        os.close(fd)


def pack_bytes(
    source: Path,
    dialect: Dialect = Dialect.PAX,
    *,
    with_top: bool = True,
    selection: Selection | None = None,
    links: LinkRule = LinkRule.ANY,
) -> tuple[bytes, SyncResult]:
    sink = io.BytesIO()
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        writer = TarWriter(sink, dialect=dialect)
        result = pack_tree(
            fd, writer, with_top=with_top, meter=Meter(None, None), bounds=Bounds(links), selection=selection
        )
    finally:
        os.close(fd)
    assert writer.bytes_written == len(sink.getvalue())
    return sink.getvalue(), result


def run(*command: str | bytes | Path, stdin: bytes = b"") -> bytes:
    """Run a program of others', which must end well."""
    done = subprocess.run(command, input=stdin, capture_output=True, env=PLAIN_LOCALE, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


@contextmanager
def place_in_memory() -> Iterator[Path]:
    """A directory for one example; what is in it may be deep, and shut."""
    place = Path(tempfile.mkdtemp(prefix="sync-", dir=MEMORY))
    try:
        yield place
    finally:
        subprocess.run(["chmod", "-R", "u+rwX", place], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", place], check=True)


def to_seconds(seen: Seen) -> Seen:
    """What was seen, without the fractions of times."""
    return {at: (*what[:2], _seconds(what[2]), *what[3:]) for at, what in seen.items()}


def _seconds(time_ns: object) -> int:
    assert isinstance(time_ns, int)
    return time_ns // 10**9


def hard(name: bytes, to: bytes) -> bytes:
    """A member that is a second name of another."""
    return header(name, b"1", target=to)


def reasons(notices: tuple[Skipped | Refused, ...]) -> dict[bytes, str]:
    """What was noted, by path."""
    return {notice.path: notice.reason for notice in notices}


def without_top(seen: dict[tuple[bytes, ...], tuple[object, ...]]) -> dict[tuple[bytes, ...], tuple[object, ...]]:
    """All but the top itself."""
    return {at: what for at, what in seen.items() if at}


def act_on(archive: bytes, target: Path, act: Callable[[Spool, int], None]) -> None:
    """Do something with an archive in a spool beside an open directory."""
    fd = os.open(target, os.O_RDONLY)
    try:
        with Spool.beside(fd, max_bytes=None) as spool:
            spool.write(archive)
            act(spool, fd)
    finally:
        os.close(fd)
