"""Memory and work of reading grow with the bytes that come, never faster, and go back after a large frame.

No clock decides here: memory is what tracemalloc counts, work is the number of calls and of joined bytes.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from protocol.tests.peers import host_in, worker_in
from sandport_protocol.events import NotificationReceived, ViolationFound
from sandport_protocol.framing import LineSplitter
from sandport_protocol.host_connection import HostConnection
from sandport_protocol.limits import Limits
from sandport_protocol.states import CLOSED, SERVING
from sandport_protocol.worker_connection import WorkerConnection

KIB = 1024
MIB = 1024 * KIB
CHUNK = 64 * KIB
SLACK = 64 * KIB
"""The interpreter's own small objects, and what a growing buffer reserves beyond its bytes, for 512 KiB at most."""


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Counts the bytes that Python holds more than at the start."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield lambda: tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def calls_of(work: Callable[[], object]) -> Counter[str]:
    """How often each function was called, built-in ones included."""
    counted: Counter[str] = Counter()

    def count(frame: FrameType, event: str, function: object) -> None:
        if event == "c_call":
            counted[getattr(function, "__name__", "?")] += 1
        elif event == "call":
            counted[frame.f_code.co_name] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return counted


def test_a_flood_without_a_line_feed_is_held_up_to_the_ceiling_and_then_dropped() -> None:
    """modelcontextprotocol/typescript-sdk#2245: a flood without a newline grew the reader's memory without bound."""
    ceiling = 4 * MIB
    splitter = LineSplitter(ceiling)
    with traced() as held:
        most = 0
        for _ in range(2 * ceiling // CHUNK):
            splitter.feed(bytes(CHUNK))
            most = max(most, held(), tracemalloc.get_traced_memory()[1])
        assert most < ceiling + 2 * CHUNK + SLACK
        assert held() < SLACK
    assert splitter.overflow == bytes(64)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000, 4095, 4096, 4097])
def test_a_line_in_small_pieces_takes_no_more_memory_than_its_bytes(size: int) -> None:
    """Pieces kept as objects of their own would take forty bytes and more each."""
    whole = 128 * KIB
    splitter = LineSplitter(MIB)
    piece = b"x" * size
    with traced() as held:
        for _ in range(whole // size):
            splitter.feed(bytes(bytearray(piece)))
        assert held() < whole + SLACK
    assert splitter.pending_bytes == whole // size * size


@pytest.mark.parametrize("connection", [host_in(SERVING), worker_in(SERVING)], ids=["host", "worker"])
def test_after_a_large_frame_the_memory_goes_back(connection: HostConnection | WorkerConnection) -> None:
    """microsoft/vscode-languageserver-node#544: one huge message kept its buffer for life."""
    line = b'{"jsonrpc":"2.0","method":"unknown","params":{"data":"' + b"x" * (8 * MIB) + b'"}}\n'
    with traced() as held:
        for start in range(0, len(line), CHUNK):
            assert connection.receive(line[start : start + CHUNK]) == []
            assert held() < start + 2 * CHUNK + SLACK
        assert held() < SLACK


def test_a_line_is_joined_once_and_costs_the_same_few_calls_for_each_chunk() -> None:
    """modelcontextprotocol/typescript-sdk#88: copying what was held for each chunk made long messages quadratic."""
    chunk = bytes(CHUNK)

    def read_line(chunks: int) -> Callable[[], object]:
        splitter = LineSplitter(16 * MIB)

        def work() -> None:
            for _ in range(chunks):
                assert splitter.feed(chunk) == []
            (line,) = splitter.feed(b"\n")
            assert len(line) == chunks * CHUNK

        return work

    quarter, half, whole = (calls_of(read_line(chunks)) for chunks in (64, 128, 256))
    assert quarter["join"] == half["join"] == whole["join"] == 1, "each byte is copied once, when the line is whole"
    assert half - quarter == Counter({name: count // 2 for name, count in (whole - half).items()})
    assert (whole - half).total() <= 128 * 8


def test_a_16_mib_message_in_chunks_is_one_event() -> None:
    host = host_in(SERVING)
    line = b'{"jsonrpc":"2.0","method":"progress","params":{"message":"'
    line += b"x" * (16 * MIB - len(line) - 3) + b'"}}'
    assert len(line) == 16 * MIB
    events = [event for start in range(0, len(line), CHUNK) for event in host.receive(line[start : start + CHUNK])]
    assert events == []
    (event,) = host.receive(b"\n")
    assert isinstance(event, NotificationReceived)


def test_one_byte_more_than_the_ceiling_ends_the_connection_and_names_the_ceiling() -> None:
    host = host_in("greeting", limits=Limits(frame_bytes=1000))
    assert host.receive(b" " * 1000) == []
    (event,) = host.receive(b" ")
    assert isinstance(event, ViolationFound)
    assert event.fatal
    assert "1000 bytes (limits.frameBytes)" in event.rule
    assert host.phase == CLOSED


def test_many_lines_in_one_chunk_cost_the_same_few_calls_each() -> None:
    line = b'{"jsonrpc":"2.0","method":"unknown"}\n'

    def calls(lines: int) -> int:
        host = host_in(SERVING)
        return calls_of(lambda: host.receive(line * lines)).total()

    assert calls(400) - calls(200) == calls(600) - calls(400)
