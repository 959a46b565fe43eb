"""A signal that ends the kit ends everything that it had started, within seconds, whatever the worker does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandport_conformance.mutants import HEALTHY, command_of
from sandport_conformance.processes import running
from tests.conformance.tests import specimens

LONG_S = 60.0
ENOUGH_S = 30.0
"""For an end of five seconds, on a machine that is busy."""


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def a_run(folder: Path, worker: tuple[str, ...], *options: str, door: str = "run") -> Iterator[subprocess.Popen[str]]:
    """The command at work, with its temporary files in a folder; the worker and the sandbox mark their files there."""
    command = [sys.executable, "-m", "sandport_conformance", door, *options, "--", *worker]
    environ = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as kit:
        try:
            yield kit
        finally:
            kit.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_that_ignores_its_end_and_leaves_no_file(number: int, tmp_path: Path) -> None:
    """CI cancels with SIGTERM, as `timeout` does; a terminal that closes sends SIGHUP."""
    worker = specimens.command(specimens.SpinsInACommand)
    with a_run(tmp_path, worker, "--only", "CMD-4") as kit:
        until(lambda: list(tmp_path.glob("spinning-*")))
        (mark,) = tmp_path.glob("spinning-*")
        pid = int(mark.name.partition("-")[2])
        began = time.monotonic()
        kit.send_signal(number)
        _, err = kit.communicate(timeout=LONG_S)
        assert time.monotonic() - began < ENOUGH_S
    assert kit.returncode == 128 + number
    assert f"interrupted by {signal.Signals(number).name}" in err
    assert "not known to be gone: sandbox sp" in err
    assert not Path(f"/proc/{pid}").exists()
    mark.unlink()
    assert list(tmp_path.glob("sandport-conformance-*")) == []


def test_a_signal_destroys_the_sandbox_of_a_worker_that_serves(tmp_path: Path) -> None:
    config = tmp_path / "file.toml"
    seconds = 400_000 + os.getpid() % 100_000
    config.write_text(f'[commands]\ndie = ["sh", "-c", "sleep {seconds}", "{{signal}}"]\n', encoding="utf-8")
    with a_run(tmp_path, command_of(HEALTHY), "--only", "CMD-4", "--config", str(config)) as kit:
        until(lambda: running(f"sleep {seconds}"))
        kit.send_signal(signal.SIGHUP)
        _, err = kit.communicate(timeout=LONG_S)
    assert kit.returncode == 128 + signal.SIGHUP
    assert "not known to be gone" not in err
    assert running(f"sleep {seconds}") == []
    config.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_signal_in_the_middle_of_stories_that_are_told_at_once_ends_them_all(tmp_path: Path) -> None:
    worker = specimens.command(specimens.SpinsAtTheEnd)
    ids = ("PROC-3", "PROC-4", "PROC-8", "PROC-9", "PROC-10")
    with a_run(tmp_path, worker, "--only", *ids) as kit:
        until(lambda: list(tmp_path.glob("spinning-*")))
        began = time.monotonic()
        kit.send_signal(signal.SIGTERM)
        kit.communicate(timeout=LONG_S)
        assert time.monotonic() - began < ENOUGH_S
    assert kit.returncode == 128 + signal.SIGTERM
    pids = [int(mark.name.partition("-")[2]) for mark in tmp_path.glob("spinning-*")]
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.glob("sandport-conformance-*")) == []


def test_a_signal_ends_the_host_that_is_judged(tmp_path: Path) -> None:
    seconds = 500_000 + os.getpid() % 100_000
    host = tmp_path / "host.sh"
    host.write_text(f"exec sleep {seconds}\n", encoding="utf-8")
    with a_run(tmp_path, ("sh", str(host)), "--only", "MSG-15", door="host") as kit:
        until(lambda: running(f"sleep {seconds}"))
        kit.send_signal(signal.SIGTERM)
        kit.communicate(timeout=LONG_S)
    assert kit.returncode == 128 + signal.SIGTERM
    assert running(f"sleep {seconds}") == []
    assert list(tmp_path.iterdir()) == [host]
