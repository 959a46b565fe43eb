"""Pairing of requests and answers on both sides: duplicates, strangers, answers twice, more than was agreed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from protocol.tests.peers import NOTHING, boom, frame, host_in, replies, request_ids, serving_pair, worker_in
from protocol.tests.strategies import ids
from sandport_protocol.errors import Cancelled, ProtocolViolation
from sandport_protocol.events import (
    HostEvent,
    LateAnswer,
    NotificationReceived,
    ReplyDue,
    RequestEnded,
    RequestReceived,
    ViolationFound,
)
from sandport_protocol.host_connection import error_of
from sandport_protocol.limits import Limits
from sandport_protocol.states import SERVING
from sandport_protocol.v1 import PingParams
from sandport_protocol.worker_connection import NotOpen


def test_a_second_request_with_a_live_id_is_refused_and_the_first_one_is_answered() -> None:
    """modelcontextprotocol/python-sdk#3137: the second request took over the first one's answer."""
    worker = worker_in(SERVING)
    assert request_ids(worker.receive(frame({"id": 1, "method": "execute"}))) == [1]
    events = worker.receive(frame({"id": 1, "method": "probe"}))
    (refusal,) = replies(events)
    assert request_ids(events) == []
    assert refusal["error"]["code"] == -32600
    assert worker.open_ids == (1,)
    assert json.loads(worker.send_result(1, {"exit": 0})) == {"jsonrpc": "2.0", "id": 1, "result": {"exit": 0}}


def test_a_ping_with_a_live_id_is_refused_too() -> None:
    worker = worker_in(SERVING)
    worker.receive(frame({"id": 1, "method": "execute"}))
    (refusal,) = replies(worker.receive(frame({"id": 1, "method": "ping"})))
    assert "error" in refusal


@pytest.mark.parametrize("stranger", [999, 0, -1, "1", "", None, 2**70])
@pytest.mark.parametrize("answer", [{"result": {}}, {"error": {"code": 1, "message": "x"}}])
def test_an_answer_that_nobody_waits_for_is_reported_and_the_connection_lives(
    stranger: object, answer: dict[str, object]
) -> None:
    """microsoft/vs-streamjsonrpc#489: an answer to an unknown id closed the link."""
    host = host_in(SERVING)
    request_id, _ = host.send_request("probe", NOTHING)
    (event,) = host.receive(frame({"id": stranger, **answer}))
    assert isinstance(event, ViolationFound)
    assert not event.fatal
    (ended,) = host.receive(frame({"id": request_id, "result": {}}))
    assert isinstance(ended, RequestEnded)


def test_a_second_answer_is_reported_and_changes_nothing() -> None:
    """microsoft/vs-streamjsonrpc#489."""
    host = host_in(SERVING)
    request_id, _ = host.send_request("probe", NOTHING)
    answer = frame({"id": request_id, "result": {}})
    first, second = host.receive(answer + answer)
    assert isinstance(first, RequestEnded)
    assert isinstance(second, ViolationFound)
    assert not second.fatal


@pytest.mark.parametrize("answer", [{}, {"result": {}, "error": {"code": 1, "message": "x"}}, {"error": 7}])
def test_an_answer_that_is_neither_or_both_ends_nothing_and_the_next_ping_settles_it(answer: dict[str, object]) -> None:
    host = host_in(SERVING)
    request_id, _ = host.send_request("probe", NOTHING)
    (event,) = host.receive(frame({"id": request_id, **answer}))
    assert isinstance(event, ViolationFound)
    assert host.state_of(request_id) == "open"
    ping_id, _ = host.send_request("ping", PingParams())
    _, lost = host.receive(frame({"id": ping_id, "result": {"open": []}}))
    assert isinstance(lost, RequestEnded)
    assert lost.id == request_id


def test_a_worker_cannot_answer_twice_nor_what_it_was_not_asked() -> None:
    worker = worker_in(SERVING)
    worker.receive(frame({"id": 1, "method": "probe"}))
    worker.send_result(1, NOTHING)
    with pytest.raises(NotOpen):
        worker.send_result(1, NOTHING)
    with pytest.raises(NotOpen):
        worker.send_error(2, boom())


@given(st.lists(ids, unique_by=lambda value: (type(value), value), max_size=8), st.data())
def test_a_pong_lists_what_was_taken_and_not_yet_answered(taken: list[int | str], data: st.DataObject) -> None:
    worker = worker_in(SERVING)
    for request_id in taken:
        worker.receive(frame({"id": request_id, "method": "execute"}))
    answered = data.draw(st.sets(st.sampled_from(taken))) if taken else set()
    for request_id in answered:
        worker.send_result(request_id, NOTHING)
    (pong,) = replies(worker.receive(frame({"id": "the ping", "method": "ping"})))
    left = [request_id for request_id in taken if request_id not in answered]
    assert pong["result"].get("open", []) == left


def test_a_ping_finds_the_call_whose_answer_was_lost_and_no_other() -> None:
    """openlawlibrary/pygls#240: a print without a newline swallowed an answer, and its caller waited for ever."""
    host, worker = serving_pair()
    lost, before = host.send_request("execute", NOTHING)
    lives, also_before = host.send_request("execute", NOTHING)
    ping, ping_frame = host.send_request("ping", PingParams())
    later, after = host.send_request("execute", NOTHING)
    worker.receive(before + also_before)
    glued = b"dbg" + worker.send_result(lost, NOTHING)
    (pong,) = (event.frame for event in worker.receive(ping_frame) if isinstance(event, ReplyDue))
    violation, answered, found = host.receive(glued + pong)
    assert isinstance(violation, ViolationFound)
    assert violation.sample.startswith(b"dbg{")
    assert isinstance(answered, RequestEnded)
    assert answered.id == ping
    assert isinstance(found, RequestEnded)
    assert (found.id, found.outcome) == (lost, "error")
    error = error_of(found)
    assert isinstance(error, ProtocolViolation)
    assert error.dispatched == "unknown"
    assert host.state_of(lives) == host.state_of(later) == "open"
    assert [type(event) for event in worker.receive(after)] == [RequestReceived]


def test_requests_beyond_the_agreed_number_are_refused_as_overload_and_control_still_passes() -> None:
    worker = worker_in(SERVING, limits=Limits(in_flight=2))
    for request_id in (1, 2):
        assert request_ids(worker.receive(frame({"id": request_id, "method": "execute"}))) == [request_id]
    (refusal,) = replies(worker.receive(frame({"id": 3, "method": "execute"})))
    assert refusal["error"]["data"] == {"condition": "Overloaded", "retry": "later", "dispatched": "no"}
    assert len(replies(worker.receive(frame({"id": 4, "method": "ping"})))) == 1
    worker.send_result(1, NOTHING)
    assert request_ids(worker.receive(frame({"id": 5, "method": "execute"}))) == [5]
    assert request_ids(worker.receive(frame({"id": 6, "method": "shutdown"}))) == [6]


def test_a_method_that_is_not_advertised_is_not_found() -> None:
    worker = worker_in("greeting")
    worker.negotiated(("probe",), Limits())
    worker.send_result("hello", NOTHING)
    worker.receive(frame({"method": "initialized"}))
    assert request_ids(worker.receive(frame({"id": 1, "method": "probe"}))) == [1]
    for method in ("execute", "noSuchMethod", "x-other/echo", "", "a" * 10_000):
        (refusal,) = replies(worker.receive(frame({"id": 2, "method": method})))
        assert refusal["error"]["code"] == -32601
        assert len(refusal["error"]["message"]) < 300


# ------------------------------------------------------------------ cancel


def settle(before: str, answer: str) -> list[HostEvent]:
    """A call that was cancelled for its deadline, perhaps told, and then answered."""
    host = host_in(SERVING)
    request_id, _ = host.send_request("execute", NOTHING)
    host.send_cancel(request_id, "deadline")
    host.send_cancel(request_id, "cancelled")
    if before == "told":
        (told,) = host.tell(request_id)
        assert isinstance(told, RequestEnded)
        assert told.outcome == "deadline"
    error = Cancelled("stopped", dispatched="no").to_wire() if answer == "confirmed" else boom()
    body = {"result": {}} if answer == "result" else {"error": {"code": error.code, "message": error.message}}
    return host.receive(frame({"id": request_id, **body}))


@pytest.mark.parametrize(("answer", "outcome"), [("result", "result"), ("error", "error"), ("confirmed", "deadline")])
def test_an_answer_that_comes_before_the_caller_was_told_wins(answer: str, outcome: str) -> None:
    (event,) = settle("waiting", answer)
    assert isinstance(event, RequestEnded)
    assert event.outcome == outcome


@pytest.mark.parametrize("answer", ["result", "error", "confirmed"])
def test_what_comes_after_the_caller_was_told_is_late(answer: str) -> None:
    (event,) = settle("told", answer)
    assert isinstance(event, LateAnswer)
    assert (event.result is not None) == (answer == "result")


def test_a_cancel_goes_out_once_and_not_for_what_has_ended() -> None:
    host = host_in(SERVING)
    request_id, _ = host.send_request("execute", NOTHING)
    sent = host.send_cancel(request_id, "cancelled")
    assert json.loads(sent) == {"jsonrpc": "2.0", "method": "cancel", "params": {"id": request_id}}
    assert host.send_cancel(request_id, "deadline") == b""
    host.receive(frame({"id": request_id, "result": {}}))
    assert host.send_cancel(request_id, "cancelled") == b""
    assert host.tell(request_id) == []
    assert host.send_credit(request_id, "stdout", 1) == b""


def test_an_id_stays_open_until_it_is_answered_even_when_its_caller_was_told() -> None:
    host = host_in(SERVING)
    request_id, _ = host.send_request("execute", NOTHING)
    host.send_cancel(request_id, "cancelled")
    host.tell(request_id)
    assert host.open_requests == 1
    (event,) = host.crash()
    assert event == LateAnswer(request_id, "execute", None, None)


def test_a_worker_does_not_call_its_host() -> None:
    host = host_in(SERVING)
    for request_id in (1, "a", None):
        (event,) = host.receive(frame({"id": request_id, "method": "ready"}))
        assert isinstance(event, ViolationFound)
        assert "does not call its host" in event.rule


def test_a_worker_reports_an_answer_that_it_was_sent() -> None:
    worker = worker_in(SERVING)
    events = worker.receive(frame({"id": 1, "result": {}}))
    assert [type(event) for event in events] == [ReplyDue, ViolationFound]


def test_credit_is_one_message() -> None:
    host, worker = serving_pair()
    request_id, _ = host.send_request("execute", NOTHING)
    sent = host.send_credit(request_id, "stderr", 4096)
    assert json.loads(sent)["params"] == {"id": request_id, "stream": "stderr", "bytes": 4096}
    assert [type(event) for event in worker.receive(sent)] == [NotificationReceived]


def test_a_raw_result_goes_out_as_it_is() -> None:
    worker = worker_in(SERVING)
    worker.receive(frame({"id": 1, "method": "probe"}))
    assert b'"result":{"b": 1.50}' in worker.send_result(1, Raw(b'{"b": 1.50}'))
