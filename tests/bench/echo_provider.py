"""A provider for measuring calls: a sandbox is a name, a command is `true` or `cat`, and an extension echoes."""

from __future__ import annotations

from typing import Any

from sandport_sdk.v1 import Call, Capabilities, Config, Provider, Session, errors, extension, types


class EchoConfig(Config, frozen=True):
    """What a probe echoes."""

    text: str = ""


class EchoProvider(Provider):
    """Answers everything by itself, at once."""

    name = "bench"
    version = "0.1.0"
    display_name = "Echo"
    Config = EchoConfig
    capabilities = Capabilities()

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._sandboxes: dict[str, types.LeaseResult] = {}

    @extension("x-bench/echo")
    async def echo(self, params: Any, call: Call) -> Any:
        return params

    async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        config: EchoConfig = self.config_of(params)
        return types.ProbeResult(checks=(types.ProbeCheck(name="config", ok=True, detail=config.text),))

    async def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
        if params.sandbox_id in self._sandboxes:
            raise errors.InvalidParams(f"{params.sandbox_id} was created already", dispatched="no")
        lease = types.LeaseResult(handle=params.sandbox_id, working_directory="/")
        self._sandboxes[params.sandbox_id] = lease
        return lease

    async def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        lease = self._sandboxes.get(params.sandbox_id)
        return types.AttachLeaseResult(state="gone" if lease is None else "attached", lease=lease)

    async def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        listed = (types.ListedLease(sandbox_id=name, handle=name) for name in self._sandboxes)
        return types.ListLeasesResult(leases=tuple(listed))

    async def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        lease = self._sandboxes.pop(params.sandbox_id, None)
        return types.DestroyLeaseResult(state="gone" if lease is None else "destroyed")

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        if params.sandbox_id not in self._sandboxes:
            raise errors.NotAttached(f"{params.sandbox_id} is not known to this worker", dispatched="no")
        if params.argv not in (("true",), ("cat",)):
            raise errors.CommandNotFound("there are two commands, true and cat", dispatched="no")
        said = params.stdin if params.argv == ("cat",) else b""
        if not params.live:
            return types.ExecuteResult(
                ended="exited", exit_code=0, stdout=types.StreamResult(total_bytes=len(said), data=said)
            )
        await call.output("stdout", said)
        await call.end("stdout", "seen")
        await call.end("stderr", "seen")
        return types.ExecuteResult(ended="exited", exit_code=0, stdout=types.StreamResult(total_bytes=len(said)))
