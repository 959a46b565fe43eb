"""Starting the init of a sandbox, or the keeper of one that is isolated, and knowing when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from . import bubblewrap
from .channel import carry, set_if_waiting
from .init import LISTENER_FD
from .keeper import PLAN_FD
from .places import INIT_TOKEN, Identity
from .proc import freeze_and_kill, read_stat

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from .bubblewrap import Boundary, Machine
    from .places import Place, Record


PACKAGE = Path(__file__).parent


def program(module: str, *, root: str | Path = PACKAGE.parent, first: str = "") -> list[str]:
    """The arguments that run a small program of ours, with nothing but the standard library and this package.

    Args:
        module: Its module in this package; it has a `main` that takes the arguments which follow these.
        root: The directory of this package, where it runs.
        first: A statement to begin with.
    """
    start = f"import sys; sys.path.append({os.fspath(root)!r}); from {__package__}.{module} import main"
    words = f"{first}; {start}" if first else start
    return ["-I", "-S", "-E", "-B", "-c", f"{words}; sys.exit(main(sys.argv[1:]))"]


@contextlib.contextmanager
def plan_of(
    boundary: Boundary, machine: Machine, *, command: list[str], cgroup: str, folders: bool = True
) -> Iterator[int]:
    """A descriptor with what a keeper is to start; see `keeper.Plan`.

    Raises:
        OSError: There is no descriptor or no memory left.
    """
    processes = None if boundary.pids is None else boundary.pids + bubblewrap.RESERVE_PIDS
    numbers = ("" if number is None else str(number) for number in (boundary.open_files, processes))
    uid = "" if boundary.uid is None else str(boundary.uid)
    words = [machine.bwrap, uid, cgroup, *numbers, str(len(command)), *command]
    text = b"\0".join(
        [*map(os.fsencode, words), bubblewrap.encode(bubblewrap.steps(boundary, machine, folders=folders))]
    )
    fd = carry(text)
    try:
        yield fd
    finally:
        os.close(fd)


_EVERY_SIGNAL = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]


def spawn_init(place: Place, record: Record, listener: socket.socket, *, grace_ms: int, kept: bool = False) -> int:
    """Start an init in a session of its own, with nothing of this process but the listener; returns its pid.

    Args:
        place: The sandbox's folder.
        record: What it is.
        listener: Where it listens.
        grace_ms: After so long without a worker it ends.
        kept: Whether it never does, also if no worker ever comes.

    Raises:
        OSError: It cannot be started.
    """
    words = (str(place.path), str(record.expires_at_ms), str(grace_ms), str(int(kept)))
    return _spawn("init", words, place, record, {LISTENER_FD: listener.fileno()})


def spawn_keeper(
    place: Place, record: Record, listener: socket.socket, machine: Machine, *, grace_ms: int, kept: bool = False
) -> int:
    """Start the keeper of an isolated sandbox; as `spawn_init`.

    Raises:
        OSError: It cannot be started.
    """
    assert record.boundary is not None
    command = [machine.python, *program("init", root=bubblewrap.CODE), "--inside"]
    cgroup = place.sandbox_id if record.boundary.in_cgroup else ""
    words = (str(place.path), str(record.expires_at_ms), str(grace_ms), str(int(kept)))
    with plan_of(record.boundary, machine, command=command, cgroup=cgroup) as plan:
        return _spawn("keeper", words, place, record, {LISTENER_FD: listener.fileno(), PLAN_FD: plan})


def _spawn(module: str, words: tuple[str, ...], place: Place, record: Record, fds: dict[int, int]) -> int:
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    # Each is first moved to where no other one is to come, so that none is written over before its turn.
    moved: list[int] = []
    try:
        moved += (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(fds) + 1) for fd in fds.values())
        return os.posix_spawn(
            sys.executable,
            [sys.executable, *program(module), *words],
            {INIT_TOKEN: record.token, "LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, log, 2),
                *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in zip(fds, moved, strict=True)),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_EVERY_SIGNAL,
        )
    finally:
        for fd in (log, *moved):
            os.close(fd)


class InitProcess:
    """An init that runs, ours or another worker's, watched through a descriptor that names it and nothing else."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pid: int) -> None:
        """Watch a process.

        Raises:
            ProcessLookupError: There is none of this number.
        """
        self.pid = pid
        self.ended = False
        self.exit_code: int | None = None
        """How it ended, where this process has started it."""
        self._fd = os.pidfd_open(pid)
        self._loop = loop
        self._waiting: list[asyncio.Future[None]] = []
        loop.add_reader(self._fd, self._on_end)

    @classmethod
    def of_child(cls, loop: asyncio.AbstractEventLoop, pid: int) -> InitProcess:
        """Watch an init that this process has started; where that fails, it is ended.

        Raises:
            OSError: There are no descriptors left.
        """
        try:
            return cls(loop, pid)
        except BaseException:  # whatever it is, nobody else knows of the process yet
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop, identity: Identity | None, token: str | None) -> InitProcess | None:
        """Watch the init of this identity; None where it has ended."""
        if identity is None:
            return None
        try:
            process = cls(loop, identity.pid)
        except ProcessLookupError:
            return None
        # Looked at after it was opened, so that what was opened is what was looked at.
        if identity.is_alive(token):
            return process
        process.close()
        return None

    def _on_end(self) -> None:
        self.ended = True
        self.close()
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # Another worker's child is not ours to reap.
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid == self.pid:
                self.ended = True
                self.exit_code = os.waitstatus_to_exitcode(status)

    def runs(self) -> bool:
        """Whether it has not ended yet, by the kernel's word of this moment."""
        if self.ended or self._fd < 0:
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    async def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        if not self.ended and self._fd >= 0:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiting)
            timer = self._loop.call_later(timeout_s, set_if_waiting, waiting)
            try:
                await waiting
            finally:
                timer.cancel()
                self._waiting.remove(waiting)
        return self.ended

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if not self.ended and self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):  # It ended just now; the loop is told next.
                signal.pidfd_send_signal(self._fd, number)

    def kill_tree(self) -> None:
        """Kill it with everything below it, at once; it may hang, and what it had started must not outlive it."""
        found = read_stat(self.pid)
        if found is not None and self.runs():  # Looked at after it was read, so that what was read is what runs.
            freeze_and_kill([found])

    def close(self) -> None:
        """Stop watching; reap it, should it have ended just now."""
        if not self.ended:
            self._reap()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        for waiting in self._waiting:
            set_if_waiting(waiting)
