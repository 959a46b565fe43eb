"""Whatever a worker counts lies in its range, or is refused with what it was: on both sides, and never cut to fit."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from sandport_protocol import codec, errors, v1
from sandport_protocol.errors import ErrorObject, RateLimited, from_wire
from sandport_protocol.methods import METHODS
from sandport_protocol.ranges import DURATION_MS, RANGES, ranges_of
from sandport_protocol.v1 import ExecuteResult, WriteProcessResult

JUDGED_ELSEWHERE = {
    ("InitializeResult", "protocol_version"),  # against the versions that were offered
    ("Meta", "deadline_ms"),  # a host's
}


def results() -> list[type[Struct]]:
    """Every struct of a result or an error, and what is in them."""
    found: dict[str, type[Struct]] = {}
    pending: list[Any] = [*(method.result for method in METHODS.values()), errors.ErrorData, v1.ProgressParams]
    while pending:
        item = pending.pop()
        if isinstance(item, type) and issubclass(item, Struct) and item.__name__ not in found:
            found[item.__name__] = item
            pending += get_type_hints(item).values()
        pending += getattr(item, "__args__", ())
    return list(found.values())


def integers_of(cls: type[Struct]) -> set[str]:
    return {name for name, hint in get_type_hints(cls).items() if hint in (int, int | None)}


def test_every_integer_of_every_result_has_a_range() -> None:
    bounded_otherwise = {"Limits", "Detail"}  # above 0 by a rule of their own; the host takes the smaller one, or looks
    found = {
        (cls.__name__, name)
        for cls in results()
        if cls.__name__ not in bounded_otherwise
        for name in integers_of(cls) - set(ranges_of(cls))
    }
    assert found - JUDGED_ELSEWHERE == set()


def test_every_range_is_of_a_member_that_is_there() -> None:
    known: dict[str, type[Struct]] = {cls.__name__: cls for cls in results()}
    known["CommandResult"] = v1.CommandResult
    for name, members in RANGES.items():
        assert set(members) <= set(known[name].__struct_fields__)


@pytest.mark.parametrize(
    ("member", "number", "guess"),
    [
        # What gave success for failure: the kernel keeps eight bits of an exit code.
        ("exitCode", 256, "256 looks like a wait status, use os.waitstatus_to_exitcode"),
        ("exitCode", 512, "use os.waitstatus_to_exitcode"),
        ("exitCode", 65_280, "use os.waitstatus_to_exitcode"),
        ("exitCode", -256, "CMD-30"),
        ("exitCode", 2**40, "CMD-30"),
        ("exitCode", 3_221_225_786, "CMD-30"),
        ("exitCode", -9, "ended is 'signalled'"),
        ("exitCode", -1, "must be from 0 to 255, not -1"),
        ("exitCode", 2**9_000, "not a number of 9001 bits"),
        ("signal", 0, "must be from 1 to 64, not 0"),
        ("signal", -1, "not -1"),
        ("signal", 128, "not 128"),
        ("signal", 137, "for signal 9"),
        ("signal", 300, "not 300"),
        ("durationMs", -1, "must be from 0 to"),
        ("durationMs", 2**70, "not 1180591620717411303424"),
    ],
)
def test_a_number_that_no_end_has_is_refused_with_what_it_was(member: str, number: int, guess: str) -> None:
    members: dict[str, Any] = {"ended": "exited", "exitCode": 0}
    if member == "signal":
        members = {"ended": "signalled"}
    members[member] = number
    if number.bit_length() < 4_000:  # more digits than Python reads are refused before
        with pytest.raises(ValueError, match=member) as read:
            codec.read_as(ExecuteResult, json.dumps(members).encode())
        assert guess in str(read.value)
    names = {"exitCode": "exit_code", "durationMs": "duration_ms"}
    with pytest.raises(ValueError, match=f"^{member} must be from") as built:
        ExecuteResult(**{names.get(name, name): value for name, value in members.items()})
    assert guess in str(built.value)


@given(code=st.integers(0, 255))
def test_every_code_of_a_program_passes(code: int) -> None:
    assert codec.read_as(ExecuteResult, b'{"ended":"exited","exitCode":%d}' % code).exit_code == code


@pytest.mark.parametrize("outside", [-1, 2**53])
def test_the_ends_of_a_range_are_in_it_and_their_neighbours_are_not(outside: int) -> None:
    least, most = ranges_of(WriteProcessResult)["taken_bytes"]
    assert WriteProcessResult(taken_bytes=least).taken_bytes == least
    assert WriteProcessResult(taken_bytes=most).taken_bytes == most
    with pytest.raises(ValueError, match="takenBytes"):
        WriteProcessResult(taken_bytes=outside)


@pytest.mark.parametrize(
    ("seconds", "told_ms"), [(-3.0, 0), (0.25, 250), (1e300, DURATION_MS.most), (float("inf"), DURATION_MS.most)]
)
def test_a_vendors_odd_word_for_when_to_come_back_costs_nothing_else_of_its_error(seconds: float, told_ms: int) -> None:
    written = RateLimited("too many", dispatched="no", retry_after_s=seconds).to_wire()
    assert written.data is not None
    assert written.data.retry_after_ms == told_ms
    again = from_wire(codec.read_as(ErrorObject, codec.encode(written)))
    assert (type(again), again.dispatched, again.retry) == (RateLimited, "no", "later")


def test_an_error_with_a_count_that_cannot_be_keeps_its_code_and_message() -> None:
    """ERR-9: what is said beside them is left out, and the effect is unknown."""
    raw = b'{"code":-32015,"message":"too many","data":{"condition":"RateLimited","retryAfterMs":-1,"dispatched":"no"}}'
    error = codec.read_error(Raw(raw))
    assert error is not None
    assert (error.code, error.message, error.data) == (-32015, "too many", None)
