"""A worker as a process of its own, as a host has it: real pipes and plain JSON."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from providers.local.tests import as_user
from providers.local.tests.leases import ISOLATION
from providers.local.tests.machine import PATIENCE_S
from sandport_sdk.testing import new_id


class Worker:
    """A worker on a state directory; several may be on one."""

    def __init__(
        self,
        state_dir: Path,
        *,
        grace_ms: int = 60_000,
        variables: dict[str, str] | None = None,
        user: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start it, with `prefix` before its command, or where the tests are root's as the user `user`."""
        self.state_dir = state_dir
        command = [*prefix, sys.executable, "-P", "-m", "sandport_provider_local"]
        if user is not None:
            command = [sys.executable, "-P", as_user.__file__, str(user), os.fspath(state_dir)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            cwd="/",
            env={**os.environ, **(variables or {})},
        )
        self.last = 0
        self.early: dict[int, dict[str, Any]] = {}
        self.outputs: list[dict[str, Any]] = []
        hello = self.call(
            "initialize",
            protocolVersions=[1],
            host={"name": "test", "version": "1"},
            storeId="store",
            stateDir=os.fspath(state_dir) if user is None else as_user.STATE_DIR,
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
            elif message["method"] == "output":
                self.outputs.append(message["params"])
        return self.early.pop(number)

    def call(self, method: str, **params: Any) -> Any:
        message = self.answer(self.begin(method, **params))
        assert "result" in message, message
        return message["result"]

    def output(self, *, stream: str) -> list[bytes]:
        """The pieces of live output that came of a stream so far, of whichever calls."""
        return [base64.b64decode(said.get("data", "")) for said in self.outputs if said["stream"] == stream]

    def acquire(self, *, ttl_ms: int = 600_000, **more: Any) -> str:
        sandbox_id = new_id()
        config = {"isolation": ISOLATION, **more.pop("config", {})}
        self.call("acquireLease", sandboxId=sandbox_id, ttlMs=ttl_ms, config=config, **more)
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
        assert self.process.wait(PATIENCE_S) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.kill()
        self.process.stdin.close()
        self.process.stdout.close()
