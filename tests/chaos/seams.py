"""Where the points of a run are: between the host and SQLite, and between the host and the pipes of its workers.

All of it is put in place by the program that runs the host, around the standard library's `sqlite3.connect` and the
event loop's two ways to open a pipe. The product's code runs as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import signal
import sqlite3
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandport.worker import lifetime
from sandport.worker.client import WorkerClient
from sandport.worker.launch import WorkerProcess

from .points import Gate, Ledger, Plan, Point

_READ_WITHIN_S = 1.0
_UNCOUNTED = frozenset({"ping", "$/ping", "pong"})
"""They come with time and not with the work; a point that is there in one run and not in the next cannot be planned."""


class Seams:
    """The seams of one host process.

    Attributes:
        gate: What they lead through.
    """

    def __init__(self, ledger: Path, plan: Plan | None) -> None:
        self._processes: dict[int, WorkerProcess] = {}
        self._names: dict[int, _Names] = {}
        self.gate = Gate(Ledger(ledger), plan, end_workers=self.end_workers, worker_lives=lambda: bool(self._living()))

    def install(self) -> None:
        """Put them in place; call it on the running loop, before a host is opened."""
        sqlite3.connect = functools.partial(sqlite3.connect, factory=_connection_class(self.gate))  # type: ignore[assignment]
        spawn = lifetime.spawn  # type: ignore[attr-defined]

        def spawn_noted(*arguments: Any, **options: Any) -> WorkerProcess:
            process = spawn(*arguments, **options)
            self._names[process.pid] = _Names()
            self._processes[process.stdin_fd] = self._processes[process.stdout_fd] = process
            return process

        lifetime.spawn = spawn_noted  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        connect_write, connect_read = loop.connect_write_pipe, loop.connect_read_pipe

        async def write_pipe(factory: Callable[[], Any], pipe: Any) -> tuple[Any, Any]:
            fd = pipe.fileno()
            transport, protocol = await connect_write(factory, pipe)
            process = self._processes.get(fd)
            return (
                transport if process is None else _Outgoing(transport, fd, process, self._names[process.pid], self.gate)
            ), protocol

        async def read_pipe(factory: Callable[[], Any], pipe: Any) -> tuple[Any, Any]:
            process = self._processes.get(pipe.fileno())
            protocol = factory()
            if process is None or not isinstance(protocol, WorkerClient):
                return await connect_read(lambda: protocol, pipe)
            transport, _ = await connect_read(
                lambda: _Incoming(protocol, process, self._names[process.pid], self.gate), pipe
            )
            return transport, protocol

        loop.connect_write_pipe = write_pipe  # type: ignore[assignment, method-assign]
        loop.connect_read_pipe = read_pipe  # type: ignore[assignment, method-assign]

    def _living(self) -> list[WorkerProcess]:
        return [process for process in set(self._processes.values()) if process.alive]

    def workers(self) -> list[WorkerProcess]:
        """Those that live."""
        return self._living()

    def end_workers(self) -> None:
        """Kill them all, and return once they are dead; nobody has reaped them yet."""
        living = self._living()
        for process in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for process in living:
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


# ------------------------------------------------------------------ the journal


def _connection_class(gate: Gate) -> type[sqlite3.Connection]:
    class Journal(sqlite3.Connection):
        """A connection whose commits are points, named for the kinds of receipts that they hold."""

        def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if statement.startswith("BEGIN"):
                self._whats: list[str] = []
                self._changes = self.total_changes
            elif "INSERT INTO receipt" in statement:
                self._whats.append(str(parameters[2]))
            if statement != "COMMIT" or self.total_changes == self._changes:
                return super().execute(statement, parameters)
            what = f"commit {'+'.join(dict.fromkeys(self._whats)) or 'other'}"
            step, nth = gate.next(what)
            gate.reach(Point(step, what, nth, "before"))
            cursor = super().execute(statement, parameters)
            gate.reach(Point(step, what, nth, "after"))
            return cursor

    return Journal


# ------------------------------------------------------------------ the wire


class _Names:
    """What the frames of one worker are called: an answer by the method that it answers."""

    def __init__(self) -> None:
        self._asked: dict[Any, str] = {}

    def of(self, frame: bytes) -> tuple[str, str]:
        """What a frame is, and of a create which sandbox it is for."""
        try:
            said = json.loads(frame)
        except ValueError:
            return "junk", ""
        if "method" in said:
            if "id" in said:
                self._asked[said["id"]] = said["method"]
            sandbox = said["params"].get("sandboxId", "") if said["method"] == "acquireLease" else ""
            return str(said["method"]), sandbox
        method = self._asked.get(said.get("id"), "?")
        return f"{method} {'failed' if 'error' in said else 'answered'}", ""


def _uncounted(name: str) -> bool:
    return name.split(maxsplit=1)[0] in _UNCOUNTED


class _Outgoing:
    """The transport of a worker's stdin, one frame at a time."""

    def __init__(self, transport: Any, fd: int, process: WorkerProcess, names: _Names, gate: Gate) -> None:
        self._names = names
        self._transport = transport
        self._fd = fd
        self._process = process
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        for frame in bytes(data).splitlines(keepends=True):
            name, sandbox = self._names.of(frame)
            if _uncounted(name):
                self._transport.write(frame)
                continue
            what = f"> {name}"
            step, nth = self._gate.next(what)
            self._gate.reach(Point(step, what, nth, "before"), sandbox=sandbox)
            self._transport.write(frame)
            after = Point(step, what, nth, "after")
            if self._gate.is_next(after) and self._gate.takes_workers:
                self._wait_until_read()
            self._gate.reach(after, sandbox=sandbox)

    def _wait_until_read(self) -> None:
        """A worker that dies after a message dies with it, not before it: the pipe is empty first."""
        until = time.monotonic() + _READ_WITHIN_S
        while self._process.alive and time.monotonic() < until:
            left = bytearray(4)
            fcntl.ioctl(self._fd, termios.FIONREAD, left)
            if struct.unpack("i", left)[0] == 0 and not self._transport.get_write_buffer_size():
                return


class _Incoming(asyncio.Protocol):
    """The protocol of a worker's stdout, one frame at a time.

    A worker that dies before a message dies with the message in its hands: the host never gets it.
    """

    def __init__(self, client: WorkerClient, process: WorkerProcess, names: _Names, gate: Gate) -> None:
        self._names = names
        self._client = client
        self._process = process
        self._gate = gate
        self._rest = b""
        self._mute = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connection_lost(error)

    def eof_received(self) -> bool | None:
        if self._rest and not self._mute:
            self._client.data_received(self._rest)
        return self._client.eof_received()

    def data_received(self, data: bytes) -> None:
        *frames, self._rest = (self._rest + data).split(b"\n")
        for frame in frames:
            if self._mute:
                return
            name, _ = self._names.of(frame)
            if _uncounted(name):
                self._client.data_received(frame + b"\n")
                continue
            what = f"< {name}"
            step, nth = self._gate.next(what)
            if self._gate.reach(Point(step, what, nth, "before")):
                self._mute = True
                return
            self._client.data_received(frame + b"\n")
            self._gate.reach(Point(step, what, nth, "after"))
