"""Who speaks first, which version it becomes, whose limits hold, and what a second hello changes (nothing)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.tests.peers import (
    METHOD_NAMES,
    NOTHING,
    frame,
    host_hello,
    host_in,
    plain,
    replies,
    worker_hello,
    worker_in,
)
from protocol.tests.strategies import structs
from sandport_protocol.codec import read_as
from sandport_protocol.errors import TooLarge, VersionMismatch, from_wire
from sandport_protocol.events import HelloReceived, LateAnswer, RequestEnded, RequestReceived, ViolationFound
from sandport_protocol.host_connection import HostConnection, error_of
from sandport_protocol.limits import DEFAULTS, Limits, agree
from sandport_protocol.states import CLOSED, NEGOTIATED, NEW, SERVING, Phase
from sandport_protocol.v1 import InitializeParams, ProbeParams
from sandport_protocol.versions import SUPPORTED, pick
from sandport_protocol.worker_connection import WorkerConnection

version_sets = st.sets(st.integers(1, 9), min_size=1, max_size=4).map(lambda found: tuple(sorted(found)))


def test_a_hello_from_the_first_byte_to_the_first_call() -> None:
    host, worker = HostConnection(Limits(in_flight=7)), WorkerConnection(Limits(depth=30))
    request_id, call = host.send_request("initialize", host_hello(host.limits))
    (asked,) = worker.receive(call)
    assert isinstance(asked, RequestReceived)
    params = read_as(InitializeParams, asked.params)
    agreed = agree(params.limits, worker.limits)
    worker.negotiated(METHOD_NAMES, agreed)
    (heard,) = host.receive(worker.send_result(asked.id, worker_hello(Limits(depth=30))))
    assert heard == HelloReceived(request_id, worker_hello(Limits(depth=30)))
    assert worker.receive(host.send_initialized())
    assert host.phase == worker.phase == SERVING
    assert host.limits == worker.limits == Limits(in_flight=7, depth=30)
    _, call = host.send_request("probe", NOTHING)
    assert [type(event) for event in worker.receive(call)] == [RequestReceived]


# ------------------------------------------------------------------ versions


@given(version_sets, version_sets)
def test_the_version_is_the_same_whoever_picks_it(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    common = set(one) & set(other)
    if common:
        assert pick(one, other) == pick(other, one) == max(common)
    else:
        for host, worker in ((one, other), (other, one)):
            with pytest.raises(VersionMismatch):
                pick(host, worker)


@given(version_sets, version_sets)
def test_without_a_common_version_the_message_names_both_sets_and_who_upgrades(
    host: tuple[int, ...], worker: tuple[int, ...]
) -> None:
    """hashicorp/terraform#12580: "ours" and "theirs" without saying whose, and nothing to do about it."""
    if set(host) & set(worker):
        return
    with pytest.raises(VersionMismatch) as refused:
        pick(host, worker, worker_name="fake")
    message = str(refused.value)
    assert f"the host offers {list(host)}" in message
    assert f"fake offers {list(worker)}" in message
    assert message.endswith("upgrade fake" if max(host) > max(worker) else "upgrade the host")
    assert refused.value.dispatched == "no"
    assert refused.value.detail is not None
    assert (refused.value.detail.host_versions, refused.value.detail.worker_versions) == (host, worker)


@pytest.mark.parametrize(("host", "worker"), [((), (1,)), ((1,), ()), ((), ())])
def test_a_side_without_any_version_is_named_as_broken(host: tuple[int, ...], worker: tuple[int, ...]) -> None:
    with pytest.raises(VersionMismatch, match="no version at all is broken"):
        pick(host, worker)


def test_a_worker_that_chose_a_version_which_was_not_offered_is_refused_and_may_be_asked_again() -> None:
    """hashicorp/terraform#12580."""
    host = host_in("greeting")
    (event,) = host.receive(frame({"id": 1, "result": plain(worker_hello(version=2))}))
    assert isinstance(event, RequestEnded)
    error = error_of(event)
    assert isinstance(error, VersionMismatch)
    assert "the host offers [1], fake offers [2]; upgrade the host" in str(error)
    assert host.phase == NEW


def test_this_package_speaks_the_version_of_its_schema() -> None:
    assert SUPPORTED == (1,)


# ------------------------------------------------------------------ order


@pytest.mark.parametrize("phase", ["greeting", NEGOTIATED, SERVING])
def test_a_second_hello_is_refused_and_the_first_one_holds(phase: Phase) -> None:
    """modelcontextprotocol/python-sdk#2605: a second hello silently replaced what the first had agreed."""
    worker = worker_in(phase)
    before = (worker.phase, worker.limits, worker.open_ids)
    again = plain(host_hello(Limits(frame_bytes=1)))
    (refusal,) = replies(worker.receive(frame({"id": "again", "method": "initialize", "params": again})))
    assert refusal["error"]["code"] == -32600
    assert "first one holds" in refusal["error"]["message"]
    assert (worker.phase, worker.limits, worker.open_ids) == before


def test_a_call_before_the_hello_is_refused_and_the_worker_lives() -> None:
    """modelcontextprotocol/python-sdk#423: a request before the hello crashed the server."""
    worker = WorkerConnection()
    (refusal,) = replies(worker.receive(frame({"id": 1, "method": "execute", "params": {}})))
    assert (refusal["id"], refusal["error"]["code"]) == (1, -32002)
    assert refusal["error"]["data"] == {"condition": "NotInitialized", "dispatched": "no"}
    hello = frame({"id": 2, "method": "initialize", "params": plain(host_hello())})
    assert [type(event) for event in worker.receive(hello)] == [RequestReceived]


def test_a_ping_is_answered_before_the_hello() -> None:
    (pong,) = replies(WorkerConnection().receive(frame({"id": 1, "method": "ping"})))
    assert pong == {"jsonrpc": "2.0", "id": 1, "result": {}}


def test_after_a_hello_that_failed_there_may_be_another() -> None:
    worker = worker_in("greeting")
    worker.send_error("hello", VersionMismatch("no").to_wire())
    assert worker.phase == NEW
    hello = frame({"id": "second", "method": "initialize", "params": plain(host_hello())})
    assert [type(event) for event in worker.receive(hello)] == [RequestReceived]


@pytest.mark.parametrize(
    "result",
    [
        {},
        [],
        "ok",
        {"protocolVersion": "1", "provider": {"name": "x", "version": "1"}, "supportedMethods": []},
        {"protocolVersion": 1, "provider": {"name": "x"}, "supportedMethods": []},
        {**plain(worker_hello()), "limits": {"frameBytes": 0}},
        {**plain(worker_hello()), "limits": {"depth": -1}},
    ],
)
def test_a_hello_that_cannot_be_read_ends_the_connection_and_names_the_member(result: object) -> None:
    host = host_in("greeting")
    (event,) = host.receive(frame({"id": 1, "result": result}))
    assert isinstance(event, ViolationFound)
    assert event.fatal
    assert event.rule.startswith("the hello is unreadable: ")
    assert host.phase == CLOSED
    (ended,) = host.crash()
    assert isinstance(ended, RequestEnded)
    assert ended.outcome == "crashed"


def test_a_deadline_on_the_hello_is_told_as_a_deadline() -> None:
    host = host_in("greeting")
    assert host.send_cancel(1, "deadline") == b"", "before the hello there is nothing to cancel with"
    (told,) = host.tell(1)
    assert isinstance(told, RequestEnded)
    assert told.outcome == "deadline"
    (late,) = host.receive(frame({"id": 1, "result": plain(worker_hello())}))
    assert isinstance(late, LateAnswer), "its caller has been told something else"
    assert host.open_requests == 0


def test_a_hello_that_does_not_fit_is_an_error_on_both_sides() -> None:
    host = host_in("greeting")
    worker = worker_in("greeting")
    worker.negotiated(METHOD_NAMES, Limits(frame_bytes=500))
    answer = worker.send_result("hello", worker_hello())
    assert worker.phase == NEW
    (event,) = host.receive(frame({**json.loads(answer), "id": 1}))
    assert isinstance(event, RequestEnded)
    assert event.outcome == "error"
    assert host.phase == NEW


# ------------------------------------------------------------------ limits


@given(structs(Limits), structs(Limits))
def test_the_smaller_ceiling_holds_and_the_hosts_waits(host: Limits, worker: Limits) -> None:
    agreed = agree(host, worker)
    for name in Limits.__struct_fields__:
        ours, theirs = getattr(host, name), getattr(worker, name)
        shared = name in {"frame_bytes", "depth", "in_flight", "credit_bytes", "chunk_bytes"}
        assert getattr(agreed, name) == (min(ours, theirs) if shared else ours), name


@pytest.mark.parametrize("name", [name for name in Limits.__struct_fields__ if name != "junk_bytes"])
def test_a_limit_that_means_nothing_is_refused_by_its_name_on_the_wire(name: str) -> None:
    too_small = -1 if name.endswith("_ms") else 0
    wire_name = dict(zip(Limits.__struct_fields__, Limits.__struct_encode_fields__, strict=True))[name]
    with pytest.raises(ValueError, match=rf"limits\.{wire_name} must be at least {too_small + 1}"):
        read_as(Limits, json.dumps({wire_name: too_small}).encode())


def test_the_defaults_agree_with_themselves() -> None:
    assert agree(DEFAULTS, DEFAULTS) == DEFAULTS == Limits()


def test_each_side_reads_by_its_own_ceilings_and_writes_by_the_agreed_ones() -> None:
    host = host_in(SERVING, limits=Limits(depth=64), worker_limits=Limits(depth=3, frame_bytes=2000))
    assert host.limits.depth == 3
    nested = {"method": "progress", "params": {"a": [[[[1]]]], "b": "x" * 5000}}
    (event,) = host.receive(frame(nested))
    assert not isinstance(event, ViolationFound)
    with pytest.raises(TooLarge, match="a frame holds 2000"):
        host.send_request("probe", ProbeParams(secrets={"token": "x" * 3000}))


def test_an_unknown_condition_of_the_hello_is_not_lost() -> None:
    host = host_in("greeting")
    (event,) = host.receive(frame({"id": 1, "error": {"code": -32099, "message": "licence expired"}}))
    assert isinstance(event, RequestEnded)
    assert event.error is not None
    assert "licence expired (unknown error code -32099)" in str(from_wire(event.error))
