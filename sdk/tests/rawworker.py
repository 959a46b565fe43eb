"""A worker process driven over raw pipes: bytes in, lines out, and nothing of ours between."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

TESTS = Path(__file__).parent
PATIENCE_S = 60.0
"""Every wait ends with a failure after so long; none of them is a measure of speed."""
SANDBOX_ID = "sp" + "a" * 26


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "", **more}


class RawWorker:
    """One worker; every line that it writes must be JSON."""

    def __init__(self, *command: str, env: dict[str, str] | None = None, **popen: Any) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        self.process = subprocess.Popen(
            command or (sys.executable, "-P", "-m", "specimen"),
            stdin=popen.pop("stdin", subprocess.PIPE),
            stdout=subprocess.PIPE,
            stderr=self.log,
            bufsize=0,
            env=env or environment(),
            **popen,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()
        self.buffer = b""
        self.last_id = 0
        self.answers: dict[Any, dict[str, Any]] = {}
        self.notes: list[dict[str, Any]] = []
        self.lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            if pipe is not None:
                pipe.close()

    # ------------------------------------------------------------ sending

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def send(self, *messages: dict[str, Any]) -> None:
        self.send_bytes(b"".join(json.dumps({"jsonrpc": "2.0", **m}).encode() + b"\n" for m in messages))

    def request(self, method: str, params: Any = None, id: Any = None) -> dict[str, Any]:  # noqa: A002 - as on the wire
        if id is None:
            self.last_id += 1
            id = self.last_id  # noqa: A001
        return {"id": id, "method": method, "params": {} if params is None else params}

    def start(self, method: str, params: Any = None) -> int:
        message = self.request(method, params)
        self.send(message)
        return int(message["id"])

    def cancel(self, request_id: Any) -> None:
        self.send({"method": "cancel", "params": {"id": request_id}})

    def close_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    # ------------------------------------------------------------ reading

    def read(self) -> dict[str, Any] | None:
        """The next message; None at the end of output."""
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self.buffer:
            if not select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"the worker said nothing for {PATIENCE_S} s; its log:\n{self.stderr()}")
            data = os.read(self.output, 1 << 20)
            if not data:
                assert self.buffer == b"", f"half a frame at the end: {self.buffer[:100]!r}"
                return None
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        self.lines += 1
        message = json.loads(line, parse_constant=_refuse)
        assert isinstance(message, dict), f"not a message: {line[:100]!r}"
        if "method" in message:
            self.notes.append(message)
        else:
            assert message["id"] not in self.answers, f"id {message['id']!r} was answered twice"
            self.answers[message["id"]] = message
        return message

    def answer(self, request_id: Any) -> dict[str, Any]:
        """The answer to one request; what else comes until then is kept."""
        while request_id not in self.answers:
            if self.read() is None:
                raise EOFError(f"no answer to {request_id!r} before the end; the log:\n{self.stderr()}")
        return self.answers[request_id]

    def call(self, method: str, params: Any = None) -> dict[str, Any]:
        return self.answer(self.start(method, params))

    def note(self, method: str, count: int = 1) -> dict[str, Any]:
        """The so-manyth notification of one kind."""
        while len(found := [note for note in self.notes if note["method"] == method]) < count:
            if self.read() is None:
                raise EOFError(f"no {method} before the end; the log:\n{self.stderr()}")
        return found[count - 1]

    def read_to_end(self) -> None:
        while self.read() is not None:
            pass

    # ------------------------------------------------------------ a session

    def greet(self, **limits: int) -> dict[str, Any]:
        hello = self.call(
            "initialize",
            {
                "protocolVersions": [1],
                "host": {"name": "raw", "version": "1"},
                "storeId": "store",
                "stateDir": "/nowhere",
                "limits": limits,
            },
        )
        self.send({"method": "initialized"})
        return hello

    def ready(self, **limits: int) -> Self:
        try:
            self.greet(**limits)
            self.note("ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    # ------------------------------------------------------------ the process

    def stderr(self) -> str:
        return os.pread(self.log.fileno(), 1 << 22, 0).decode(errors="replace")

    def logged(self, text: str, count: int = 1) -> str:
        """The log, once it has this text so often."""
        deadline = time.monotonic() + PATIENCE_S
        while self.stderr().count(text) < count:
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{self.stderr()}"
            time.sleep(0.005)
        return self.stderr()

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} on the wire")
