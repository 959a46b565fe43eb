"""A host that speaks to this worker by hand, message by message."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

from sandport_sdk.testing import new_id

CREDIT_BYTES = 1000
WINDOW_BYTES = 256 * 1024


class Worker:
    """The worker with one sandbox, and a host that gives credit only for the commands of which it takes the output."""

    def __init__(self, process: subprocess.Popen[bytes], state_dir: Path) -> None:
        self.sandbox_id = new_id()
        self._process = process
        self._last = 0
        self.output: dict[int, bytearray] = {}
        self.taken: set[int] = set()
        self._others: dict[int, dict[str, Any]] = {}
        hello = {"protocolVersions": [1], "host": {"name": "test", "version": "1"}, "storeId": "store"}
        limits = {"creditBytes": CREDIT_BYTES}
        self.answer(self.ask("initialize", **hello, stateDir=str(state_dir), limits=limits))
        self.tell("initialized")
        self.lease(self.sandbox_id)

    def lease(self, sandbox_id: str) -> None:
        self.answer(self.ask("acquireLease", sandboxId=sandbox_id, ttlMs=60_000))

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
        if number in self._others:
            return self._others.pop(number)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("method") == "output":
                params = message["params"]
                piece = base64.b64decode(params.get("data", ""))
                self.output.setdefault(params["id"], bytearray()).extend(piece)
                if piece and params["id"] in self.taken:
                    self.credit(params["id"], len(piece))
            elif "id" in message:
                result: dict[str, Any] = message["result"] if "result" in message else message["error"]["data"]
                if message["id"] == number:
                    return result
                self._others[message["id"]] = result
        raise AssertionError("the worker ended before it answered")

    def wait_for(self, file: str) -> None:
        """Return once a command has made a file."""
        assert self.answer(self.run(f"until [ -e {file} ]; do sleep 0.01; done; rm {file}"))["ended"] == "exited"

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
