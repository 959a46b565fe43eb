"""The worker as a process of its own, as a host has it: what becomes of a sandbox when the worker goes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.local.tests.leases import unique_sleep
from providers.local.tests.machine import started, wait_for_end
from sandport_sdk.testing import new_id


class Worker:
    """A worker over pipes, with plain JSON."""

    def __init__(self, state_dir: Path, *, grace_ms: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sandport_provider_local"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            cwd="/",
        )
        self.last = 0
        hello = self.call(
            "initialize",
            protocolVersions=[1],
            host={"name": "test", "version": "1"},
            storeId="store",
            stateDir=os.fspath(state_dir),
            limits={"orphanGraceMs": grace_ms},
        )
        assert hello["provider"]["name"] == "local"
        self.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        self.last += 1
        self.send({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params})
        return self.last

    def call(self, method: str, **params: Any) -> Any:
        number = self.begin(method, **params)
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == number:
                assert "result" in message, message
                return message["result"]
        raise AssertionError("the worker ended before it answered")

    def acquire(self, *, ttl_ms: int = 600_000) -> str:
        sandbox_id = new_id()
        self.call("acquireLease", sandboxId=sandbox_id, ttlMs=ttl_ms)
        return sandbox_id

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def worker(state_dir: Path) -> Iterator[Worker]:
    worker = Worker(state_dir, grace_ms=300)
    yield worker
    worker.close()


def init_of(state_dir: Path, sandbox_id: str) -> int:
    return int(json.loads((state_dir / sandbox_id / "init.json").read_text())["pid"])


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
    init = init_of(state_dir, sandbox_id)
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
    init = init_of(state_dir, sandbox_id)
    assert worker.process.stdin is not None
    worker.process.stdin.close()
    assert worker.process.wait(20) == 0
    wait_for_end(init)
    assert os.listdir(state_dir) == []


def test_signals_to_the_workers_group_do_not_reach_the_init(state_dir: Path) -> None:
    first, second = Worker(state_dir, grace_ms=60_000), Worker(state_dir, grace_ms=60_000)
    try:
        sandbox_id = first.acquire()
        init = init_of(state_dir, sandbox_id)
        os.killpg(first.process.pid, signal.SIGKILL)
        assert first.process.wait(20) == -signal.SIGKILL
        attached = second.call("attachLease", sandboxId=sandbox_id, handle=f"local/1/{sandbox_id}")
        assert (attached["state"], attached.get("processesLost", False)) == ("attached", False)
        assert init_of(state_dir, sandbox_id) == init
        assert second.call("destroyLease", sandboxId=sandbox_id) == {"state": "destroyed"}
    finally:
        first.close()
        second.close()


def test_an_end_while_a_command_runs_ends_the_command(worker: Worker, state_dir: Path) -> None:
    word = unique_sleep()
    sandbox_id = worker.acquire()
    init = init_of(state_dir, sandbox_id)
    worker.begin("execute", sandboxId=sandbox_id, argv=["sleep", word])
    command = started(word)
    worker.process.terminate()
    wait_for_end(*command)
    assert worker.process.wait(20) == 0
    wait_for_end(init)
    assert os.listdir(state_dir) == []
