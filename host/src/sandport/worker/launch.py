"""Starting a worker's process and knowing it again.

Owns: the spawn, the pipes' ends, the identity, the wait for the exit, signals to the group. Above: the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from sandport.errors import WorkerStartFailed

from .environment import TOKEN, worker_environment

_PIPE_BYTES = 1024 * 1024
"""Asked for each pipe: the unprivileged maximum on Linux; a smaller one only costs speed."""


class WorkerCommand(Struct, frozen=True, kw_only=True):
    """How one provider's worker is started; the same for every restart."""

    provider: str
    argv: tuple[str, ...]
    granted_env: tuple[str, ...] = ()
    """Names of variables that the operator grants."""
    settings_env: tuple[tuple[str, str], ...] = ()
    """Variables that the configuration sets."""


class Identity(Struct, frozen=True):
    """Which process this is, safe against a reused pid."""

    pid: int
    started_ticks: int
    """Start time in clock ticks since boot, from /proc; 0 where there is no /proc."""
    boot_id: str
    token: str


class Exit(Struct, frozen=True):
    """How a process ended."""

    exit_code: int | None
    signal: int | None
    peak_memory_bytes: int | None


def process_start_ticks(pid: int) -> int:
    """The start time of a process in clock ticks since boot; 0 where it is gone or there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The second field is the program's name in parentheses and may itself hold spaces and parentheses.
    return int(stat[stat.rindex(b")") + 2 :].split()[19])


def boot_id() -> str:
    """This boot of the machine; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none to give."""
    pidfd_open = getattr(os, "pidfd_open", None)
    if pidfd_open is None:
        return None
    try:
        return int(pidfd_open(pid))
    except OSError:
        return None  # an old or confined kernel, or no descriptors left: the process must be watched all the same


def reserve_standard_descriptors() -> None:
    """Make sure that 0, 1 and 2 are taken, so that no pipe of ours can land on them.

    A host that was started with them closed would otherwise give a worker's pipe to whoever prints.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR)
        if fd > 2:
            os.close(fd)
            return
        os.set_inheritable(fd, True)


class WorkerProcess:
    """A started process: its ends of the pipes, its identity, its exit."""

    def __init__(
        self, popen: subprocess.Popen[bytes], *, stdin: int, stdout: int, stderr: int, env: Mapping[str, str]
    ) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.stdin_fd = stdin
        self.stdout_fd = stdout
        self.stderr_fd = stderr
        self.started = time.monotonic()
        self.identity = Identity(popen.pid, process_start_ticks(popen.pid), boot_id(), env[TOKEN])
        self.given_env = frozenset(env)
        """Names of the variables that the worker was given."""
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[Exit] = self._loop.create_future()
        self._watch()

    def _watch(self) -> None:
        pidfd = _pidfd(self.pid)
        if pidfd is not None:
            self._loop.add_reader(pidfd, self._ended, pidfd)
        else:  # one thread waits; it ends with the process
            import threading

            def wait() -> None:
                with contextlib.suppress(ChildProcessError):  # somebody else reaped it: it has ended
                    os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                    self._loop.call_soon_threadsafe(self._ended, None)

            threading.Thread(target=wait, name=f"wait-{self.pid}", daemon=True).start()

    def _ended(self, pidfd: int | None) -> None:
        if pidfd is not None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        result = self._reaped()
        if not self.exited.done():
            self.exited.set_result(result)

    def _reaped(self) -> Exit:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            # While the leader is not reaped its pid, and so its group's id, cannot belong to anybody else:
            # what it left behind in its group goes now.
            self.signal_group(signal.SIGKILL)
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:
            # The program around us ignores SIGCHLD or reaps whatever ends: how it ended is not known any more, and
            # its number may be a stranger's already.
            self._popen.returncode = 0
            return Exit(None, None, None)
        code = os.waitstatus_to_exitcode(status)
        self._popen.returncode = code
        return Exit(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            peak_memory_bytes=usage.ru_maxrss * 1024 or None,
        )

    @property
    def uptime_s(self) -> float:
        """Seconds since the spawn."""
        return time.monotonic() - self.started

    def signal_group(self, number: int) -> None:
        """Signal the worker and everything in its group; nothing happens once it was reaped."""
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def spawn(
    command: WorkerCommand, environ: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> WorkerProcess:
    """Start a worker in a session of its own, with `/` as its directory and three pipes; it inherits nothing else.

    Raises:
        WorkerStartFailed: The program cannot be started: missing, not executable, a directory, or nothing at all.
    """
    argv = command.argv
    if not argv or not argv[0]:
        raise WorkerStartFailed(
            f"the command of provider {command.provider!r} is empty; "
            f"set providers.{command.provider}.command in sandport.toml"
        )
    reserve_standard_descriptors()
    token = secrets.token_hex(16)
    env = worker_environment(
        environ, granted=command.granted_env, settings=dict(command.settings_env) | dict(settings or {}), token=token
    )
    fds: list[int] = []
    try:
        for _ in range(3):
            fds += os.pipe2(os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        child_in, stdin, stdout, child_out, stderr, child_err = fds
        for fd in (stdin, stdout):
            _grow(fd)
        popen = subprocess.Popen(
            argv,
            stdin=child_in,
            stdout=child_out,
            stderr=child_err,
            cwd="/",
            env=env,
            start_new_session=True,
            close_fds=True,
        )
    except (OSError, ValueError) as error:
        for fd in fds:
            os.close(fd)
        raise WorkerStartFailed(_why_not(command, argv, error)) from error
    for fd in (child_in, child_out, child_err):
        os.close(fd)
    return WorkerProcess(popen, stdin=stdin, stdout=stdout, stderr=stderr, env=env)


def _grow(fd: int) -> None:
    size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if size is not None:
        with contextlib.suppress(OSError):  # over the user's quota: the default size works, slower
            fcntl.fcntl(fd, size, _PIPE_BYTES)


def _why_not(command: WorkerCommand, argv: Sequence[str], error: Exception) -> str:
    program = argv[0]
    if isinstance(error, FileNotFoundError):
        why = "there is no such program"
    elif isinstance(error, PermissionError):
        why = "it is a directory" if os.path.isdir(program) else "it is not executable"
    elif isinstance(error, NotADirectoryError):
        why = "a part of its path is not a directory"
    else:
        why = str(error)
    return f"the worker of provider {command.provider!r} cannot be started: {program}: {why}"
