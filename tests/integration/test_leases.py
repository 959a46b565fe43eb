"""A sandbox that was asked for is had, or gone: whatever happens on the way, none is left."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from sandport.errors import LeaseLost, NotSupported, ProtocolViolation, QuotaExceeded, Unavailable, UsageError
from sandport.host import Host
from sandport.log import LEASE_NOTE
from sandport.sandbox import Sandbox
from sandport_protocol.limits import Limits
from sandport_protocol.v1 import Egress
from tests.integration.conftest import OpenHost
from tests.integration.stage import ROOT, Journal, Records, eventually, worker

pytestmark = pytest.mark.anyio

BRIEF = Limits(cancel_grace_ms=100)


async def acquire_and_cancel(open_host: OpenHost, journal: Journal, way: str) -> None:
    """Cancel an acquire once the worker has it, and stay until the host has cleaned up."""
    async with open_host(scripted=worker("acquires", way, journal=journal.path), limits=BRIEF) as host:

        async def lease() -> None:
            async with host.lease("scripted"):
                pytest.fail("there is no lease")

        leasing = asyncio.ensure_future(lease())
        await journal.until("acquires")
        leasing.cancel()
        await asyncio.wait((leasing,))
        assert leasing.cancelled()
        if way == "comes late":
            await journal.until("destroyed")


@pytest.mark.parametrize("way", ["crosses", "does not know", "comes late"])
async def test_what_a_cancelled_acquire_may_have_created_is_destroyed(
    open_host: OpenHost, journal: Journal, way: str
) -> None:
    """The answer crosses the cancel, says `unknown`, or comes after the host has looked and found nothing."""
    await acquire_and_cancel(open_host, journal, way)
    assert [entry["left"] for entry in journal.of("destroyed")] == [0]


async def test_a_cancelled_acquire_that_had_created_nothing_is_looked_for_nowhere(
    open_host: OpenHost, journal: Journal
) -> None:
    await acquire_and_cancel(open_host, journal, "had nothing")
    assert journal.received("listLeases") == 0


async def test_an_acquire_that_is_cancelled_again_while_it_is_undone_is_undone(
    open_host: OpenHost, journal: Journal
) -> None:
    async with open_host(scripted=worker("acquires", "does not know", journal=journal.path)) as host:

        async def lease() -> None:
            async with host.lease("scripted"):
                pytest.fail("there is no lease")

        leasing = asyncio.ensure_future(lease())
        await journal.until("acquires")
        for _ in range(5):
            leasing.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((leasing,))
        assert leasing.cancelled()
    assert [entry["left"] for entry in journal.of("destroyed")] == [0]


async def test_a_refusal_is_told_and_nothing_is_undone(open_host: OpenHost, journal: Journal) -> None:
    async with open_host(scripted=worker("acquires", "refuses", journal=journal.path)) as host:
        with pytest.raises(QuotaExceeded):
            async with host.lease("scripted"):
                pytest.fail("there is no lease")
    assert journal.received("listLeases") == 0


@pytest.mark.parametrize(("way", "error"), [("fails half way", Unavailable), ("answers nonsense", ProtocolViolation)])
async def test_what_a_failed_acquire_may_have_left_is_destroyed(
    open_host: OpenHost, journal: Journal, way: str, error: type[Exception]
) -> None:
    async with open_host(scripted=worker("acquires", way, journal=journal.path)) as host:
        with pytest.raises(error):
            async with host.lease("scripted"):
                pytest.fail("there is no lease")
    assert [entry["left"] for entry in journal.of("destroyed")] == [0]


async def test_an_egress_that_is_not_the_one_asked_for_destroys_the_sandbox_and_raises(
    open_host: OpenHost, journal: Journal
) -> None:
    grant = Egress(mode="listed", hosts=("example.test",))
    async with open_host(scripted=worker("acquires", "enforces something else", journal=journal.path)) as host:
        with pytest.raises(NotSupported, match=r"egress listed .* and enforces egress all"):
            async with host.lease("scripted", egress=grant):
                pytest.fail("there is no lease")
    assert [entry["left"] for entry in journal.of("destroyed")] == [0]


async def test_an_egress_that_is_enforced_is_a_lease(open_host: OpenHost, journal: Journal) -> None:
    grant = Egress(mode="listed", hosts=("example.test",))
    async with (
        open_host(scripted=worker("acquires", "enforces what it says", journal=journal.path)) as host,
        host.lease("scripted", egress=grant) as sandbox,
    ):
        assert sandbox.lease.egress == grant
    assert [entry["left"] for entry in journal.of("destroyed")] == [0]


async def test_what_the_provider_notes_of_a_lease_is_warned_of_once(open_host: OpenHost, records: Records) -> None:
    """Such as that nothing isolates it, which nobody hears who does not think of reading the lease's notes."""
    async with open_host(plain=(sys.executable, str(ROOT / "examples" / "stdlib_worker" / "worker.py"))) as host:
        async with host.lease("plain", keep=True, name="noted") as sandbox:
            (note,) = sandbox.lease.notes
            assert "nothing isolates" in note
            noted = [(level, fields) for level, event, fields in records.lines if event == LEASE_NOTE]
            assert noted == [("warning", {"note": note, "provider": "plain", "sandbox": sandbox.id})]
        async with host.attach("noted") as again:
            assert again.lease.notes == (note,)
        await host.end_lease("noted")
    assert records.texts().count(LEASE_NOTE) == 1


async def test_a_worker_that_dies_in_an_acquire_is_replaced_and_asked_what_there_is(
    open_host: OpenHost, journal: Journal
) -> None:
    async with open_host(scripted=worker("dies", "acquireLease", "3", journal=journal.path)) as host:
        with pytest.raises(Exception, match="exited with code 3"):
            async with host.lease("scripted"):
                pytest.fail("there is no lease")
        assert journal.received("acquireLease") == 1
        assert journal.received("listLeases") == 1
        assert host._supervisor("scripted").starts == 2


# ------------------------------------------------------------------ the end of a lease


@asynccontextmanager
async def leased(open_host: OpenHost, journal: Journal) -> AsyncIterator[tuple[Host, Sandbox]]:
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        yield host, sandbox


async def test_the_sandbox_is_destroyed_at_the_end_of_its_block_and_used_no_more(
    open_host: OpenHost, journal: Journal
) -> None:
    async with open_host(scripted=worker("well_behaved", journal=journal.path)) as host:
        async with host.lease("scripted") as sandbox:
            root = anyio.Path(sandbox.working_directory.decode())
            assert await root.exists()
        assert not await root.exists()
        with pytest.raises(LeaseLost):
            await sandbox.execute(["true"])
        assert await sandbox.destroy()
    assert journal.received("destroyLease") == 1


async def test_a_cancelled_scope_around_everything_destroys_the_sandbox(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    """The cancel reaches the lease and the worker that ends it together; the lease goes first."""
    with anyio.CancelScope() as scope:
        async with leased(open_host, journal) as (_, sandbox):
            root = anyio.Path(sandbox.working_directory.decode())
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not await root.exists()
    assert journal.received("destroyLease") == 1
    assert records.texts("error") == []


async def test_a_task_that_is_cancelled_twice_destroys_the_sandbox(open_host: OpenHost, journal: Journal) -> None:
    async def run() -> None:
        async with leased(open_host, journal) as (_, sandbox):
            await sandbox.execute(["sleep", "600"])

    running = asyncio.ensure_future(run())
    await journal.until("executes")
    running.cancel()
    await journal.until("received", method="cancel")
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()
    assert journal.received("destroyLease") == 1
    assert journal.received("shutdown") == 1


async def test_two_sandboxes_of_one_worker_are_two(open_host: OpenHost) -> None:
    async with (
        open_host(scripted=worker("well_behaved")) as host,
        host.lease("scripted") as one,
        host.lease("scripted") as other,
    ):
        assert (await one.execute(shell="echo 1 >file")).ok
        assert (await other.execute(shell="test ! -e file")).ok
        assert one.working_directory != other.working_directory


async def test_variables_of_the_lease_and_of_the_command_are_merged_and_the_nearer_wins(open_host: OpenHost) -> None:
    """64, 69: computesdk#436, SWE-ReX: passing one variable wiped the others."""
    async with (
        open_host(scripted=worker("well_behaved")) as host,
        host.lease("scripted", env={"A": "lease", "B": "lease"}) as sandbox,
    ):
        outcome = await sandbox.execute(shell='echo "$A $B $C"; test -n "$PATH"', env={"B": "x y", "C": "z"})
    assert (outcome.stdout.decode(), outcome.exit_code) == ("lease x y z\n", 0)


async def test_a_sandbox_that_is_gone_after_a_crash_ends_the_lease(open_host: OpenHost, journal: Journal) -> None:
    async with leased(open_host, journal) as (host, sandbox):
        worker_now = await host._supervisor("scripted").worker()
        await anyio.Path(sandbox.working_directory.decode()).rmdir()
        worker_now.process.signal_group(9)
        await worker_now.ended
        with pytest.raises(LeaseLost, match="its sandbox is gone"):
            await sandbox.execute(["true"])
        with pytest.raises(LeaseLost):
            await sandbox.execute(["true"])
    assert journal.received("execute") == 0


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan"), float("inf")])
async def test_a_life_time_that_makes_no_sense_starts_nothing(
    open_host: OpenHost, journal: Journal, ttl_s: float
) -> None:
    async with open_host(scripted=worker("well_behaved", journal=journal.path)) as host:
        with pytest.raises(UsageError, match="ttl_s"):
            async with host.lease("scripted", ttl_s=ttl_s):
                pytest.fail("there is no lease")
    assert list(journal) == []


async def test_a_closed_host_starts_nothing(open_host: OpenHost) -> None:
    async with open_host(scripted=worker("well_behaved")) as host:
        pass
    with pytest.raises(UsageError, match="closed"):
        await host.describe("scripted")
    await eventually(lambda: host._supervisors == {})
