"""L4: a sync among other calls, cancelled or slow; its memory; and what is missing or in the way."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

from sandport_conformance.archives import archive, expect_tree, file, member, read, tree
from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.tar_blocks import BLOCK, END, header
from sandport_conformance.transfers import Drain, Feed, folder_for_sockets

from .claims import expect_no_effect, field_of
from .files import (
    SYNC,
    begin_in,
    begin_out,
    expect_true_count,
    fetch,
    is_there,
    look,
    noise,
    outcome,
    plant,
    run,
    send_tree,
    some_tree,
    wait_moved,
)

_LARGE = 8 << 20
"""More than sockets and pipes hold between a worker and its host."""
_PAUSE = 1 << 16
_STREAM = 256 << 20
_MOST_GROWTH = 64 << 20


# ------------------------------------------------------------------ cancel


@check(
    "SYNC-21",
    part="in",
    needs=SYNC,
    why="A person who presses Ctrl-C while a large tree is sent wants the next prompt, and no more files.",
    broken="waits for the rest of the stream, or goes on unpacking it behind the answer",
    fix="Let a cancel close the socket, and answer when nothing is unpacked any more.",
)
def a_cancel_ends_what_comes_in(lab: Lab) -> None:
    """A `syncIn` that is cancelled in the middle of a file is Cancelled, its socket closed, and the sandbox goes on."""
    sandbox, path, gate = lab.sandbox, "kit/cancelled-in", threading.Event()
    begin = member(file(b"first", b"x")) + header(b"second", type_=b"0", size=_LARGE) + noise(100_000)
    rest = bytes(_LARGE - 100_000) + member(file(b"third", b"x")) + END
    with Feed([begin, gate, rest], timeout_s=lab.times.call_s) as feed:
        call = begin_in(sandbox, feed, path)
        wait_moved(lab, feed, len(begin), "syncIn")
        opened = sandbox.session.ping()
        expect(call in opened, f"syncIn is not among the open calls in its middle: {opened!r:.100}")
        sandbox.session.cancel(call)
        sandbox.session.error_of(call, "Cancelled")
        gate.set()
        expect(feed.settled() and feed.broken, "syncIn was cancelled and answered, and its socket is still read")
    there = look(lab, sandbox, path) if is_there(lab, sandbox, path) else {}
    expect(set(there) <= {b"first", b"second"}, f"after a cancel in the second file there is {sorted(there)!r:.100}")
    sent = send_tree(lab, sandbox, some_tree(), f"{path}/again")
    expect_tree(look(lab, sandbox, f"{path}/again"), sent, "data", what="what came after a cancel")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-21",
    part="out",
    needs=SYNC,
    why="A host that is told to stop must not wait for a tree of gigabytes to pass.",
    broken="goes on writing, or waits for a host that does not read any more",
    fix="Let a cancel close the socket, and answer when nothing is packed any more.",
)
def a_cancel_ends_what_goes_out(lab: Lab) -> None:
    """A `syncOut` that is cancelled while nobody reads is Cancelled, its stream breaks off, and the sandbox goes on."""
    sandbox, path, gate = lab.sandbox, "kit/cancelled-out", threading.Event()
    planted = plant(lab, sandbox, some_tree(), path)
    run(lab, sandbox, "make_file", name=f"{path}/large", bytes=_LARGE)
    with Drain(timeout_s=lab.times.call_s, gate=gate, free=_PAUSE) as drain:
        call = begin_out(sandbox, drain, path)
        wait_moved(lab, drain, _PAUSE, "syncOut")
        sandbox.session.ping()
        sandbox.session.cancel(call)
        sandbox.session.error_of(call, "Cancelled")
        gate.set()
        expect(drain.settled(), "syncOut was cancelled and answered, and its connection is still open")
        expect(len(drain.data) < _LARGE, f"syncOut was cancelled, and {len(drain.data)} bytes came all the same")
    got = fetch(lab, sandbox, path)
    del got[b"large"]
    expect_tree(got, planted, "data", what="what syncOut sent after a cancel")
    run(lab, sandbox, "remove_tree", path=path)


# ------------------------------------------------------------------ many at once


@check(
    "SYNC-22",
    needs=SYNC,
    why="A sandbox takes sources and data from two places, and gives its logs, at the same time.",
    broken="has one place for what is moved, or moves one tree after the other",
    fix="Keep socket, path and what unpacks with each call.",
)
def syncs_at_once_stay_apart(lab: Lab) -> None:
    """Two `syncIn` with pauses and a `syncOut`, into and out of one sandbox at once, each move their own tree."""
    sandbox, session = lab.sandbox, lab.worker
    planted = plant(lab, sandbox, some_tree(), "kit/apart/out")
    gates = [threading.Event(), threading.Event()]
    trees = [tree([file(b"same-name", b"of %d" % n * 9_000), file(b"own-%d" % n, b"x")]) for n in range(2)]
    halves = []
    for one in trees:
        whole = archive(one.values())
        halves.append((whole[: len(whole) // 2], whole[len(whole) // 2 :]))
    limit_s = lab.times.call_s
    with (
        Feed([halves[0][0], gates[0], halves[0][1]], timeout_s=limit_s) as first,
        Feed([halves[1][0], gates[1], halves[1][1]], timeout_s=limit_s) as second,
    ):
        feeds = (first, second)
        calls = [begin_in(sandbox, feed, f"kit/apart/{n}") for n, feed in enumerate(feeds)]
        for n, feed in enumerate(feeds):
            wait_moved(lab, feed, len(halves[n][0]), f"syncIn {n} of two at once")
        expect_tree(fetch(lab, sandbox, "kit/apart/out"), planted, "data", what="syncOut beside two syncIn")
        for n in (1, 0):
            gates[n].set()
            session.result_of(calls[n])
    for n in range(2):
        expect_tree(look(lab, sandbox, f"kit/apart/{n}"), trees[n], "data", what=f"what came with syncIn {n} of two")
    run(lab, sandbox, "remove_tree", path="kit/apart")


@check(
    "SYNC-23",
    needs=SYNC,
    why="A host's disk, or its network, is slow; its other runs are not.",
    broken="reads and writes sockets in the thread that serves everything, or holds a lock meanwhile",
    fix="Give each call's stream a thread, or a place in the loop, of its own.",
)
def a_slow_host_holds_up_one_call(lab: Lab) -> None:
    """While one `syncIn` waits for its host and one `syncOut` is not read, commands, pings and other syncs go on."""
    sandbox, session, gate = lab.sandbox, lab.worker, threading.Event()
    planted = plant(lab, sandbox, some_tree(), "kit/slow/out")
    run(lab, sandbox, "make_file", name="kit/slow/large", bytes=_LARGE)
    data, limit_s = archive(some_tree()), lab.times.call_s
    with (
        Feed([data[:700], gate, data[700:]], timeout_s=limit_s) as feed,
        Drain(timeout_s=limit_s, gate=gate, free=_PAUSE) as drain,
    ):
        coming, going = begin_in(sandbox, feed, "kit/slow/in"), begin_out(sandbox, drain, "kit/slow/large")
        wait_moved(lab, feed, 700, "syncIn")
        wait_moved(lab, drain, _PAUSE, "syncOut")
        opened = session.ping()
        expect(coming in opened and going in opened, f"calls that wait for their host are not open: {opened!r:.100}")
        said = output_of(sandbox.execute(lab.command("print", text="meanwhile")))
        expect(said == b"meanwhile", f"beside syncs that wait a command prints {said!r:.60}")
        sent = send_tree(lab, sandbox, some_tree(), "kit/slow/beside")
        expect_tree(fetch(lab, sandbox, "kit/slow/out"), planted, "data", what="a syncOut beside one that waits")
        gate.set()
        session.result_of(coming)
        result = session.result_of(going)
        expect(drain.settled(), "syncOut was answered, and its connection is still open")
        expect_true_count(result, drain.moved_bytes, len(drain.data), "syncOut")
        (only,) = read(bytes(drain.data), "what syncOut sent to a slow host").values()
    expect(len(only.data) == _LARGE, f"a file of {_LARGE} bytes came as {len(only.data)} to a slow host")
    for place in ("in", "beside"):
        expect_tree(look(lab, sandbox, f"kit/slow/{place}"), sent, "data", what=f"what came to {place!r}")
    run(lab, sandbox, "remove_tree", path="kit/slow")


@check(
    "SYNC-26",
    part="in",
    uses=Uses.OWN,
    needs=Needs(groups=("sync",)),
    why="A tree is as large as a disk, and one worker moves several.",
    broken="gathers the archive, or a file of it, before it unpacks",
    fix="Unpack while you read, in pieces of a fixed size; let the kernel hold the host back.",
    source="e2b-dev/E2B#1301, e2b-dev/E2B#1433, prime#824, cwsandbox-client#135",
)
def memory_does_not_grow_with_what_comes(lab: Lab) -> None:
    """The worker's memory stays where it was while 256 MiB come in."""
    _expect_flat(lab.once(_growth)[0], "syncIn")


@check(
    "SYNC-26",
    part="out",
    uses=Uses.OWN,
    needs=Needs(groups=("sync",)),
    why="What a run has made is as large as it likes, and the host decides how much of it it takes.",
    broken="gathers the archive, or a file of it, before it sends",
    fix="Send while you read, in pieces of a fixed size; wait where the host does not take them.",
    source="e2b-dev/E2B#1301, e2b-dev/E2B#1433, prime#824, cwsandbox-client#135",
)
def memory_does_not_grow_with_what_goes(lab: Lab) -> None:
    """The worker's memory stays where it was while 256 MiB go out."""
    _expect_flat(lab.once(_growth)[1], "syncOut")


def _expect_flat(growth: int, what: str) -> None:
    expect(growth < _MOST_GROWTH, f"{what} of {_STREAM >> 20} MiB made the worker grow by {growth >> 20} MiB")


def _large_archive() -> Iterator[bytes]:
    yield header(b"large", type_=b"0", size=_STREAM)
    piece = noise(1 << 20)
    for _ in range(_STREAM >> 20):
        yield piece
    yield END


def _growth(lab: Lab) -> tuple[int, int]:
    """By how much a worker's memory grew with what came in, and with what went out."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    with Feed([archive(some_tree())], timeout_s=lab.times.call_s) as feed:
        session.call("syncIn", sandbox.params(socket=feed.path, path="small"))
    with Drain(timeout_s=lab.times.call_s) as drain:
        session.call("syncOut", sandbox.params(socket=drain.path, path="small"))
    before = session.process.peak_memory_bytes()
    if not before:
        raise NotApplicable("this machine does not tell how much memory a process has had")
    whole = BLOCK + _STREAM + len(END)
    with Feed(_large_archive(), timeout_s=lab.times.call_s) as feed:
        result = session.call("syncIn", sandbox.params(socket=feed.path, path="large"))
        expect_true_count(result, feed.moved_bytes, whole, "syncIn")
    between = session.process.peak_memory_bytes()
    with Drain(timeout_s=lab.times.call_s, keep=False) as drain:
        result = session.call("syncOut", sandbox.params(socket=drain.path, path="large"))
        expect(drain.settled(), "syncOut was answered, and its connection is still open")
        expect(drain.moved_bytes > _STREAM, f"a file of {_STREAM} bytes went out as {drain.moved_bytes}")
    return between - before, session.process.peak_memory_bytes() - between


# ------------------------------------------------------------------ what is not there


@check(
    "SYNC-20",
    needs=SYNC,
    why="A report that the run did not write is told as such, and not as an empty one.",
    broken="sends an empty archive, or waits",
    fix="Look first; answer PathNotFound with `dispatched` `no`.",
    source="docker/docker-py#2564",
)
def a_missing_path_is_told(lab: Lab) -> None:
    """`syncOut` of a path that is not there is PathNotFound, and nothing has happened."""
    sandbox = lab.sandbox
    for path in ("kit/no-such-thing", "/sandport/no/such/thing", "kit/no/such/parent"):
        with Drain(timeout_s=lab.times.call_s) as drain:
            error = sandbox.session.refused("syncOut", sandbox.params(socket=drain.path, path=path), "PathNotFound")
            expect_no_effect(error, f"syncOut of {path!r}")


@check(
    "SYNC-24",
    needs=SYNC,
    why="A worker in another place than its host cannot reach the socket; the host then goes through a command.",
    broken="answers Internal, or says that something may have happened",
    fix="Connect before anything else; answer Unavailable with `dispatched` `no` and `field` `socket`.",
)
def a_socket_that_is_not_there_is_told(lab: Lab) -> None:
    """A socket that is missing, that nobody listens on, or that is a file: Unavailable, and nothing was made."""
    sandbox, path = lab.sandbox, "kit/unreachable"
    plant(lab, sandbox, [file(b"file", b"x")], f"{path}/out")
    folder = folder_for_sockets()
    lab.remove_later(folder)
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deaf.bind(os.fspath(folder / "deaf"))
    deaf.close()
    (folder / "file").touch()
    for name in ("missing", "deaf", "file", "no/such/folder"):
        for method, place in (("syncIn", f"{path}/in"), ("syncOut", f"{path}/out")):
            params = sandbox.params(socket=os.fspath(folder / name), path=place)
            error = sandbox.session.refused(method, params, "Unavailable")
            expect_no_effect(error, f"{method} with a socket that is {name}")
            expect(field_of(error) == "socket", f"{method}: detail.field is {field_of(error)!r}, not 'socket'")
    expect(not is_there(lab, sandbox, f"{path}/in"), "a syncIn that could not reach its socket has made its path")
    run(lab, sandbox, "remove_tree", path=path)


# ------------------------------------------------------------------ what is in the way


@check(
    "SYNC-27",
    needs=Needs(groups=("sync",), commands=("pack", "unpack", "make_fifo")),
    why="A server leaves its socket behind, a test its FIFO; whoever opens one waits for ever.",
    broken="opens whatever is there, or gives up",
    fix="Look what it is before you open it; leave out what is no file, directory or link.",
    source="paperclipai/paperclip#5823, paperclip#5823",
)
def what_is_no_file_is_no_hindrance(lab: Lab) -> None:
    """A FIFO in a tree does not hold up its `syncOut`, and costs nothing but itself."""
    sandbox, path = lab.sandbox, "kit/odd"
    planted = plant(lab, sandbox, some_tree(), path)
    run(lab, sandbox, "make_fifo", name=f"{path}/a-fifo")
    run(lab, sandbox, "make_fifo", name=f"{path}/source/fifo")
    got = fetch(lab, sandbox, path)
    for name in (b"a-fifo", b"source/fifo"):
        odd = got.pop(name, None)
        expect(odd is None or odd.kind == "other", f"a FIFO was sent as a {odd.kind if odd else None}")
    expect_tree(got, planted, "data", what="what syncOut sent of a tree with FIFOs")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-28",
    needs=SYNC,
    why="A log grows while it is read; the files behind it in the archive must not become noise by it.",
    broken="writes the size first and then as much as there is",
    fix="Send exactly the size that you said: cut what is too much, fill up what is missing, and say so in `notes`.",
)
def a_file_that_changes_does_not_damage_the_archive(lab: Lab) -> None:
    """A file that grows, or shrinks, while it is sent is an error or a whole archive with the other files in it."""
    sandbox, path = lab.sandbox, "kit/changing"
    planted = plant(lab, sandbox, some_tree(), path)
    for what in ("append", "empty"):
        gate = threading.Event()
        run(lab, sandbox, "make_file", name=f"{path}/large", bytes=_LARGE)
        with Drain(timeout_s=lab.times.call_s, gate=gate, free=_PAUSE) as drain:
            call = begin_out(sandbox, drain, path)
            wait_moved(lab, drain, _PAUSE, "syncOut")
            blanks = {"text": "more" * 5_000} if what == "append" else {}
            run(lab, sandbox, what, name=f"{path}/large", **blanks)
            gate.set()
            body = sandbox.session.answer(call).body
            if "error" in body:
                sandbox.session.error_of(call)
                continue
            result = sandbox.session.result_of(call)
            expect(drain.settled(), "syncOut was answered, and its connection is still open")
            expect_true_count(result, drain.moved_bytes, len(drain.data), "syncOut")
            got = read(bytes(drain.data), f"what syncOut sent of a file in which {what!r} happened, with a result,")
        if got.pop(b"large", None) is None:
            raise Failed(f"a file in which {what!r} happened was left out, and {outcome(body)} was answered")
        expect_tree(got, planted, "data", what=f"what syncOut sent beside a file in which {what!r} happened")
    run(lab, sandbox, "remove_tree", path=path)
