"""The methods of the protocol, in its order. A sandbox is a directory on this machine, and a keeper of the SDK's."""

from __future__ import annotations

import asyncio
import os
import sys

from sandport_sdk.v1 import Call, Capabilities, Provider, Session, machine, types

from .command import SHELL, Command
from .config import HelloConfig
from .errors import not_supported


class HelloProvider(Provider):
    """Directories on this machine, kept apart by nothing but their names."""

    name = "hello"
    version = "0.1.0"
    display_name = "Hello"
    Config = HelloConfig
    capabilities = Capabilities(kill="group", expiry="agent", egress=("all",))

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._sandboxes = machine.Sandboxes(session, self.name)
        self._configs: dict[str, HelloConfig] = {}

    def close(self) -> None:
        """Let go: no command runs any more, and the sandboxes stay for the next worker."""
        self._sandboxes.close()

    # ------------------------------------------------------------ leases; plain functions, so each runs in a thread

    def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        """Look at what a sandbox needs, and create nothing."""
        self.config_of(params)
        state = self.session.state_dir
        return types.ProbeResult(
            checks=(
                types.ProbeCheck(name="system", ok=sys.platform == "linux", detail=sys.platform),
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
            raise not_supported("egress.mode", why)
        sandbox = self._sandboxes.create(params)
        self._configs[params.sandbox_id] = config
        return self._lease(sandbox)

    def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        """Open a sandbox of an earlier worker, or of this one again. Repeat: the same. Cancel: nothing happened."""
        config = self.config_of(params)
        try:
            sandbox = self._sandboxes.attach(params)
        except machine.Unfinished:
            return types.AttachLeaseResult(state="unreachable")
        if sandbox is None:
            return types.AttachLeaseResult(state="gone")
        self._configs[params.sandbox_id] = config
        lost = sandbox.processes_lost
        return types.AttachLeaseResult(state="attached", lease=self._lease(sandbox), processes_lost=lost)

    def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        """List the sandboxes, a page at a time. Repeat: lists again."""
        self.config_of(params)
        return self._sandboxes.list(params)

    def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        """End what runs in a sandbox and remove it. Repeat: `gone`. Cancel: comes too late, it is destroyed."""
        result = self._sandboxes.destroy(params)
        self._configs.pop(params.sandbox_id, None)
        return result

    # ------------------------------------------------------------ commands

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        """Run a command to its end. Repeat: runs it again. Cancel: kills its group, then answers."""
        sandbox = self._sandboxes.opened(params.sandbox_id)
        if params.user is not None:
            raise not_supported("user", "commands run as the user of this worker")
        command = Command(params, call, sandbox=sandbox, path=self._configs[params.sandbox_id].path)
        running = asyncio.ensure_future(command.run())
        try:
            # Shielded: a cancel ends the command, and not the task that reads how it ended.
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await command.cancel()
            return await running

    def _lease(self, sandbox: machine.Sandbox) -> types.LeaseResult:
        return sandbox.lease(shell=SHELL, egress=types.Egress(mode="all"), notes=("nothing isolates this sandbox",))
