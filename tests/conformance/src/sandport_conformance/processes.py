"""What the machine knows of a worker and of what it started: who lives, how much memory, how it ended."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "SANDPORT_WORKER_TOKEN"
"""Set to a random value in the worker's environment and inherited by what it starts."""

_PROC = Path("/proc")
_MOST_BYTES = 1 << 22
"""More than a process's variables may be."""
_FORKNOEXEC = 0x40
"""Of the kernel's flags of a process."""


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


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a worker and everything that it started from any other process.

    Attributes:
        token: A random value in their environments.
        pid: The worker's, and so the number of the session that it leads.
        started: When the worker was started, in the kernel's ticks; None where the machine does not tell.
    """

    token: str
    pid: int
    started: int | None

    @classmethod
    def of(cls, pid: int, token: str) -> Identity:
        """The identity of a worker that was just started."""
        stat = stat_of(pid)
        return cls(token, pid, stat.started if stat else None)


@dataclass(frozen=True, slots=True)
class Stat:
    """What the kernel tells of a process.

    Attributes:
        state: A letter.
        session: The number of its session.
        is_forked: Whether it still runs the program of the one that forked it.
        started: When it was started, in the kernel's ticks.
    """

    state: bytes
    session: int
    is_forked: bool
    started: int

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left but its number."""
        return self.state in (b"Z", b"X")


def _read(pid: int | str, name: str) -> bytes:
    """A file of a process. This is read for every process of the machine, again and again: no object more than needed.

    Raises:
        FileNotFoundError, ProcessLookupError: It has ended.
        PermissionError: It is somebody else's.
    """
    descriptor = os.open(f"{_PROC}/{pid}/{name}", os.O_RDONLY)
    try:
        whole = data = os.read(descriptor, _MOST_BYTES)
        while len(data) >= 4096 and (data := os.read(descriptor, _MOST_BYTES)):
            whole += data
        return whole
    finally:
        os.close(descriptor)


def stat_of(pid: int) -> Stat | None:
    """What the kernel tells of a process; None once it is gone, and where the machine does not tell."""
    try:
        fields = _read(pid, "stat").rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Stat(fields[0], int(fields[3]), bool(int(fields[6]) & _FORKNOEXEC), int(fields[19]))


def survivors(worker: Identity) -> list[Survivor]:
    """Live processes that have the worker's token in their environment, or are in the session that it led.

    Without `/proc` only its process group is looked at.
    """
    if stat_of(os.getpid()) is None:
        return _survivors_of_ps(worker.pid)
    leader = stat_of(worker.pid)
    # Another process has the worker's number by now, and perhaps a session under it.
    taken_over = leader is not None and leader.started != worker.started
    pids = (int(name) for name in os.listdir(_PROC) if name.isdigit())
    found = [pid for pid in pids if pid != os.getpid() and _belongs(pid, worker, by_session=not taken_over)]
    return [Survivor(pid, _command_of(pid)) for pid in found]


def _belongs(pid: int, worker: Identity, *, by_session: bool) -> bool:
    stat = stat_of(pid)
    if stat is None or stat.has_ended:
        return False
    if worker.started is not None and stat.started < worker.started:
        return False  # nothing that the worker has started is older than the worker
    if by_session and stat.session == worker.pid:
        return True
    try:
        # The environment as it was at the exec: a process that changed it since keeps what it began with.
        environ = _read(pid, "environ")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # it ended while we looked, or is somebody else's
    return f"{TOKEN_VARIABLE}={worker.token}".encode() in environ.split(b"\0")


def _command_of(pid: int) -> str:
    return _words_of(pid)[:200]


def _words_of(pid: int) -> str:
    try:
        words = _read(pid, "cmdline").replace(b"\0", b" ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    return words.decode("utf-8", "backslashreplace")


def _survivors_of_ps(group: int) -> list[Survivor]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,pgid=,stat=,command="], capture_output=True, text=True, check=True)
    found = []
    for line in listed.stdout.splitlines():
        pid, its_group, state, command = [*line.split(None, 3), ""][:4]
        if int(its_group) == group and not state.startswith("Z"):
            found.append(Survivor(int(pid), command[:200]))
    return found


def in_session(leader: int) -> list[int]:
    """Live processes of a session, by their numbers. Without `/proc` only the leader's process group is looked at."""
    if stat_of(os.getpid()) is None:
        return [one.pid for one in _survivors_of_ps(leader)]
    stats = ((int(name), stat_of(int(name))) for name in os.listdir(_PROC) if name.isdigit())
    return [pid for pid, stat in stats if stat is not None and stat.session == leader and not stat.has_ended]


def a_mark() -> int:
    """So many seconds as nobody else on this machine sleeps: `running` finds a process by it."""
    return 10**8 + secrets.randbelow(9 * 10**8)


def running(text: str) -> list[Survivor]:
    """Live processes of this machine that have a text in their command line, whoever started them."""
    if stat_of(os.getpid()) is None:
        listed = subprocess.run(["ps", "-A", "-o", "pid=,stat=,command="], capture_output=True, text=True, check=True)
        lines = [[*line.split(None, 2), "", ""] for line in listed.stdout.splitlines() if text in line]
        return [Survivor(int(pid), command[:200]) for pid, state, command, *_ in lines if not state.startswith("Z")]
    found = []
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            stat, command = stat_of(int(folder.name)), _words_of(int(folder.name))
            if text in command and stat is not None and not stat.has_ended:
                found.append(Survivor(int(folder.name), command[:200]))
    return found


def kill_running(text: str) -> None:
    """Kill what `running` finds, as what a worker left that has nothing of it any more."""
    for one in running(text):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, signal.SIGKILL)


def kill_survivors(worker: Identity) -> list[Survivor]:
    """Kill what `survivors` finds, and answer what that was; what ends in between is not killed by its number."""
    killed = []
    for survivor in survivors(worker):
        try:
            if hasattr(signal, "pidfd_send_signal"):
                descriptor = os.pidfd_open(survivor.pid)
                try:
                    # Looked at again now that the number is held: it may have been another process a moment ago.
                    if all(again.pid != survivor.pid for again in survivors(worker)):
                        continue
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                finally:
                    os.close(descriptor)
            else:
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
