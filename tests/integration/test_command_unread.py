"""Whoever should read the output of `sandport` does not, or went away: one signal is enough, and all is cleaned up.

A write into a pipe that is full is begun again after a signal (PEP 475), so a pager that waits for its user, or a
terminal after Ctrl-S, must not take Ctrl-C away.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.command import BOUND_S, Command, until

UNREAD = {
    ("run", "--", "yes"): signal.SIGTERM,
    ("run", "--json", "--", "sh", "-c", "yes >&2"): signal.SIGINT,
    ("exec", "box", "--", "yes"): signal.SIGTERM,
    ("leases", "show", "box"): signal.SIGINT,
    ("leases", "end", "other"): signal.SIGTERM,
    ("leases", "--watch", "0.05", "--json"): signal.SIGTERM,
    ("leases", "--watch", "0.1", "--json"): signal.SIGINT,
    ("reap",): signal.SIGINT,
    ("sync", "in", "box", "."): signal.SIGTERM,
    ("sync", "out", "box", ".", "there", "--json"): signal.SIGINT,
}
"""Commands that write in a loop, or while they have something to end; and what ends them."""
MEANT = ("leases", "--watch", "0.1", "--json"), signal.SIGINT
"""The one end that is no interruption."""


@pytest.fixture(autouse=True)
def nothing_is_left(sandport: Command) -> Iterator[None]:
    yield
    if kept := sandport.leased():
        assert sandport("leases", "end", *kept).code == 0
    sandport.nothing_is_left()


@pytest.fixture
def boxes(sandport: Command) -> tuple[str, str]:
    """Two sandboxes that are kept."""
    for name in ("box", "other"):
        assert sandport("run", "-q", "--keep", "--name", name, "--", "true").code == 0
    return "box", "other"


@pytest.fixture
def full() -> Iterator[int]:
    """The writing end of a pipe into which nothing goes any more, and which nobody reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        os.set_blocking(writing, True)
        yield writing
    finally:
        os.close(reading)
        os.close(writing)


@pytest.fixture
def closed() -> Iterator[int]:
    """The writing end of a pipe that nobody can read any more."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def writes_to(pid: int, descriptor: int) -> bool:
    """Whether some thread of a process waits in a call about this descriptor."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            # The call's number, then its arguments; "running" where it is in none.
            words = (thread / "syscall").read_text().split()
            if len(words) > 1 and int(words[1], 16) == descriptor:
                return True
    return False


def until_it_writes(process: Any, descriptor: int) -> None:
    until(lambda: writes_to(process.pid, descriptor), lambda: f"{process.args} does not write")


def unread_by(words: tuple[str, ...]) -> int:
    """The descriptor that a command of the table writes to."""
    return 2 if words[:2] == ("run", "--json") else 1


def start(sandport: Command, words: tuple[str, ...], pipe: int) -> Any:
    where: dict[str, Any] = {"stderr" if unread_by(words) == 2 else "stdout": pipe}
    return sandport.start(*words, **where)


def names(sandport: Command) -> list[str]:
    return sorted(one["name"] for one in sandport.leases())


def test_one_signal_ends_what_nobody_reads(sandport: Command, boxes: tuple[str, str], full: int) -> None:
    with contextlib.ExitStack() as stack:
        started = {words: stack.enter_context(start(sandport, words, full)) for words in UNREAD}
        for words, process in started.items():
            until_it_writes(process, unread_by(words))
            process.send_signal(UNREAD[words])
        for words, process in started.items():
            expected = 0 if (words, UNREAD[words]) == MEANT else 128 + UNREAD[words]
            assert process.wait(timeout=BOUND_S) == expected, words
            told = (process.stdout or process.stderr).read()
            assert b"Traceback" not in told, words
            assert b"not confirmed" not in told, words
    # What was to be ended has ended, and so has what was begun.
    assert names(sandport) == [boxes[0]]


def test_one_signal_is_enough_where_nobody_reads_what_is_said_of_it(sandport: Command, full: int) -> None:
    with sandport.start("run", "-v", "--", "sleep", "600", stdout=full, stderr=full) as process:
        until_it_writes(process, 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=BOUND_S) == 130
    assert names(sandport) == []


def test_a_reader_who_reads_on_after_a_signal_gets_the_rest(sandport: Command, full: int) -> None:
    """Only one who takes nothing is not waited for: a document is whole, or not begun."""
    reading = os.open(f"/proc/self/fd/{full}", os.O_RDONLY)
    try:
        with sandport.start("leases", "--watch", "0.05", "--json", stdout=full) as process:
            until_it_writes(process, 1)
            process.send_signal(signal.SIGTERM)
            os.set_blocking(reading, False)
            text = b""
            while process.poll() is None:
                with contextlib.suppress(BlockingIOError):
                    text += os.read(reading, 1 << 16)
            with contextlib.suppress(BlockingIOError):
                while piece := os.read(reading, 1 << 16):
                    text += piece
            assert process.returncode == 143
    finally:
        os.close(reading)
    text = text.lstrip(b"\0")
    assert text == b"" or (text.startswith(b'{"at":') and text.endswith(b"}\n"))


def test_a_reader_who_went_away_ends_it_without_a_word(sandport: Command, boxes: tuple[str, str], closed: int) -> None:
    with contextlib.ExitStack() as stack:
        started = {words: stack.enter_context(start(sandport, words, closed)) for words in UNREAD}
        for words, process in started.items():
            out, err = process.communicate(timeout=BOUND_S)
            assert process.returncode == 128 + signal.SIGPIPE, words
            assert err in {None, b""}, words
            assert out is None or msgspec.json.decode(out)["code"] == process.returncode, words
    assert names(sandport) == [boxes[0]]
