"""`sandport leases --watch`: what there is, again and again, until somebody has seen enough."""

import os
import signal
from collections.abc import Iterator

import msgspec
import pytest

from tests.integration.command import Command
from tests.integration.typist import Typist


@pytest.fixture(autouse=True)
def nothing_is_left(sandport: Command) -> Iterator[None]:
    yield
    if kept := sandport.leased():
        assert sandport("leases", "end", *kept).code == 0
    sandport.nothing_is_left()


def keep(sandport: Command, name: str) -> None:
    assert sandport("run", "-q", "--keep", "--name", name, "--", "true").code == 0


def test_on_a_terminal_the_list_is_drawn_over_itself_and_what_was_there_comes_back(sandport: Command) -> None:
    with Typist(sandport, "leases", "--watch", "0.05", size=(200, 4)) as typist:
        typist.until(r"\x1b\[\?1049h\x1b\[\?25l\x1b\[H\d\d:\d\d:\d\d  0 leases, looked at every 0.05 s; Ctrl-C ends")
        keep(sandport, "one")
        typist.until(r"\x1b\[H\S+  1 lease, ")
        typist.until(r"LEASE.*\r\n.*one.*kept.*local.*\x1b\[K\x1b\[J\x1b\[H")
        keep(sandport, "two")
        typist.until(r"\.\.\. and 2 more lines\x1b\[K\x1b\[J")
        typist.resize(200, 24)
        typist.until(r"\n.*two")
        assert sandport("leases", "end", "one").code == 0
        typist.until(r"\x1b\[H\S+  1 lease, ")
        typist.press("\x03")
        assert typist.ended() == 0
        assert typist.modes() == typist.before
        assert typist.shown.endswith("\x1b[?25h\x1b[?1049l")


def test_with_json_there_is_a_document_a_line(sandport: Command) -> None:
    with sandport.start("leases", "list", "--json", "--watch", "0.05") as process:
        first = msgspec.json.decode(process.stdout.readline())
        assert (first["leases"], first["pending"]) == ([], 0)
        keep(sandport, "box")
        while not (found := msgspec.json.decode(process.stdout.readline()))["leases"]:
            assert found["at"] >= first["at"]
        assert found["leases"][0]["name"] == "box"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143


def test_a_reader_that_leaves_ends_it(sandport: Command) -> None:
    with sandport.start("leases", "--watch", "0.05", "--json") as process:
        assert process.stdout.readline().startswith(b'{"at":')
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--watch"], "--watch: stdout is no terminal that can be drawn on; add --json"),
        (["--watch", "0", "--json"], "--watch 0: expected a number of seconds above 0"),
        (["--watch", "list"], "--watch list: expected a number of seconds above 0"),
    ],
)
def test_what_cannot_be_watched_is_told(sandport: Command, words: list[str], complaint: str) -> None:
    done = sandport("leases", *words)
    assert (done.code, done.out) == (2, b"")
    assert complaint in done.err


def test_on_a_terminal_that_cannot_be_drawn_on_it_is_refused(sandport: Command) -> None:
    with Typist(sandport, "leases", "--watch", size=(120, 24), TERM="dumb") as typist:
        assert typist.ended() == 2
    assert not os.path.exists(sandport.home)
