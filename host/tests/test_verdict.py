"""An outcome exists only where the worker's word agrees with what was received."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandport.capture import Capture
from sandport.command import command_line
from sandport.errors import ProtocolViolation, SandboxLost
from sandport.execution import held_to
from sandport.lane import OutputLane
from sandport.outcome import Outcome
from sandport.verdict import outcome_of, with_partial
from sandport_protocol.errors import Kept, Partial
from sandport_protocol.v1 import CommandResult, OutputParams, StreamEnd, StreamName, StreamResult

ENDS: tuple[StreamEnd | None, ...] = ("seen", "heldOpen", None)


def received(
    stdout: bytes, stderr: bytes, ends: tuple[StreamEnd | None, StreamEnd | None] = ("seen", "seen")
) -> tuple[OutputLane, dict[StreamName, Capture]]:
    """A lane and captures after this output."""
    captures: dict[StreamName, Capture] = {"stdout": Capture(1000), "stderr": Capture(1000)}
    lane = OutputLane(("stdout", "stderr"), 10_000, lambda stream, data: captures[stream].take(data))
    both: tuple[tuple[StreamName, bytes, StreamEnd | None], ...] = (
        ("stdout", stdout, ends[0]),
        ("stderr", stderr, ends[1]),
    )
    for name, data, end in both:
        assert lane.feed(OutputParams(id=1, stream=name, offset=0, data=data, end=end)) is None
    return lane, captures


@given(
    stdout=st.binary(max_size=4),
    stderr=st.binary(max_size=4),
    ends=st.tuples(st.sampled_from(ENDS), st.sampled_from(ENDS)),
    told=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    told_ends=st.tuples(st.sampled_from(ENDS[:2]), st.sampled_from(ENDS[:2])),
)
def test_any_contradiction_is_a_violation_and_never_a_result(
    stdout: bytes,
    stderr: bytes,
    ends: tuple[StreamEnd | None, StreamEnd | None],
    told: tuple[int, int],
    told_ends: tuple[StreamEnd, StreamEnd],
) -> None:
    """cloudflare/sandbox-sdk#873 (29): no end event is no result."""
    lane, captures = received(stdout, stderr, ends)
    result = CommandResult(
        ended="exited",
        exit_code=0,
        stdout=StreamResult(total_bytes=told[0], end=told_ends[0]),
        stderr=StreamResult(total_bytes=told[1], end=told_ends[1]),
    )
    agrees = told == (len(stdout), len(stderr)) and told_ends == ends
    if agrees:
        outcome = outcome_of(result, lane, captures, has_limit=False)
        assert (bytes(outcome.stdout), bytes(outcome.stderr)) == (stdout, stderr)
        assert (outcome.stdout.end, outcome.stderr.end) == ends
        return
    with pytest.raises(ProtocolViolation) as raised:
        outcome_of(result, lane, captures, has_limit=False)
    assert raised.value.dispatched == "yes"
    if stdout or stderr:
        assert raised.value.partial is not None
        assert (raised.value.partial.stdout.data, raised.value.partial.stderr.data) == (stdout, stderr)


@pytest.mark.parametrize(
    ("ended", "exit_code", "signal", "ok", "shell_code"),
    [
        ("exited", 0, None, True, 0),
        ("exited", 137, None, False, 137),
        ("signalled", None, 9, False, 137),
        ("signalled", None, 15, False, 143),
        ("timedOut", None, 9, False, 124),
        ("outOfMemory", None, None, False, 137),
    ],
)
def test_exit_code_and_signal_are_kept_apart_and_a_shells_number_is_an_extra(
    ended: Literal["exited", "signalled", "timedOut", "outOfMemory"],
    exit_code: int | None,
    signal: int | None,
    ok: bool,
    shell_code: int,
) -> None:
    """earendil-works/pi#8992, nearai/ironclaw#7764 (47, 48): a signal was reported as 0, or as 247."""
    lane, captures = received(b"", b"")
    outcome = outcome_of(CommandResult(ended=ended, exit_code=exit_code, signal=signal), lane, captures, has_limit=True)
    assert (outcome.exit_code, outcome.signal, outcome.ok, outcome.shell_code) == (exit_code, signal, ok, shell_code)


def test_a_time_out_that_nobody_asked_for_is_a_violation() -> None:
    lane, captures = received(b"out", b"")
    result = CommandResult(ended="timedOut", tree="gone", stdout=StreamResult(total_bytes=3))
    assert outcome_of(result, lane, captures, has_limit=True).ended == "timedOut"
    with pytest.raises(ProtocolViolation, match="given no time-out") as raised:
        outcome_of(result, lane, captures, has_limit=False)
    assert raised.value.dispatched == "yes"
    assert raised.value.partial is not None
    assert raised.value.partial.stdout.data == b"out"


@pytest.mark.parametrize("ended", ["signalled", "timedOut", "outOfMemory"])
@pytest.mark.parametrize("signal", [None, 1, 9, 64, 0, 128, 256, 384, -128])
def test_whatever_ended_it_only_an_exit_with_0_is_0_for_a_shell(
    ended: Literal["signalled", "timedOut", "outOfMemory"], signal: int | None
) -> None:
    """Also of an outcome that no worker can tell: the system keeps eight bits of what the command exits with."""
    code = Outcome(ended=ended, exit_code=None, signal=signal).shell_code
    assert 0 < code <= 255


@given(code=st.integers())
def test_only_the_exit_code_0_is_0_for_a_shell(code: int) -> None:
    told = Outcome(ended="exited", exit_code=code).shell_code
    assert 0 <= told <= 255
    assert (told == 0) == (code == 0)
    assert told == code or not 0 <= code <= 255


def test_iterated_output_is_counted_and_said_to_be_elsewhere() -> None:
    captures: dict[StreamName, Capture] = {"stdout": Capture(10), "stderr": Capture(10)}
    lane = OutputLane(("stdout", "stderr"), 100)
    assert lane.feed(OutputParams(id=1, stream="stdout", offset=0, data=b"abc", end="seen")) is None
    assert lane.feed(OutputParams(id=1, stream="stderr", offset=0, end="seen")) is None
    told = CommandResult(ended="exited", exit_code=0, stdout=StreamResult(total_bytes=3))
    outcome = outcome_of(told, lane, captures, has_limit=False)
    assert (outcome.stdout.data, outcome.stdout.total_bytes, outcome.stdout.dropped_bytes) == (b"", 3, 3)


def test_an_error_gets_what_was_received_whatever_it_says_itself() -> None:
    """SWE-agent/SWE-ReX#29, inspect_ai#4108 (2, 3): partial output was thrown away."""
    _, captures = received(b"out", b"err")
    both = Partial(stdout=Kept(total_bytes=3, data=b"out"), stderr=Kept(total_bytes=3, data=b"err"))
    for said in (None, Partial(), Partial(stdout=Kept(total_bytes=1, data=b"x")), Partial(stdout=Kept(total_bytes=3))):
        assert with_partial(SandboxLost("gone", partial=said), captures).partial == both
    assert with_partial(SandboxLost("gone"), received(b"", b"")[1]).partial is None


@given(
    came=st.binary(max_size=6),
    limit=st.integers(0, 6),
    head=st.binary(max_size=8),
    tail=st.binary(max_size=3),
    count=st.integers(0, 9),
)
def test_what_an_error_says_of_a_stream_agrees_with_itself_and_has_what_came(
    came: bytes, limit: int, head: bytes, tail: bytes, count: int
) -> None:
    capture = Capture(limit)
    capture.take(came)
    said = Partial(stdout=Kept(total_bytes=count, data=head, tail=tail))
    partial = with_partial(SandboxLost("gone", partial=said), {"stdout": capture}).partial
    assert partial is not None
    told, mine = partial.stdout, capture.kept()
    assert told.total_bytes == len(told.data) + len(told.tail) + told.dropped_bytes >= max(len(came), count)
    assert told.data.startswith(mine.data)


def test_a_command_that_ran_on_past_its_time_out_says_so() -> None:
    line = command_line(["sleep", "5"], shell=None, cwd=None, env=None, user=None, timeout_s=1.0)
    late = Outcome(ended="exited", exit_code=0, duration_s=5.0)
    (note,) = held_to(late, line).notes
    assert "does not keep the time-out of 1 s" in note
    assert held_to(Outcome(ended="exited", exit_code=0, duration_s=1.2), line).notes == ()
    assert held_to(Outcome(ended="timedOut", exit_code=None, duration_s=9.0), line).notes == ()
