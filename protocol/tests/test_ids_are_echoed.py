"""An id comes back as it was sent: the same type, the same value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from protocol.tests.peers import NOTHING, frame, replies, request_ids, worker_in
from protocol.tests.strategies import ids
from sandport_protocol.errors import ErrorObject
from sandport_protocol.states import NEW, SERVING
from sandport_protocol.worker_connection import WorkerConnection

TRICKY: list[int | str] = [0, "0", "a", "", 9007199254740993, -1, 2**63, 2**64, -(2**64), 10**100, "\u2028", "1.0"]


@pytest.mark.parametrize("request_id", TRICKY, ids=repr)
def test_an_id_is_echoed_exactly(request_id: int | str) -> None:
    """modelcontextprotocol/python-sdk#192, #961: ids were turned from text into numbers and never matched."""
    assert_echoed(request_id)


@given(ids)
def test_any_id_is_echoed_exactly(request_id: int | str) -> None:
    assert_echoed(request_id)


def assert_echoed(request_id: int | str) -> None:
    call = frame({"id": request_id, "method": "probe"})

    (refused,) = replies(WorkerConnection().receive(call))
    assert same(refused["id"], request_id), "in a refusal"

    worker = worker_in(SERVING)
    (taken,) = request_ids(worker.receive(call))
    assert same(taken, request_id)
    (pong,) = replies(worker.receive(frame({"id": "a ping", "method": "ping"})))
    assert same(pong["result"]["open"][0], request_id), "in a pong"
    assert same(json.loads(worker.send_result(request_id, NOTHING))["id"], request_id), "in a result"

    worker.receive(call)
    error = json.loads(worker.send_error(request_id, ErrorObject(1, "x")))
    assert same(error["id"], request_id), "in an error"


def same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


def test_the_text_of_a_number_is_another_id_than_the_number() -> None:
    worker = worker_in(SERVING)
    worker.receive(frame({"id": 1, "method": "probe"}))
    assert request_ids(worker.receive(frame({"id": "1", "method": "probe"}))) == ["1"]
    assert worker.open_ids == (1, "1")


def test_an_id_too_long_for_a_number_is_refused_without_an_id() -> None:
    line = b'{"jsonrpc":"2.0","method":"probe","id":' + b"9" * 4301 + b"}\n"
    (reply,) = replies(worker_in(NEW).receive(line))
    assert reply["id"] is None
    assert reply["error"]["code"] == -32600
