"""The shortest provider that serves, for tests to derive from."""

from typing import Any

from sandport_sdk.testing import new_id
from sandport_sdk.v1 import Call, Provider, types


class Plain(Provider, abstract=True):
    """The mandatory methods, as short as they can be."""

    name = "plain"
    version = "1"

    async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        return types.ProbeResult()

    async def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
        return types.LeaseResult(handle="h", working_directory="/")

    async def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        return types.AttachLeaseResult(state="gone")

    async def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        return types.ListLeasesResult()

    async def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        return types.DestroyLeaseResult(state="gone")

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        return types.ExecuteResult(ended="exited", exit_code=0)


def command(**more: Any) -> types.ExecuteParams:
    """Params of an `execute` with live output."""
    return types.ExecuteParams(sandbox_id=new_id(), argv=("x",), live=True, **more)


DONE = types.ExecuteResult(ended="exited", exit_code=0)
