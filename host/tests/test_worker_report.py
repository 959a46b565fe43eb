"""What a message says of a worker that ended: enough to act on, once, and no more."""

import json

import pytest

from sandport.cli.application import Settings
from sandport.cli.interrupts import Interrupts
from sandport.cli.records import Records
from sandport.worker.report import CrashReport, last_words

TRACEBACK = "execute failed\nTraceback (most recent call last):\n  File \"x.py\", line 1\nKeyError: 'boom'"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ([], ""),
        (["", "  "], ""),
        (["one", "two", "three", "four"], "; its log ends: two | three | four"),
        ([json.dumps({"level": "ERROR", "message": TRACEBACK})], "; its log ends: KeyError: 'boom'"),
        (["noise", "sandport worker: p.P: 'x' is missing"], ": p.P: 'x' is missing"),
        (
            ["sandport worker: p.P: 'x' is missing", "more"],
            "; its log ends: sandport worker: p.P: 'x' is missing | more",
        ),
    ],
)
def test_the_last_words_of_a_log_are_its_last_lines_or_the_one_sentence_that_a_worker_gave_up_with(
    log: list[str], said: str
) -> None:
    assert last_words(log) == said


def test_a_worker_that_was_wedged_is_reported_with_the_calls_that_were_open() -> None:
    report = CrashReport(
        id="c", provider="p", pid=1, uptime_s=1, phase="busy", kind="wedge", cause="it answered no ping for 30 s",
        open_methods=("execute", "ping"), signal=9,
    )  # fmt: skip
    wanted = "was killed by SIGKILL: it answered no ping for 30 s (these calls were open: execute)"
    assert report.summary() == f"the p worker (pid 1) {wanted}"


def test_a_traceback_is_shown_line_by_line_and_steers_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    Records(Settings(Interrupts())).log("error", f"{TRACEBACK}\x1b[2J", provider="p")
    first, *further = capfd.readouterr().err.splitlines()
    assert first == "sandport: error: execute failed provider=p"
    assert [line.strip() for line in further] == [
        "Traceback (most recent call last):",
        'File "x.py", line 1',
        "KeyError: 'boom'\\x1b[2J",
    ]
