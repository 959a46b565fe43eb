"""The tables hold together, and both connections do what they say in every phase for every kind of message."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from protocol.tests.peers import NOTHING, OPEN_PHASES, boom, frame, host_hello, host_in, replies, request_ids, worker_in
from sandport_protocol.errors import CONDITIONS
from sandport_protocol.events import NotificationReceived, ViolationFound
from sandport_protocol.host_connection import ForbiddenNow, HostConnection
from sandport_protocol.limits import Limits
from sandport_protocol.states import (
    BY_CAUSE,
    CLOSED,
    DRAINING,
    ENDED,
    MOVES,
    NEW,
    OPEN,
    OUTCOMES,
    PHASES,
    REFUSALS,
    REQUEST_MOVES,
    REQUEST_STATES,
    SERVING,
    TIMERS,
    TOLD,
    Happening,
    Kind,
    Phase,
)
from sandport_protocol.worker_connection import WorkerConnection

KINDS: tuple[Kind, ...] = get_args(Kind)
HAPPENINGS: tuple[Happening, ...] = get_args(Happening)


def test_every_phase_is_reached_from_the_first_and_the_last_one_is_left_by_nothing() -> None:
    reached = {NEW}
    for _ in PHASES:
        reached |= {following for (phase, _), following in MOVES.items() if phase in reached}
    # `closed` is reached by an end of input, a crash or a fatal violation, which are no messages.
    assert reached == set(PHASES) - {CLOSED}
    assert CLOSED not in {phase for phase, _ in MOVES}
    assert {kind for _, kind in MOVES} == set(KINDS)


def test_every_state_of_a_request_is_reached_and_the_last_one_is_left_by_nothing() -> None:
    reached = {OPEN}
    for _ in REQUEST_STATES:
        reached |= {following for (state, _), (following, _) in REQUEST_MOVES.items() if state in reached}
    assert reached == set(REQUEST_STATES)
    assert ENDED not in {state for state, _ in REQUEST_MOVES}


def test_every_happening_has_a_move_from_every_open_state_but_telling_what_was_not_cancelled() -> None:
    impossible = {(OPEN, "tell"), (TOLD, "tell")}
    open_states = [state for state in REQUEST_STATES if state != ENDED]
    assert set(REQUEST_MOVES) == set(itertools.product(open_states, HAPPENINGS)) - impossible


def test_on_every_way_to_the_end_there_is_exactly_one_outcome() -> None:
    """A cycle (a second cancel) brings none, so each way is walked with each state once."""

    def outcomes_on(state: str, seen: frozenset[str]) -> list[list[object]]:
        if state == ENDED:
            return [[]]
        ways = []
        for (before, _), (after, outcome) in REQUEST_MOVES.items():
            if before == state and after == state:
                assert outcome is None
            elif before == state and after not in seen:
                here = [] if outcome is None else [outcome]
                ways += [here + rest for rest in outcomes_on(after, seen | {after})]
        return ways

    ways = outcomes_on(OPEN, frozenset({OPEN}))
    assert {len(way) for way in ways} == {1}
    assert {outcome for (outcome,) in ways} == {"result", "error", "crashed", BY_CAUSE}
    assert set(OUTCOMES) == {"result", "error", "crashed", "cancelled", "deadline"}


def test_every_refusal_is_a_condition_and_every_timer_a_limit() -> None:
    assert set(REFUSALS) == set(OPEN_PHASES)
    assert set(REFUSALS.values()) <= {condition.__name__ for condition in CONDITIONS}
    waits = {name for name in Limits.__struct_encode_fields__ if name.endswith("Ms")}
    assert set(TIMERS) == waits


# ------------------------------------------------------------------ the host's side

each_phase = pytest.mark.parametrize("phase", PHASES)


def host_sends(host: HostConnection, kind: Kind) -> None:
    match kind:
        case "initialize":
            host.send_request("initialize", host_hello())
        case "ping" | "shutdown":
            host.send_request(kind, NOTHING)
        case "call":
            host.send_request("probe", NOTHING)
        case "initialized":
            host.send_initialized()
        case _:
            raise AssertionError(kind)


@each_phase
@pytest.mark.parametrize("kind", ["initialize", "ping", "shutdown", "call", "initialized"])
def test_a_host_sends_what_its_phase_allows_and_nothing_else(phase: Phase, kind: Kind) -> None:
    host = host_in(phase)
    if (phase, kind) in MOVES:
        host_sends(host, kind)
        assert host.phase == MOVES[phase, kind]
    else:
        with pytest.raises(ForbiddenNow, match=phase):
            host_sends(host, kind)
        assert host.phase == phase


@pytest.mark.parametrize("phase", OPEN_PHASES)
@pytest.mark.parametrize("method", ["ready", "output"])
def test_a_host_takes_a_workers_notifications_only_after_the_hello(phase: Phase, method: str) -> None:
    (event,) = host_in(phase).receive(frame({"method": method, "params": {}}))
    assert isinstance(event, NotificationReceived if (phase, "report") in MOVES else ViolationFound)


@pytest.mark.parametrize("phase", OPEN_PHASES)
def test_a_host_cancels_on_the_wire_only_what_can_be_cancelled(phase: Phase) -> None:
    host = host_in(phase)
    request_id, _ = host.send_request("ping", NOTHING)
    assert bool(host.send_cancel(request_id, "deadline")) == ((phase, "control") in MOVES)
    assert host.state_of(request_id) == "cancelling"
    (told,) = host.tell(request_id)
    assert told.outcome == "deadline"  # type: ignore[union-attr]


# ------------------------------------------------------------------ the worker's side


@pytest.mark.parametrize("phase", OPEN_PHASES)
@pytest.mark.parametrize("kind", ["initialize", "ping", "shutdown", "call"])
def test_a_worker_serves_what_its_phase_allows_and_refuses_the_rest_by_name(phase: Phase, kind: Kind) -> None:
    worker = worker_in(phase)
    method = "probe" if kind == "call" else kind
    events = worker.receive(frame({"id": "new", "method": method, "params": {}}))
    if (phase, kind) in MOVES:
        assert worker.phase == MOVES[phase, kind]
        assert request_ids(events) == ([] if kind == "ping" else ["new"])
        assert [set(reply) for reply in replies(events)] == ([{"jsonrpc", "id", "result"}] if kind == "ping" else [])
    else:
        again = kind == "initialize" and phase != DRAINING
        (refusal,) = replies(events)
        assert refusal["id"] == "new"
        assert refusal["error"]["data"]["condition"] == ("InvalidRequest" if again else REFUSALS[phase])
        assert refusal["error"]["data"]["dispatched"] == "no"
        assert worker.phase == phase
        assert "new" not in worker.open_ids


@pytest.mark.parametrize("phase", OPEN_PHASES)
@pytest.mark.parametrize("method", ["initialized", "cancel", "credit"])
def test_a_worker_takes_a_hosts_notifications_in_their_phase(phase: Phase, method: str) -> None:
    worker = worker_in(phase)
    kind: Kind = "initialized" if method == "initialized" else "control"
    (event,) = worker.receive(frame({"method": method, "params": {"id": 1}}))
    if (phase, kind) in MOVES:
        assert isinstance(event, NotificationReceived)
        assert worker.phase == MOVES[phase, kind]
    else:
        assert isinstance(event, ViolationFound)
        assert not event.fatal
        assert worker.phase == phase


@pytest.mark.parametrize("answer", ["result", "error"])
def test_a_hello_that_is_answered_after_a_shutdown_or_an_end_changes_no_phase(answer: str) -> None:
    for end in ("shutdown", "close"):
        worker = worker_in("greeting")
        if end == "shutdown":
            worker.receive(frame({"id": "down", "method": "shutdown"}))
        else:
            worker.close()
        phase = worker.phase
        if answer == "result":
            worker.send_result("hello", NOTHING)
        else:
            worker.send_error("hello", boom())
        assert worker.phase == phase


@pytest.mark.parametrize("make", [host_in, worker_in], ids=["host", "worker"])
def test_a_closed_connection_reads_nothing(make: type[HostConnection | WorkerConnection]) -> None:
    connection = make(CLOSED)  # type: ignore[arg-type]
    assert connection.receive(frame({"id": 1, "method": "ping"}) + b"junk\n") == []


def test_serving_lasts_until_a_shutdown() -> None:
    assert {kind for (phase, kind), after in MOVES.items() if phase == SERVING and after != SERVING} == {"shutdown"}
