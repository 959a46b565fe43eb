"""A command of a sandbox on this machine, as its worker sees it: a connection to the sandbox's keeper.

Callbacks in the loop and plain futures; no task and no thread.
"""

from __future__ import annotations

import array
import asyncio
import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from sandport_protocol import errors
from sandport_protocol.octets import pack

from .keeper import MESSAGE_BYTES
from .sandbox_folder import ask

EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT})
"""What the machine or the user has too little of; later there may be more."""


class Process:
    """A command of a sandbox: a group of processes, which ends with this worker.

    Attributes:
        pid: The number of its first process, and of its group.
    """

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = 0
        self._connection = connection
        self._loop = loop
        self._status: int | None = None
        self._failure: tuple[str, int] | None = None
        self._over = False
        self._waiting: list[asyncio.Future[None]] = []
        loop.add_reader(connection.fileno(), self._receive)

    async def wait(self) -> int:
        """Its exit code, once its first process has ended; below 0, the signal that ended it.

        What it has started may run on, in the sandbox, and may still hold its streams.

        Raises:
            errors.SandboxLost: The sandbox ended before.
        """
        while self._status is None:
            if self._over:
                raise errors.SandboxLost("the sandbox ended while the command ran", dispatched="yes")
            await self._news()
        return os.waitstatus_to_exitcode(self._status)

    def signal(self, number: int) -> None:
        """Send a signal to its group; nothing happens once its first process has ended."""
        if not self._over:
            ask(self._connection, signal=number)

    async def kill(self) -> None:
        """End its group, and return once its first process has ended."""
        self.signal(signal.SIGKILL)
        while self._status is None and not self._over:
            await self._news()

    def close(self) -> None:
        """Let go of it. What still runs of its group, while its first process does, is ended."""
        if not self._over:
            ask(self._connection, leave=None)
            self._end()

    # ------------------------------------------------------------ what the keeper says

    async def _begin(self) -> None:
        """Return once it runs.

        Raises:
            WireError: It does not, and why.
        """
        while not self.pid and self._failure is None:
            if self._over:
                raise errors.SandboxLost("the sandbox ended when the command was to begin", dispatched="unknown")
            await self._news()

    async def _news(self) -> None:
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _receive(self) -> None:
        try:
            data = self._connection.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        message: dict[str, Any] = json.loads(data) if data else {}
        if "started" in message:
            self.pid = message["started"]
        elif "failed" in message:
            self._failure = message["failed"], message["errno"]
        elif "ended" in message:
            self._status = message["ended"]
        if "started" not in message:
            self._end()
        self._wake()

    def _end(self) -> None:
        self._over = True
        self._loop.remove_reader(self._connection.fileno())
        self._connection.close()
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


# ------------------------------------------------------------------ messages and errors


def send_plan(connection: socket.socket, plan: Mapping[str, object], streams: tuple[int, int, int]) -> None:
    """Ask a keeper to start a command.

    Raises:
        errors.LeaseNotFound: The keeper has ended, and the sandbox with it.
        errors.QuotaExceeded: There are no descriptors, or there is no memory.
    """
    fd = os.memfd_create("plan", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(json.dumps(plan).encode())
        os.lseek(fd, 0, os.SEEK_SET)
        passed = array.array("i", (fd, *streams))
        connection.sendmsg([b'{"start": null}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    except (BrokenPipeError, ConnectionResetError):
        raise errors.LeaseNotFound("the sandbox has ended", dispatched="no") from None
    except OSError as error:
        raise no_room(error, dispatched="no") from error
    finally:
        os.close(fd)


def not_started(stage: str, number: int, program: str, cwd: str) -> errors.WireError:
    """Why a command was not started."""
    why = os.strerror(number)
    error: Callable[..., errors.WireError]
    if stage == "cwd":
        error, text, path = errors.PathNotFound, f"the working directory {cwd!r} cannot be entered: {why}", cwd
    elif number in (errno.ENOENT, errno.ENOTDIR):
        error, text, path = errors.CommandNotFound, f"there is no program {program!r}", program
    elif number == errno.E2BIG:
        error, text, path = errors.TooLarge, "words and variables are longer than the kernel takes", program
    elif stage == "fork" or number in EXHAUSTED:
        error, text, path = errors.QuotaExceeded, f"{program!r} cannot be started now: {why}", program
    else:
        error, text, path = errors.CommandNotExecutable, f"{program!r} cannot be run: {why}", program
    return error(text, detail=errors.Detail(path=pack(path)), dispatched="no")


def no_room(error: OSError, *, dispatched: errors.Dispatched) -> errors.WireError:
    """Why a sandbox cannot be made or used."""
    if error.errno in EXHAUSTED:
        return errors.QuotaExceeded(f"this machine has no room for it now: {error}", dispatched=dispatched)
    return errors.Unavailable(f"the sandbox's folder cannot be used: {error}", dispatched=dispatched)
