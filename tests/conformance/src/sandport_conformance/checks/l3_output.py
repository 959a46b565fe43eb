"""L3: output that is sent while a command runs, and the credit that it needs."""

from __future__ import annotations

from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.sandbox import Sandbox, output_size, streams_of
from sandport_conformance.session import Id, Session

_LONG_S = 300
_CREDIT = 65_536
"""Credit of the sessions that test it: small, so that it is soon used up."""


def _session(lab: Lab, **limits: int) -> tuple[Session, Sandbox]:
    """A worker of its own with these limits, and a sandbox in it."""
    session = lab.spawn(greet=False)
    session.greet(limits={**session.offered["limits"], **limits})
    return session, lab.new_sandbox(session)


def _agreed(session: Session, name: str, offered: int) -> int:
    """The smaller one of what this session offered and what the worker answered."""
    theirs: int = session.hello.get("limits", {}).get(name, offered)
    return min(offered, theirs)


def _received(session: Session, request_id: Id) -> int:
    """Bytes of stdout that came so far."""
    streams = streams_of(session, request_id)
    return len(streams["stdout"].data) if "stdout" in streams else 0


def _wait_bytes(session: Session, request_id: Id, size: int, timeout_s: float) -> bool:
    """Whether so many bytes of stdout came in time."""
    return session.pump(lambda: _received(session, request_id) >= size, timeout_s)


@check(
    "OUT-1",
    uses=Uses.SHARED,
    why="Output that comes twice, or in two ways, cannot be added up.",
    broken="puts live output into the result as well",
    fix="With `live`, send `output` notifications with the request's id, and counts in the result.",
)
def live_output_comes_as_notifications(lab: Lab) -> None:
    """With `live`, the output comes in notifications and the result has counts only."""
    live = lab.sandbox.run_live(lab.command("print", text="live"))
    expect(live.data() == b"live", f"the notifications brought {live.data()!r:.100}, not b'live'")
    kept = [m for name in ("stdout", "stderr") for m in ("data", "tail") if live.result.get(name, {}).get(m)]
    expect(not kept, f"the result of live output has {kept} too")


@check(
    "OUT-2",
    uses=Uses.SHARED,
    also=("OUT-6",),
    why="A byte that is missing in the middle must not go unnoticed.",
    broken="counts offsets in pieces instead of bytes",
    fix="`offset` is the number of bytes of the stream before the piece.",
    source="langchain-ai/langsmith-sdk#3022, langsmith-sdk#3022",
)
def offsets_have_no_gaps(lab: Lab) -> None:
    """The pieces of a long output join without a gap from 0, and make up the whole."""
    size = 400_000
    live = lab.sandbox.run_live(lab.command("flood", bytes=size))
    whole = (b"0123456789\n" * (size // 11 + 1))[:size]
    expect(live.data() == whole, f"{len(live.data())} of {size} bytes came, or others than were written")


@check(
    "OUT-3",
    uses=Uses.SHARED,
    why="Without an end mark nobody knows whether the last piece was the last.",
    broken="sends the result without end marks",
    fix="After the last piece of each stream send one `output` with `end`, then the result.",
    source="cloudflare/sandbox-sdk#873",
)
def every_stream_has_an_end_mark_before_the_result(lab: Lab) -> None:
    """Both streams end with a mark before the answer, also those that had no output, and the result says the same."""
    live = lab.sandbox.run_live(lab.command("print", text="x"))
    for name in ("stdout", "stderr"):
        mark = live.streams[name].end if name in live.streams else None
        expect(mark in ("seen", "heldOpen"), f"{name} has no end mark before the result")
        said = live.result.get(name, {}).get("end", "seen")
        expect(mark == said, f"{name} ended {mark!r} by its mark and {said!r} by the result")


@check(
    "OUT-4",
    uses=Uses.SHARED,
    why="After the answer nobody listens; what comes then is lost, or taken for another call's.",
    broken="sends the result before the last piece",
    fix="Output, end marks and result go through one queue.",
    source="e2b-dev/E2B#1442, E2B#1442",
)
def nothing_comes_after_the_answer(lab: Lab) -> None:
    """No output of a request is written after its answer."""
    session, sandbox = lab.worker, lab.sandbox
    for size in (1, 200_000):
        live = sandbox.run_live(lab.command("flood", bytes=size))
        session.ping()
        after = session.messages.index(live.answer) + 1
        late = [m for m in session.notifications("output", after=after) if m.params.get("id") == live.request_id]
        expect(not late, f"{len(late)} messages of output came after the answer")


@check(
    "OUT-5",
    uses=Uses.OWN,
    why="A piece of megabytes holds up the ping and the cancel behind it.",
    broken="sends what it has read as one piece, whatever its size",
    fix="Cut output into pieces of at most `chunkBytes`.",
)
def pieces_keep_to_the_chunk_size(lab: Lab) -> None:
    """No piece is larger than the agreed `chunkBytes`, and they add up to the whole."""
    session, sandbox = _session(lab, chunkBytes=8_192)
    live = sandbox.run_live(lab.command("flood", bytes=300_000))
    chunk = _agreed(session, "chunkBytes", 8_192)
    largest = max(live.streams["stdout"].pieces, default=0)
    expect(largest <= chunk, f"a piece has {largest} bytes, chunkBytes is {chunk}")
    expect(len(live.data()) == 300_000, f"{len(live.data())} of 300000 bytes came")


@check(
    "OUT-6",
    uses=Uses.SHARED,
    why="The count is the proof that everything arrived.",
    broken="counts something else than it sent",
    fix="`totalBytes` is the number of bytes that were sent of the stream.",
)
def the_total_is_what_was_sent(lab: Lab) -> None:
    """`totalBytes` of each stream is the number of bytes that came."""
    for name, argv in (("stdout", lab.command("flood", bytes=70_001)), ("stderr", lab.command("complain", text="abc"))):
        live = lab.sandbox.run_live(argv)
        for stream in ("stdout", "stderr"):
            said = live.result.get(stream, {}).get("totalBytes", 0)
            came = len(live.data(stream))
            expect(said == came, f"of {stream} (output on {name}), {came} bytes came and totalBytes is {said}")


@check(
    "OUT-7",
    uses=Uses.SHARED,
    why="Live means live: a person, or an agent, watches.",
    broken="gathers live output until the command ends",
    fix="Send what was read when it was read.",
)
def output_is_sent_as_it_comes(lab: Lab) -> None:
    """Output of a command that still runs arrives; the command is cancelled after that."""
    session, sandbox = lab.worker, lab.sandbox
    request_id = sandbox.start(lab.command("print_then_sleep", text="now", seconds=_LONG_S), live=True)
    session.wait(lambda m: output_size(m, request_id), "output of a command that runs", timeout_s=session.times.call_s)
    expect(not session.answers(request_id), "the answer came with the output: the command was waited for")
    session.cancel(request_id)
    session.answer(request_id)


@check(
    "CRED-1",
    uses=Uses.OWN,
    also=("CRED-8",),
    why="What nobody has room for fills a memory: the host's, or the worker's.",
    broken="sends output without looking at credit",
    fix="Count what was sent of each stream; stop reading the program's pipe when the credit is used up.",
    source="nushell/nushell#6934, nushell/nushell#11911",
)
def output_stops_where_the_credit_ends(lab: Lab) -> None:
    """Without `credit`, exactly the agreed `creditBytes` of a flood come, and no more."""
    session, sandbox = _session(lab, creditBytes=_CREDIT)
    credit = _agreed(session, "creditBytes", _CREDIT)
    for _ in (1, 2):
        # Twice: each request starts with the whole credit.
        request_id = sandbox.start(lab.command("flood", bytes=20 * _CREDIT), live=True)
        came = _wait_bytes(session, request_id, credit, session.times.call_s)
        expect(came, f"{_received(session, request_id)} bytes came; the credit is {credit}")
        _wait_bytes(session, request_id, credit + 1, session.times.moment_s)
        session.ping()
        expect(_received(session, request_id) == credit, f"{_received(session, request_id)} bytes came for {credit}")
        session.cancel(request_id)
        session.answer(request_id)


@check(
    "CRED-2",
    uses=Uses.OWN,
    why="Credit that does not wake the stream stalls the command for ever.",
    broken="never looks at credit that comes later",
    fix="Add `bytes` to the stream's room and go on reading.",
)
def credit_lets_a_stream_go_on(lab: Lab) -> None:
    """Each `credit` brings as many bytes more, down to one, and the command ends when all has come."""
    session, sandbox = _session(lab, creditBytes=_CREDIT)
    size = 4 * _CREDIT
    request_id = sandbox.start(lab.command("flood", bytes=size), live=True)
    room = _agreed(session, "creditBytes", _CREDIT)
    for step in (1, 4_000, _CREDIT, size):
        came = _wait_bytes(session, request_id, min(room, size), session.times.call_s)
        expect(came, f"{_received(session, request_id)} bytes came with credit for {room}")
        expect(_received(session, request_id) <= room, f"{_received(session, request_id)} bytes came, {room} were due")
        session.notify("credit", {"id": request_id, "stream": "stdout", "bytes": step})
        room += step
    session.result_of(request_id)
    expect(_received(session, request_id) == size, f"{_received(session, request_id)} of {size} bytes came")


@check(
    "CRED-3",
    uses=Uses.OWN,
    why="One forgotten consumer must not stop a whole worker.",
    broken="waits for credit where everybody waits behind it",
    fix="Let each stream wait alone.",
    source="anthropics/claude-agent-sdk-python#103",
)
def a_stream_without_credit_holds_up_nobody_else(lab: Lab) -> None:
    """While one command waits for credit, another one runs with live output to its end, and a ping is answered."""
    session, sandbox = _session(lab, creditBytes=_CREDIT)
    credit = _agreed(session, "creditBytes", _CREDIT)
    stuck = sandbox.start(lab.command("flood", bytes=20 * _CREDIT), live=True)
    expect(_wait_bytes(session, stuck, credit, session.times.call_s), "the flood does not come")
    session.ping()
    live = sandbox.run_live(lab.command("flood", bytes=2 * _CREDIT))
    expect(len(live.data()) == 2 * _CREDIT, f"{len(live.data())} of {2 * _CREDIT} bytes of the other command came")
    expect(not session.answers(stuck), "the command without credit was answered")
    session.cancel(stuck)
    session.answer(stuck)


@check(
    "CRED-4",
    uses=Uses.OWN,
    why="A consumer that is gone must not keep a command alive beyond its limit.",
    broken="stops the clock while a stream waits",
    fix="Keep the time-out apart from the streams.",
    source="superradcompany/microsandbox#1549, microsandbox#1549",
)
def a_time_out_runs_on_without_credit(lab: Lab) -> None:
    """A command whose stream waits for credit ends at its time-out, and is answered."""
    session, sandbox = _session(lab, creditBytes=_CREDIT)
    request_id = sandbox.start(lab.command("flood", bytes=1_000_000_000), live=True, timeoutMs=700)
    result = session.result_of(request_id)
    expect(result.get("ended") == "timedOut", f"it should have timed out: {result!r:.200}")


@check(
    "CRED-5",
    uses=Uses.SHARED,
    why="Credit crosses the answer on the way; that is nobody's fault.",
    broken="takes late credit for a violation",
    fix="Ignore credit for what is not open.",
)
def late_credit_is_ignored(lab: Lab) -> None:
    """Credit for requests that ended, or never were, changes nothing."""
    session, sandbox = lab.worker, lab.sandbox
    live = sandbox.run_live(lab.command("print", text="x"))
    for request_id in (live.request_id, 987_654, "nobody"):
        session.notify("credit", {"id": request_id, "stream": "stdout", "bytes": 10})
    session.ping()
    expect(sandbox.run_live(lab.command("print", text="y")).data() == b"y", "output does not come any more")


@check(
    "CRED-9",
    uses=Uses.OWN,
    why="A command whose output fits its credit exactly must end.",
    broken="waits for credit before it sends an end mark",
    fix="An end mark has no bytes and needs no credit.",
)
def an_end_mark_needs_no_credit(lab: Lab) -> None:
    """A command that writes exactly as much as the credit is answered without any `credit`."""
    session, sandbox = _session(lab, creditBytes=_CREDIT)
    credit = _agreed(session, "creditBytes", _CREDIT)
    request_id = sandbox.start(lab.command("flood", bytes=credit), live=True)
    session.result_of(request_id)
    streams = streams_of(session, request_id)
    expect(streams["stdout"].end is not None, "stdout has no end mark")
    expect(len(streams["stdout"].data) == credit, f"{len(streams['stdout'].data)} of {credit} bytes came")
