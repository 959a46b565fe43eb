"""Leases of the fake vendor over a host in memory."""

from __future__ import annotations

from typing import Any

from sandport_provider_fake.provider import FakeProvider
from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import HostInMemory, Request, new_id
from sandport_sdk.v1 import types


class Leases(HostInMemory):
    """A host that knows the calls of these tests; config in each call that has one."""

    def __init__(self, fake: Fake, *, store_id: str = "store", **config: object) -> None:
        super().__init__(FakeProvider, state_dir=fake.state_dir, store_id=store_id)
        self.config = config

    def ask(self, sandbox_id: str | None = None, *, ttl_ms: int = 60_000, **params: object) -> Request:
        """Begin an acquire."""
        members = {"sandboxId": sandbox_id or new_id(), "ttlMs": ttl_ms, "config": self.config, **params}
        return self.start("acquireLease", members)

    async def acquire(self, sandbox_id: str | None = None, *, ttl_ms: int = 60_000, **params: object) -> str:
        sandbox_id = sandbox_id or new_id()
        await self.ask(sandbox_id, ttl_ms=ttl_ms, **params).result()
        return sandbox_id

    async def attach(self, sandbox_id: str, **params: object) -> types.AttachLeaseResult:
        members = {"sandboxId": sandbox_id, "handle": f"fake/1/{sandbox_id}", "config": self.config, **params}
        result: types.AttachLeaseResult = await self.call("attachLease", members)
        return result

    async def listed(self, **params: object) -> list[str]:
        result: types.ListLeasesResult = await self.call("listLeases", {"config": self.config, **params})
        return [lease.sandbox_id for lease in result.leases]

    async def destroy(self, sandbox_id: str) -> str:
        result: types.DestroyLeaseResult = await self.call("destroyLease", {"sandboxId": sandbox_id})
        return result.state

    def run(self, sandbox_id: str, shell: str, **params: object) -> Request:
        """Begin a command."""
        return self.start("execute", {"sandboxId": sandbox_id, "shell": shell, **params})

    async def execute(self, sandbox_id: str, shell: str, **params: object) -> types.ExecuteResult:
        result: types.ExecuteResult = await self.run(sandbox_id, shell, **params).result()
        return result

    async def extension(self, name: str, **params: object) -> Any:
        return await self.call(f"x-fake/{name}", params)
