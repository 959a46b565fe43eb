"""The surface without `async`: interrupts, forks and calls from the wrong place, on a host with real sandboxes."""

import contextlib
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandport import blocking
from sandport.errors import StoreClosed, UsageError

PATIENCE_S = 60.0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[blocking.Host]:
    with blocking.Host.open(home=tmp_path / "home") as host:
        yield host


@contextlib.contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Raises KeyboardInterrupt in this thread, wherever it is by then: Ctrl-C by the clock."""

    def interrupt(number: int, _: object) -> None:
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    armed = [True]
    was = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        yield
        armed.clear()
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)


def until(holds: Callable[[], bool]) -> None:
    """Wait for something to hold; the bound ends a hang."""
    limit = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < limit, "it did not come to it"
        time.sleep(0.01)


def processes(mark: str) -> list[str]:
    """The command lines that have the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return [line for line in found if mark in line]


def test_an_interrupt_at_any_moment_of_a_lease_ends_it_and_what_runs_in_it(host: blocking.Host, tmp_path: Path) -> None:
    """The host stays open, so that it is not its end which ends them."""
    mark = f"86400.{os.getpid()}"
    began = time.monotonic()
    go_through(host, tmp_path, mark)
    takes_s = time.monotonic() - began
    kept = tmp_path / "kept"
    for moment in range(9):
        with interrupted(max(0.0005, takes_s * moment / 8)):
            go_through(host, tmp_path, mark)
        until(lambda: host.leases() == ())
        until(lambda: processes(mark) == [])
    assert not kept.exists()
    assert host.describe("local").name == "local"


def go_through(host: blocking.Host, folder: Path, mark: str) -> None:
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "file").write_text("in")
    with host.lease("local", ttl_s=300) as sandbox:
        sandbox.sync_in(source, "in")
        with sandbox.start(["sleep", mark]), host.attach(sandbox.lease_id) as attached:
            assert attached.execute(["cat", "in/file"]).stdout.data == b"in"


def test_an_interrupt_while_a_host_opens_or_closes_ends_it(tmp_path: Path) -> None:
    began = time.monotonic()
    with blocking.Host.open(home=tmp_path / "home") as host:
        host.leases()
    takes_s = time.monotonic() - began
    for moment in range(10):
        with interrupted(max(0.0005, takes_s * moment / 8)), blocking.Host.open(home=tmp_path / "home") as host:
            host.leases()
        until(lambda: all(thread.name != "sandport-blocking" for thread in threading.enumerate()))


SCRIPT = """
import sys
from sandport import blocking

print("up", flush=True)
with blocking.Host.open(home=sys.argv[1]) as host, host.lease("local", ttl_s=300) as sandbox:
    sandbox.execute(["sleep", "300"])
"""


@pytest.mark.slow
def test_a_script_that_is_interrupted_ends_and_leaves_nothing(tmp_path: Path) -> None:
    """By the signal of a terminal, at moments from its first line to well within its command."""
    home = tmp_path / "home"
    for moment in range(4):
        command = [sys.executable, "-c", SCRIPT, str(home)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment * 0.08)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE_S)
        assert "KeyboardInterrupt" in said
        assert process.returncode in (1, -signal.SIGINT), said
    with blocking.Host.open(home=home) as host:
        assert host.leases() == ()
    assert list((home / "workers" / "local").glob("sp*")) == []


def in_a_fork(work: Callable[[], Any]) -> Any:
    """What it answers or raises in a forked child, which then ends as a program does: whatever runs at its end."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on: there are threads, as here there must be
        child = os.fork()
    if child == 0:
        try:
            theirs.send(work())
        except Exception as error:  # noqa: BLE001 - it is the answer
            theirs.send(error)
        finally:
            try:
                threading._shutdown()  # type: ignore[attr-defined]
            finally:
                os._exit(7)
    theirs.close()
    try:
        assert ours.poll(PATIENCE_S), "it hangs"
        answer = ours.recv()
    finally:
        ended: list[int] = []

        def gone() -> bool:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                ended.append(os.waitstatus_to_exitcode(status))
            return bool(pid)

        try:
            until(gone)
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
    assert ended == [7]
    return answer


def test_a_forked_child_is_told_so_at_once_and_ends(host: blocking.Host, tmp_path: Path) -> None:
    with host.lease("local") as sandbox:
        block = sandbox.start(["sleep", "300"])
        process = block.__enter__()
        calls: list[Callable[[], Any]] = [
            lambda: host.describe("local"),
            lambda: sandbox.execute(["true"]),
            process.kill,
            lambda: host.lease("local").__enter__(),
            lambda: next(process.output()),
        ]
        for call in calls:
            error = in_a_fork(call)
            assert isinstance(error, StoreClosed), error
            assert "forked from" in str(error)
        assert in_a_fork(lambda: block.__exit__(None, None, None)) is None  # it is the parent's to leave
        assert process.running
        assert sandbox.execute(["echo", "here"]).stdout.data == b"here\n"
        block.__exit__(None, None, None)
    assert in_a_fork(lambda: opened_again(tmp_path / "other")) == ()


def opened_again(home: Path) -> tuple[object, ...]:
    with blocking.Host.open(home=home) as host:
        return host.leases()


def test_after_its_block_a_host_says_what_is_wrong(tmp_path: Path) -> None:
    with blocking.Host.open(home=tmp_path / "home") as host, host.lease("local") as sandbox:
        block = host.lease("local")
    calls: list[Callable[[], Any]] = [
        lambda: host.describe("local"),
        host.leases,
        lambda: sandbox.execute(["true"]),
        lambda: sandbox.start(["true"]).__enter__(),
        block.__enter__,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="the host is closed; use it inside of its block, or open another"):
            call()


def test_a_callback_that_calls_back_is_told_what_to_do_instead(host: blocking.Host) -> None:
    refused: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def call_back(stream: str, data: bytes) -> None:
        for call in (host.leases, lambda: sandbox.execute(["true"]), lambda: host.lease("local").__enter__()):
            with pytest.raises(UsageError, match="hand what is to be done to another thread") as error:
                call()
            refused.put(error.value)

    with host.lease("local") as sandbox:
        assert sandbox.execute(["echo", "said"], on_output=call_back).ok
        assert refused.qsize() == 3
