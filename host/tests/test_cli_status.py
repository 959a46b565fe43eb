"""The line on the terminal: there where something takes long, gone when it is done, absent from pipes."""

import os
import sys
from pathlib import Path

import pytest

from sandport.cli.status import human_bytes
from tests.integration.command import Command

SILENT = "[host.timing]\nstart_s = {start_s}\n[providers.silent]\ncommand = ['sh', '-c', 'cat >/dev/null']\n"


def terminal_shows(sandport: Command, *words: str, env: dict[str, str]) -> tuple[int, bytes]:
    """The exit code, and all that appeared on the terminal that is its stderr."""
    master, slave = os.openpty()
    process = sandport.start(*words, env=env, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 65536):
            shown += data
    except OSError:
        # The end of a terminal whose last user went away.
        pass
    os.close(master)
    with process:
        return process.wait(), shown


def test_a_wait_is_shown_on_a_terminal_and_wiped_away(sandport: Command) -> None:
    sandport.configure(SILENT.format(start_s=1.6))
    code, shown = terminal_shows(sandport, "run", "-p", "silent", "--", "true", env={"TERM": "xterm"})
    assert code == 125
    lines = shown.split(b"\r")
    assert b"starting the silent worker ... 1 s\x1b[K" in lines
    after = shown.rpartition(b"\r\x1b[K")[2]
    assert after.startswith(b"sandport: the silent worker did not say hello in 1.6 s")


@pytest.mark.parametrize(
    ("words", "env"),
    [(["-q"], {"TERM": "xterm"}), ([], {"TERM": "dumb"})],
    ids=["quiet", "dumb"],
)
def test_nobody_is_shown_a_line_who_does_not_want_one(sandport: Command, words: list[str], env: dict[str, str]) -> None:
    sandport.configure(SILENT.format(start_s=1.3))
    _, shown = terminal_shows(sandport, "run", *words, "-p", "silent", "--", "true", env=env)
    assert b"\x1b" not in shown


def test_a_pipe_gets_no_line(sandport: Command) -> None:
    sandport.configure(SILENT.format(start_s=1.3))
    done = sandport("run", "-p", "silent", "--", "true", env={"TERM": "xterm"})
    assert "\x1b" not in done.err
    assert "..." not in done.err


def test_a_short_run_shows_nothing_but_the_output(sandport: Command) -> None:
    _, shown = terminal_shows(sandport, "run", "-q", "--", "sh", "-c", "echo err >&2", env={"TERM": "xterm"})
    assert b"err" in shown.replace(b"\r\x1b[K", b"")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_400_000, "3.4 MB"), (2**50, "1125.9 TB")]
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert human_bytes(size) == text


def test_the_module_runs_as_the_command(sandport: Command, tmp_path: Path) -> None:
    done = sandport.shell(f"{sys.executable} -P -m sandport.cli --version")
    assert done.code == 0
    assert done.out.startswith(b"sandport ")
