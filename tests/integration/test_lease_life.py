"""The life of a lease, in the journal and at the vendor, whoever asked for it and whoever ends it."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandport.clock import VirtualClock
from sandport.errors import (
    Internal,
    InUse,
    LeaseLost,
    LeaseUnknown,
    NameTaken,
    QuotaExceeded,
    RateLimited,
    StoreUnusable,
    Unavailable,
    WorkerCrashed,
)
from sandport.numbers import RateLimit
from sandport_protocol.limits import Limits
from tests.integration.stage import QUICK, alive, eventually
from tests.integration.vendor import EAGER, Vendor, leased_before_a_cancel, states, victim

pytestmark = pytest.mark.anyio

Killed = Callable[[str], contextlib.AbstractAsyncContextManager[str]]
BRIEF = Limits(cancel_grace_ms=100)


@contextlib.contextmanager
def running(argv: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone after the block."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def said(process: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


# ------------------------------------------------------------------ the block


async def test_every_step_of_a_lease_is_in_the_journal(vendor: Vendor) -> None:
    async with vendor.host() as host:
        async with host.lease("env", run="r1") as sandbox:
            assert await states(host) == {"leased": 1}
            lease = await host.store.lease(sandbox.lease_id)
            assert (lease.state, lease.run, lease.kept) == ("active", "r1", False)
        assert await states(host) == {"gone": 1}
        done = [receipt.what for receipt in await host.store.receipts(sandbox.id)]
    assert done == ["requested", "creating", "created", "ending", "destroyed"]
    vendor.fake.assert_nothing_left()


async def test_the_vendor_is_told_when_the_sandbox_ends_at_the_latest(vendor: Vendor) -> None:
    """131, verifiers#1520, AutoGPT#12774: nothing bounded what a crash had left."""
    vendor.fake.clock.stand_still()
    async with vendor.host() as host, host.lease("env", ttl_s=90.0) as sandbox:
        (record,) = vendor.fake.sandboxes()
        assert record.expires_at_ms == round((vendor.fake.clock.now_s + 90.0) * 1000)
        row = await host.store.sandbox(sandbox.id)
        assert row is not None
        assert row.expires_at_ms == record.expires_at_ms


async def test_an_acquire_that_is_cancelled_at_any_turn_of_the_loop_leaves_nothing(vendor: Vendor) -> None:
    """102, inspect_ai#5494, inspect_k8s#248, #250: a cancel or a failure in the set-up leaked."""
    leased = False
    async with vendor.host(limits=BRIEF) as host:
        await host.describe("fake")
        turns = 0
        while not leased:
            leased = await leased_before_a_cancel(host, turns)
            turns += 1 if turns < 30 else 1 + turns // 4
        assert turns > 20
        assert set(await states(host)) <= {"gone"}
    vendor.fake.assert_nothing_left()


@pytest.mark.parametrize(
    ("point", "error", "left_open"),
    [
        ("acquire.before", {"condition": "QuotaExceeded", "dispatched": "no"}, False),
        ("acquire.before-answer", {"condition": "Internal", "dispatched": "unknown"}, True),
        ("acquire.before-answer", {"condition": "Unavailable", "dispatched": "yes"}, True),
    ],
)
async def test_a_failed_create_is_ended_unless_it_never_was(
    vendor: Vendor, point: str, error: dict[str, str], left_open: bool
) -> None:
    vendor.fake.order(point, "error", **error)
    async with vendor.host() as host:
        with pytest.raises((QuotaExceeded, Internal, Unavailable)):
            async with host.lease("env"):
                pytest.fail("there is a lease")
        assert await states(host) == {"gone": 1}
        (row,) = await host.store.sandboxes(states={"gone"})
        done = [receipt.what for receipt in await host.store.receipts(row.id)]
        assert ("doubtful" in done) == left_open
        assert len(vendor.fake.journal("create")) == int(left_open)
    vendor.fake.assert_nothing_left()


async def test_a_crash_of_the_worker_in_an_acquire_is_never_asked_again(vendor: Vendor) -> None:
    """103, E2B#1658: the response was lost, and the retry made a second one."""
    vendor.fake.order("acquire.after-record", "crash")
    async with vendor.host() as host:
        with pytest.raises(WorkerCrashed):
            async with host.lease("env"):
                pytest.fail("there is a lease")
        assert await states(host) == {"gone": 1}
        async with host.lease("env"):
            pass
        assert len(vendor.fake.journal("create")) == 2
    vendor.fake.assert_nothing_left()


async def test_a_refused_command_is_not_run_again_and_one_that_ran_is_neither(vendor: Vendor) -> None:
    """117, 118, agent-sandbox#1352, strands-env#143: an exec was repeated after errors up to six times."""
    vendor.fake.order("execute.before-answer", "error", condition="Unavailable", dispatched="unknown", retry="now")
    async with vendor.host() as host, host.lease("env") as sandbox:
        with pytest.raises(Unavailable):
            await sandbox.execute(["true"])
        assert len(vendor.fake.journal("execute")) == 1


# ------------------------------------------------------------------ what is asked too much


async def test_a_vendor_that_allows_eight_creates_at_once_gets_a_hundred(vendor: Vendor) -> None:
    """98, cloudflare/sandbox-sdk#794: bursts of creates failed at random."""
    timing = QUICK.__class__(**{f: getattr(QUICK, f) for f in QUICK.__struct_fields__} | {"rate_limit": RateLimit()})
    async with vendor.host(timing=timing, creates_at_once=8, config={"max_in_flight_creates": 8}) as host:

        async def one() -> None:
            async with host.lease("env"):
                pass

        async with asyncio.TaskGroup() as tasks:
            for _ in range(100):
                tasks.create_task(one())
        assert await states(host) == {"gone": 100}
    assert len(vendor.fake.journal("create")) == 100
    vendor.fake.assert_nothing_left()


async def test_no_create_comes_sooner_than_the_vendor_asked(vendor: Vendor) -> None:
    """99, keeperhub#1431, cwsandbox-client#175: retry-after was ignored."""
    vendor.fake.order("acquire.before", "throttle", retry_after_ms=600)
    # What the host would wait by itself is far less; and what a worker takes to start does not count.
    timing = msgspec.structs.replace(QUICK, rate_limit=RateLimit(first_pause_s=0.01))
    async with vendor.host(timing=timing) as host:
        await host.describe("fake")
        started = asyncio.get_running_loop().time()
        async with host.lease("env"):
            assert asyncio.get_running_loop().time() - started >= 0.6
        assert await states(host) == {"gone": 2}  # each try had an id of its own
    assert len(vendor.fake.journal("create")) == 1


async def test_a_throttled_command_is_not_run_again_and_the_next_one_waits_for_its_time(vendor: Vendor) -> None:
    vendor.fake.order("execute.before", "throttle", retry_after_ms=200)
    async with vendor.host() as host, host.lease("env") as sandbox:
        with pytest.raises(RateLimited):
            await sandbox.execute(["echo", "first"])
        throttled = asyncio.get_running_loop().time()
        assert (await sandbox.execute(["echo", "second"])).stdout.data == b"second\n"
        assert asyncio.get_running_loop().time() - throttled >= 0.15
        assert len(vendor.fake.journal("execute")) == 1


async def test_a_throttle_of_one_tenant_holds_back_no_other(vendor: Vendor) -> None:
    vendor.fake.order("acquire.before", "throttle", retry_after_ms=3_600_000, times=1)
    async with vendor.host() as host:
        for _ in range(2):
            with pytest.raises(RateLimited):
                async with host.lease("env", tenant="a"):
                    pytest.fail("there is a lease")
        for tenant in ("b", None):
            async with host.lease("env", tenant=tenant):
                pass
    vendor.fake.assert_nothing_left()


async def test_a_throttle_that_outlasts_the_patience_is_told(vendor: Vendor) -> None:
    vendor.fake.order("acquire.before", "throttle", retry_after_ms=3_600_000)
    async with vendor.host() as host:
        with pytest.raises(RateLimited):
            async with host.lease("env"):
                pytest.fail("there is a lease")
        assert await states(host) == {"gone": 1}


# ------------------------------------------------------------------ kept


async def test_a_kept_lease_is_found_again_by_a_later_host(vendor: Vendor) -> None:
    async with vendor.host() as host, host.lease("env", keep=True, name="bench") as sandbox:
        await sandbox.execute(["sh", "-c", "echo here > file"])
        lease_id = sandbox.lease_id
    for which in ("bench", lease_id, sandbox.id, lease_id[:8]):
        async with vendor.host() as host, host.attach(which) as again:
            assert again.id == sandbox.id
            assert (await again.execute(["cat", "file"])).stdout.data == b"here\n"
    async with vendor.host() as host:
        assert (await host.end_lease("bench")).end == "gone"
        with pytest.raises(LeaseLost, match="ended by request"):
            async with host.attach(lease_id):
                pytest.fail("it has ended")
        with pytest.raises(LeaseUnknown):
            async with host.attach("nobody"):
                pytest.fail("there is none")
    vendor.fake.assert_nothing_left()


async def test_a_lease_can_be_kept_while_it_is_used(vendor: Vendor) -> None:
    async with vendor.host() as host:
        async with host.lease("env") as sandbox:
            await sandbox.keep("mine")
        assert await states(host) == {"leased": 1}
        with pytest.raises(NameTaken):
            async with host.lease("env", name="mine"):
                pytest.fail("the name is taken")
        await host.end_lease("mine")
        async with host.lease("env", name="mine"):
            pass
    vendor.fake.assert_nothing_left()


async def test_a_lease_that_is_over_or_another_process_s_cannot_be_kept(vendor: Vendor) -> None:
    async with vendor.host() as first, vendor.host() as second:
        async with first.lease("env") as sandbox, second.attach(sandbox.lease_id) as theirs:
            with pytest.raises(InUse, match="belongs to another process, which alone can keep it"):
                await theirs.keep("mine")
            assert not theirs.kept
        async with first.lease("env") as sandbox:
            await first.end_lease(sandbox.lease_id, reason="enough")
            with pytest.raises(LeaseLost, match=r"cannot be kept: it has ended \(enough\)"):
                await sandbox.keep()
    vendor.fake.assert_nothing_left()


async def test_a_kept_lease_that_the_vendor_ended_is_over_for_the_journal_too(vendor: Vendor) -> None:
    async with vendor.host() as host:
        async with host.lease("env", keep=True, name="gone") as sandbox:
            pass
        vendor.fake.clock.advance(7200)
        with pytest.raises(LeaseLost):
            async with host.attach("gone"):
                pytest.fail("it is gone")
        row = await host.store.sandbox(sandbox.id)
        assert row is not None
        assert row.state == "gone"


async def test_a_lease_whose_environment_was_removed_ends_all_the_same(vendor: Vendor) -> None:
    """124, paperclip#11347: its leases could not be reached any more."""
    async with vendor.host(config={"clock": "real"}) as host, host.lease("env", keep=True, name="k"):
        pass
    async with vendor.host(config={"faults": [{"point": "call.before", "action": "crash"}]}) as host:
        # The row's own config counts, not what the environment says now (114, paperclip#10264).
        assert (await host.end_lease("k")).end == "gone"
    vendor.fake.assert_nothing_left()


# ------------------------------------------------------------------ two hosts


async def test_a_lease_in_use_elsewhere_is_not_ended_without_force(vendor: Vendor) -> None:
    async with vendor.host() as first, vendor.host() as second:
        async with first.lease("env") as sandbox:
            with pytest.raises(InUse):
                await second.end_lease(sandbox.lease_id)
            assert (await sandbox.execute(["true"])).ok
            assert (await second.end_lease(sandbox.lease_id, force=True)).end == "gone"
            with pytest.raises(LeaseLost):
                await sandbox.execute(["true"])
        assert await states(first) == {"gone": 1}
    vendor.fake.assert_nothing_left()


async def test_whoever_holds_a_lease_is_told_that_another_ended_it(vendor: Vendor) -> None:
    """164, gadget-inc/silo#327: a worker went on after its lease was reaped."""
    lost: list[str] = []
    clock = VirtualClock()
    async with (
        vendor.host(clock=clock) as first,
        vendor.host() as second,
        first.lease("env", on_lost=lost.append) as sandbox,
    ):
        await second.end_lease(sandbox.lease_id, force=True)

        def told() -> bool:
            clock.advance(1)
            return bool(lost)

        await eventually(told)
        with pytest.raises(LeaseLost, match="another process"):
            await sandbox.execute(["true"])
    assert len(lost) == 1


async def test_the_end_of_one_host_leaves_anothers_lease_alone(vendor: Vendor) -> None:
    """128, agent-sandbox#467: an exit hook deleted the sandboxes of other owners."""
    async with vendor.host() as first, first.lease("env") as sandbox:
        async with vendor.host() as second, second.lease("env"):
            await second.clean_up()
        assert (await sandbox.execute(["true"])).ok
    vendor.fake.assert_nothing_left()


async def test_two_hosts_run_commands_in_one_kept_sandbox(vendor: Vendor) -> None:
    async with vendor.host() as first:
        async with first.lease("env", keep=True, name="both"):
            pass
        async with vendor.host() as second:
            async with first.attach("both") as one, second.attach("both") as other:
                outcomes = await asyncio.gather(one.execute(["echo", "1"]), other.execute(["echo", "2"]))
                assert [outcome.stdout.data for outcome in outcomes] == [b"1\n", b"2\n"]
                with pytest.raises(InUse):
                    await first.end_lease("both")
            assert (await second.end_lease("both")).end == "gone"


async def test_tenants_have_workers_of_their_own_unless_they_share(vendor: Vendor) -> None:
    def workers() -> set[int]:
        return {line["pid"] for line in vendor.fake.journal("create")}

    async with (
        vendor.host() as host,
        host.lease("env", tenant="a"),
        host.lease("env", tenant="b"),
        host.lease("env", tenant="a"),
    ):
        assert len(workers()) == 2

    async with vendor.host(isolation="shared") as host:
        before = workers()
        async with host.lease("env", tenant="a"), host.lease("env", tenant="b"):
            assert len(workers() - before) == 1


# ------------------------------------------------------------------ dead hosts


@pytest.fixture
def killed(vendor: Vendor) -> Killed:
    """Runs statements in a host of its own, and kills it once it has said something, which is what comes back."""

    @contextlib.asynccontextmanager
    async def run(body: str) -> AsyncIterator[str]:
        with running(victim(vendor.fake.home, body)) as process:
            word = await said(process)
            process.send_signal(signal.SIGKILL)
            process.wait()
        yield word

    return run


LEASE = """
async with host.lease("fake", run="r7") as sandbox:
    await sandbox.execute(["true"])
    print(sandbox.lease_id, flush=True)
    await asyncio.sleep(600)
"""


async def test_what_a_killed_host_held_is_ended_by_the_next_one(vendor: Vendor, killed: Killed) -> None:
    """122, paperclip#13515, younong/hermescopy#278: a lease stayed active after a restart of its host."""
    async with killed(LEASE) as lease_id:
        assert len(vendor.fake.sandboxes()) == 1
        async with vendor.host() as host:
            pass
        async with vendor.host() as host:
            lease = await host.store.lease(lease_id)
            assert (lease.state, lease.reason) == ("ended", "its owner died")
            assert await states(host) == {"gone": 1}
    vendor.fake.assert_nothing_left()


async def test_a_live_run_goes_on_in_the_next_host(vendor: Vendor, killed: Killed) -> None:
    asked: list[str] = []

    async def lives(run: str) -> bool:
        asked.append(run)
        return True

    async with killed(LEASE) as lease_id:
        async with vendor.host(is_run_live=lives) as host:
            await host.clean_up()
            assert set(asked) == {"r7"}
            async with host.attach(lease_id) as sandbox:
                assert (await sandbox.execute(["true"])).ok
        # That host is gone too: the question comes again, and this time nobody answers for the run.
        async with vendor.host() as host:
            await host.clean_up()
            assert await states(host) == {"gone": 1}
    vendor.fake.assert_nothing_left()


async def test_a_live_run_does_not_outlast_its_time(vendor: Vendor, killed: Killed) -> None:
    clock = VirtualClock()
    async with killed(LEASE) as lease_id, vendor.host(clock=clock, is_run_live=lambda run: True) as host:
        await host.clean_up()
        assert await states(host) == {"leased": 1}
        clock.advance(100 * 365 * 86400)
        await host.clean_up()
        assert await states(host) == {"gone": 1}
        assert (await host.store.lease(lease_id)).reason == "its time is over"
    vendor.fake.assert_nothing_left()


async def test_a_kept_lease_survives_the_kill_of_the_host_that_used_it(vendor: Vendor, killed: Killed) -> None:
    async with killed(LEASE.replace('run="r7"', "keep=True")) as lease_id, vendor.host() as host:
        await host.clean_up()
        assert await states(host) == {"leased": 1}
        async with host.attach(lease_id) as sandbox:
            assert (await sandbox.execute(["true"])).ok
        assert (await host.end_lease(lease_id)).end == "gone"
    vendor.fake.assert_nothing_left()


async def test_the_use_of_a_dead_host_protects_nothing(vendor: Vendor, killed: Killed) -> None:
    async with vendor.host() as host:
        async with host.lease("env", keep=True, name="used"):
            pass
        body = LEASE.replace('host.lease("fake", run="r7")', 'host.attach("used")')
        async with killed(body):
            assert (await host.end_lease("used")).end == "gone"
    vendor.fake.assert_nothing_left()


async def test_a_host_that_dies_beside_a_live_one_is_cleaned_up_after_without_a_start(
    vendor: Vendor, killed: Killed
) -> None:
    clock = VirtualClock()
    async with vendor.host(clock=clock) as host, host.lease("env") as sandbox, killed(LEASE):

        def only_ours() -> bool:
            clock.advance(1)
            return [one.sandbox_id for one in vendor.fake.sandboxes()] == [sandbox.id]

        await eventually(only_ours)
        assert (await sandbox.execute(["true"])).ok


async def test_the_workers_of_a_killed_host_are_gone_before_its_rows_are_sorted(vendor: Vendor, killed: Killed) -> None:
    vendor.fake.order("acquire.after-record", "freeze")
    body = """
print("asks", flush=True)
async with host.lease("fake"):
    pass
"""
    with running(victim(vendor.fake.home, body)) as process:
        await said(process)
        await vendor.fake.seen("create")
        process.send_signal(signal.SIGKILL)
        process.wait()
    (line,) = vendor.fake.journal("create")
    assert alive(line["pid"])  # it is stopped, and cannot notice that its host is dead
    async with vendor.host() as host:
        await host.clean_up()
        assert not alive(line["pid"])
        assert await states(host) == {"gone": 1}
    vendor.fake.assert_nothing_left()


# ------------------------------------------------------------------ clean-up


async def test_an_end_that_the_vendor_does_not_confirm_is_tried_until_it_does(vendor: Vendor) -> None:
    """123, paperclip#8513: destroy was skipped once and then forgotten."""
    vendor.fake.order("destroy.before", "error", condition="Unavailable", dispatched="no", times=4)
    async with vendor.host() as host:
        async with host.lease("env"):
            pass
        assert (await states(host)).keys() == {"ending"}
        await vendor.fake.seen("destroy")

    async with vendor.host() as host:
        await host.clean_up()
        (row,) = await host.store.sandboxes(states={"gone"})
        assert row.attempts >= 1
    vendor.fake.assert_nothing_left()


async def test_a_provider_that_is_not_there_uses_up_no_attempt(vendor: Vendor) -> None:
    vendor.fake.order("destroy.before", "error", condition="Unavailable", dispatched="no", times=1)
    async with vendor.host(delays=EAGER.__class__(first_s=600)) as host, host.lease("env") as sandbox:
        pass
    async with vendor.host(command=("/nowhere/worker",), delays=EAGER.__class__(first_s=600)) as host:
        for _ in range(3):
            (attempted,) = await host.clean_up()
            assert (attempted.end, "no such program" in attempted.detail) == ("later", True)
        row = await host.store.sandbox(sandbox.id)
        assert row is not None
        assert (row.state, row.attempts) == ("ending", 1)
    async with vendor.host() as host:
        assert [attempted.end for attempted in await host.clean_up()] in (["gone"], [])
        assert await states(host) == {"gone": 1}
    vendor.fake.assert_nothing_left()


async def test_a_sandbox_that_no_row_knows_is_told_and_left_alone_until_somebody_says_so(
    vendor: Vendor, tmp_path: Path
) -> None:
    async with vendor.host() as host, host.lease("env", keep=True) as sandbox:
        pass
    for path in (tmp_path / "home").glob("journal.db*"):
        path.unlink()
    async with vendor.host() as host:
        await host.clean_up()
        found = await host.find_unknown()
        assert [one.sandbox_id for one in found.unknown] == [sandbox.id]
        assert len(vendor.fake.sandboxes()) == 1
        assert (await host.end_unknown(found.unknown[0])).end == "gone"
        assert (await host.find_unknown()).unknown == ()
    vendor.fake.assert_nothing_left()


async def test_what_an_operator_forgets_is_gone_with_a_reason(vendor: Vendor) -> None:
    vendor.fake.order("destroy.before", "error", condition="Unavailable", dispatched="no", times=0)
    async with vendor.host() as host:
        async with host.lease("env") as sandbox:
            pass
        await host.forget(sandbox.id, reason="the account was closed")
        assert await states(host) == {"gone": 1}
        *_, last = await host.store.receipts(sandbox.id)
        assert (last.what, last.detail) == ("forgotten", "the account was closed")


async def test_a_kept_lease_whose_time_is_over_is_nobodys_again_once_its_user_is_done(vendor: Vendor) -> None:
    clock = VirtualClock()
    async with vendor.host(clock=clock) as first, vendor.host() as second:
        async with first.lease("env", keep=True, ttl_s=3600.0, name="old"):
            pass
        async with second.attach("old"):
            clock.advance(100 * 365 * 86400)
            assert [attempted.end for attempted in await first.clean_up()] == ["not ours"]
            row = (await first.store.leased("old")).sandbox
            assert (row.state, row.owner) == ("leased", None)
        await first.clean_up()
        assert await states(first) == {"gone": 1}
    vendor.fake.assert_nothing_left()


async def test_clean_up_goes_on_after_the_journal_could_not_be_written(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full for a while must not end the only thing that ends what is left."""
    vendor.fake.order("destroy.before", "error", condition="Unavailable", dispatched="no", times=3)
    async with vendor.host(delays=EAGER.__class__(first_s=0.01, longest_s=0.01, look_s=0.05)) as host:
        claim = host.store.claim
        refusals = 2

        async def full(*arguments: Any, **members: Any) -> Any:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise StoreUnusable("the disk is full", dispatched="no")
            return await claim(*arguments, **members)

        monkeypatch.setattr(host.store, "claim", full)
        async with host.lease("env"):
            pass
        await vendor.fake.until(lambda: not vendor.fake.sandboxes(), "the end of the sandbox")
        assert refusals < 0
    assert not vendor.records.texts("critical")
    vendor.fake.assert_nothing_left()
