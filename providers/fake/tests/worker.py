"""A worker of the fake vendor as a process of its own, over pipes, with plain JSON."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any, Self

from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import new_id


class Ended(Exception):
    """The worker ended before it answered."""


class Worker:
    """One worker, greeted.

    Attributes:
        process: The process.
        lines: Everything that it wrote so far, parsed where it is JSON, else as text.
    """

    def __init__(self, fake: Fake, *, store_id: str = "store", greet: bool = True) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sandport_provider_fake"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            cwd="/",
        )
        self.lines: list[Any] = []
        self._fake = fake
        self._store_id = store_id
        self._last = 0
        if greet:
            self.greet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was still to be written is for nobody
                pipe.close()

    def greet(self) -> Any:
        hello = self.call(
            "initialize",
            protocolVersions=[1],
            host={"name": "test", "version": "1"},
            storeId=self._store_id,
            stateDir=os.fspath(self._fake.state_dir),
            limits={"drainMs": 300},
        )
        self.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        return hello

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Ended from error

    def begin(self, method: str, **params: Any) -> int:
        self._last += 1
        self.send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def read(self) -> Any:
        """The next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Ended
        try:
            self.lines.append(json.loads(line))
        except ValueError:
            self.lines.append(line.decode().rstrip("\n"))
        return self.lines[-1]

    def answer(self, number: int) -> dict[str, Any]:
        """The whole answer to a request."""
        while True:
            message = self.read()
            if isinstance(message, dict) and message.get("id") == number:
                return message

    def call(self, method: str, **params: Any) -> Any:
        """The result of a request; an error is an AssertionError."""
        answer = self.answer(self.begin(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    def error(self, method: str, **params: Any) -> dict[str, Any]:
        """The `data` of a request's error."""
        answer = self.answer(self.begin(method, **params))
        assert "error" in answer, answer
        data: dict[str, Any] = answer["error"]["data"]
        return data

    def acquire(self, *, ttl_ms: int = 600_000, **params: Any) -> str:
        sandbox_id = new_id()
        self.call("acquireLease", sandboxId=sandbox_id, ttlMs=ttl_ms, **params)
        return sandbox_id

    def attach(self, sandbox_id: str, **params: Any) -> Any:
        return self.call("attachLease", sandboxId=sandbox_id, handle=f"fake/1/{sandbox_id}", **params)

    def move(self, method: str, sandbox_id: str, archive: bytes = b"") -> int:
        """Move an archive in, or what is in the sandbox out; its `bytes`. Small ones: nobody takes it meanwhile."""
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"{folder}/s")
            listening.listen(1)
            number = self.begin(method, sandboxId=sandbox_id, socket=f"{folder}/s", path=".")
            assert self.process.stdout is not None
            select.select((listening.fileno(), self.process.stdout.fileno()), (), ())  # it connects, or it has ended
            listening.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection, _ = listening.accept()
                with connection:
                    if archive:  # an archive that comes out may have come whole, and its socket be closed
                        connection.sendall(archive)
                    connection.shutdown(socket.SHUT_WR)
                    answer = self.answer(number)
                    assert "result" in answer, answer
                    size: int = answer["result"]["bytes"]
                    return size
            raise Ended

    def listed(self, **params: Any) -> list[str]:
        return [lease["sandboxId"] for lease in self.call("listLeases", **params).get("leases", ())]

    def destroy(self, sandbox_id: str) -> str:
        state: str = self.call("destroyLease", sandboxId=sandbox_id)["state"]
        return state

    def close(self) -> int:
        """End its input; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        return False
