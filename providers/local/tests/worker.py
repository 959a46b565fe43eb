"""A worker as a process of its own, as a host has it: real pipes and plain JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from sandport_sdk.testing import new_id


class Worker:
    """A worker on a state directory; several may be on one."""

    def __init__(self, state_dir: Path, *, grace_ms: int = 60_000, variables: dict[str, str] | None = None) -> None:
        self.state_dir = state_dir
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sandport_provider_local"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            cwd="/",
            env={**os.environ, **(variables or {})},
        )
        self.last = 0
        self.early: dict[int, dict[str, Any]] = {}
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

    def answer(self, number: int) -> dict[str, Any]:
        """The answer to a call, whatever it is; those to others that come first wait for who asks."""
        assert self.process.stdout is not None
        while number not in self.early:
            line = self.process.stdout.readline()
            assert line, "the worker ended before it answered"
            message = json.loads(line)
            if "id" in message:
                self.early[message["id"]] = message
        return self.early.pop(number)

    def call(self, method: str, **params: Any) -> Any:
        message = self.answer(self.begin(method, **params))
        assert "result" in message, message
        return message["result"]

    def acquire(self, *, ttl_ms: int = 600_000, **more: Any) -> str:
        sandbox_id = new_id()
        self.call("acquireLease", sandboxId=sandbox_id, ttlMs=ttl_ms, **more)
        return sandbox_id

    def attach(self, sandbox_id: str, **more: Any) -> Any:
        return self.call("attachLease", sandboxId=sandbox_id, handle=f"local/1/{sandbox_id}", **more)

    def destroy(self, sandbox_id: str) -> str:
        state: str = self.call("destroyLease", sandboxId=sandbox_id)["state"]
        return state

    def init_of(self, sandbox_id: str) -> int:
        """The process of a sandbox's init."""
        return int(json.loads((self.state_dir / sandbox_id / "init.json").read_text())["pid"])

    def end(self) -> None:
        """End it in order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(20) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()
