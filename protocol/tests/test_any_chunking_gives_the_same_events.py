"""What a peer says does not depend on how the pipe cuts it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from protocol.tests.peers import NOTHING, OPEN_PHASES, host_in, worker_in
from protocol.tests.strategies import chunked, cut, lines, messages
from sandport_protocol import codec
from sandport_protocol.events import HostEvent, WorkerEvent
from sandport_protocol.framing import LineSplitter
from sandport_protocol.host_connection import HostConnection
from sandport_protocol.limits import Limits
from sandport_protocol.states import NEW, SERVING, Phase
from sandport_protocol.worker_connection import WorkerConnection

SMALL = Limits(frame_bytes=100, depth=4, junk_bytes=200, in_flight=3)
"""Ceilings that the drawn lines pass often."""


def host(phase: Phase, limits: Limits) -> HostConnection:
    connection = host_in(phase, limits=limits if phase == NEW else None)
    if phase == SERVING:
        for method in ("execute", "ping", "probe", "ping"):
            connection.send_request(method, NOTHING)
        connection.send_cancel(2, "deadline")
        connection.tell(2)
    return connection


def worker(phase: Phase, limits: Limits) -> WorkerConnection:
    return worker_in(phase, limits=limits if phase == NEW else None)


@given(chunked(), st.sampled_from(OPEN_PHASES), st.sampled_from([Limits(), SMALL]))
def test_a_host_hears_the_same_however_the_bytes_are_cut(
    stream: tuple[bytes, list[bytes]], phase: Phase, limits: Limits
) -> None:
    whole, chunks = stream
    at_once, in_pieces = host(phase, limits), host(phase, limits)
    expected = at_once.receive(whole)
    events: list[HostEvent] = []
    for chunk in chunks:
        events += in_pieces.receive(chunk)
    assert events == expected
    assert in_pieces.phase == at_once.phase


@given(chunked(), st.sampled_from(OPEN_PHASES), st.sampled_from([Limits(), SMALL]))
def test_a_worker_hears_the_same_however_the_bytes_are_cut(
    stream: tuple[bytes, list[bytes]], phase: Phase, limits: Limits
) -> None:
    whole, chunks = stream
    at_once, in_pieces = worker(phase, limits), worker(phase, limits)
    expected = at_once.receive(whole)
    events: list[WorkerEvent] = []
    for chunk in chunks:
        events += in_pieces.receive(chunk)
    assert events == expected
    assert in_pieces.phase == at_once.phase
    assert in_pieces.open_ids == at_once.open_ids


@given(st.lists(lines, max_size=6), st.data())
def test_lines_come_out_as_they_went_in(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in sent)
    splitter = LineSplitter(2**20)
    out: list[bytes] = []
    for chunk in cut(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=10))):
        out += splitter.feed(chunk)
    assert out == sent
    assert splitter.pending_bytes == 0
    assert splitter.overflow is None


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10), st.integers(1, 30))
def test_the_first_line_over_the_ceiling_is_the_last_thing_read(stream: bytes, places: list[int], ceiling: int) -> None:
    splitter = LineSplitter(ceiling)
    out: list[bytes] = []
    for chunk in cut(stream, places):
        out += splitter.feed(chunk)
    *ended, unfinished = stream.split(b"\n")
    too_long = next((n for n, line in enumerate([*ended, unfinished]) if len(line) > ceiling), None)
    if too_long is None:
        assert out == ended
        assert splitter.overflow is None
        assert splitter.pending_bytes == len(unfinished)
    else:
        assert out == ended[:too_long]
        assert splitter.overflow == [*ended, unfinished][too_long][: min(64, ceiling)]
        assert splitter.pending_bytes == 0


@given(messages)
def test_a_frame_is_one_line_whatever_is_in_it(message: Struct) -> None:
    """earendil-works/pi#1910, anthropics/claude-agent-sdk-typescript#137: U+2028 and its kin split a message."""
    written = codec.write(message)
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1
    assert LineSplitter(len(written)).feed(written) == [written[:-1]]
