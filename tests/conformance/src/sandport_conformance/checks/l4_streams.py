"""L4: the stream of an archive: counted, whole, in place when it is answered, and refused where it is cut."""

from __future__ import annotations

import threading

from sandport_conformance.archives import archive, directory, expect_tree, file, link, member, read, tree
from sandport_conformance.declaration import check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.tar_blocks import BLOCK, END, extended, header
from sandport_conformance.transfers import Drain, Feed

from .claims import dispatched
from .files import (
    SYNC,
    begin_in,
    begin_out,
    expect_true_count,
    fetch,
    fetch_bytes,
    is_there,
    look,
    noise,
    plant,
    refused_in,
    run,
    send,
    send_tree,
    some_tree,
    wait_moved,
)

_LARGE = 8 << 20
"""More than sockets and pipes hold between a worker and its host."""
_PAUSE = 1 << 16


# ------------------------------------------------------------------ what is counted, and when it is answered


@check(
    "SYNC-16",
    part="in",
    needs=SYNC,
    why="By the count a host knows that nothing was left in the socket, and that nobody else has read from it.",
    broken="closes the socket at the end mark, or counts what it unpacks",
    fix="Read to the end of the stream, and count what you read.",
)
def all_that_came_is_counted(lab: Lab) -> None:
    """`bytes` is everything that was sent, what follows the end mark included; over one connection, without a word."""
    content = [directory(b"folder"), file(b"folder/file", b"x"), link(b"folder/link", b"file")]
    data = archive(content)
    for number, rest in enumerate((b"", bytes(-len(data) % 10_240), b"not looked at\n" * 70_000)):
        path = f"kit/counted/{number}"
        send(lab, lab.sandbox, data + rest, path)
        expect_tree(look(lab, lab.sandbox, path), tree(content), "data", what="what came with a rest behind it")
    run(lab, lab.sandbox, "remove_tree", path="kit/counted")


@check(
    "SYNC-16",
    part="out",
    needs=SYNC,
    why="An archive is believed when so many bytes came as the worker says it has written.",
    broken="counts the files' bytes, or the disk's",
    fix="Count what you write to the socket.",
)
def all_that_went_is_counted(lab: Lab) -> None:
    """`bytes` is everything that came through the socket, for nothing, a little, and more than the socket holds."""
    sandbox, path = lab.sandbox, "kit/counted-out"
    plant(lab, sandbox, [directory(b"nothing"), directory(b"folder"), file(b"folder/file", b"x" * 700)], path)
    run(lab, sandbox, "make_file", name=f"{path}/folder/large", bytes=_LARGE // 2)
    for name in ("nothing", "folder/file", "folder", "."):
        read(fetch_bytes(lab, sandbox, f"{path}/{name}"), f"syncOut of {name}")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-18",
    needs=SYNC,
    why="Only the end mark tells an archive from one that was cut, and only the end of the stream that it is all.",
    broken="ends the archive without its end mark, or answers and leaves the connection open",
    fix="Write two blocks of zeros, close the socket, then answer.",
)
def what_is_sent_is_whole(lab: Lab) -> None:
    """Every archive that is sent ends with its end mark, then the connection ends, then comes the answer."""
    sandbox, path = lab.sandbox, "kit/whole"
    planted = plant(lab, sandbox, [directory(b"nothing"), *some_tree()], path)
    for _ in range(3):
        expect_tree(fetch(lab, sandbox, path), planted, "data", what="what syncOut sent")
    fetch(lab, sandbox, f"{path}/nothing")
    fetch(lab, sandbox, f"{path}/README")
    gate = threading.Event()
    run(lab, sandbox, "make_file", name=f"{path}/large", bytes=_LARGE)
    with Drain(timeout_s=lab.times.call_s, gate=gate) as drain:
        call = begin_out(sandbox, drain, path)
        expect(drain.connected.wait(lab.times.call_s), "syncOut did not connect to its socket")
        sandbox.session.ping()
        early = sandbox.session.answers(call)
        expect(not early, f"syncOut was answered before anything was read: {[m.body for m in early]!r:.200}")
        gate.set()
        result = sandbox.session.result_of(call)
        expect(drain.settled(), "syncOut was answered, and its connection is still open")
        expect_true_count(result, drain.moved_bytes, len(drain.data), "syncOut")
        read(bytes(drain.data), "what syncOut sent to a host that was slow")
    run(lab, sandbox, "remove_tree", path=path)


@check(
    "SYNC-19",
    needs=SYNC,
    why="The next call is the command that needs the files.",
    broken="answers when it has the archive, and unpacks it then",
    fix="Answer when the last directory has its mode and its time.",
)
def the_answer_comes_when_all_is_in_place(lab: Lab) -> None:
    """A command right behind the answer sees everything; and the answer does not come before the stream has ended."""
    sandbox = lab.sandbox
    content = [file(b"first", b"the first one", mode=0o600)]
    for number in range(10):
        content.append(directory(b"d%d" % number, mode=0o700, mtime_s=1_000_000_000 + number))
        content += [file(b"d%d/f%d" % (number, n), noise(3_000, n), mode=0o640) for n in range(30)]
    sent = send_tree(lab, sandbox, content, "kit/in-place/one")
    seen = look(lab, sandbox, "kit/in-place/one")
    expect_tree(seen, sent, "data", "mode", "mtime_s", what="what a command sees right behind the answer")
    data, gate = archive(content), threading.Event()
    with Feed([data, gate, bytes(BLOCK)], timeout_s=lab.times.call_s) as feed:
        call = begin_in(sandbox, feed, "kit/in-place/two")
        wait_moved(lab, feed, len(data), "syncIn")
        sandbox.session.ping()
        early = sandbox.session.answers(call)
        expect(not early, f"syncIn was answered before its stream had ended: {[m.body for m in early]!r:.200}")
        gate.set()
        expect_true_count(sandbox.session.result_of(call), feed.moved_bytes, len(data) + BLOCK, "syncIn")
    expect_tree(look(lab, sandbox, "kit/in-place/two"), sent, "data", "mode", what="what came with a pause in it")
    run(lab, sandbox, "remove_tree", path="kit/in-place")


# ------------------------------------------------------------------ what is not whole


def _expect_refused(lab: Lab, data: bytes, path: str, what: str) -> None:
    """Send what is no whole archive; it must be refused, and truly."""
    error = refused_in(lab, lab.sandbox, data, path, "ProtocolViolation")
    if dispatched(error) == "no":
        there = sorted(look(lab, lab.sandbox, path)) if is_there(lab, lab.sandbox, path) else []
        expect(not there, f"{what}: the error says dispatched 'no', and there is {there[:3]!r}")


@check(
    "SYNC-17",
    part="cut",
    needs=SYNC,
    why="A host that dies, or gives up, leaves half a tree, and a run that takes it for whole fails in another place.",
    broken="takes the end of the stream for the end of the archive, as `tar` does between two members",
    fix="Look for the two blocks of zeros yourself; without them, answer ProtocolViolation.",
)
def a_cut_stream_is_an_error(lab: Lab) -> None:
    """Cut in a header, a record, a file, between two members, or before its first byte: an error; all goes on."""
    first, second = member(file(b"first", noise(1_500))), member(file(b"second", noise(5_000)))
    record = extended({b"path": b"long/" * 60 + b"third"})
    third = header(b"third", type_=b"0", size=600)
    whole = first + second + record + third + bytes(1_024) + END
    places = {
        "before the first byte": 0,
        "in the first header": 100,
        "behind the first header": BLOCK,
        "in a file": BLOCK + 700,
        "between two members": len(first),
        "in the middle of a large file": len(first) + BLOCK + 2_048,
        "behind the last byte of a file": len(first) + BLOCK + 5_000,
        "in a record": len(first) + len(second) + BLOCK + 50,
        "between a record and its member": len(first) + len(second) + len(record),
        "before the end mark": len(whole) - len(END),
    }
    for number, (what, size) in enumerate(places.items()):
        _expect_refused(lab, whole[:size], f"kit/cut/{number}", f"cut {what}")
        said = output_of(lab.sandbox.execute(lab.command("print", text=what)))
        expect(said == what.encode(), f"after a stream that was cut {what} a command prints {said!r:.60}")
    sent = send_tree(lab, lab.sandbox, some_tree(), "kit/cut/3")
    got = look(lab, lab.sandbox, "kit/cut/3")
    expect_tree({path: got[path] for path in got if path != b"first"}, sent, "data", what="what came after cut streams")
    run(lab, lab.sandbox, "remove_tree", path="kit/cut")


@check(
    "SYNC-17",
    part="malformed",
    needs=SYNC,
    why="What is no archive cannot be unpacked, whatever the exit code of the program that tries.",
    broken="passes over what it cannot read",
    fix="Check each header's sum; answer ProtocolViolation for what does not fit.",
)
def what_is_no_archive_is_an_error(lab: Lab) -> None:
    """Noise, text, a damaged header and a damaged number are errors, and the worker unpacks the next archive."""
    good = member(file(b"good", b"x"))
    damaged = bytearray(member(file(b"damaged", b"x")))
    damaged[3] ^= 1
    for number, data in enumerate(
        (
            noise(4 * BLOCK),
            b"this is no archive\n" * 1_000,
            good + bytes(damaged) + member(file(b"behind", b"x")) + END,
            good + noise(BLOCK) + END,
        )
    ):
        _expect_refused(lab, data, f"kit/malformed/{number}", f"malformed stream {number}")
    sent = send_tree(lab, lab.sandbox, some_tree(), "kit/malformed/good")
    expect_tree(look(lab, lab.sandbox, "kit/malformed/good"), sent, "data", what="what came after malformed streams")
    run(lab, lab.sandbox, "remove_tree", path="kit/malformed")


@check(
    "SYNC-17",
    part="unread",
    needs=SYNC,
    why="A host that has seen enough, or too much, closes its end.",
    broken="dies of SIGPIPE, or answers as if all had been read",
    fix="Ignore SIGPIPE; answer Unavailable where the connection breaks.",
)
def a_host_that_closes_its_end_gets_an_error(lab: Lab) -> None:
    """A `syncOut` whose socket the host closes, at once or in the middle, is Unavailable; all goes on."""
    sandbox, path = lab.sandbox, "kit/unread"
    planted = plant(lab, sandbox, some_tree(), path)
    run(lab, sandbox, "make_file", name=f"{path}/large", bytes=_LARGE)
    for size in (0, _PAUSE):
        with Drain(timeout_s=lab.times.call_s, most=size) as drain:
            call = begin_out(sandbox, drain, path)
            sandbox.session.error_of(call, "Unavailable")
        said = output_of(sandbox.execute(lab.command("print", text="on")))
        expect(said == b"on", f"after a syncOut that nobody read to its end a command prints {said!r:.60}")
    got = fetch(lab, sandbox, path)
    del got[b"large"]
    expect_tree(got, planted, "data", what="what syncOut sent after that")
    run(lab, sandbox, "remove_tree", path=path)
