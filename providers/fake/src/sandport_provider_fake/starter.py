"""The worker's side of a guard: starting programs through it, and knowing how they ended.

Also what a worker does about the guards of others: it ends them before a sandbox is removed, and finds out at an
attach whether something was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import time
from array import array
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandport_sdk.v1 import errors

from . import guard
from .errors import sandbox_failed, start_failed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

POLL_S = 0.005
END_S = 15.0
"""A guard gives up after `guard.END_S`; one that is still there after this is stopped or hangs."""
TOKEN = "SANDPORT_WORKER_TOKEN"
MARK = "SANDPORT_SANDBOX_ID"
GUARD_MARK = "SANDPORT_FAKE_GUARD"
"""In the environment of every command, so that what a killed guard has left can be found."""
SWEEP_S = 5.0


class Program:
    """One program that a guard was asked to start."""

    def __init__(self, starter: Starter, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.number = number
        self.started: asyncio.Future[None] = loop.create_future()
        self.status: asyncio.Future[int | None] = loop.create_future()
        """The wait status; None where the sandbox ended first, or its guard was killed."""
        self.failure: tuple[str, int] | None = None
        self._starter = starter

    async def signal(self, number: int) -> bool:
        """Signal its group; False where it has ended."""
        if self.status.done():
            return False
        self._starter.resume()
        await self._starter.tell({"signal": self.number, "with": number})
        return True


class Starter:
    """A guard of ours, for one sandbox."""

    def __init__(self, folder: Path) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why it ended: `destroyed`, `orphaned` (we left), or `killed`."""
        self._loop = asyncio.get_running_loop()
        self._folder = folder
        self._programs: dict[int, Program] = {}
        self._last = 0
        self._why = "killed"
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = -1
        self._ending: asyncio.Task[None] | None = None
        self._theirs: socket.socket | None = theirs

    def begin(self, record: Path) -> None:
        """Start the guard; it need not be waited for.

        Raises:
            OSError: It cannot be started.
        """
        theirs, self._theirs = self._theirs, None
        assert theirs is not None
        environment = {"LANG": "C.UTF-8"}
        if token := os.environ.get(TOKEN):
            environment[TOKEN] = token  # by this the host finds what a killed worker has left
        words = ("3", str(self._folder), str(record), worker_name())
        with theirs:
            try:
                self._pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-I", "-S", _program(), *words],
                    environment,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3),
                        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_DUP2, 2, 1),
                    ],
                    setsid=True,
                    setsigmask=(),
                    setsigdef=[n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)],
                )
            except OSError:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_message)

    @property
    def is_ending(self) -> bool:
        """Whether it is no more, or almost: it starts nothing."""
        return self._ending is not None

    @property
    def marks(self) -> dict[bytes, bytes]:
        """What every command has in its environment, so that what is left of it can be found."""
        token = os.environb.get(TOKEN.encode())
        marks = {} if token is None else {TOKEN.encode(): token}
        sandbox_id = self._folder.name
        return marks | {
            MARK.encode(): sandbox_id.encode(),
            GUARD_MARK.encode(): f"{sandbox_id}.{self._pid}".encode(),
        }

    async def start(
        self, argv: Sequence[bytes], env: Mapping[bytes, bytes], cwd: bytes, fds: tuple[int, int, int]
    ) -> Program:
        """Start a program and wait until it runs.

        Raises:
            CommandNotFound, CommandNotExecutable, PathNotFound, TooLarge, QuotaExceeded: Why it does not.
            SandboxLost: The sandbox ended meanwhile.
        """
        self._last += 1
        program = self._programs[self._last] = Program(self, self._last)
        plan = {
            "argv": [os.fsdecode(word) for word in argv],
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()},
            "cwd": os.fsdecode(cwd),
        }
        with os.fdopen(os.memfd_create("plan", os.MFD_CLOEXEC), "wb+") as file:
            file.write(json.dumps(plan).encode())
            file.flush()
            file.seek(0)
            await self.tell({"start": program.number}, (file.fileno(), *fds))
        await asyncio.shield(program.started)
        if program.failure is not None:
            stage, number = program.failure
            raise start_failed(stage, number, program=argv[0], cwd=cwd)
        return program

    async def tell(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        """Say something to the guard; nothing where it has ended.

        Raises:
            QuotaExceeded: The machine passes no more descriptors on now.
            SandboxLost: It has ended, and was to get descriptors.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        while not self.is_ending:
            try:
                self._socket.sendmsg([json.dumps(message).encode()], rights)
                return
            except BlockingIOError:
                await asyncio.sleep(POLL_S)
            except OSError as error:
                if fds and not isinstance(error, ConnectionError):
                    raise sandbox_failed(error, dispatched="no") from error
                self._end()
        if fds:
            raise errors.SandboxLost("the sandbox ended before the command was started", dispatched="no")

    async def end(self) -> None:
        """End everything that runs in the sandbox for this worker, and the guard."""
        self.resume()
        await self.tell({"end": True})
        await asyncio.shield(self.over)

    async def leave(self) -> None:
        """End it as the end of this worker would: what ran is lost."""
        if not self.is_ending:
            self.resume()
            self._socket.shutdown(socket.SHUT_WR)
        await asyncio.shield(self.over)

    def resume(self) -> None:
        """Let the guard go on: a command may have stopped it, and it would not hear what ends that command."""
        if self._pid > 0 and not self.is_ending:  # Until then it is not reaped, and the number its own.
            os.kill(self._pid, signal.SIGCONT)

    def _on_message(self) -> None:
        try:
            data = self._socket.recv(guard.MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        message: dict[str, Any] = json.loads(data)
        if "over" in message:
            self._why = message["over"]
            self._give_up()
        elif "started" in message:
            _set(self._programs[message["started"]].started, None)
        elif "failed" in message:
            program = self._programs.pop(message["failed"])
            program.failure = (message["stage"], message["errno"])
            _set(program.started, None)
        elif (ended := self._programs.pop(message["ended"], None)) is not None:
            _set(ended.status, message["status"])

    def _give_up(self) -> None:
        for program in self._programs.values():
            if not program.started.done():
                lost = errors.SandboxLost("the sandbox ended while the command was started", dispatched="unknown")
                program.started.set_exception(lost)
            _set(program.status, None)
        self._programs.clear()

    def _end(self) -> None:
        if self._ending is None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._ending = self._loop.create_task(self._clear_up())

    async def _clear_up(self) -> None:
        """Wait for the guard and, where it was killed, for what it left; others are served meanwhile."""
        try:
            with contextlib.suppress(ChildProcessError):
                await asyncio.to_thread(os.waitpid, self._pid, 0)
            if self._why == "killed":
                await asyncio.to_thread(sweep, GUARD_MARK, f"{self._folder.name}.{self._pid}")
        finally:
            self._give_up()
            _set(self.over, self._why)


def _program() -> str:
    """The guard's file: compiled where that is of its present source, since compiling is much of its start."""
    cached = guard.__spec__.cached
    if cached is None:
        return guard.__file__
    source = os.stat(guard.__file__)
    words = (0, int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF)
    try:
        with open(cached, "rb") as file:
            header = file.read(16)
    except OSError:
        return guard.__file__
    return cached if header == MAGIC_NUMBER + struct.pack("<3I", *words) else guard.__file__


def _set(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


# ------------------------------------------------------------------ guards of any worker


def worker_name() -> str:
    """This process, told apart from any other that may get its number."""
    return f"{os.getpid()} {_start_ticks(os.getpid())}"


async def end_guards(folder: Path) -> None:
    """End every guard of a sandbox, and with it everything that runs there; the record says already that it ends.

    Raises:
        Unavailable: One did not end.
    """
    deadline = asyncio.get_running_loop().time() + END_S
    killed = False
    while found := _guards(folder):
        for path, fd in found.items():
            if fd is not None:  # its lock could be had: it was killed
                os.close(fd)
                path.unlink(missing_ok=True)
                killed = True
            else:
                _terminate(path)
        if asyncio.get_running_loop().time() > deadline:
            raise errors.Unavailable(f"what runs in the sandbox does not end: guards {_names(found)}", dispatched="yes")
        await asyncio.sleep(POLL_S)
    if killed:
        await asyncio.to_thread(sweep, MARK, folder.name)


async def look_for_losses(folder: Path) -> bool:
    """Whether something that ran in the sandbox was lost with its worker, or with its guard."""
    deadline = asyncio.get_running_loop().time() + END_S
    while orphaned := [path for path, fd in _guards(folder, locked_only=True).items() if fd is None and _lost(path)]:
        if asyncio.get_running_loop().time() > deadline:
            raise errors.Unavailable(f"what ran in the sandbox does not end: guards {_names(orphaned)}")
        await asyncio.sleep(POLL_S)
    with contextlib.ExitStack() as locks:
        dead = {path: fd for path, fd in _guards(folder).items() if fd is not None}
        for fd in dead.values():
            locks.callback(os.close, fd)
        for path in dead:
            await asyncio.to_thread(sweep, GUARD_MARK, f"{folder.name}.{path.name}")
            (folder / guard.LOST).touch(mode=0o600)
            path.unlink(missing_ok=True)
    return (folder / guard.LOST).exists()


def sweep(name: str, value: str) -> None:
    """Kill what a killed guard has left, found by its environment; blocks, mostly for some milliseconds."""
    mark = f"{name}={value}".encode()
    deadline = time.monotonic() + SWEEP_S
    while time.monotonic() < deadline and (found := [pid for pid in _pids() if mark in _environment(pid)]):
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(guard.PAUSE_S)


def _guards(folder: Path, *, locked_only: bool = False) -> dict[Path, int | None]:
    """The guards' files; each with its lock where the guard is dead, None where it lives."""
    found: dict[Path, int | None] = {}
    try:
        names = [name for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return found
    for name in names:
        path = folder / name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            found[path] = None
        else:
            if locked_only:
                os.close(fd)
            elif path.exists():
                found[path] = fd
            else:
                os.close(fd)  # it ended in the meantime, in order
    return found


def _lost(path: Path) -> bool:
    """Whether the worker of a guard is gone."""
    try:
        pid, ticks = path.read_text().split()
    except (FileNotFoundError, ValueError):
        return False
    return _start_ticks(int(pid)) != ticks


def _terminate(path: Path) -> None:
    with contextlib.suppress(ProcessLookupError, OSError):
        fd = os.pidfd_open(int(path.name))
        try:
            # Read again once the process is held: the file is the one of this process, or it is gone.
            if path.exists():
                signal.pidfd_send_signal(fd, signal.SIGTERM)
                signal.pidfd_send_signal(fd, signal.SIGCONT)
        finally:
            os.close(fd)


def _names(paths: object) -> str:
    return ", ".join(path.name for path in paths)  # type: ignore[attr-defined]


def _start_ticks(pid: int) -> str:
    """When a process was started, in the kernel's unit; empty where there is none, or it only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []
