"""A sandbox of the provider behind a host in memory, with short names for what tests do all the time."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

from msgspec import Raw

from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory, Request, new_id
from sandport_sdk.v1 import Limits, types

ISOLATION = os.environ.get("SANDPORT_LOCAL_ISOLATION", "require")
"""What the sandboxes of these tests are made with: all of them hold with `none` as well."""
CONFIG = Raw(json.dumps({"isolation": ISOLATION}).encode())


class Lease:
    """One sandbox."""

    def __init__(self, host: HostInMemory, state_dir: Path, sandbox_id: str) -> None:
        self.host = host
        self.id = sandbox_id
        self.path = state_dir / sandbox_id
        self.handle = f"local/1/{sandbox_id}"
        self.said: types.LeaseResult | None = None

    @classmethod
    async def acquire(
        cls, host: HostInMemory, state_dir: Path, *, ttl_ms: int = 600_000, keep: bool = False, **config: Any
    ) -> "Lease":
        lease = cls(host, state_dir, new_id())
        said = Raw(json.dumps({"isolation": ISOLATION, **config}).encode())
        params = types.AcquireLeaseParams(sandbox_id=lease.id, ttl_ms=ttl_ms, keep=keep, config=said)
        lease.said = await host.call("acquireLease", params)
        return lease

    @property
    def init(self) -> int:
        """The process of its init or, where it is isolated, of its keeper: the one that owns the folder."""
        return int(json.loads((self.path / "init.json").read_text())["pid"])

    @property
    def reaper(self) -> int:
        """The process of its init, that starts and reaps its commands."""
        said = json.loads((self.path / "init.json").read_text())
        return int(said.get("insidePid", said["pid"]))

    @property
    def isolated(self) -> bool:
        return self.record["boundary"] is not None

    @property
    def home(self) -> str:
        """Its working directory, as its commands see it."""
        return "/sandbox" if self.isolated else os.fspath(self.path / "sandbox")

    @property
    def tmp(self) -> str:
        """Its directory for temporary files, as its commands see it."""
        return "/tmp" if self.isolated else os.fspath(self.path / "tmp")

    @property
    def record(self) -> dict[str, Any]:
        """What is recorded of it."""
        record: dict[str, Any] = json.loads((self.path / "record.json").read_text())
        return record

    def seen_by(self, host: HostInMemory) -> "Lease":
        """The same sandbox from another worker."""
        return Lease(host, self.path.parent, self.id)

    def start(self, *argv: Any, **more: Any) -> Request:
        """Begin to run a program."""
        return self.host.start("execute", types.ExecuteParams(sandbox_id=self.id, argv=argv, **more))

    async def run(self, *argv: Any, **more: Any) -> types.ExecuteResult:
        """Run a program to its end."""
        result: types.ExecuteResult = await self.start(*argv, **more).result()
        return result

    async def sh(self, text: str, **more: Any) -> types.ExecuteResult:
        """Run a text in the shell to its end."""
        return await self.run("sh", "-c", text, **more)

    async def spawn(self, process_id: str, *argv: Any, **more: Any) -> None:
        """Start a process."""
        params = types.StartProcessParams(sandbox_id=self.id, process_id=process_id, argv=argv, **more)
        await self.host.call("startProcess", params)

    def wait(self, process_id: str, **offsets: int) -> Request:
        """Begin to follow a process."""
        starts = tuple(types.StreamOffset(stream=name, offset=at) for name, at in offsets.items())  # type: ignore[arg-type]
        params = types.WaitProcessParams(sandbox_id=self.id, process_id=process_id, from_offset=starts)
        return self.host.start("waitProcess", params)

    def write(self, process_id: str, data: bytes, *, end: bool = False) -> Request:
        """Begin to write to a process."""
        params = types.WriteProcessParams(sandbox_id=self.id, process_id=process_id, data=data, end=end)
        return self.host.start("writeProcess", params)

    async def signal(self, process_id: str, **what: Any) -> bool:
        """Signal, kill or resize a process."""
        params = types.SignalProcessParams(sandbox_id=self.id, process_id=process_id, **what)
        answer: types.SignalProcessResult = await self.host.call("signalProcess", params)
        return answer.delivered

    async def attach(self, *, keep: bool | None = None) -> types.AttachLeaseResult:
        params = types.AttachLeaseParams(sandbox_id=self.id, handle=self.handle, keep=keep)
        answer: types.AttachLeaseResult = await self.host.call("attachLease", params)
        return answer

    async def destroy(self) -> str:
        answer: types.DestroyLeaseResult = await self.host.call(
            "destroyLease", types.DestroyLeaseParams(sandbox_id=self.id)
        )
        return answer.state


def other_host(state_dir: Path, *, store_id: str = "store-in-memory", grace_ms: int = 30_000) -> HostInMemory:
    """A second worker on the same state."""
    limits = Limits(orphan_grace_ms=grace_ms)
    return HostInMemory(LocalProvider, state_dir=state_dir, store_id=store_id, limits=limits)


def unique_sleep() -> str:
    """A number of seconds, some minutes, that no other process sleeps."""
    return f"{300 + uuid.uuid4().int % 600}.{uuid.uuid4().int % 10**12:012d}"
