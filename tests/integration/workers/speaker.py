"""The wire as the test workers speak it: one JSON text a line, with the standard library alone.

A worker says only what it does differently; everything else is answered here as a provider of no sandboxes would.
Started as `env PYTHONPATH=<root> python -S -m tests.integration.workers.NAME [--journal FILE] [ARGUMENT...]`.
"""

import base64
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

Message = dict[str, Any]
Handler = Callable[[Message], Any]

MANDATORY = (
    "initialize",
    "ping",
    "shutdown",
    "validateConfig",
    "probe",
    "acquireLease",
    "attachLease",
    "listLeases",
    "destroyLease",
    "execute",
)
LATER: Any = object()
"""What a handler returns that answers by itself, or never."""


class Refused(Exception):
    """An error to answer a call with."""

    def __init__(self, code: int, message: str, **data: Any) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


class Speaker:
    """One side of the wire, on the process's own stdin and stdout; writing is safe from several threads."""

    def __init__(self) -> None:
        self.arguments = sys.argv[1:]
        self._journal: int | None = None
        if self.arguments[:1] == ["--journal"]:
            self._journal = os.open(self.arguments[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            del self.arguments[:2]
        self._lock = threading.Lock()
        self.open: dict[Any, str] = {}
        self.hello: Message = {}
        """The params of the host's hello."""
        self.handlers: dict[str, Handler] = {
            "initialize": self._initialize,
            "ping": lambda message: {"open": [i for i in self.open if i != message["id"]]},
            "shutdown": lambda message: {},
            "validateConfig": lambda message: {"config": message["params"].get("config", {})},
            "probe": lambda message: {},
            "acquireLease": lambda message: lease(message["params"]["sandboxId"]),
            "attachLease": lambda message: {"state": "attached", "lease": lease(message["params"]["sandboxId"])},
            "listLeases": lambda message: {"leases": []},
            "destroyLease": lambda message: {"state": "destroyed"},
            "execute": self.succeed,
            "initialized": lambda message: self.note("ready", {}),
        }
        self.facts: Message = {}
        """Laid over the hello."""

    # ------------------------------------------------------------ out

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        with self._lock:
            while data:
                data = data[os.write(1, data) :]

    def say(self, message: Message) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False).encode() + b"\n")

    def answer(self, request: Any, result: Any) -> None:
        # In this order: a pong between the two may list an id too many, never one too few.
        self.say({"id": request, "result": result})
        self.open.pop(request, None)

    def refuse(self, request: Any, code: int, message: str, **data: Any) -> None:
        self.say({"id": request, "error": {"code": code, "message": message, "data": data}})
        self.open.pop(request, None)

    def note(self, method: str, params: Message) -> None:
        self.say({"method": method, "params": params})

    def output(self, request: Any, stream: str, offset: int, data: bytes = b"", end: str | None = None) -> None:
        params: Message = {"id": request, "stream": stream, "offset": offset, "data": base64.b64encode(data).decode()}
        self.note("output", params if end is None else {**params, "end": end})

    def record(self, event: str, **facts: Any) -> None:
        """One line in the journal, for the test to read."""
        if self._journal is not None:
            os.write(self._journal, json.dumps({"event": event, "pid": os.getpid(), **facts}).encode() + b"\n")

    def succeed(self, message: Message, stdout: bytes = b"") -> Any:
        """Answer an execute as a program would that prints and exits with 0."""
        request = message["id"]
        if stdout:
            self.output(request, "stdout", 0, stdout)
        self.output(request, "stdout", len(stdout), end="seen")
        self.output(request, "stderr", 0, end="seen")
        return exited(0, stdout=len(stdout))

    # ------------------------------------------------------------ in

    def messages(self) -> Iterator[Message]:
        """What the host says, until it ends."""
        for line in sys.stdin.buffer:
            message: Message = json.loads(line)
            self.record("received", method=message.get("method"), id=message.get("id"))
            yield message

    def _initialize(self, message: Message) -> Message:
        self.hello = message["params"]
        return {
            "protocolVersion": 1,
            "provider": {"name": "scripted", "version": "0"},
            "supportedMethods": list(MANDATORY),
            **self.facts,
        }

    def serve(self) -> None:
        """Answer until the host ends its side."""
        self.record("started", argv=sys.argv, cwd=os.getcwd(), environ=dict(os.environ))
        for message in self.messages():
            self.take(message)

    def take(self, message: Message) -> None:
        """Answer one message."""
        method, request = message["method"], message.get("id")
        handler = self.handlers.get(method)
        if request is None:
            if handler is not None:
                handler(message)
            return
        self.open[request] = method
        if handler is None:
            self.refuse(request, -32601, f"no method {method}", dispatched="no")
            return
        try:
            result = handler(message)
        except Refused as error:
            self.refuse(request, error.code, error.message, **error.data)
        else:
            if result is not LATER:
                self.answer(request, result)


def lease(sandbox_id: str) -> Message:
    """A lease on nothing."""
    return {"handle": f"scripted:{sandbox_id}", "workingDirectory": "/"}


def exited(code: int, stdout: int = 0, stderr: int = 0) -> Message:
    """The result of a command that ended by itself, its output sent before."""
    return {
        "ended": "exited",
        "exitCode": code,
        "stdout": {"totalBytes": stdout},
        "stderr": {"totalBytes": stderr},
    }


def log(text: str) -> None:
    """A line on stderr."""
    with contextlib.suppress(OSError):
        os.write(2, text.encode() + b"\n")
