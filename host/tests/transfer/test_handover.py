"""Bytes from a thread to the loop: in order, a few ahead, ended from either side."""

from __future__ import annotations

import threading

import pytest

from sandport.apart import apart
from sandport.sync.errors import SyncCancelledError
from sandport.transfer.handover import Handover

pytestmark = pytest.mark.anyio

PIECE = bytes(1 << 20)


async def test_every_piece_comes_in_order() -> None:
    handover = Handover()

    def write() -> None:
        for number in range(2000):
            handover.write(b"%d " % number)
        handover.finish()

    writing = apart(write, name="test")
    got = b"".join([bytes(piece) async for piece in handover.pieces()])
    await writing
    assert got.split() == [b"%d" % number for number in range(2000)]


async def test_a_writer_waits_for_whoever_takes_nothing() -> None:
    handover = Handover()
    written: list[int] = []
    blocked = threading.Event()

    def write() -> None:
        for number in range(100):
            if number == 4:
                blocked.set()
            handover.write(PIECE)
            written.append(number)
        handover.finish()

    writing = apart(write, name="test")
    taking = handover.pieces()
    await anext(taking)
    assert blocked.wait(30)
    assert len(written) <= 6
    handover.abort()
    with pytest.raises(SyncCancelledError):
        await writing
    assert len(written) <= 6
    assert [piece async for piece in taking] == []


async def test_a_failure_is_raised_instead_of_an_end() -> None:
    handover = Handover()

    def write() -> None:
        handover.write(b"some")
        handover.fail(OSError("broken"))

    await apart(write, name="test")
    with pytest.raises(OSError, match="broken"):
        async for _ in handover.pieces():
            pass


async def test_what_a_thread_raises_its_future_has() -> None:
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await apart(fail, name="test")
