"""L4: the truth about commands, one after the other and many at once."""

from __future__ import annotations

import hashlib

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.schema import Json
from sandport_conformance.session import Id

from .gates import held, need_room

_BYTES = 2_000_000
"""What a command writes to each of its streams: more than a window, and no multiple of a piece."""
_SHORT_MS = 100


def _expected(text: str, size: int) -> bytes:
    line = text.encode() + b"\n"
    return (line * (size // len(line) + 1))[:size]


def expect_same(got: bytes, wanted: bytes, what: str) -> None:
    """Hold bytes to what was written, by their digest."""
    if hashlib.sha256(got).digest() != hashlib.sha256(wanted).digest():
        pairs = enumerate(zip(got, wanted, strict=False))
        at = next((n for n, (one, other) in pairs if one != other), min(len(got), len(wanted)))
        said = f"{len(got)} bytes, of {len(wanted)}, and differs from byte {at} on: {got[at : at + 20]!r}"
        expect(False, f"{what} came as {said}")


@check(
    "CMD-18",
    needs=Needs(commands=("print_then_sleep", "ignore_term", "flood")),
    why="A test that hangs is one result among many; the next one wants the same sandbox.",
    broken="leaves the sandbox, its session or its streams useless after a time-out",
    fix="Kill the command and nothing else, and read what is left of its streams before the next one.",
)
def a_sandbox_serves_on_after_time_outs(lab: Lab) -> None:
    """After each of several time-outs, of quiet, stubborn and loud commands, the next ones have their own output."""
    sandbox = lab.new_sandbox()
    sandbox.execute(lab.command("write_file", name="mine", text="from before"))
    slow: list[list[str]] = [
        lab.command("print_then_sleep", text="out of time", seconds=300),
        lab.command("ignore_term", text="out of time", seconds=300),
        lab.command("flood", bytes=10**12),
    ]
    for number, argv in enumerate(slow):
        result = sandbox.execute(argv, timeoutMs=_SHORT_MS, outputLimitBytes=4096)
        expect(result.get("ended") == "timedOut", f"it should have timed out: {result!r:.200}")
        text = f"after time-out {number}"
        after = sandbox.execute(lab.command("print", text=text))
        said = (after.get("ended"), after.get("exitCode"), output_of(after))
        expect(said == ("exited", 0, text.encode()), f"after time-out {number} a command ends as {said!r:.200}")
    kept = output_of(sandbox.execute(lab.command("read_file", name="mine")))
    expect(kept == b"from before", f"after time-outs a file holds {kept!r:.60}")


@check(
    "CMD-25",
    uses=Uses.OWN,
    needs=Needs(commands=("flood_both",)),
    why="A log that is short by a few bytes, or has another command's line in it, is no evidence.",
    broken="mixes the output of commands that run at once, or loses some of it and says exit code 0",
    fix="Count what you read and what you send, for each stream of each command, and compare at its end.",
)
def output_of_commands_at_once_is_whole(lab: Lab) -> None:
    """Megabytes on both streams of several commands at once arrive byte for byte, each where it belongs, counted."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    need_room(sandbox, 3)

    def flood(number: int, **members: object) -> Id:
        argv = lab.command("flood_both", text=f"out of {number}", other=f"err of {number}", bytes=_BYTES)
        return sandbox.start(argv, **members)

    live = [flood(number, live=True) for number in range(2)]
    limit = _BYTES // 2
    kept = session.result_of(flood(2, outputLimitBytes=limit))
    for number, call in enumerate(live):
        told = sandbox.follow(call)
        expect(told.result.get("exitCode") == 0, f"a command that ends with 0 ended as {told.result!r:.200}")
        for stream, word in (("stdout", "out"), ("stderr", "err")):
            what = f"{stream} of command {number}"
            expect_same(told.data(stream), _expected(f"{word} of {number}", _BYTES), what)
            _expect_counted(told.result, stream, _BYTES, 0, what)
    expect(kept.get("exitCode") == 0, f"a command that ends with 0 ended as {kept!r:.200}")
    for stream, word in (("stdout", "out"), ("stderr", "err")):
        whole, got = _expected(f"{word} of 2", _BYTES), output_of(kept, stream)
        what = f"what was kept of {stream}"
        _expect_counted(kept, stream, _BYTES, _BYTES - len(got), what)
        expect(0 < len(got) <= limit, f"{what} has {len(got)} bytes, where {limit} were asked for")
        head = len(output_of({stream: {"data": kept[stream].get("data", "")}}, stream))
        expect_same(got, whole[:head] + whole[len(whole) - (len(got) - head) :], what)


def _expect_counted(result: Json, stream: str, total: int, dropped: int, what: str) -> None:
    counted = result[stream]
    said = (counted["totalBytes"], counted.get("droppedBytes", 0), counted.get("end", "seen"))
    expect(said == (total, dropped, "seen"), f"{what}: counted as {said!r}, and should be {(total, dropped, 'seen')!r}")


@check(
    "CMD-26",
    why="A run is many commands; what one of them builds the next one uses, and nothing else of it.",
    broken="runs each command in a fresh copy, or all of them in one shell",
    fix="Run each command in the same file system, with variables and a directory of its own.",
)
def files_stay_and_the_rest_does_not(lab: Lab) -> None:
    """A command finds the files of the one before, and neither its variables nor its directory."""
    sandbox = lab.new_sandbox()
    where = output_of(sandbox.execute(lab.command("directory")))
    for text in ("first", "second"):
        sandbox.execute(lab.command("write_file", name="kept", text=text))
        read = output_of(sandbox.execute(lab.command("read_file", name="kept")))
        expect(read == text.encode(), f"a command left {text!r} in a file, and the next one reads {read!r:.60}")
    name = "SANDPORT_LEFT_OVER"
    said = output_of(sandbox.execute(lab.command("variable", name=name), env={name: "here"}, cwd="/"))
    expect(said == b"here", f"the variable of a command is {said!r:.60} in it")
    if sandbox.lease.get("shell") is not None:
        sandbox.execute(shell=f"{name}=there; export {name}; cd /; umask 777")
    said = output_of(sandbox.execute(lab.command("variable", name=name)))
    expect(said == b"", f"the variable of one command is {said!r:.60} in the next")
    said = output_of(sandbox.execute(lab.command("directory")))
    expect(
        said == where,
        f"after a command in another directory the next one starts in {said!r:.100}, not in {where!r:.100}",
    )


@check(
    "CMD-27",
    uses=Uses.OWN,
    needs=Needs(commands=("note_ids", "signal_noted")),
    why="An out-of-memory killer, a supervisor, a colleague's `kill`: the run must see that it was not the program.",
    broken="answers exit code 0, or 128 + n, or loses what was written, when something else ends the program",
    fix="Tell the end as the kernel tells it, after reading what was written.",
)
def a_command_that_another_kills_is_signalled(lab: Lab) -> None:
    """A command that another command kills is `signalled`, with its signal and output; a third one goes on."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    need_room(sandbox, 3)
    with held(lab, sandbox) as call:
        for number, live in ((9, True), (15, False)):
            victim = sandbox.start(lab.command("note_ids", name="ids", text="up", seconds=300), live=live)
            sandbox.execute(lab.command("wait_for_file", name="ids", text="it runs"))
            sandbox.execute(lab.command("signal_noted", name="ids", signal=number))
            told = sandbox.follow(victim)
            said = (told.result.get("ended"), told.result.get("signal"), told.result.get("exitCode"))
            expect(said == ("signalled", number, None), f"a command that was sent signal {number} ended as {said!r}")
            written = told.data() if live else output_of(told.result)
            expect(written == b"up", f"what a command had written before it was killed is {written!r:.60}")
            sandbox.execute(lab.command("write_file", name="ids", text=""))
        expect(not call.answers, "a command ended when another one was killed")
        call.let_go()
        result = session.result_of(call.id)
    expect(result.get("exitCode") == 0, f"a command ended wrongly after another one was killed: {result!r:.200}")
