"""Our own descriptors as a program's streams: closed, full, non-blocking, gone."""

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from sandport.cli.failures import OutputFailed
from sandport.cli.messages import printable, unicode_text
from sandport.cli.streams import Inlet, Outlet


@pytest.mark.anyio
async def test_bytes_go_through_as_they_are_and_in_order() -> None:
    reader, writer = os.pipe()
    outlet = Outlet(writer, "stdout")
    pieces = [bytes([number % 256]) * 1000 for number in range(50)]
    for piece in pieces:
        await outlet.write(piece)
    assert os.read(reader, 100_000) == b"".join(pieces)


@pytest.mark.anyio
async def test_a_full_pipe_waits_without_stopping_the_loop() -> None:
    reader, writer = os.pipe()
    outlet = Outlet(writer, "stdout")
    data = os.urandom(1_000_000)
    writing = asyncio.ensure_future(outlet.write(data))
    # The loop turns while the thread waits for room.
    for _ in range(100):
        await asyncio.sleep(0)
    assert not writing.done()
    received = bytearray()
    while len(received) < len(data):
        received += await asyncio.to_thread(os.read, reader, 65536)
    await writing
    assert bytes(received) == data


@pytest.mark.anyio
async def test_a_write_that_waits_can_be_cancelled() -> None:
    _reader, writer = os.pipe()
    writing = asyncio.ensure_future(Outlet(writer, "stdout").write(bytes(1_000_000)))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


@pytest.mark.anyio
async def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing() -> None:
    """A known trap of Node and ssh as parents: EAGAIN on a shared stdout ends many programs."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    data = os.urandom(500_000)
    writing = asyncio.ensure_future(Outlet(writer, "stdout").write(data))
    received = bytearray()
    while len(received) < len(data):
        received += await asyncio.to_thread(os.read, reader, 65536)
    await writing
    assert bytes(received) == data
    assert not os.get_blocking(writer)


@pytest.mark.anyio
async def test_an_input_that_is_non_blocking_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    reading = asyncio.ensure_future(Inlet(reader).read())
    for _ in range(100):
        await asyncio.sleep(0)
    assert not reading.done()
    os.write(writer, b"late")
    assert await reading == b"late"
    os.close(writer)


@pytest.mark.anyio
async def test_a_reader_that_went_away_is_told_apart_from_a_full_disk() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(OutputFailed) as gone:
        await Outlet(writer, "stdout").write(b"x")
    assert gone.value.closed
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OutputFailed, match="stdout cannot be written: No space left") as caught:
        await Outlet(full, "stdout").write(b"x")
    assert not caught.value.closed


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_descriptors_that_the_caller_closed_are_not_given_to_others(tmp_path: Path, closed: str) -> None:
    code = """
import os, sys
from sandport.cli.descriptors import fill_closed
fill_closed()
result = open(sys.argv[1], "w")
assert result.fileno() > 2
for descriptor in (1, 2):
    try:
        os.write(descriptor, b"")
        os.write(descriptor, b"x")
        result.write(f"{descriptor} open ")
    except OSError as error:
        result.write(f"{descriptor} {error.strerror} ")
result.write("read %r" % os.read(0, 1))
"""
    path = tmp_path / "result"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}', sys.executable, code, path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [
        f"{fd} " + ("Bad file descriptor" if f"{mark}>&-" in closed.split() else "open")
        for fd, mark in ((1, ""), (2, "2"))
    ]
    assert path.read_text() == " ".join(expected) + " read b''"


def test_what_is_printed_cannot_steer_a_terminal() -> None:
    assert printable("a\x1b[2Jb\rc\nd\te\x07") == "a\\x1b[2Jb\\rc\\nd\\te\\x07"
    assert printable("grün 🙂") == "grün 🙂"
    assert printable("\udc80") == "\\x80"


def test_names_that_are_not_text_are_spelled_out() -> None:
    assert unicode_text(os.fsdecode(b"a\xff")) == "a\\xff"
    assert unicode_text("grün") == "grün"


@pytest.mark.anyio
async def test_a_terminal_that_closes_is_a_reader_that_went_away() -> None:
    master, slave = pty.openpty()
    os.close(master)
    with pytest.raises(OutputFailed):
        await Outlet(slave, "stdout").write(b"x")
