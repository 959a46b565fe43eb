"""What an exception becomes: of several that failed together, one is told."""

import os

import pytest

from sandport.cli.failures import failure_of
from sandport.errors import ConfigInvalid, UsageError, WorkerCrashed
from tests.integration.command import Command


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (UsageError("a"), "UsageError"),
        (ExceptionGroup("", [ExceptionGroup("", [UsageError("a")])]), "UsageError"),
        (ExceptionGroup("", [WorkerCrashed("a"), UsageError("b")]), "WorkerCrashed"),
        (ExceptionGroup("", [UsageError("a"), ValueError("b")]), "Bug"),
        (ExceptionGroup("", [ValueError("b")]), "Bug"),
    ],
)
def test_failures_of_several_tasks_are_one_unless_a_fault_of_ours_is_among_them(
    error: Exception, condition: str
) -> None:
    assert failure_of(error).condition == condition


NOT_TEXT = b"\xff"


@pytest.mark.parametrize(
    "words",
    [
        (b"leases", b"show", NOT_TEXT),
        (b"leases", b"end", NOT_TEXT),
        (b"exec", NOT_TEXT, b"--", b"true"),
        (b"reap", b"--forget", NOT_TEXT, b"--reason", NOT_TEXT),
        (b"run", b"-p", NOT_TEXT, b"--", b"true"),
        (b"run", b"-e", NOT_TEXT, b"--", b"true"),
        (b"run", b"--in", NOT_TEXT, b"--", b"true"),
        (b"run", b"--name", NOT_TEXT, b"--", b"true"),
        (b"env", b"show", NOT_TEXT),
        (b"env", b"remove", NOT_TEXT),
        (b"providers", NOT_TEXT),
        (b"provider", b"remove", NOT_TEXT),
        (b"doctor", NOT_TEXT),
    ],
    ids=lambda words: b" ".join(words[:2]).decode("ascii", "replace"),
)
def test_a_name_that_is_not_utf8_is_a_wrong_name_and_shown_as_its_byte(
    sandport: Command, words: tuple[bytes, ...]
) -> None:
    done = sandport(*words)
    assert done.code == 2, done.err
    assert "\\xff" in done.err
    assert "udcff" not in done.err
    assert "a fault in sandport" not in done.err


def test_a_name_that_the_locale_cannot_read_is_looked_for_as_what_it_is(sandport: Command) -> None:
    sandport("run", "-p", "fake", "--", "true")
    done = sandport("leases", "show", "é", env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    assert done.code == 2
    assert "there is no lease 'é'" in done.err


def test_types_of_a_config_are_told_in_words() -> None:
    failure = failure_of(ConfigInvalid("delay_s: Expected `float | null`, got `str`"))
    assert failure.message == "delay_s: Expected a number or nothing, not a string"


def test_an_option_without_its_name_is_told_that_it_wants_one(sandport: Command) -> None:
    for option in ("-p", "-e"):
        done = sandport("run", option, "--", "true")
        assert (done.code, f"{option} wants a name after it" in done.err) == (2, True), done.err


def test_an_id_is_whole_on_a_narrow_terminal(sandport: Command) -> None:
    """It came in pieces of three letters a line, which nobody can copy."""
    made = sandport("run", "-p", "fake", "--keep", "--json", "--", "true").object
    ours, its = os.openpty()
    with sandport.start("leases", stdout=its, env={"COLUMNS": "40", "TERM": "xterm"}) as process:
        os.close(its)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # its other end is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait() == 0
    os.close(ours)
    assert made["ids"]["lease"].encode() in shown
    assert sandport("leases", "end", made["ids"]["lease"]).code == 0
