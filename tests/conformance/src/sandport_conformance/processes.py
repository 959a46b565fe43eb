"""What the machine knows of a worker and of what it started: who lives, how much memory, how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "SANDPORT_WORKER_TOKEN"
"""Set to a random value in the worker's environment and inherited by what it starts."""

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Survivor:
    """A process that belongs to a worker."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class ExitCause:
    """How a process ended: by itself with a code, or by a signal."""

    code: int | None = None
    signal: int | None = None

    @classmethod
    def of(cls, wait_status: int) -> ExitCause:
        """From the status that `wait` gives."""
        if os.WIFSIGNALED(wait_status):
            return cls(signal=os.WTERMSIG(wait_status))
        return cls(code=os.WEXITSTATUS(wait_status))

    def __str__(self) -> str:
        if self.signal is None:
            return f"exit code {self.code}"
        try:
            return f"signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"signal {self.signal}"


def survivors(token: str, session: int) -> list[Survivor]:
    """Live processes that have the token in their environment, or are in the session of this leader.

    Without `/proc` only the session is looked at.
    """
    if not _PROC.joinpath("self", "stat").exists():
        return _survivors_of_ps(session)
    wanted = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            stat = folder.joinpath("stat").read_bytes()
            state, _, _, its_session = stat.rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X"):
                continue
            # The environment as it was at the exec: a process that changed it since keeps what it began with.
            if int(its_session) == session or wanted in folder.joinpath("environ").read_bytes().split(b"\0"):
                command = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").strip()
                found.append(Survivor(int(folder.name), command.decode("utf-8", "backslashreplace")[:200]))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is somebody else's
    return found


def _survivors_of_ps(session: int) -> list[Survivor]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat=,command="], capture_output=True, text=True, check=True)
    found = []
    for line in listed.stdout.splitlines():
        pid, group, state, command = [*line.split(None, 3), ""][:4]
        if int(group) == session and not state.startswith("Z"):
            found.append(Survivor(int(pid), command[:200]))
    return found


def kill_survivors(token: str, session: int) -> list[Survivor]:
    """Kill what `survivors` finds, and answer what that was; each is looked at again right before its signal."""
    killed = []
    for survivor in survivors(token, session):
        if any(again.pid == survivor.pid for again in survivors(token, session)):
            try:
                os.kill(survivor.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.append(survivor)
    return killed


def peak_memory_bytes(pid: int) -> int:
    """The most memory that a live process had in RAM at once; 0 where the machine does not tell.

    `ru_maxrss` would not do: it begins with what the kit itself had when it forked.
    """
    try:
        status = _PROC.joinpath(str(pid), "status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in status.splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
