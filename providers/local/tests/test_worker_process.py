"""The worker as a process of its own, as a host has it: what becomes of a sandbox when the worker goes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.local.tests.leases import unique_sleep
from providers.local.tests.machine import PATIENCE_S, started, wait_for_end
from providers.local.tests.worker import Worker


@pytest.fixture
def worker(state_dir: Path) -> Iterator[Worker]:
    worker = Worker(state_dir, grace_ms=300)
    yield worker
    worker.close()


def test_a_command_runs_over_real_pipes(worker: Worker, state_dir: Path) -> None:
    sandbox_id = worker.acquire()
    result = worker.call("execute", sandboxId=sandbox_id, argv=["sh", "-c", "exit 7"])
    assert (result["ended"], result["exitCode"]) == ("exited", 7)
    assert worker.call("destroyLease", sandboxId=sandbox_id) == {"state": "destroyed"}
    assert os.listdir(state_dir) == []


def test_a_killed_worker_takes_its_commands_at_once_and_its_sandbox_after_the_grace(
    worker: Worker, state_dir: Path
) -> None:
    word, daemon = unique_sleep(), unique_sleep()
    sandbox_id = worker.acquire()
    init = worker.init_of(sandbox_id)
    worker.call("execute", sandboxId=sandbox_id, shell=f"setsid -f sleep {daemon} >/dev/null 2>&1")
    worker.begin("execute", sandboxId=sandbox_id, shell=f"setsid sleep {word} & sleep {word}")
    mine, left = started(word, 2), started(daemon)
    os.kill(worker.process.pid, signal.SIGKILL)
    assert worker.process.stdout is not None
    while worker.process.stdout.readline():
        pass  # Nothing that lives on holds the host's pipe open.
    wait_for_end(*mine)
    wait_for_end(init, *left)
    assert os.listdir(state_dir) == []


def test_the_end_of_its_input_ends_a_worker_and_its_sandbox_after_the_grace(worker: Worker, state_dir: Path) -> None:
    sandbox_id = worker.acquire()
    init = worker.init_of(sandbox_id)
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(PATIENCE_S) == 0
    wait_for_end(init)
    assert os.listdir(state_dir) == []


def test_signals_to_the_workers_group_do_not_reach_the_init(state_dir: Path) -> None:
    first, second = Worker(state_dir), Worker(state_dir)
    try:
        sandbox_id = first.acquire()
        init = first.init_of(sandbox_id)
        os.killpg(first.process.pid, signal.SIGKILL)
        assert first.process.wait(PATIENCE_S) == -signal.SIGKILL
        attached = second.attach(sandbox_id)
        assert (attached["state"], attached.get("processesLost", False)) == ("attached", False)
        assert second.init_of(sandbox_id) == init
        assert second.destroy(sandbox_id) == "destroyed"
    finally:
        first.close()
        second.close()


def test_an_end_while_a_command_runs_ends_the_command(worker: Worker, state_dir: Path) -> None:
    word = unique_sleep()
    sandbox_id = worker.acquire()
    init = worker.init_of(sandbox_id)
    worker.begin("execute", sandboxId=sandbox_id, argv=["sleep", word])
    command = started(word)
    worker.process.terminate()
    wait_for_end(*command)
    assert worker.process.wait(PATIENCE_S) == 0
    wait_for_end(init)
    assert os.listdir(state_dir) == []
