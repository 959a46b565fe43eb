"""Moving files into a sandbox, out of it, and looking at what is there; no check is in here."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sandport_conformance.archives import Entry, Tree, archive, directory, file, plain_archive, read, tree
from sandport_conformance.declaration import Needs
from sandport_conformance.home import wait_until
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import NotApplicable, TimedOut, expect
from sandport_conformance.sandbox import Sandbox
from sandport_conformance.schema import Json
from sandport_conformance.session import Id, show_error
from sandport_conformance.transfers import Door, Drain, Feed

SYNC = Needs(groups=("sync",), commands=("pack", "unpack"))
"""What a check of `syncIn` and `syncOut` needs; it looks at the sandbox by commands."""
_NO_PROGRAM = 127
"""What a shell exits with when a program is not there."""
_NO_TAR = "the sandbox has no tar with which the check could look at its files"


def octets(path: bytes) -> object:
    """A path as the wire has it."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(path).decode()}


# ------------------------------------------------------------------ in


def send(lab: Lab, sandbox: Sandbox, data: bytes, path: object) -> Json:
    """Send an archive with `syncIn`; its result, whose count must be true."""
    with Feed([data], timeout_s=lab.times.call_s) as feed:
        result = sandbox.session.call("syncIn", sandbox.params(socket=feed.path, path=path))
        expect(feed.settled(), "syncIn was answered, and its connection is still open")
        expect_true_count(result, feed.moved_bytes, len(data), "syncIn")
        expect(feed.connections == 1, f"syncIn connected {feed.connections} times to its socket")
        expect(not feed.said, f"syncIn wrote {feed.said[:60]!r} to its socket")
        return result


def send_tree(lab: Lab, sandbox: Sandbox, entries: Iterable[Entry], path: object) -> Tree:
    """Send entries with `syncIn`; the tree that should be there now."""
    sent = tree(entries)
    send(lab, sandbox, archive(sent.values()), path)
    return sent


def expect_true_count(result: Json, moved: int, whole: int, what: str) -> None:
    """Hold `bytes` to what really went through the socket."""
    said = result["bytes"]
    expect(said == moved == whole, f"{what} answers {said} bytes; {moved} went through its socket, of {whole}")


def refused_in(lab: Lab, sandbox: Sandbox, data: bytes, path: object, *conditions: str) -> Json:
    """Send a stream that `syncIn` must refuse; its error."""
    with Feed([data], timeout_s=lab.times.call_s) as feed:
        return sandbox.session.refused("syncIn", sandbox.params(socket=feed.path, path=path), *conditions)


# ------------------------------------------------------------------ out


def fetch(lab: Lab, sandbox: Sandbox, path: object) -> Tree:
    """What `syncOut` sends of a path, which must be one whole archive, truly counted."""
    return read(fetch_bytes(lab, sandbox, path), "what syncOut sent")


def fetch_bytes(lab: Lab, sandbox: Sandbox, path: object) -> bytes:
    """The bytes that `syncOut` sends, truly counted and over one connection."""
    with Drain(timeout_s=lab.times.call_s) as drain:
        result = sandbox.session.call("syncOut", sandbox.params(socket=drain.path, path=path))
        expect(drain.settled(), "syncOut was answered, and its connection is still open")
        expect_true_count(result, drain.moved_bytes, len(drain.data), "syncOut")
        expect(drain.connections == 1, f"syncOut connected {drain.connections} times to its socket")
        return bytes(drain.data)


# ------------------------------------------------------------------ by commands


class _NoTarError(Exception):
    """The sandbox has no tar."""


def plant(lab: Lab, sandbox: Sandbox, entries: Iterable[Entry], path: str) -> Tree:
    """Put a tree into the sandbox, by a command that unpacks it; without a tar there, by `syncIn`.

    Raises:
        NotApplicable: There is neither.
    """
    planted = tree(entries)
    try:
        unpack(lab, sandbox, plain_archive(planted.values()), path)
    except _NoTarError:
        need_sync(lab, sandbox)
        send(lab, sandbox, archive(planted.values()), path)
    return planted


def look(lab: Lab, sandbox: Sandbox, path: str) -> Tree:
    """The tree that is in the sandbox, by a command that packs it; without a tar there, by `syncOut`.

    Raises:
        NotApplicable: There is neither.
    """
    try:
        return read(pack(lab, sandbox, path), "what a tar of the sandbox packed")
    except _NoTarError:
        need_sync(lab, sandbox)
        return fetch(lab, sandbox, path)


def unpack(lab: Lab, sandbox: Sandbox, data: bytes, path: str) -> None:
    """Run a command that unpacks an archive from its input."""
    _expect_tar(sandbox.execute(lab.command("unpack", path=path), stdin=data), f"a tar that unpacks to {path!r}")


def pack(lab: Lab, sandbox: Sandbox, path: str) -> bytes:
    """What a command that packs a directory writes."""
    live = sandbox.run_live(lab.command("pack", path=path))
    _expect_tar(live.result, f"a tar that packs {path!r}")
    return live.data()


def _expect_tar(result: Json, what: str) -> None:
    if result.get("exitCode") == _NO_PROGRAM:
        raise _NoTarError
    expect(result.get("exitCode") == 0, f"{what} should exit with 0: {result!r:.300}")


@contextmanager
def needs_tar() -> Iterator[None]:
    """Say that a check is about a tar of the sandbox.

    Raises:
        NotApplicable: There is none.
    """
    try:
        yield
    except _NoTarError:
        raise NotApplicable(_NO_TAR) from None


def need_sync(lab: Lab, sandbox: Sandbox) -> None:
    """Look in another way than by a command.

    Raises:
        NotApplicable: The worker has none.
    """
    if not lab.facts.has_group("sync") or "sync" in sandbox.lease.get("without", ()):
        raise NotApplicable(_NO_TAR)


def run(lab: Lab, sandbox: Sandbox, name: str, /, **blanks: object) -> None:
    """Run a command that must succeed."""
    result = sandbox.execute(lab.command(name, **blanks))
    expect(result.get("exitCode") == 0, f"commands.{name} should exit with 0: {result!r:.300}")


def is_there(lab: Lab, sandbox: Sandbox, path: str) -> bool:
    """Whether a directory is there, in which a command can run."""
    call = sandbox.start(lab.command("exit", code=0), cwd=path)
    if "result" in sandbox.session.answer(call).body:
        return True
    sandbox.session.error_of(call, "PathNotFound")
    return False


# ------------------------------------------------------------------ what is moved


def some_tree() -> list[Entry]:
    """A small tree with something of everything that is not strange."""
    return [
        directory(b"source"),
        file(b"source/main.py", b"print('hello')\n", mode=0o755),
        file(b"source/empty"),
        directory(b"source/data"),
        file(b"source/data/all-bytes", bytes(range(256)) * 300),
        file(b"README", b"read me\n"),
    ]


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes in which nothing repeats."""
    return random.Random(seed).randbytes(size)


def outcome(body: Json) -> str:
    """An answer in a few words, for a failure message."""
    if "error" in body:
        return f"the error {show_error(body['error'])}"
    return f"the result {body.get('result')!r:.200}"


def begin_in(sandbox: Sandbox, feed: Feed, path: object) -> Id:
    """Ask for a `syncIn`, and come back at once."""
    return sandbox.session.request("syncIn", sandbox.params(socket=feed.path, path=path))


def begin_out(sandbox: Sandbox, drain: Drain, path: object) -> Id:
    """Ask for a `syncOut`, and come back at once."""
    return sandbox.session.request("syncOut", sandbox.params(socket=drain.path, path=path))


def wait_moved(lab: Lab, door: Door, size: int, what: str) -> None:
    """Wait until so many bytes have gone through a socket."""
    if not wait_until(lambda: door.moved_bytes >= size, lab.times.call_s):
        state = "is connected" if door.connected.is_set() else "has not connected"
        raise TimedOut(f"{what}: {door.moved_bytes} bytes of {size} went through its socket; the worker {state}")
