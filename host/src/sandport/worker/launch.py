"""Starting a worker's process and knowing it again.

Owns: the spawn, the pipes' ends, the identity, the wait for the exit, signals to the group. Above: the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from sandport.errors import WorkerStartFailed

from .environment import TOKEN, worker_environment
from .identity import Identity, boot_id, pidfd_of, process_start_ticks
from .memory import kernel_kills
from .records import WorkerRecord

_PIPE_BYTES = 1024 * 1024
"""Asked for each pipe: the unprivileged maximum on Linux; a smaller one only costs speed."""
_PROCESS_GROUP = 1 << 2
"""PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9: the group that is meant can be no other, not even a reused number."""


class WorkerCommand(Struct, frozen=True, kw_only=True):
    """How one provider's worker is started; the same for every restart."""

    provider: str
    tenant: str | None = None
    """Whose worker it is, where tenants do not share one."""
    argv: tuple[str, ...]
    granted_env: tuple[str, ...] = ()
    """Names of variables that the operator grants."""
    settings_env: tuple[tuple[str, str], ...] = ()
    """Variables that the configuration sets."""

    @property
    def title(self) -> str:
        """The provider, and the tenant if it has one, for messages."""
        return self.provider if self.tenant is None else f"{self.provider} (tenant {self.tenant})"


class Exit(Struct, frozen=True):
    """How a process ended."""

    exit_code: int | None
    signal: int | None
    peak_memory_bytes: int | None


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
        self,
        popen: subprocess.Popen[bytes],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
        env: Mapping[str, str],
        kills_before: int | None = None,
    ) -> None:
        self._popen = popen
        self.pid = popen.pid
        # From here on this descriptor means the worker, whatever becomes of its number.
        self._pidfd = pidfd_of(popen.pid)
        self.stdin_fd = stdin
        self.stdout_fd = stdout
        self.stderr_fd = stderr
        self.started = time.monotonic()
        self.identity = Identity(popen.pid, process_start_ticks(popen.pid), boot_id(), env[TOKEN])
        self.given_env = frozenset(env)
        """Names of the variables that the worker was given."""
        self.kills_before = kills_before
        """How many processes the kernel had ended for want of memory when this one was started."""
        self.record: WorkerRecord | None = None
        """What is on disk of it, for whoever cleans up after this host; it goes when the worker is reaped."""
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[Exit] = self._loop.create_future()
        self._watch()

    def _watch(self) -> None:
        if self._pidfd is not None:
            self._loop.add_reader(self._pidfd, self._ended)
        else:  # one thread waits; it ends with the process
            import threading

            def wait() -> None:
                with contextlib.suppress(ChildProcessError):  # somebody else reaped it: it has ended
                    os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                    self._loop.call_soon_threadsafe(self._ended)

            threading.Thread(target=wait, name=f"wait-{self.pid}", daemon=True).start()

    def _ended(self) -> None:
        result = self._reaped()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self.record is not None:
            self.record.forget()
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
            # its number may be a stranger's already. The descriptor still means its group, and no other.
            self._signal_group_of_descriptor(signal.SIGKILL)
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
    def alive(self) -> bool:
        """Whether it has not ended; looks at the descriptor that is held, and opens none."""
        if self._popen.returncode is not None:
            return False
        if self._pidfd is None:
            return self._not_reaped()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return not poll.poll(0)

    @property
    def uptime_s(self) -> float:
        """Seconds since the spawn."""
        return time.monotonic() - self.started

    def signal_group(self, number: int) -> None:
        """Signal the worker and everything in its group; nothing happens once it was reaped."""
        if self._popen.returncode is not None or self._signal_group_of_descriptor(number):
            return
        # A kernel that cannot signal a group by descriptor. The number is the worker's as long as it is not reaped.
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            if self._not_reaped():
                os.killpg(self.pid, number)

    def _signal_group_of_descriptor(self, number: int) -> bool:
        """Signal the group that the descriptor means; False where this kernel cannot."""
        if self._pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number, None, _PROCESS_GROUP)
        except ProcessLookupError:
            return True  # nobody is left in it
        except OSError:
            return False
        return True

    def _not_reaped(self) -> bool:
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True


def spawn(
    command: WorkerCommand,
    environ: Mapping[str, str],
    settings: Mapping[str, str] | None = None,
    *,
    instance: str = "",
    root: Path | None = None,
) -> WorkerProcess:
    """Start a worker in a session of its own, with `/` as its directory and three pipes; it inherits nothing else.

    Args:
        command: What to start.
        environ: The host's own environment.
        settings: Variables over those of the command.
        instance: The host's instance id: the worker's token begins with it, so that another host can find what this
            one left.
        root: The host's home: a record of the worker is kept there as long as it lives.

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
    token = new_token(instance)
    env = worker_environment(
        environ, granted=command.granted_env, settings=dict(command.settings_env) | dict(settings or {}), token=token
    )
    fds: list[int] = []
    kills_before = kernel_kills()
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
    process = WorkerProcess(popen, stdin=stdin, stdout=stdout, stderr=stderr, env=env, kills_before=kills_before)
    if root is not None:
        process.record = WorkerRecord.keep(root, process.identity, command.provider, command.tenant)
    return process


def new_token(instance: str = "") -> str:
    """A token for one worker: the instance's id, a dot, and what makes it this one."""
    mark = secrets.token_hex(16)
    return f"{instance}.{mark}" if instance else mark


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
