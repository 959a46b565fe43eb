"""What a command leaves behind, and a host that takes nothing, keep no command of this worker from its answer."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandport_sdk.testing import new_id

PROGRAM = Path(__file__).resolve().parents[1] / "worker.py"
CREDIT_BYTES = 1000
WINDOW_BYTES = 256 * 1024
SLOW = "while :; do echo x; sleep 0.05; done"
FLOOD = "exec yes"


class Worker:
    """The worker with one sandbox, and a host that gives credit only for the commands of which it takes the output."""

    def __init__(self, process: subprocess.Popen[bytes], state_dir: Path) -> None:
        self.sandbox_id = new_id()
        self._process = process
        self._last = 0
        self.output: dict[int, bytearray] = {}
        self.taken: set[int] = set()
        hello = {"protocolVersions": [1], "host": {"name": "test", "version": "1"}, "storeId": "store"}
        limits = {"creditBytes": CREDIT_BYTES}
        self.answer(self.ask("initialize", **hello, stateDir=str(state_dir), limits=limits))
        self.tell("initialized")
        self.answer(self.ask("acquireLease", sandboxId=self.sandbox_id, ttlMs=60_000))

    def tell(self, method: str, **params: Any) -> None:
        self._write({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, **params: Any) -> int:
        self._last += 1
        self._write({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def credit(self, number: int, count: int) -> None:
        self.tell("credit", id=number, stream="stdout", bytes=count)

    def take(self, number: int) -> None:
        """From now on take a command's output as it comes, and give credit for what was taken, as a host does.

        Credit for a whole flood at once would let it grow in the worker for as long as this reads more slowly, which
        on a loaded machine is longer than a worker bears a silent host.
        """
        self.taken.add(number)
        self.credit(number, WINDOW_BYTES)

    def run(self, shell: str, **params: Any) -> int:
        return self.ask("execute", sandboxId=self.sandbox_id, shell=shell, **params)

    def leave(self, chatter: str, then: str, **params: Any) -> int:
        """Run a command that leaves this in a session of its own, out of reach of what becomes of the command."""
        child = f"setsid sh -c 'touch up; {chatter}' &"
        return self.run(f"{child} until [ -e up ]; do sleep 0.01; done; rm up; {then}", **params)

    def answer(self, number: int) -> dict[str, Any]:
        """The result of a request, or its error's data."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("method") == "output":
                params = message["params"]
                piece = base64.b64decode(params.get("data", ""))
                self.output.setdefault(params["id"], bytearray()).extend(piece)
                if piece and params["id"] in self.taken:
                    self.credit(params["id"], len(piece))
            elif message.get("id") == number:
                result: dict[str, Any] = message["result"] if "result" in message else message["error"]["data"]
                return result
        raise AssertionError("the worker ended before it answered")

    def wait_for(self, file: str) -> None:
        """Return once a command has made a file."""
        assert self.answer(self.run(f"until [ -e {file} ]; do sleep 0.01; done; rm {file}"))["ended"] == "exited"

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    words = [sys.executable, str(PROGRAM)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            worker = Worker(process, tmp_path)
            yield worker
            assert worker.answer(worker.ask("destroyLease", sandboxId=worker.sandbox_id)) == {"state": "destroyed"}
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("chatter", [SLOW, FLOOD])
def test_what_a_command_leaves_writing_keeps_nobody_waiting(worker: Worker, chatter: str) -> None:
    kept = worker.answer(worker.leave(chatter, "echo last >&2; exit 3", timeoutMs=60_000))
    assert (kept["ended"], kept["exitCode"], kept["stdout"]["end"]) == ("exited", 3, "heldOpen")
    assert base64.b64decode(kept["stderr"]["data"]) == b"last\n"

    late = worker.answer(worker.leave(chatter, "sleep 60", timeoutMs=1500))
    assert (late["ended"], late["stdout"]["end"]) == ("timedOut", "heldOpen")

    number = worker.leave(chatter, "touch down; sleep 60")
    worker.wait_for("down")
    worker.tell("cancel", id=number)
    assert worker.answer(number)["condition"] == "Cancelled"

    number = worker.leave(chatter, "exit 0", live=True)
    worker.take(number)
    live = worker.answer(number)
    assert (live["ended"], live["stdout"]["end"]) == ("exited", "heldOpen")
    assert live["stdout"]["totalBytes"] == len(worker.output[number])


def test_output_that_waits_for_credit_is_the_commands_own_to_its_last_byte(worker: Worker) -> None:
    number = worker.run("head -c 50000 /dev/zero; touch over", live=True)
    worker.wait_for("over")
    assert worker.answer(worker.run("sleep 0.5"))["ended"] == "exited"  # past the moment that its streams get
    worker.credit(number, 50_000)
    result = worker.answer(number)
    assert (result["ended"], result["stdout"]) == ("exited", {"totalBytes": 50_000, "end": "seen"})
    assert worker.output[number] == bytes(50_000)


def test_a_cancel_is_answered_where_a_command_has_ended_and_nobody_takes_its_output(worker: Worker) -> None:
    number = worker.run("head -c 50000 /dev/zero; touch over", live=True)
    worker.wait_for("over")
    worker.tell("cancel", id=number)
    assert worker.answer(number)["condition"] == "Cancelled"
