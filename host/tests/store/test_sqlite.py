"""The store in a SQLite file."""

import asyncio
from pathlib import Path

from sandport.clock import VirtualClock
from sandport.store.records import LeaseRow, SandboxRow
from sandport.store.sqlite import SqliteStore


def test_a_lease_that_was_created_is_there_after_reopening(tmp_path: Path) -> None:
    async def main() -> None:
        clock = VirtualClock()
        store = await SqliteStore.open(tmp_path / "store.db", clock=clock)
        sandbox = SandboxRow(id="sp1", provider="local", environment="local", owner="in1", secrets={"a": "b"})
        lease = LeaseRow(id="le1", sandbox_id="sp1", environment="local", owner="in1", env={"X": b"\xff", "Y": "y"})
        await store.request(sandbox, lease)
        await store.creating(sandbox.ref, by="in1", provider_version="1", settle_ms=5)
        await store.created(sandbox.ref, "le1", by="in1", handle="h", lease_result=b"{}", expires_at_ms=None)
        before = await store.leased("le1")
        await store.aclose()
        store = await SqliteStore.open(tmp_path / "store.db", clock=clock)
        assert await store.leased("sp1") == before
        assert (before.sandbox.state, before.lease.state) == ("leased", "active")
        assert before.lease.env == lease.env
        assert before.sandbox.secrets == sandbox.secrets
        assert [receipt.what for receipt in await store.receipts("sp1")] == ["requested", "creating", "created"]
        await store.aclose()

    asyncio.run(main())
