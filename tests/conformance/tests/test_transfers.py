"""The host's end of a transfer: it serves whoever connects, says what went through, and never outlives its call."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from sandport_conformance.transfers import Door, Drain, Feed, folder_for_sockets

LIMIT_S = 60.0


def connect(door: Door) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(LIMIT_S)
    connection.connect(door.path)
    return connection


def everything(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_a_feed_sends_its_pieces_and_then_the_end() -> None:
    gate = threading.Event()
    with Feed([b"one", gate, b"two" * 100_000], timeout_s=LIMIT_S) as feed, connect(feed) as worker:
        assert worker.recv(3) == b"one"
        gate.set()
        assert everything(worker) == b"two" * 100_000
        worker.close()
        assert feed.settled()
        assert (feed.moved_bytes, feed.broken, feed.said, feed.connections) == (300_003, False, b"", 1)


def test_a_feed_tells_a_worker_that_closes_early_and_one_that_says_something() -> None:
    with Feed([bytes(1 << 24)], timeout_s=LIMIT_S) as feed:
        with connect(feed) as worker:
            worker.recv(1)
        assert feed.settled()
        assert feed.broken
    with Feed([b"x"], timeout_s=LIMIT_S) as feed:
        with connect(feed) as worker:
            worker.sendall(b"hello")
            everything(worker)
        assert feed.settled()
        assert feed.said == b"hello"


def test_a_drain_takes_everything_after_its_gate_and_counts_connections() -> None:
    gate = threading.Event()
    with Drain(timeout_s=LIMIT_S, gate=gate) as drain, connect(drain) as worker, connect(drain):
        worker.sendall(b"abc")
        assert not drain.data
        gate.set()
        worker.sendall(b"def")
        worker.close()
        assert drain.settled()
        assert (bytes(drain.data), drain.moved_bytes, drain.connections) == (b"abcdef", 6, 2)


def test_a_drain_that_has_enough_closes_its_end() -> None:
    with Drain(timeout_s=LIMIT_S, most=10) as drain, connect(drain) as worker:
        worker.sendall(b"x" * 10)
        assert worker.recv(1) == b""
        assert drain.settled()


@pytest.mark.parametrize("make", [lambda: Feed([b"x"], timeout_s=LIMIT_S), lambda: Drain(timeout_s=LIMIT_S)])
def test_nobody_has_to_come_and_nothing_stays(make: object) -> None:
    assert callable(make)
    with make() as door:
        folder = Path(door.path).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert len(os.fsencode(door.path)) < 108
    assert not folder.exists()
    assert not door.connected.is_set()


def test_a_long_temporary_folder_leaves_room_for_a_sockets_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    made = folder_for_sockets()
    try:
        assert len(os.fsencode(made / "socket")) < 108
        assert list(long.iterdir()) == []
    finally:
        made.rmdir()
