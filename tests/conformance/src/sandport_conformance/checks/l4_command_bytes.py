"""L4: archives through commands, for hosts that have no other way: large, binary, and kept by the file system."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from sandport_conformance.archives import directory, expect_tree, file, link, plain_archive, read, tree
from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import TimedOut, expect
from sandport_conformance.sandbox import output_of_message
from sandport_conformance.session import Id

from .files import needs_tar, noise, pack, run, some_tree, unpack
from .l3_processes import Process
from .l4_commands import expect_same

_STREAM = 64 << 20
_PIECE = 512 << 10
_OPEN = 4
"""As many writes as a host may have open."""


@check(
    "SYNC-32",
    part="execute",
    needs=Needs(commands=("copy",)),
    why="Where there is nothing else, an archive goes in as a command's input, and out as another's output.",
    broken="takes input or output for text, or cuts them at some size",
    fix="Write `stdin` piece by piece while you read the output, neither decoded; `frameBytes` is the only ceiling.",
)
def execute_carries_megabytes(lab: Lab) -> None:
    """As much as a frame holds comes through a command's input and its live output byte for byte."""
    size = lab.facts.limits["frameBytes"] // 2 + 7
    data = noise(size)
    told = lab.sandbox.run_live(lab.command("copy"), stdin=data)
    expect(told.result.get("exitCode") == 0, f"a copy of {size} bytes ended as {told.result!r:.200}")
    expect_same(told.data(), data, "a copy of a frame's worth of input")


@check(
    "SYNC-32",
    part="process",
    uses=Uses.OWN,
    needs=Needs(groups=("process",), commands=("copy",)),
    why="A tree is larger than a frame: it goes in by many writes, and comes out under credit.",
    broken="loses, repeats or changes something where pieces meet",
    fix="Write what was taken, count what you read, and keep their order.",
    source="kubernetes-client/python#790",
)
def a_process_carries_a_tree(lab: Lab) -> None:
    """64 MiB of noise, written to a process and followed at the same time, come back byte for byte."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    process = Process(lab, sandbox, lab.command("copy"), stdin=True)
    follower = process.begin_wait()
    due = bytearray()
    sent = received = 0
    writes: dict[Id, int] = {}

    def take() -> bool:
        """Judge what came; whether the process was answered."""
        nonlocal received
        ended = False
        for message in session.messages:
            if data := output_of_message(message, follower):
                expect(data == due[: len(data)], f"what came back differs from byte {received} on, or soon behind it")
                del due[: len(data)]
                received += len(data)
                session.notify("credit", {"id": follower, "stream": "stdout", "bytes": len(data)})
            for request_id in [one for one in writes if message.answers(one)]:
                taken = session.result_of(request_id)["takenBytes"]
                expect(taken == writes.pop(request_id), f"of a write of {_PIECE} bytes {taken} were taken")
            ended = ended or message.answers(follower)
        if not ended:
            session.forget()
        return ended

    for piece in _pieces(lab):
        text = base64.b64encode(piece).decode()
        request_id = session.request("writeProcess", process.params(data=text))
        writes[request_id] = len(piece)
        due += piece
        sent += len(piece)
        if not session.pump(lambda: take() or len(writes) < _OPEN, lab.times.call_s):
            raise TimedOut(f"no answer to any of {_OPEN} writes; {received} bytes of {sent} have come back")
    end = session.request("writeProcess", process.params(end=True))
    writes[end] = 0
    if not session.pump(take, lab.times.call_s):
        raise TimedOut(f"the process has not ended after its input; {received} bytes of {sent} have come back")
    result = session.result_of(follower)
    said = (result.get("exitCode"), result.get("stdout", {}).get("totalBytes"), received)
    expect(said == (0, sent, sent), f"exit code, counted and received bytes are {said!r}, of {sent} that were sent")


def _pieces(lab: Lab) -> Iterator[bytes]:
    size = min(_PIECE, lab.facts.limits["frameBytes"] // 2)
    rest = noise(size - 8)
    for number in range(_STREAM // size):
        yield number.to_bytes(8, "big") + rest


@check(
    "SYNC-33",
    needs=Needs(commands=("pack", "unpack")),
    why="A sandbox whose files lose their modes, or their links, cannot build what builds elsewhere.",
    broken="keeps files as an object store does: no modes, no links, no empty directories, its own times",
    fix="Give the sandbox a file system of the kind that programs expect.",
)
def the_working_directory_keeps_a_tree(lab: Lab) -> None:
    """A tree that `tar` unpacks from a command's input comes out of another's output with all that it was."""
    sandbox = lab.sandbox
    content = [
        *some_tree(),
        directory(b"empty", mode=0o700),
        file(b"script", b"#!/bin/sh\n", mode=0o755),
        file(b"secret", b"x", mode=0o600),
        file(b"shared", b"x", mode=0o666),
        file(b"a line\nand \xff bytes ", b"x", mtime_s=1_000_000_000),
        file(b"n" * 255, b"x"),
        file(b"CASE", b"large"),
        file(b"case", b"small"),
        link(b"dangling", b"no/such/thing"),
        link(b"to-a-directory", b"source"),
    ]
    with needs_tar():
        unpack(lab, sandbox, plain_archive(content), "kit/kept")
        seen = read(pack(lab, sandbox, "kit/kept"), "what a tar of the sandbox packed")
    expect_tree(seen, tree(content), "data", "mode", "target", "mtime_s", what="what another command packs")
    run(lab, sandbox, "remove_tree", path="kit/kept")
