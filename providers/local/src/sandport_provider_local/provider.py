"""The provider for this machine: the methods of the protocol, in its order."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

from sandport_sdk.v1 import Capabilities, Provider, errors, types

from . import lifetime, machine
from .bubblewrap import Boundary
from .cgroup_places import why_not
from .config import LocalConfig
from .errors import sandbox_failed
from .isolation import MEANT, Isolation, unprotected
from .places import Place, scan
from .sandbox import SHELL, NotUp, handle_of

if TYPE_CHECKING:
    from sandport_sdk.v1 import Call, Session

    from .sandbox import Process, Sandbox

FRAME_MARGIN_BYTES = 64 * 1024
"""What a frame holds beside the output."""
PAGE = 500
"""Leases in one answer of `listLeases`, where they fit in a frame."""
ENTRY_BYTES = 256
"""More than one of them takes in that answer."""
GONE_KEPT = 1024
"""Ids of ended sandboxes that are remembered, so that a late call is told that they are gone."""
SWITCHED_OFF = "isolation is switched off in the config"


class LocalProvider(Provider):
    """Sandboxes that are a directory and its processes, isolated by bubblewrap, each under an init of its own."""

    name = "local"
    version = "0.1.0"
    display_name = "This machine"
    Config = LocalConfig
    capabilities = Capabilities(
        kill="tree", expiry="agent", attach="none", pty=True, user=False, egress=("all", "none"), create_settle_ms=0
    )

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._sandboxes: dict[str, Sandbox] = {}
        self._gone: dict[str, None] = {}
        self._isolation = Isolation(session.state_dir)
        self._output_limit_bytes = max(0, session.limits.frame_bytes - FRAME_MARGIN_BYTES) * 3 // 8
        """Both streams of a result, in base64, must fit in one frame."""

    async def close(self) -> None:
        """Let go of every sandbox; each lives on for one orphan grace, a kept one to its expiry."""
        for sandbox in self._sandboxes.values():
            sandbox.close()

    # ------------------------------------------------------------ config

    async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        """Look at what a sandbox needs of this machine. Repeat: looks again. Cancel: nothing."""
        config: LocalConfig = self.config_of(params)
        config.check(self.session.state_dir)
        return types.ProbeResult(
            checks=(
                types.ProbeCheck(
                    name="state directory",
                    ok=os.access(self.session.state_dir, os.W_OK | os.X_OK),
                    detail=str(self.session.state_dir),
                ),
                types.ProbeCheck(name="shell", ok=os.access(SHELL, os.X_OK), detail=os.fsdecode(SHELL)),
                types.ProbeCheck(name="python", ok=os.access(sys.executable, os.X_OK), detail=sys.executable),
                await self._check_isolation(config),
                _check_limits(config, self._isolation.hopeless),
            )
        )

    async def validate_config(self, params: types.ValidateConfigParams, call: Call) -> types.ValidateConfigResult:
        """Answer the config with its defaults filled in, or what is wrong with it. Repeat: again. Cancel: nothing."""
        answer = await super().validate_config(params, call)
        if answer.issues:
            return answer
        try:
            self.config_of(params).check(self.session.state_dir)
        except errors.ConfigInvalid as error:
            field = error.detail.field if error.detail is not None and error.detail.field is not None else "config"
            message = error.message.removeprefix(f"{field}: ")
            return types.ValidateConfigResult(issues=(types.Issue(field=field, message=message),))
        return answer

    async def _check_isolation(self, config: LocalConfig) -> types.ProbeCheck:
        if config.isolation == "none":
            return types.ProbeCheck(name="isolation", ok=True, detail=f"switched off: {unprotected()}")
        obstacle = await self._isolation.obstacle()
        if obstacle is None:
            return types.ProbeCheck(name="isolation", ok=True, detail="bubblewrap")
        return types.ProbeCheck(name="isolation", ok=False, detail=f"{obstacle}. So {unprotected()}")

    # ------------------------------------------------------------ leases

    async def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
        """Make a sandbox with its init.

        Repeat: refused, an id serves one create. Cancel: what was made is removed.
        """
        call.dispatched = "no"
        config: LocalConfig = self.config_of(params)
        config.check(self.session.state_dir)
        if params.egress is not None and params.egress.mode not in self.capabilities.egress:
            raise errors.NotSupported(
                f"egress {params.egress.mode!r} cannot be enforced here; only 'all' and 'none' can be granted",
                detail=errors.Detail(field="egress.mode"),
                dispatched="no",
            )
        try:
            sandbox = await self._create_isolated(params, config) if config.isolation != "none" else None
        except OSError as error:
            raise sandbox_failed(error, dispatched="no") from error
        if sandbox is None:
            obstacle = self._isolation.hopeless if config.isolation != "none" else None
            _refuse_what_takes_isolation(params, config, obstacle)
            try:
                sandbox = await self._create(params, None)
            except NotUp as error:
                raise lifetime.not_up(error, None) from error
            # Who switched it off knows.
            sandbox.notes = () if obstacle is None else (f"{unprotected()}, since {obstacle}. {MEANT}",)
        self._sandboxes[params.sandbox_id] = sandbox
        return sandbox.lease()

    async def _create_isolated(self, params: types.AcquireLeaseParams, config: LocalConfig) -> Sandbox | None:
        """An isolated sandbox; None where that cannot be had, which `Isolation.hopeless` then explains.

        It is not tried before: that would cost every first sandbox of a worker as much again as its start.
        """
        if self._isolation.hopeless is not None:
            return None
        try:
            await self._isolation.machine()
            uid = machine.new_uid()
        except (machine.NoBubblewrap, machine.NoIds):
            await self._isolation.obstacle()
            return None
        _refuse_more_than_there_is(config)
        network = config.network if params.egress is None else params.egress.mode == "all"
        boundary = Boundary(
            uid=uid,
            network=network,
            expose=config.expose,
            memory_bytes=config.memory_bytes,
            pids=config.pids,
            cpus=config.cpus,
            open_files=config.open_files,
        )
        try:
            return await self._create(params, boundary)
        except NotUp as error:
            if error.isolated or await self._isolation.obstacle() is None:
                raise lifetime.not_up(error, None) from error
            return None

    async def _create(self, params: types.AcquireLeaseParams, boundary: Boundary | None) -> Sandbox:
        return await lifetime.create(
            asyncio.get_running_loop(),
            Place(self.session.state_dir, params.sandbox_id),
            store_id=self.session.store_id,
            ttl_ms=params.ttl_ms,
            grace_ms=self.session.limits.orphan_grace_ms,
            credit_bytes=self.session.limits.credit_bytes,
            isolation=self._isolation,
            keep=params.keep,
            boundary=boundary,
        )

    async def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        """Open a sandbox of another worker, or of this one; the others stay attached to it.

        Repeat: the same sandbox. Cancel: the sandbox stays as it was, but for an init that was started anew.
        """
        config: LocalConfig = self.config_of(params)
        if params.handle != handle_of(params.sandbox_id):
            raise errors.InvalidParams(
                f"{params.handle!r} is no handle of {params.sandbox_id}",
                detail=errors.Detail(field="handle"),
                dispatched="no",
            )
        known = self._sandboxes.get(params.sandbox_id)
        if known is not None and known.look():
            try:
                if params.keep is None or await known.keep(params.keep):
                    return types.AttachLeaseResult(state="attached", lease=known.lease())
            except OSError as error:
                raise sandbox_failed(error, dispatched="no") from error
        place = Place(self.session.state_dir, params.sandbox_id)
        record = place.read_record()
        if config.isolation == "require" and record is not None and record.boundary is None:
            raise errors.NotSupported(
                "the config requires isolation, and nothing isolates this sandbox: it was made without",
                detail=errors.Detail(field="config.isolation"),
                dispatched="no",
            )
        state, sandbox = await lifetime.attach(
            asyncio.get_running_loop(),
            place,
            grace_ms=self.session.limits.orphan_grace_ms,
            credit_bytes=self.session.limits.credit_bytes,
            isolation=self._isolation,
            keep=params.keep,
        )
        if sandbox is None:
            return types.AttachLeaseResult(state=state)
        lost = sandbox.lost_processes or (known is not None and not known.is_of_init(sandbox))
        faster = self._sandboxes.get(params.sandbox_id)
        if faster is not None and faster is not known and faster.look():
            sandbox.close()  # Two attaches at once: commands may run in the other one already.
            sandbox = faster
        else:
            self._drop(params.sandbox_id)
            self._gone.pop(params.sandbox_id, None)
            self._sandboxes[params.sandbox_id] = sandbox
            if sandbox.record.boundary is None:
                sandbox.notes = () if config.isolation == "none" else (f"{unprotected()}. {MEANT}",)
        return types.AttachLeaseResult(state=state, lease=sandbox.lease(), processes_lost=lost)

    async def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        """List what is in the state directory. Repeat: lists again. Cancel: nothing."""
        state_dir = self.session.state_dir
        wanted = [
            name
            for name in scan(state_dir)
            if (params.sandbox_id is None or name == params.sandbox_id)
            and (params.cursor is None or name > params.cursor)
        ]
        page = max(1, min(PAGE, self.session.limits.frame_bytes // ENTRY_BYTES - 1))
        listed = []
        for name in wanted[:page]:
            record = Place(state_dir, name).read_record()
            if record is not None and record.store_id != self.session.store_id:
                continue
            listed.append(
                types.ListedLease(
                    sandbox_id=name,
                    handle=handle_of(name),
                    created_at_ms=record.created_at_ms if record is not None else None,
                    expires_at_ms=record.expires_at_ms if record is not None else None,
                )
            )
        return types.ListLeasesResult(
            leases=tuple(listed), next_cursor=wanted[page - 1] if len(wanted) > page else None
        )

    async def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        """End a sandbox, attached or not; answers once its processes and its files are gone.

        Repeat: succeeds with `gone`. Cancel: the init goes on with it; a repeat waits for the same end.
        """
        state = await lifetime.destroy(
            asyncio.get_running_loop(),
            Place(self.session.state_dir, params.sandbox_id),
            self._sandboxes.get(params.sandbox_id),
            grace_ms=self.session.limits.orphan_grace_ms,
        )
        self._drop(params.sandbox_id)
        self._gone[params.sandbox_id] = None
        if len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        return types.DestroyLeaseResult(state=state)

    # ------------------------------------------------------------ commands

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        """Run a command to the end of its own process.

        Repeat: runs it again. Cancel: kills it and everything that it started, then answers with what it had written.
        """
        sandbox = self._sandbox(params.sandbox_id)
        plan = sandbox.plan(params)
        command = sandbox.run(
            plan,
            kind="live" if params.live else "kept",
            limit_bytes=min(params.output_limit_bytes, self._output_limit_bytes),
            stdin=params.stdin,
            timeout_ms=params.timeout_ms,
        )
        follower = command.follow(call, {}) if params.live else None
        try:
            await command.wait()
            call.dispatched = "yes"
            if follower is not None:
                await command.delivered(follower)
        except asyncio.CancelledError:
            await command.end()
            if not (command.ended_by_itself and (follower is None or follower.done.done())):
                raise command.interrupted() from None
        finally:
            command.unfollow()
            sandbox.forget(command)
        return command.outcome(types.ExecuteResult)

    async def start_process(self, params: types.StartProcessParams, call: Call) -> types.StartProcessResult:
        """Start a command and come back. Repeat: refused while the id is known. Cancel: ends it."""
        sandbox = self._sandbox(params.sandbox_id)
        if params.process_id in sandbox.processes:
            raise _known_already(params.process_id)
        if params.pty is not None:
            check_size(params.pty)
        plan = sandbox.plan(params, terminal=params.pty is not None)
        terminal = await sandbox.open_terminal() if params.pty is not None else None
        if params.process_id in sandbox.processes:
            for fd in terminal or ():
                os.close(fd)
            raise _known_already(params.process_id)
        command = sandbox.run(
            plan,
            kind="process",
            stdin=None if params.stdin else b"",
            pty=params.pty,
            terminal=terminal,
            timeout_ms=params.timeout_ms,
        )
        sandbox.add_process(params.process_id, command)
        try:
            await command.wait_started()
        except BaseException as error:
            del sandbox.processes[params.process_id]
            sandbox.forget(command)
            if isinstance(error, asyncio.CancelledError):
                await command.end()
                raise command.interrupted() from None
            raise
        return types.StartProcessResult()

    async def write_process(self, params: types.WriteProcessParams, call: Call) -> types.WriteProcessResult:
        """Write to a process's input, answered once its pipe took it.

        Repeat: writes again. Cancel: may have written.
        """
        command = self._process(params.sandbox_id, params.process_id).command
        if command.input is None:
            raise errors.InvalidParams("this process was started without an open input", dispatched="no")
        return types.WriteProcessResult(taken_bytes=await command.input.write(params.data, end=params.end))

    async def signal_process(self, params: types.SignalProcessParams, call: Call) -> types.SignalProcessResult:
        """Signal a process's group, end its tree, or resize its terminal. Repeat: again. Cancel: may have signalled."""
        command = self._process(params.sandbox_id, params.process_id).command
        if params.resize is not None:
            check_size(params.resize)
            return types.SignalProcessResult(delivered=command.resize(params.resize))
        if params.signal is not None:
            if not 0 < params.signal < signal.NSIG:
                raise errors.InvalidParams(
                    f"{params.signal} is no signal's number", detail=errors.Detail(field="signal"), dispatched="no"
                )
            return types.SignalProcessResult(delivered=await command.signal(params.signal))
        delivered = not command.finished
        await command.end()
        return types.SignalProcessResult(delivered=delivered)

    async def wait_process(self, params: types.WaitProcessParams, call: Call) -> types.WaitProcessResult:
        """Follow a process to its end. Repeat: from the offset it names. Cancel: stops following; it runs on."""
        process = self._process(params.sandbox_id, params.process_id)
        if process.followed:
            raise errors.Overloaded("this process is followed already; one call at a time can", dispatched="no")
        command = process.command
        follower = command.follow(call, {start.stream: start.offset for start in params.from_offset})
        process.followed = True
        try:
            await command.wait()
            await command.delivered(follower)
        finally:
            command.unfollow()
            process.followed = False
        return command.outcome(types.WaitProcessResult)

    # ------------------------------------------------------------ what is attached

    def _sandbox(self, sandbox_id: str) -> Sandbox:
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            if sandbox_id in self._gone:
                raise errors.LeaseNotFound("the sandbox was destroyed", dispatched="no")
            raise errors.NotAttached(f"this worker is not attached to {sandbox_id}", dispatched="no")
        return sandbox

    def _process(self, sandbox_id: str, process_id: str) -> Process:
        process = self._sandbox(sandbox_id).processes.get(process_id)
        if process is None:
            raise errors.ProcessNotFound(f"no process {process_id!r} is known in the sandbox", dispatched="no")
        return process

    def _drop(self, sandbox_id: str) -> None:
        sandbox = self._sandboxes.pop(sandbox_id, None)
        if sandbox is not None:
            sandbox.close()


def _known_already(process_id: str) -> errors.WireError:
    return errors.InvalidParams(
        f"there is a process {process_id!r} already", detail=errors.Detail(field="processId"), dispatched="no"
    )


def _refuse_what_takes_isolation(params: types.AcquireLeaseParams, config: LocalConfig, obstacle: str | None) -> None:
    """Refuse what cannot be kept without isolation, before anything is made.

    Raises:
        NotSupported: The config requires isolation or a limit, or the grant is one that takes isolation.
    """
    why = SWITCHED_OFF if obstacle is None else obstacle
    refused = None
    if config.isolation == "require":
        refused = "config.isolation", "the sandbox cannot be isolated"
    elif params.egress is not None and params.egress.mode != "all":
        refused = "egress.mode", f"egress {params.egress.mode!r} cannot be enforced without isolation"
    elif config.limits:
        refused = f"config.{config.limits[0]}", f"{' and '.join(config.limits)} cannot be kept without isolation"
    if refused is not None:
        field, what = refused
        raise errors.NotSupported(f"{what}: {why}", detail=errors.Detail(field=field), dispatched="no")


def _refuse_more_than_there_is(config: LocalConfig) -> None:
    """Refuse what the host itself may not have.

    Raises:
        NotSupported: More open files than its own hard limit.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if config.open_files is not None and most != resource.RLIM_INFINITY and config.open_files > most:
        raise errors.NotSupported(
            f"{config.open_files} open files cannot be had: the host's own hard limit is {most} (ulimit -Hn)",
            detail=errors.Detail(field="config.open_files", limit=most),
            dispatched="no",
        )


def _check_limits(config: LocalConfig, obstacle: str | None) -> types.ProbeCheck:
    """Whether limits would be kept: those of the config or, where it has none, any that a config may ask for."""
    if config.isolation == "none":
        return types.ProbeCheck(name="limits", ok=True, detail=f"none are to be had: {SWITCHED_OFF}")
    if obstacle is not None:
        return types.ProbeCheck(name="limits", ok=False, detail=f"refused, since nothing isolates: {obstacle}")
    names = {"memory_bytes": "memory", "pids": "pids", "cpus": "cpu"}
    wanted = config.limits or tuple(names)
    why = why_not([names[limit] for limit in wanted if limit in names])
    if why is not None:
        return types.ProbeCheck(name="limits", ok=False, detail=f"refused: {why}")
    return types.ProbeCheck(name="limits", ok=True, detail="cgroups")


def check_size(size: types.PtySize) -> None:
    """Refuse what no terminal can have.

    Raises:
        InvalidParams: A side is not within what the kernel keeps for it.
    """
    if not (0 <= size.columns <= 0xFFFF and 0 <= size.rows <= 0xFFFF):
        raise errors.InvalidParams(
            f"a terminal of {size.columns} by {size.rows} cannot be had",
            detail=errors.Detail(limit=0xFFFF),
            dispatched="no",
        )
