"""No frame over the agreed ceiling leaves: a call is refused, a result becomes TooLarge, an error loses its bulk."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from protocol.tests.peers import NOTHING, boom, frame, host_in, worker_in
from sandport_protocol import codec
from sandport_protocol.errors import Detail, ErrorObject, Internal, Kept, Partial, SandboxLost, TooLarge, from_wire
from sandport_protocol.events import RequestEnded, RequestReceived
from sandport_protocol.host_connection import error_of
from sandport_protocol.limits import Limits
from sandport_protocol.states import SERVING
from sandport_protocol.worker_connection import WorkerConnection

CEILING = 2000
SMALL = Limits(frame_bytes=CEILING)


def padded(frame_bytes: int, empty: bytes) -> Raw:
    """Free-form JSON that makes a frame of exactly so many bytes, from the frame with `{}` in its place."""
    return Raw(b'{"a":"' + b"x" * (frame_bytes - (len(empty) - 1) + len(b"{}") - len(b'{"a":""}')) + b'"}')


def serving_worker() -> WorkerConnection:
    worker = worker_in(SERVING, limits=SMALL)
    worker.receive(frame({"id": 1, "method": "execute"}))
    return worker


@pytest.mark.parametrize("size", [CEILING - 1, CEILING, CEILING + 1])
def test_a_call_passes_up_to_the_ceiling_itself(size: int) -> None:
    probe_frame = host_in(SERVING).send_request("probe", NOTHING)[1]
    host = host_in(SERVING, worker_limits=SMALL)
    params = padded(size, probe_frame)
    if size <= CEILING:
        _, sent = host.send_request("probe", params)
        assert len(sent) == size + 1
        assert [type(event) for event in serving_worker().receive(sent)] == [RequestReceived]
    else:
        with pytest.raises(TooLarge, match=f"take {size} bytes; a frame holds {CEILING}") as refused:
            host.send_request("probe", params)
        assert refused.value.dispatched == "no"
        assert refused.value.detail == Detail(field="limits.frameBytes", limit=CEILING)
        assert host.open_requests == 0
        assert host.send_request("probe", NOTHING)[0] == 2, "the id was not used up"


@pytest.mark.parametrize("size", [CEILING - 1, CEILING, CEILING + 1])
def test_a_result_passes_up_to_the_ceiling_itself_and_becomes_too_large_beyond(size: int) -> None:
    result = padded(size, serving_worker().send_result(1, NOTHING))
    sent = serving_worker().send_result(1, result)
    host = host_in(SERVING)
    host.send_request("ping", NOTHING)
    (event,) = host.receive(frame({**json.loads(sent), "id": 2}))
    assert isinstance(event, RequestEnded)
    if size <= CEILING:
        assert len(sent) == size + 1
        assert event.outcome == "result"
    else:
        assert len(sent) <= CEILING + 1
        error = error_of(event)
        assert isinstance(error, TooLarge)
        assert "the result of execute" in str(error)
        assert error.dispatched == "yes", "it ran, only its result is lost"
        assert error.detail == Detail(field="limits.frameBytes", limit=CEILING)


@given(st.integers(0, 4000), st.integers(0, 10_000), st.integers(0, 4000))
def test_an_error_of_any_size_arrives_with_its_condition_and_its_effect(kept: int, text: int, path: int) -> None:
    error = SandboxLost(
        "x" * text,
        dispatched="yes",
        retry="later",
        retry_after_s=1.5,
        detail=Detail(path="p" * path),
        partial=Partial(stdout=Kept(total_bytes=kept, data=b"y" * kept)),
    )
    worker = worker_in(SERVING, limits=Limits(frame_bytes=5000))
    worker.receive(frame({"id": 1, "method": "execute"}))
    sent = worker.send_error(1, error.to_wire())
    assert len(sent) <= 5001
    read = codec.read_error(codec.read(sent[:-1], depth=64).error)
    assert read is not None
    got = from_wire(read)
    assert (type(got), got.dispatched, got.retry, got.retry_after_s) == (SandboxLost, "yes", "later", 1.5)
    assert got.message == error.message[: len(got.message)]
    whole = 2 * kept + text + path < 4000
    assert not whole or (got.detail, got.partial, got.message) == (error.detail, error.partial, error.message)


def test_what_an_error_can_spare_goes_first() -> None:
    worker = worker_in(SERVING, limits=Limits(frame_bytes=1000))
    worker.receive(frame({"id": 1, "method": "execute"}))
    bulky = SandboxLost("gone", detail=Detail(path="/p"), partial=Partial(stdout=Kept(data=b"y" * 4000)))
    data = json.loads(worker.send_error(1, bulky.to_wire()))["error"]["data"]
    assert data == {"condition": "SandboxLost", "detail": {"path": "/p"}}


@pytest.mark.parametrize("value", [object(), {1j}, "\ud800"])
def test_a_result_that_is_no_json_leaves_the_request_open_for_an_error(value: object) -> None:
    worker = serving_worker()
    with pytest.raises((TypeError, ValueError)):
        worker.send_result(1, value)
    assert worker.open_ids == (1,)
    assert json.loads(worker.send_error(1, boom()))["error"]["code"] == Internal.code


def test_params_that_are_no_json_use_up_no_id() -> None:
    host = host_in(SERVING)
    with pytest.raises(UnicodeEncodeError):
        host.send_request("probe", ErrorObject(1, "\ud800"))
    assert host.open_requests == 0
    assert host.send_request("probe", NOTHING)[0] == 2
