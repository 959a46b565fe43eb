"""One sandbox as this worker has it: its place, its init, the channel between, and what was started here.

Above: the provider's methods, and `lifetime` which makes and ends them. Below: `places` for files, `launch` and
`channel` for the init, `survivors` for what an init leaves that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import sys
from typing import TYPE_CHECKING

from sandport_sdk.v1 import errors, pack, types, unpack

from .bubblewrap import RESERVE_PIDS, TEMPORARY, UID, USER, WORKING_DIRECTORY
from .cgroups import Cgroup, read_counter
from .channel import HELLO_S, Channel, ChannelClosed
from .command import Command, Kind, Plan
from .errors import sandbox_failed
from .finishing import to_its_end
from .keeper import NOT_ISOLATED, START_S
from .launch import InitProcess, spawn_init, spawn_keeper
from .places import Identity
from .proc import boot_id
from .streams import HeldOpen
from .survivors import PROCESS, SANDBOX_ID, sweep

if TYPE_CHECKING:
    import socket

    from .bubblewrap import Boundary, Machine
    from .places import Place, Record

_log = logging.getLogger("sandport_provider_local")

SHELL = b"/bin/sh"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_PROCESSES = 256
RESULTS_KEPT = 256
"""Ended processes whose result can still be asked for."""
OUTPUT_KEPT_BYTES = 32 * 1024 * 1024
"""Output of ended processes that is kept for who asks late; the oldest goes first."""
ANNOUNCE_S = 2.0
"""An init that does not say within this time that it ends is killed."""
END_S = 30.0
"""What an init gets to end everything and remove the folder before its caller is told to come again."""
PAUSE_S = 0.01
"""Between two looks at what the kernel sends no event for: a lock, a queue that is full."""
NOTE = "nothing isolates this sandbox: its commands can do whatever this user can do on this machine"


class NotUp(Exception):
    """An init did not come up; nothing of it runs.

    Attributes:
        isolated: False where what failed was the isolation itself, or may have been.
    """

    def __init__(self, why: str, *, isolated: bool) -> None:
        super().__init__(why)
        self.isolated = isolated


class Process:
    """A command that has an id, and who follows it."""

    __slots__ = ("command", "followed")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.followed = False


class Sandbox:
    """A sandbox that this worker is attached to.

    Attributes:
        place: Its folder.
        record: What it is.
        processes: What `startProcess` has started, in that order.
        lost_processes: Whether running commands were lost, with the worker or the init before.
        notes: What people should know of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, place: Place, record: Record, *, credit_bytes: int) -> None:
        self.place = place
        self.record = record
        self.processes: dict[str, Process] = {}
        self.lost_processes = False
        self._loop = loop
        self._credit_bytes = credit_bytes
        self._held = HeldOpen(loop)
        self._running: set[Command] = set()
        self._variables = variables_of(place, isolated=record.boundary is not None)
        self._oom_counter: int | None = None
        self.notes: tuple[str, ...] = () if record.boundary is not None else (NOTE,)
        self._channel: Channel | None = None
        self._init: InitProcess | None = None
        self._sweeping: asyncio.Task[None] | None = None

    # ------------------------------------------------------------ the init

    async def start_init(self, machine: Machine | None, *, grace_ms: int, revived: bool = False) -> None:
        """Start an init in the sandbox's place and connect to it; only for who holds the place's lock.

        Args:
            machine: What an isolated sandbox is shown; None for one without isolation.
            grace_ms: After so long without a worker it ends.
            revived: Whether a kept sandbox stays even should this worker die at once. One that is just being made
                does not: nobody was told of it.

        Raises:
            OSError: It cannot be started.
            CgroupUnavailable: A limit cannot be had; nothing of it runs.
            NotUp: It did not come up.
        """
        boundary = self.record.boundary
        if boundary is not None and boundary.in_cgroup:
            if revived:  # What the init before has left in its cgroup may take seconds to end.
                await to_its_end(asyncio.to_thread(Cgroup.discard, self.place.sandbox_id))
            make_cgroup(self.place.sandbox_id, boundary)  # In no thread: that would go on after a cancel.
        listener = self.place.listen()
        try:
            connected = self.place.connect()  # It waits in the listener's queue until the init takes it.
            try:
                kept = revived and self.record.keep
                if machine is None:
                    pid = spawn_init(self.place, self.record, listener, grace_ms=grace_ms, kept=kept)
                else:
                    pid = spawn_keeper(self.place, self.record, listener, machine, grace_ms=grace_ms, kept=kept)
                self._init = InitProcess.of_child(self._loop, pid)
            except BaseException:  # whatever it is, the socket is nobody else's yet
                connected.close()
                raise
        finally:
            listener.close()
        try:
            channel = await self._open(connected, grace_ms, hello_s=START_S)
            if self.record.keep and not kept:
                await channel.keep(True)
        except ChannelClosed as error:
            await to_its_end(self._give_up(self._init))
            isolated = machine is None or self._init.exit_code != NOT_ISOLATED
            raise NotUp(f"{error}; {self.place.log_tail()}", isolated=isolated) from error
        except BaseException:  # a cancel too: nobody else knows of the init yet
            await to_its_end(self._give_up(self._init, by_itself_s=0.0))
            raise

    async def _give_up(self, init: InitProcess, *, by_itself_s: float = ANNOUNCE_S) -> None:
        """End an init that did not come up, in some seconds at most for each thing that does not end.

        Args:
            init: The init.
            by_itself_s: What it gets before: it says by how it ends whether it could not be isolated.

        Raises:
            OSError: Something in its cgroup does not end.
        """
        if not await init.wait(by_itself_s):
            init.kill_tree()
            await init.wait(END_S)
        self.close()
        if self.record.boundary is not None:
            await asyncio.to_thread(sweep, self.place, inits=True)
            if self.record.boundary.in_cgroup:
                await asyncio.to_thread(Cgroup.discard, self.place.sandbox_id)

    async def connect(self, *, grace_ms: int, keep: bool | None = None) -> bool:
        """Connect to the init that is there; False where none listens or answers.

        Args:
            grace_ms: What the sandbox gets after this worker, should it be the last.
            keep: Whether it outlives its workers from now on; None leaves that as it is.

        Raises:
            OSError: The socket cannot be used, or `keep` cannot be recorded.
        """
        try:
            connected = await self._reach()
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
            return False  # Nobody listens, or somebody does not take the connections that wait already.
        try:
            channel = await self._open(connected, grace_ms)
            if keep is not None:
                await channel.keep(keep)
        except ChannelClosed:
            self.close()
            return False
        except BaseException:  # a cancel too: a channel that is half asked is of no use
            self.close()
            raise
        identity = Identity(channel.pid, channel.start_ticks, boot_id())
        self._init = InitProcess.of(self._loop, identity, self.record.token)
        return True

    async def keep(self, kept: bool) -> bool:  # noqa: FBT001
        """Let it outlive its workers from now on, or no longer; False where its init is gone.

        Raises:
            OSError: It cannot be recorded, so it is as it was.
        """
        assert self._channel is not None
        try:
            await self._channel.keep(kept)
        except ChannelClosed:
            return False
        return True

    async def _reach(self) -> socket.socket:
        """A connection to the init, once its queue has room.

        Raises:
            OSError: See `Place.connect`.
        """
        deadline = self._loop.time() + HELLO_S
        while True:
            try:
                return self.place.connect()
            except BlockingIOError:
                if self._loop.time() > deadline:
                    raise
            await asyncio.sleep(PAUSE_S)

    async def _open(self, connected: socket.socket, grace_ms: int, *, hello_s: float | None = None) -> Channel:
        channel = Channel(self._loop, connected)
        try:
            await channel.hello(self.record.token, grace_ms, timeout_s=hello_s)
        except BaseException:
            channel.close()
            raise
        if self.record.boundary is not None and self.record.boundary.memory_bytes is not None:
            with contextlib.suppress(OSError):  # It ends just now; the channel tells.
                self._oom_counter = Cgroup.open(self.place.sandbox_id).open_counter()
        self._channel = channel
        self.lost_processes = channel.lost_commands
        channel.on_close = self._on_channel_end
        return channel

    def _on_channel_end(self) -> None:
        """An init that did not say why it ends was killed: nobody else knows now what it had started."""
        assert self._channel is not None
        if not self._channel.reason and self._init is not None:
            self._sweeping = self._loop.create_task(self._sweep_after(self._init))

    async def _sweep_after(self, init: InitProcess) -> None:
        if await init.wait(1.0):
            left = await asyncio.to_thread(sweep, self.place)
            _log.warning("the init of %s was killed; what it left that does not end: %s", self.place.sandbox_id, left)

    @property
    def alive(self) -> bool:
        """Whether commands can be started."""
        return self._channel is not None and self._channel.open and not self._channel.reason

    def is_of_init(self, other: Sandbox) -> bool:
        """Whether both are attached to one init: what ran under the one runs under the other."""
        mine, its = self._channel, other._channel
        return mine is not None and its is not None and (mine.pid, mine.start_ticks) == (its.pid, its.start_ticks)

    def look(self) -> bool:
        """Whether it is alive, looking at the init's process and not only at what it has said so far."""
        return self.alive and self._init is not None and self._init.runs()

    async def ask_to_end(self) -> InitProcess | None:
        """Tell the init to end, or kill it where it does not listen; returns the process to wait for, if it runs."""
        if self._channel is not None and self._channel.open:
            with contextlib.suppress(ChannelClosed):  # It ends already.
                self._channel.end()
            if not await self._channel.announced(ANNOUNCE_S) and self._init is not None:
                self._init.kill_tree()
        return self._init

    async def init_has_ended(self) -> None:
        """Return once the process of the init is gone too, and reaped; for a sandbox whose folder is removed."""
        if self._init is not None and not await self._init.wait(ANNOUNCE_S):
            self._init.kill_tree()  # Somebody else has removed the folder.
            await self._init.wait(END_S)

    def close(self) -> None:
        """Let go of the sandbox; it lives on for one orphan grace, or to its expiry where it is kept."""
        if self._channel is not None:
            self._channel.on_close = None
            self._channel.close()
        if self._init is not None:
            self._init.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._oom_counter is not None:
            os.close(self._oom_counter)
            self._oom_counter = None
        self._held.close()

    # ------------------------------------------------------------ commands

    def plan(self, params: types.CommandParams, *, terminal: bool = False) -> Plan:
        """What the params ask for, in bytes.

        Raises:
            NotSupported: They name another user.
        """
        own = (USER, str(UID)) if self.record.boundary is not None else (_user_name(), str(os.geteuid()))
        if params.user is not None and params.user not in own:
            raise errors.NotSupported(
                f"commands run as {own[0]!r} here and not as another user",
                detail=errors.Detail(field="user"),
                dispatched="no",
            )
        if params.argv is not None:
            argv = tuple(unpack(word) for word in params.argv)
        else:
            assert params.shell is not None  # Exactly one of the two is given.
            argv = (SHELL, b"-c", unpack(params.shell))
        cwd = os.fsencode(self._working_directory)
        if params.cwd is not None:
            cwd = os.path.join(cwd, unpack(params.cwd))
        variables = dict(self._variables)
        if terminal:
            variables[b"TERM"] = b"xterm-256color"
        variables.update((name.encode(), unpack(value)) for name, value in params.env.items())
        variables[SANDBOX_ID.encode()] = self.place.sandbox_id.encode()
        variables.pop(PROCESS.encode(), None)
        return Plan(argv, cwd, [name + b"=" + value for name, value in variables.items()])

    def run(
        self,
        plan: Plan,
        *,
        kind: Kind,
        limit_bytes: int = 0,
        stdin: bytes | None = b"",
        pty: types.PtySize | None = None,
        terminal: tuple[int, int] | None = None,
        timeout_ms: int | None = None,
    ) -> Command:
        """Start a command; see `Command`.

        The terminal's sides are closed, whatever becomes of it.

        Raises:
            LeaseNotFound: The sandbox has ended.
            SandboxLost: It was killed.
            Overloaded: As many commands run as may.
            QuotaExceeded: There are no descriptors or terminals left.
        """
        boundary = self.record.boundary
        try:
            channel = self._ready_for_another()
        except errors.WireError:
            for fd in terminal or ():
                os.close(fd)
            raise
        try:
            command = Command(
                self._loop,
                channel,
                self._held,
                plan,
                kind=kind,
                credit_bytes=self._credit_bytes,
                limit_bytes=limit_bytes,
                stdin=stdin,
                pty=pty,
                terminal=terminal,
                timeout_s=None if timeout_ms is None else timeout_ms / 1000,
                owner=boundary.uid if boundary is not None else None,
                oom_kills=self._oom_kills if self._oom_counter is not None else None,
            )
        except ChannelClosed:
            raise self._ended() from None
        except OSError as error:
            raise sandbox_failed(error, dispatched="no") from error
        self._running.add(command)
        return command

    async def open_terminal(self) -> tuple[int, int] | None:
        """Both sides of a terminal of the sandbox's own; None where the machine's serve, without isolation.

        Raises:
            WireError: As `run`.
        """
        channel = self._ready_for_another()
        if self.record.boundary is None:
            return None
        try:
            return await channel.terminal()
        except ChannelClosed:
            raise self._ended() from None
        except OSError as error:
            raise sandbox_failed(error, dispatched="no") from error

    def _oom_kills(self) -> int:
        """How often the kernel has killed something in the sandbox for want of memory."""
        if self._oom_counter is None:
            return 0
        with contextlib.suppress(OSError):  # The cgroup was removed: the sandbox has ended.
            return read_counter(self._oom_counter)
        return 0

    def _ready_for_another(self) -> Channel:
        """The channel, if one more command may run."""
        if len(self._running) >= MAX_PROCESSES:
            self._running = {command for command in self._running if not command.finished}
            if len(self._running) >= MAX_PROCESSES:
                raise errors.Overloaded(
                    f"{MAX_PROCESSES} commands run in this sandbox", detail=errors.Detail(limit=MAX_PROCESSES)
                )
        if self._channel is None or not self.alive:
            raise self._ended()
        return self._channel

    def forget(self, command: Command) -> None:
        """A command is over and was answered."""
        self._running.discard(command)

    def _ended(self) -> errors.WireError:
        reason = self._channel.reason if self._channel is not None else ""
        if reason == "stopped":
            return errors.SandboxLost("the sandbox's init was stopped; attach the sandbox anew", dispatched="no")
        if reason:
            return errors.LeaseNotFound(f"the sandbox has ended ({reason})", dispatched="no")
        return errors.SandboxLost("the sandbox's init was killed; attach the sandbox anew", dispatched="no")

    def add_process(self, process_id: str, command: Command) -> None:
        """Remember a process; of those that ended, only so many are kept."""
        ended = [(key, process) for key, process in self.processes.items() if process.command.finished]
        for key, _ in ended[: max(0, len(ended) - RESULTS_KEPT)]:
            del self.processes[key]
        retained = sum(process.command.retained_bytes for _, process in ended)
        for _, process in ended:
            if retained <= OUTPUT_KEPT_BYTES:
                break
            if not process.followed:
                retained -= process.command.retained_bytes
                process.command.forget_output()
        self.processes[process_id] = Process(command)

    # ------------------------------------------------------------ the lease

    @property
    def _working_directory(self) -> str:
        """Where commands run, as they see it."""
        return WORKING_DIRECTORY if self.record.boundary is not None else os.fspath(self.place.working_directory)

    def lease(self) -> types.LeaseResult:
        """What the host is told of the sandbox."""
        boundary = self.record.boundary
        return types.LeaseResult(
            handle=handle_of(self.place.sandbox_id),
            working_directory=pack(os.fsencode(self._working_directory)),
            shell=pack(SHELL) if os.access(SHELL, os.X_OK) else None,
            egress=types.Egress(mode="all" if boundary is None or boundary.network else "none"),
            expires_at_ms=self.record.expires_at_ms,
            max_processes=MAX_PROCESSES,
            local_root=pack(os.fsencode(self.place.working_directory)),
            notes=self.notes,
        )


def handle_of(sandbox_id: str) -> str:
    """The handle of a sandbox, which says nothing but its id."""
    return f"local/1/{sandbox_id}"


def make_cgroup(name: str, boundary: Boundary) -> None:
    """Make the cgroup of a sandbox, in place of one that was left; blocks for some milliseconds.

    Raises:
        CgroupUnavailable: A limit cannot be had.
        OSError: What was left cannot be removed.
    """
    Cgroup.discard(name)
    pids = None if boundary.pids is None else boundary.pids + RESERVE_PIDS
    Cgroup.create(name, memory_bytes=boundary.memory_bytes, pids=pids, cpus=boundary.cpus)


def variables_of(place: Place, *, isolated: bool) -> dict[bytes, bytes]:
    """What every command finds in its environment: nothing of the worker's.

    The directory of the running interpreter comes last in PATH, so that there is a Python wherever this runs.
    """
    folders = PATH.split(":")
    own = os.path.dirname(sys.executable)
    if own and own not in folders:
        folders.append(own)
    user = USER if isolated else _user_name()
    variables = {
        "PATH": ":".join(folders),
        "HOME": WORKING_DIRECTORY if isolated else str(place.working_directory),
        "TMPDIR": TEMPORARY if isolated else str(place.temporary),
        "LANG": "C.UTF-8",
        "USER": user,
        "LOGNAME": user,
    }
    return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
