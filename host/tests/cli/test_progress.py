"""The bar of a copy that takes long: on a terminal only, over itself, and gone in the end."""

from __future__ import annotations

import os
import re
import signal

import pytest

from sandport.cli.status import Status
from sandport.sync.result import SyncProgress
from tests.integration.command import Command
from tests.integration.stage import worker


def progress(files: int, of_files: int, size: int, of_size: int) -> SyncProgress:
    return SyncProgress(files_done=files, files_total=of_files, bytes_done=size, bytes_total=of_size)


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Status:
    status = Status(quiet=True)
    monkeypatch.setattr(status, "_fills", ("#", "."))
    return status


def test_a_copy_shows_files_bytes_and_rate(status: Status) -> None:
    assert status.text("copying . in", 3.4, 100) == "copying . in ... 3 s"
    status.progress(progress(1200, 5000, 5_000_000, 20_000_000))
    bar = "#####" + "." * 15
    assert status.text("copying . in", 4, 100) == (
        f"copying . in {bar}  25%  1,200 of 5,000 files, 5.0 MB of 20.0 MB, 1.2 MB/s, 4 s"
    )
    for columns, cells in ((80, 6), (79, 5), (78, 0), (20, 0)):
        text = status.text("copying . in", 4, columns)
        assert text.startswith("copying . in ")
        assert text.count("#") + text.count(".") == cells + 4, "the name's, and those of the sizes"


def test_a_copy_of_unknown_size_has_no_bar_and_one_that_grew_is_never_past_its_end(status: Status) -> None:
    status.progress(progress(0, 0, 3_000_000, 0))
    assert status.text("copying x out", 3, 100) == "copying x out ... 0 files, 3.0 MB, 1.0 MB/s, 3 s"
    status.progress(progress(7, 5, 30, 20))
    assert "#" * 20 + " 100%  7 of 5 files" in status.text("copying x out", 1, 100)
    status.progress(progress(2, 4, 0, 0))
    assert f"{'#' * 10}{'.' * 10}  50%" in status.text("empty files", 1, 100)


@pytest.fixture
def stalling(sandport: Command) -> Command:
    """A command with a provider that takes the beginning of an archive for the folder `stalls`, and no more."""
    command = ", ".join(f'"{word}"' for word in worker("syncs"))
    sandport.configure(f"[providers.slow]\ncommand = [{command}]\n")
    (sandport.cwd / "big").mkdir()
    for number in range(4):
        (sandport.cwd / "big" / str(number)).write_bytes(b"x" * 4_000_000)
    return sandport


def test_a_bar_is_drawn_over_itself_and_wiped_at_ctrl_c(stalling: Command) -> None:
    master, slave = os.openpty()
    words = ("run", "-p", "slow", "--in", "big:stalls/big", "--", "true")
    process = stalling.start(*words, env={"TERM": "xterm"}, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        # It is held up in the middle until it is interrupted, so the bar has to come.
        while shown.count(b"copying big in") < 3:
            shown += os.read(master, 65536)
        process.send_signal(signal.SIGINT)
        while data := os.read(master, 65536):
            shown += data
    except OSError:
        # The end of a terminal whose last user went away.
        pass
    finally:
        os.close(master)
    with process:
        assert process.wait() == 130
    text = shown.decode()
    drawn = re.findall(r"\r(copying big in [^\r\n]*)\x1b\[K", text)
    assert len(drawn) >= 3
    assert re.fullmatch(r"copying big in \S{11,20} +\d+%  \d of 4 files, .* of 16\.0 MB, .*/s, \d+ s", drawn[-1]), drawn
    # Nothing is wiped between two drawings, so that nothing flickers; the last thing before our words is a wipe.
    assert f"{drawn[-1]}\x1b[K\r\x1b[Ksandport: interrupted" in text
    stalling.nothing_is_left()
