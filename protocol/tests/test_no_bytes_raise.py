"""Whatever a peer sends, `receive` returns: a violation is an event, a connection that closes says so."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.tests.peers import NOTHING, OPEN_PHASES, frame, host_in, replies, request_ids, serving_pair, worker_in
from protocol.tests.strategies import HOSTILE_LINES, chunked, json_values, separators, streams
from sandport_protocol import codec
from sandport_protocol.envelope import Notification
from sandport_protocol.errors import CONDITIONS
from sandport_protocol.events import NotificationReceived, RequestEnded, RequestReceived, ViolationFound
from sandport_protocol.limits import Limits
from sandport_protocol.states import CLOSED, SERVING, Phase
from sandport_protocol.v1 import FailedParams, ProgressParams

each_phase = pytest.mark.parametrize("phase", OPEN_PHASES)
each_hostile_line = pytest.mark.parametrize("line", HOSTILE_LINES.values(), ids=HOSTILE_LINES.keys())
DEEP = {"opening brackets", "brackets", "objects", "brackets in params", "brackets of both kinds"}
"""The hostile lines that end a connection; "a string that never ends" opens 100 arrays first."""
FATAL = DEEP | {"a string that never ends"}


@each_phase
@given(st.one_of(streams, st.binary(max_size=200)))
def test_a_host_never_raises(phase: Phase, stream: bytes) -> None:
    host = host_in(phase)
    if phase == SERVING:
        for method in ("execute", "ping", "probe"):
            host.send_request(method, NOTHING)
    host.receive(stream)
    host.crash()
    assert host.open_requests == 0


@each_phase
@given(st.one_of(streams, st.binary(max_size=200)))
def test_a_worker_never_raises_and_what_it_answers_is_json(phase: Phase, stream: bytes) -> None:
    worker = worker_in(phase)
    events = worker.receive(stream)
    codes = {condition.code for condition in CONDITIONS}
    for reply in replies(events):
        assert reply["jsonrpc"] == "2.0"
        assert ("result" in reply) != ("error" in reply)
        assert "error" not in reply or reply["error"]["code"] in codes
    for event in events:
        if isinstance(event, RequestReceived):
            assert json.loads(worker.send_result(event.id, NOTHING))["id"] == event.id


@each_phase
@each_hostile_line
def test_a_hostile_line_is_at_most_a_violation(phase: Phase, line: bytes) -> None:
    """modelcontextprotocol/python-sdk#2454: one line of invalid UTF-8 ended the whole client."""
    for connection in (host_in(phase), worker_in(phase)):
        connection.receive(line + b"\n")


@pytest.mark.parametrize("name", HOSTILE_LINES)
def test_after_a_hostile_line_the_next_one_is_read_unless_it_was_nested_too_deep(name: str) -> None:
    host, worker = serving_pair()
    violations = [event for event in host.receive(HOSTILE_LINES[name] + b"\n") if isinstance(event, ViolationFound)]
    worker.receive(HOSTILE_LINES[name] + b"\n")
    assert [event.fatal for event in violations] in ([], [name in FATAL])
    if name in FATAL:
        assert "limits.depth" in violations[0].rule
        assert host.phase == worker.phase == CLOSED
        assert host.receive(frame({"method": "ready"})) == worker.receive(frame({"id": "next", "method": "ping"})) == []
    else:
        assert host.receive(frame({"method": "ready"})) == [NotificationReceived("ready", msgspec.Raw())]
        answered = replies(worker.receive(frame({"id": "next", "method": "ping"})))
        assert [reply["id"] for reply in answered] == ["next"]


@pytest.mark.parametrize("token", [b"NaN", b"Infinity", b"-Infinity", b"nan", b"1.", b".5", b"+1", b"01", b"'a'"])
def test_what_only_some_parsers_take_is_a_parse_error(token: bytes) -> None:
    """conbench/conbench#1163, apify/apify-client-python#87: NaN on the wire."""
    with pytest.raises(codec.Unreadable) as refused:
        codec.read(b'{"jsonrpc":"2.0","id":1,"method":"probe","params":{"config":%s}}' % token, depth=64)
    assert refused.value.parse
    assert not refused.value.fatal


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@given(st.data())
def test_a_number_that_json_cannot_say_is_found_wherever_it_is(value: float, data: st.DataObject) -> None:
    around = data.draw(st.lists(json_values, max_size=2))
    codec.refuse_non_finite(around)
    for inside in ([*around, value], {"a": [around, {"b": (value,)}]}, value):
        with pytest.raises(ValueError, match="not a JSON number"):
            codec.refuse_non_finite(inside)


@pytest.mark.parametrize("name", ["a byte order mark", "UTF-16", "half a message", "bytes that are no UTF-8 in params"])
def test_a_worker_answers_what_it_cannot_read_with_a_parse_error_and_a_null_id(name: str) -> None:
    worker = worker_in(SERVING)
    (reply,) = replies(worker.receive(HOSTILE_LINES[name] + b"\n"))
    assert reply["id"] is None
    assert reply["error"]["code"] == -32700


@pytest.mark.parametrize("name", ["a batch", "an empty batch", "a null id", "a bool id", "a float id", "no version"])
def test_a_worker_answers_json_that_is_no_message_with_an_invalid_request_and_a_null_id(name: str) -> None:
    worker = worker_in(SERVING)
    (reply,) = replies(worker.receive(HOSTILE_LINES[name] + b"\n"))
    assert reply["id"] is None
    assert reply["error"]["code"] == -32600


def test_a_line_that_breaks_off_behind_a_member_of_a_wrong_type_is_no_json() -> None:
    """The decoder stops at the member; what is wrong first is that nobody could read the line."""
    worker = worker_in(SERVING)
    events = worker.receive(b'{"jsonrpc":"2.0","id":{"jsonrpc":"2.0"}\n')
    (reply,) = replies(events)
    assert reply["error"]["code"] == -32700


def test_of_two_members_with_one_name_the_last_one_counts() -> None:
    worker = worker_in(SERVING)
    line = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"probe"}\n'
    assert request_ids(worker.receive(line)) == [2]


@pytest.mark.parametrize("blank", [b"\n", b" \n", b"\r\n", b"\t \r\n", b"\n\n\n"])
def test_blank_lines_are_nothing(blank: bytes) -> None:
    host, worker = serving_pair()
    assert host.receive(blank) == worker.receive(blank) == []


def test_a_carriage_return_before_the_line_feed_is_nothing() -> None:
    host, worker = serving_pair()
    request_id, _ = host.send_request("probe", NOTHING)
    answer = frame({"id": request_id, "result": {}}).replace(b"\n", b"\r\n")
    assert [type(event) for event in host.receive(answer)] == [RequestEnded]
    assert request_ids(worker.receive(frame({"id": 1, "method": "probe"}).replace(b"\n", b"\r\n"))) == [1]


@given(st.lists(st.one_of(separators, st.text(max_size=3)), min_size=1, max_size=20).map("".join))
def test_every_line_separator_but_the_line_feed_is_content_in_both_directions(text: str) -> None:
    """earendil-works/pi#1910, anthropics/claude-agent-sdk-typescript#137: U+2028, U+0085, VT and FF split a message."""
    host, worker = serving_pair()
    params = json.dumps({"config": {"text": text}}, ensure_ascii=False).encode()
    _, call = host.send_request("probe", msgspec.Raw(params))
    (received,) = worker.receive(call)
    assert isinstance(received, RequestReceived)
    assert json.loads(bytes(received.params)) == {"config": {"text": text}}

    (note,) = host.receive(worker.send_notification("progress", ProgressParams(id=1, message=text)))
    assert isinstance(note, NotificationReceived)
    assert codec.read_as(ProgressParams, note.params).message == text


@given(chunked(st.binary(max_size=300)), st.integers(1, 64))
def test_stray_output_before_the_hello_is_tolerated_up_to_its_ceiling(
    stream: tuple[bytes, list[bytes]], junk_bytes: int
) -> None:
    """hashicorp/go-plugin#164, bazelbuild/rules_java#158: a banner on stdout before the hello."""
    host = host_in("greeting", limits=Limits(junk_bytes=junk_bytes))
    events = [event for chunk in stream[1] for event in host.receive(chunk)]
    lines = stream[0].split(b"\n")[:-1]
    junk = sum(len(line) + 1 for line in lines if line.strip(b" \t\r"))
    assert any(isinstance(event, ViolationFound) and event.fatal for event in events) == (junk > junk_bytes)
    assert (host.phase == CLOSED) == (junk > junk_bytes)


def test_the_hello_is_read_after_a_banner() -> None:
    host = host_in("greeting")
    hello = {"protocolVersion": 1, "provider": {"name": "fake", "version": "1"}, "supportedMethods": []}
    host.receive(b"[warn] x\nWelcome\n\n" + frame({"id": 1, "result": hello}))
    assert host.phase == "negotiated"


@given(st.text(max_size=40))
def test_an_unknown_notification_is_ignored(method: str) -> None:
    host, worker = serving_pair()
    line = codec.write(Notification("new/" + method, FailedParams(message="x")))
    assert host.receive(line) == worker.receive(line) == []
