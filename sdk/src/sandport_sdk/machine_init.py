"""The first process behind a sandbox's walls, left running below the sandbox's keeper."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sandport_protocol import errors

from .machine_process import send_plan
from .sandbox_folder import answer, write_private

if TYPE_CHECKING:
    from .v1.machine import Sandbox, Text

RECORD, LOG, LOCK = "init", "init.log", "init.lock"
"""In the sandbox's folder: who it is; what it had to say; held while it is started."""
ANSWER_S = 20.0
"""What it gets to build the walls."""
_LINE_BYTES = 4096
_SAID_BYTES = 2000


class Init:
    """The process whose namespaces the sandbox's commands enter. It ends with the sandbox, and not with a worker.

    One for each sandbox and not one for each command: what a command leaves running must live on, and the first
    process of a pid namespace is deaf to `kill -9 $$`. What is known of it is in the sandbox's folder, for any worker.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        """The one of a sandbox, started or not."""
        self._sandbox = sandbox
        self._folder = Path(sandbox.folder)

    @property
    def pid(self) -> int | None:
        """Its number, as this machine counts; None where it does not run."""
        try:
            pid, began = (self._folder / RECORD).read_text().split()
            return int(pid) if _began(int(pid)) == began else None
        except (OSError, ValueError, IndexError):
            return None

    def ensure(self, argv: Sequence[Text], *, env: Mapping[str, Text]) -> bool:
        """Have it run, and return once it has said so; it blocks, for handlers that are a plain `def`.

        Args:
            argv: What builds the walls, and stays. It must write one line to its output when they stand: the number
                of the first process behind them, as this machine counts.
            env: Its variables; one that marks the sandbox is added.

        Returns:
            Whether it had to be started. At an attach that means that what ran before is lost.

        Raises:
            errors.NotAttached: The sandbox's keeper has ended.
            errors.LeaseNotFound: The sandbox has.
            errors.Unavailable: The walls cannot be built, and what was said about it; all of these with `dispatched`
                `no`, so undo what else you made.

        Repeat: nothing happens. Cancel: a thread is not interrupted.
        """
        lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may attach one sandbox at once
            if self.pid is not None:
                return False
            pid = self._start(argv, env)
            new = self._folder / f"{RECORD}.new"
            write_private(new, f"{pid} {_began(pid)}")
            new.rename(self._folder / RECORD)
        except (OSError, ValueError, IndexError) as error:
            raise errors.Unavailable(f"the walls cannot be built: {error}{self._said()}", dispatched="no") from error
        finally:
            os.close(lock)
        return True

    def _start(self, argv: Sequence[Text], env: Mapping[str, Text]) -> int:
        plan = self._sandbox._plan(argv, b"", env) | {"stays": True}
        read, write = os.pipe2(os.O_CLOEXEC)
        log = os.open(self._folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self._sandbox._connect() as connection:
                send_plan(connection, plan, (null, write, log))
                said = answer(connection)
            if said is None:
                raise errors.SandboxLost("the sandbox ended when its walls were built", dispatched="no")
            if "failed" in said:
                number = int(str(said["errno"]))
                raise OSError(number, os.strerror(number), os.fsdecode(argv[0]))
            os.close(write)
            write = -1
            return int(_line(read))
        finally:
            for fd in (read, write, log, null):
                if fd >= 0:
                    os.close(fd)

    def _said(self) -> str:
        try:
            text = (self._folder / LOG).read_bytes()[-_SAID_BYTES:].decode(errors="replace").strip()
        except OSError:
            return ""
        return f": {text}" if text else ""


def _line(fd: int) -> bytes:
    """One line and not to the end of the file: what has built the walls holds its output for as long as they stand."""
    line = b""
    deadline = time.monotonic() + ANSWER_S
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while not line.endswith(b"\n"):
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"no line on its output within {ANSWER_S:g} s")
        data = os.read(fd, _LINE_BYTES)
        if not data:
            raise ValueError("it ended without a line on its output")
        line += data
    return line


def _began(pid: int) -> str:
    """When a process began, which tells it from a later one of the same number."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
