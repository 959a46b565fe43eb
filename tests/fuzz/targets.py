"""What is fuzzed: everything of ours that parses bytes of somebody else's.

Each target takes any bytes, and must come back or raise what it documents; anything else is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from protocol.tests.peers import NOTHING, OPEN_PHASES, host_in, worker_in
from sandport.configuration import load, parse_overrides
from sandport.errors import ConfigurationInvalid
from sandport.sync.copy import Bounds
from sandport.sync.errors import SyncError
from sandport.sync.selection import Selection
from sandport.sync.tar_read import TarReader
from sandport.sync.unpack import inspect
from sandport_protocol import codec
from sandport_protocol.framing import LineSplitter
from sandport_protocol.states import SERVING


class Target(NamedTuple):
    """One parser.

    Attributes:
        run: Gives it the bytes.
        seeds: Examples to begin with.
    """

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


FRAME_BYTES = 4096


def frames(data: bytes) -> None:
    """The first byte says how the rest is cut; the lines must be the same for every cut."""
    if not data:
        return
    size, stream = data[0] or 1, data[1:]
    whole, cut = LineSplitter(FRAME_BYTES), LineSplitter(FRAME_BYTES)
    lines = whole.feed(stream)
    pieces = [line for at in range(0, len(stream), size) for line in cut.feed(stream[at : at + size])]
    assert lines == pieces
    assert (whole.overflow is None) == (cut.overflow is None)
    assert cut.pending_bytes <= FRAME_BYTES


def messages(data: bytes) -> None:
    """The codec, on one line."""
    with contextlib.suppress(codec.Unreadable):
        codec.read(data, depth=64)
    codec.is_blank(data)


def connections(data: bytes) -> None:
    """Both sides of a connection, in a phase that the first byte chooses."""
    phase = OPEN_PHASES[(data[0] if data else 0) % len(OPEN_PHASES)]
    host, worker = host_in(phase), worker_in(phase)
    if phase == SERVING:
        for method in ("execute", "ping", "probe"):
            host.send_request(method, NOTHING)
    host.receive(data[1:])
    host.crash()
    assert host.open_requests == 0
    worker.receive(data[1:])


def archives(data: bytes) -> None:
    """The reader of archives, and the look at a whole one before it is unpacked."""
    with contextlib.suppress(SyncError):
        for _ in TarReader(io.BytesIO(data).read).members():
            pass
    fd = os.memfd_create("archive")
    try:
        os.write(fd, data)
        with contextlib.suppress(SyncError):
            inspect(
                fd,
                bounds=Bounds(max_bytes=1 << 30, max_entries=1000),
                selection=Selection.build(["*.o"], gitignore=True),
                poll=lambda: None,
            )
    finally:
        os.close(fd)


def settings(data: bytes) -> None:
    """A sandport.toml, and options of the command line."""
    fd = os.memfd_create("sandport.toml")
    try:
        os.write(fd, data)
        with contextlib.suppress(ConfigurationInvalid):
            load(Path(f"/proc/self/fd/{fd}"), environ={})
    finally:
        os.close(fd)
    with contextlib.suppress(ConfigurationInvalid):
        parse_overrides([os.fsdecode(part) for part in data.split(b"\n")])


def patterns(data: bytes) -> None:
    """An ignore file, and a path that is held against it."""
    rules, _, path = data.partition(b"\0")
    selection = Selection.build([], gitignore=True)
    assert selection is not None
    selection.learn(b".gitignore", rules)
    path = path.strip(b"/")
    if path:
        selection.matches(path, False)
    with contextlib.suppress(ValueError):
        Selection.build([os.fsdecode(rules)])


def _archive(form: int) -> bytes:
    """A small archive with one of everything."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        long = "d/" + "n" * (90 if form == tarfile.USTAR_FORMAT else 200)
        for name, kind in (("d", tarfile.DIRTYPE), ("d/link", tarfile.SYMTYPE), (long, tarfile.REGTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "../x" if kind == tarfile.SYMTYPE else ""
            member.size = 5 if kind == tarfile.REGTYPE else 0
            member.mtime = 1_700_000_000.5 if form == tarfile.PAX_FORMAT else 1_700_000_000
            tar.addfile(member, io.BytesIO(b"bytes") if member.size else None)
    return out.getvalue()


def _lines() -> Iterator[bytes]:
    yield json.dumps({"jsonrpc": "2.0", "id": 1, "method": "execute", "params": {"argv": ["true"]}}).encode()
    yield json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"ended": "exited", "exitCode": 0}}).encode()
    yield json.dumps({"jsonrpc": "2.0", "id": "a", "error": {"code": -32601, "message": "no", "data": {}}}).encode()
    yield json.dumps({"jsonrpc": "2.0", "method": "output", "params": {"id": 1, "stream": "stdout"}}).encode()


TOML = b"""version = 1
[host.clean_up]
longest_pause_s = 5
[providers.local]
command = ["python3", "-m", "x"]
env = ["A"]
[environments.e]
provider = "local"
config = { network = true, expose = ["/opt"] }
"""

TARGETS: dict[str, Target] = {
    "frames": Target(frames, (b"\x03one\ntwo\n", b"\x01" + b"x" * 5000 + b"\n")),
    "messages": Target(messages, (*_lines(), b"[" * 70, b'{"jsonrpc":"2.0","id":1e3}')),
    "connections": Target(connections, tuple(b"\x02" + line + b"\n" for line in _lines())),
    "archives": Target(
        archives, tuple(_archive(form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    ),
    "settings": Target(settings, (TOML, b'network=true\nlimits.memory=512\nexpose=["/a", "b"]')),
    "patterns": Target(patterns, (b"*.o\n!keep.o\n/build/\n**/x[a-z]?\n\\#\0src/a.o", b"a/**/b\0a/x/y/b")),
}
