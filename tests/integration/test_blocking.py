"""The surface without `async` is the same surface."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sandport
from sandport import blocking, errors
from tests.reference.host import INTERNAL


@pytest.fixture
def host(tmp_path: Path) -> Iterator[blocking.Host]:
    with blocking.Host.open(home=tmp_path / "home") as host:
        yield host


@pytest.fixture
def sandbox(host: blocking.Host) -> Iterator[blocking.Sandbox]:
    with host.lease("local") as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", ["Host", "Sandbox", "Process"])
def test_every_method_is_there_with_the_same_arguments(name: str) -> None:
    one, other = getattr(sandport, name), getattr(blocking, name)
    public = {member for member in vars(one) if not member.startswith("_")}
    assert public - INTERNAL[name] == {member for member in vars(other) if not member.startswith("_")} & public
    for member in public - INTERNAL[name]:
        was, now = getattr(one, member), getattr(other, member)
        if callable(was):
            assert list(inspect.signature(now).parameters.values()) == list(inspect.signature(was).parameters.values())
            assert not inspect.iscoroutinefunction(now)
            assert now.__doc__


def test_a_command_runs_and_files_come_and_go(sandbox: blocking.Sandbox, tmp_path: Path) -> None:
    sandbox.write_bytes("in/a", b"\0\xff")
    outcome = sandbox.execute(["sh", "-c", "cat in/a; exit 3"])
    assert (outcome.ended, outcome.exit_code, outcome.stdout.data) == ("exited", 3, b"\0\xff")
    sandbox.sync_out("in", tmp_path / "out")
    assert (tmp_path / "out" / "a").read_bytes() == b"\0\xff"


def test_a_process_is_written_to_and_its_output_iterated(sandbox: blocking.Sandbox) -> None:
    with sandbox.start(["cat"], stdin=True) as process:
        process.stdin.write(b"one\n")
        process.stdin.close()
        assert b"".join(data for _, data in process.output()) == b"one\n"
        assert process.wait().exit_code == 0


def test_an_iteration_that_is_left_lets_the_process_go_on(sandbox: blocking.Sandbox) -> None:
    with sandbox.start(["sh", "-c", "echo one; read line; echo two"], stdin=True) as process:
        for _, data in process.output():
            assert data == b"one\n"
            break
        process.stdin.write(b"go\n")
        outcome = process.wait()
    assert outcome.stdout.data == b"two\n"


def test_a_shell_has_a_terminal_of_the_size_that_is_wanted(sandbox: blocking.Sandbox) -> None:
    asks = b"echo $TERM $FLAVOUR; stty size; exit 7\n"
    with sandbox.shell(size=(100, 30), env={"FLAVOUR": "mint"}) as shell:
        shell.stdin.write(asks)
        said = b"".join(data for name, data in shell.output() if name == "pty")
        assert shell.wait().exit_code == 7
    assert b"xterm-256color mint\r\n30 100\r\n" in said


def test_a_provider_without_terminals_is_named_with_what_it_has(host: blocking.Host) -> None:
    with host.lease("fake") as sandbox:
        refused = pytest.raises(errors.NotSupported, match=r"provider fake has no terminals.*start\(\) and execute\(\)")
        with refused, sandbox.shell():
            pytest.fail("it has one")


def test_it_works_where_a_loop_runs_already(tmp_path: Path) -> None:
    async def cell() -> bytes:
        with blocking.Host.open(home=tmp_path / "home") as host, host.lease("local") as sandbox:
            return sandbox.execute(["echo", "from a notebook"]).stdout.data

    assert asyncio.run(cell()) == b"from a notebook\n"


def test_several_threads_share_one_host(sandbox: blocking.Sandbox) -> None:
    answers: dict[int, bytes] = {}

    def ask(number: int) -> None:
        answers[number] = sandbox.execute(["echo", str(number)]).stdout.data

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\n".encode() for number in range(8)}


def test_errors_are_those_of_the_other_surface(host: blocking.Host) -> None:
    with pytest.raises(errors.EnvironmentUnknown), host.lease("no-such-provider"):
        raise AssertionError("there is none")


INTERRUPTED = """
import sys
from sandport import blocking

with blocking.Host.open(home=sys.argv[1]) as host, host.lease("local") as sandbox:
    sandbox.execute(["sh", "-c", "echo up >up; exec sleep 300"], on_output=print)
"""


def test_an_interrupt_ends_the_call_and_the_lease(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "home")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        started = tmp_path / "home" / "workers" / "local"
        wait_for(lambda: bool(list(started.glob("sp*/sandbox/up"))))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGINT)
    assert "KeyboardInterrupt" in said
    assert list(started.glob("sp*")) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


FORGETFUL = """
import contextlib, sys
from sandport import blocking

stack = contextlib.ExitStack()
host = stack.enter_context(blocking.Host.open(home=sys.argv[1]))
sandbox = stack.enter_context(host.lease("local"))
process = stack.enter_context(sandbox.start(["sleep", "300"]))
print(sandbox.execute(["echo", "done"]).stdout.decode(), end="")
"""


def test_a_program_that_leaves_no_block_ends_and_its_leases_with_it(tmp_path: Path) -> None:
    """As a notebook does whose cells hold a host in an ExitStack, and whose kernel is shut down."""
    command = [sys.executable, "-X", "dev", "-c", FORGETFUL, str(tmp_path / "home")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        answered, said = process.communicate(timeout=60)
    assert (process.returncode, answered) == (0, "done\n")
    assert "Traceback" not in said
    assert "could not be looked for" not in said  # also from 3.12 on, where no thread can be started any more by then
    assert list((tmp_path / "home" / "workers" / "local").glob("sp*")) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def wait_for(holds: Any) -> None:
    """Wait for something to hold; the bound ends a hang."""
    done = threading.Event()
    for _ in range(6000):
        if holds():
            return
        done.wait(0.01)
    raise AssertionError("it did not come to it")
