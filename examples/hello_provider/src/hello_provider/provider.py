"""The methods of the protocol, in its order. A sandbox is a directory below the host's state directory."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from sandport_sdk.v1 import Call, Capabilities, Config, Provider, Session, errors, types

from .command import SHELL, Command
from .guard import Guard

ENTRY_BYTES = 256
"""More than one sandbox takes on a page of `listLeases`."""


class HelloConfig(Config, frozen=True, kw_only=True):
    """What a user may set for a sandbox."""

    path: str = "/usr/local/bin:/usr/bin:/bin"
    """Where commands are looked for."""


class Sandbox:
    """A sandbox that this worker acquired or attached, and what runs in it."""

    def __init__(self, root: Path, config: HelloConfig) -> None:
        self.root = root
        self.config = config
        self.running: set[Command] = set()


class HelloProvider(Provider):
    """Directories on this machine, kept apart by nothing but their names."""

    name = "hello"
    version = "0.1.0"
    display_name = "Hello"
    Config = HelloConfig
    capabilities = Capabilities(kill="group", expiry="none", egress=("all",))

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._open: dict[str, Sandbox] = {}
        self._guard = Guard()

    async def prepare(self) -> None:
        """Start what ends our commands when this worker is killed."""
        await self._guard.start()

    async def close(self) -> None:
        """Let go: no command runs any more, and the directories stay for the next worker."""
        await self._guard.close()

    # ------------------------------------------------------------ leases; plain functions, so each runs in a thread

    def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        """Look at what a sandbox needs, and create nothing."""
        self.config_of(params)
        state = self.session.state_dir
        return types.ProbeResult(
            checks=(
                types.ProbeCheck(name="state directory", ok=os.access(state, os.W_OK | os.X_OK), detail=str(state)),
                types.ProbeCheck(name="shell", ok=os.access(SHELL, os.X_OK), detail=SHELL),
            )
        )

    def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
        """Make a sandbox. Repeat: refused. Cancel: comes too late, the lease is answered."""
        call.dispatched = "no"
        config = self.config_of(params)
        if params.egress is not None and params.egress.mode != "all":
            why = f"egress {params.egress.mode!r}: nothing here keeps commands from the network"
            raise errors.NotSupported(why, detail=errors.Detail(field="egress.mode"), dispatched="no")
        root = self._root(params.sandbox_id)
        try:
            root.mkdir(mode=0o700)
        except FileExistsError:
            raise errors.InvalidParams(f"{params.sandbox_id} is there already", dispatched="no") from None
        self._open[params.sandbox_id] = Sandbox(root, config)
        return self._lease(params.sandbox_id)

    def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        """Open a sandbox of an earlier worker, or of this one again. Repeat: the same. Cancel: nothing happened."""
        config = self.config_of(params)
        if params.handle != self._handle(params.sandbox_id):
            raise errors.InvalidParams(f"{params.handle!r} is no handle of {params.sandbox_id}", dispatched="no")
        root = self._root(params.sandbox_id)
        if not root.is_dir():
            return types.AttachLeaseResult(state="gone")
        known = params.sandbox_id in self._open
        self._open.setdefault(params.sandbox_id, Sandbox(root, config))
        return types.AttachLeaseResult(state="attached", lease=self._lease(params.sandbox_id), processes_lost=not known)

    def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        """List the directories, a page at a time. Repeat: lists again."""
        self.config_of(params)
        names = sorted(path.name for path in self.session.state_dir.glob("sp*"))
        names = [name for name in names if params.sandbox_id in (None, name) and name > (params.cursor or "")]
        page = max(1, self.session.limits.frame_bytes // ENTRY_BYTES - 1)
        return types.ListLeasesResult(
            leases=tuple(types.ListedLease(sandbox_id=name, handle=self._handle(name)) for name in names[:page]),
            next_cursor=names[page - 1] if len(names) > page else None,
        )

    async def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        """End what runs in a sandbox and remove it. Repeat: `gone`. Cancel: a repeat finishes it."""
        root = self._root(params.sandbox_id)
        sandbox = self._open.pop(params.sandbox_id, None)
        if sandbox is not None:
            await asyncio.gather(*(command.stop("destroyed") for command in sandbox.running))
        if not await asyncio.to_thread(root.is_dir):
            return types.DestroyLeaseResult(state="gone")
        await asyncio.to_thread(shutil.rmtree, root)
        return types.DestroyLeaseResult(state="destroyed")

    # ------------------------------------------------------------ commands

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        """Run a command to its end. Repeat: runs it again. Cancel: kills its group, then answers."""
        sandbox = self._open.get(params.sandbox_id)
        if sandbox is None:
            raise errors.NotAttached(f"{params.sandbox_id} is not attached to this worker", dispatched="no")
        if params.user is not None:
            why = "commands run as the user of this worker"
            raise errors.NotSupported(why, detail=errors.Detail(field="user"), dispatched="no")
        command = Command(params, call, root=sandbox.root, path=sandbox.config.path, guard=self._guard)
        sandbox.running.add(command)
        running = asyncio.ensure_future(command.run())
        try:
            # Shielded: a cancel ends the command, and not the task that reads how it ended.
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await command.stop("cancelled")
            return await running
        finally:
            sandbox.running.discard(command)

    # ------------------------------------------------------------ names and places

    def _root(self, sandbox_id: str) -> Path:
        return self.session.state_dir / sandbox_id

    def _handle(self, sandbox_id: str) -> str:
        return f"hello/1/{sandbox_id}"

    def _lease(self, sandbox_id: str) -> types.LeaseResult:
        root = str(self._root(sandbox_id))
        return types.LeaseResult(
            handle=self._handle(sandbox_id),
            working_directory=root,
            local_root=root,
            shell=SHELL,
            egress=types.Egress(mode="all"),
            notes=("nothing isolates this sandbox", "what a command leaves running ends with it"),
        )
