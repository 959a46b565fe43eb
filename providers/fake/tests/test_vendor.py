"""The vendor behind the worker: its clock, its limits, its lists, and what several workers see of it."""

import asyncio
import json

import pytest

from providers.fake.tests.leases import Leases
from providers.fake.tests.worker import Worker
from sandport_provider_fake.testing import Fake
from sandport_sdk.testing import new_id
from sandport_sdk.v1 import errors, types

pytestmark = pytest.mark.anyio


async def test_a_virtual_clock_stands_still_and_ends_leases_when_it_is_moved(fake: Fake) -> None:
    async with Leases(fake, clock="virtual") as host:
        short, long = await host.acquire(ttl_ms=10_000), await host.acquire(ttl_ms=20_000)
        assert await host.listed() == sorted((short, long))
        fake.clock.advance(9.999)
        assert (await host.attach(short)).state == "attached"
        fake.clock.advance(0.001)
        assert (await host.attach(short)).state == "gone"
        assert await host.listed() == [long]
        assert await host.destroy(short) == "gone"
        assert await host.extension("clock", advanceMs=10_000) == {
            "nowMs": round(fake.clock.now_s * 1000),
            "virtual": True,
        }
        with pytest.raises(errors.LeaseNotFound):
            await host.execute(long, "true")
    assert [line["sandboxId"] for line in fake.journal("expired")] == [short, long]


async def test_an_expiry_ends_what_runs_and_its_call_is_told(fake: Fake) -> None:
    fake.clock.stand_still()
    async with Leases(fake) as host:
        sandbox_id = await host.acquire(ttl_ms=10_000)
        live = host.run(sandbox_id, "echo up; sleep 600", live=True)
        kept = host.run(sandbox_id, "echo kept; touch up; sleep 600")
        await live.received("stdout", 3)
        await fake.until((fake.files(sandbox_id) / "up").exists)
        fake.clock.advance(10)
        with pytest.raises(errors.SandboxLost):
            await live.result()
        with pytest.raises(errors.SandboxLost) as raised:
            await kept.result()
        assert raised.value.partial is not None
        assert raised.value.partial.stdout.data == b"kept\n"


async def test_an_expiry_that_fails_is_in_the_log_and_the_next_one_is_kept(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it: whatever is not in the log is seen by nobody."""
    fake.clock.stand_still()
    async with Leases(fake) as host:
        first, second = await host.acquire(ttl_ms=10_000), await host.acquire(ttl_ms=20_000)
        calls = [host.run(one, "echo up; sleep 600", live=True) for one in (first, second)]
        for call in calls:
            await call.received("stdout", 3)
        record = fake.state_dir / "sandboxes" / f"{first}.json"
        whole = record.read_bytes()
        record.write_bytes(b"no record")
        for call in calls:
            fake.clock.advance(10)
            with pytest.raises(errors.SandboxLost):
                await call.result()
        record.write_bytes(whole)
        assert await host.destroy(first) == "gone"
    (said,) = [one for one in caplog.records if one.name == "sandport_provider_fake"]
    assert (said.levelname, said.exc_info is not None) == ("ERROR", True)
    assert said.getMessage() == f"the vendor did not end {first}, whose time is over"


async def test_a_watch_that_cannot_read_the_clock_says_so_and_goes_on(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    fake.clock.stand_still()
    async with Leases(fake) as host:
        sandbox_id = await host.acquire(ttl_ms=10_000)
        call = host.run(sandbox_id, "echo up; sleep 600", live=True)
        await call.received("stdout", 3)
        clock = fake.state_dir / "clock.json"
        whole = clock.read_bytes()
        clock.write_bytes(b"no clock")
        await fake.until(lambda: "no sandbox was looked at for its expiry" in caplog.text)
        clock.write_bytes(whole)
        fake.clock.advance(10)
        with pytest.raises(errors.SandboxLost):
            await call.result()


async def test_a_real_clock_can_be_set_forward_and_goes_on(fake: Fake) -> None:
    async with Leases(fake) as host:
        sandbox_id = await host.acquire(ttl_ms=3_600_000)
        fake.clock.advance(3_601)
        assert (await host.attach(sandbox_id)).state == "gone"
        before_s = fake.clock.now_s
        await fake.until(lambda: fake.clock.now_s > before_s)


async def test_a_quota_holds_over_all_workers_and_frees_with_a_destroy(fake: Fake) -> None:
    with Worker(fake) as other:
        first = other.acquire()
        async with Leases(fake, max_sandboxes=2) as host:
            second = await host.acquire()
            refused = new_id()
            with pytest.raises(errors.QuotaExceeded) as raised:
                await host.acquire(refused)
            assert raised.value.dispatched == "no"
            assert await host.destroy(second) == "destroyed"
            assert await host.acquire(refused) == refused
            assert await host.destroy(refused) == "destroyed"
        assert other.destroy(first) == "destroyed"


async def test_more_creates_at_one_time_are_refused(fake: Fake) -> None:
    fake.order("acquire.after-record", "late", by_s=600, clock="vendor")
    fake.clock.stand_still()
    async with Leases(fake, max_in_flight_creates=1) as host:
        slow = new_id()
        asked = host.ask(slow)
        await fake.seen("create", sandboxId=slow)
        with pytest.raises(errors.RateLimited) as raised:
            await host.acquire()
        assert raised.value.dispatched == "no"
        fake.clock.advance(30)
        assert not asked.ended
        fake.clock.advance(570)
        await asked.result()
        await host.destroy(slow)


async def test_requests_of_one_second_are_counted_over_all_calls(fake: Fake) -> None:
    fake.clock.stand_still()
    async with Leases(fake, requests_per_s=3) as host:
        sandbox_id = await host.acquire()
        await host.listed()
        await host.execute(sandbox_id, "true")
        with pytest.raises(errors.RateLimited) as raised:
            await host.execute(sandbox_id, "true")
        assert raised.value.retry_after_s is not None
        assert 0 < raised.value.retry_after_s <= 1
        fake.clock.advance(raised.value.retry_after_s)
        await host.execute(sandbox_id, "true")
        await host.destroy(sandbox_id)


async def test_a_list_shows_a_new_sandbox_only_after_the_delay(fake: Fake) -> None:
    fake.clock.stand_still()
    async with Leases(fake, list_delay_s=5) as host:
        sandbox_id = await host.acquire()
        assert await host.listed() == []
        assert (await host.attach(sandbox_id)).state == "attached"
        fake.clock.advance(5)
        assert await host.listed() == [sandbox_id]
        await host.destroy(sandbox_id)


async def test_what_is_another_stores_is_neither_listed_nor_found(fake: Fake) -> None:
    async with Leases(fake, store_id="first") as first, Leases(fake, store_id="second") as second:
        sandbox_id = await first.acquire()
        assert await second.listed() == []
        assert (await second.attach(sandbox_id)).state == "gone"
        assert await second.destroy(sandbox_id) == "gone"
        assert await first.listed() == [sandbox_id]
        await first.destroy(sandbox_id)


async def test_an_id_serves_one_create_over_all_workers(fake: Fake) -> None:
    sandbox_id = new_id()
    with Worker(fake) as other:
        async with Leases(fake) as host:
            asked = [host.ask(sandbox_id) for _ in range(5)]
            number = other.begin("acquireLease", sandboxId=sandbox_id, ttlMs=60_000)
            answer = await asyncio.to_thread(other.answer, number)
            made = ["result" in answer]
            outcomes = await asyncio.gather(*(request.result() for request in asked), return_exceptions=True)
            made += [isinstance(outcome, types.LeaseResult) for outcome in outcomes]
            assert sum(made) == 1
            refused = [outcome for outcome in outcomes if isinstance(outcome, errors.InvalidParams)]
            assert len(refused) >= 4
            assert {error.dispatched for error in refused} == {"no"}
            assert len(fake.journal("create", sandboxId=sandbox_id)) == 1
            assert len(fake.journal("create refused", sandboxId=sandbox_id)) == 5
            with pytest.raises(AssertionError, match=sandbox_id):
                fake.assert_once()
            await host.destroy(sandbox_id)
    (fake.state_dir / "vendor.jsonl").unlink()  # or the end of this test would say the same


async def test_a_cancelled_acquire_leaves_nothing(fake: Fake) -> None:
    for point in ("acquire.before", "acquire.after-record", "acquire.after-files", "acquire.before-answer"):
        fake.order(point, "late", by_s=600)
        async with Leases(fake) as host:
            asked = host.ask()
            await fake.seen("fault", point=point)
            asked.cancel()
            with pytest.raises(errors.Cancelled) as raised:
                await asked.result()
            assert raised.value.dispatched == "no"
            assert fake.left() == []


async def test_the_journal_tells_each_command_and_its_end(fake: Fake) -> None:
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        params = {
            "sandboxId": sandbox_id,
            "argv": ["sh", "-c", "exit 3"],
            "timeoutMs": 60_000,
            "_meta": {"deadlineMs": 90_000},
        }
        await host.call("execute", params)
        await host.destroy(sandbox_id)
    (asked,) = fake.journal("execute")
    assert (asked["argv"], asked["timeoutMs"]) == (["sh", "-c", "exit 3"], 60_000)
    assert 0 < asked["deadlineMs"] <= 90_000
    (ended,) = fake.journal("executed")
    assert (ended["nonce"], ended["ended"], ended["exitCode"]) == (asked["nonce"], "exited", 3)
    assert [line["what"] for line in fake.journal(sandboxId=sandbox_id)] == [
        "create",
        "created",
        "execute",
        "executed",
        "destroy",
        "destroyed",
    ]


async def test_what_the_vendor_declares_is_in_the_hello(fake: Fake) -> None:
    fake.set_up(create_settle_s=2.5)
    async with Leases(fake) as host:
        assert host.hello.capabilities.create_settle_ms == 2500
    fake.set_up()
    async with Leases(fake) as host:
        assert host.hello.capabilities.create_settle_ms == 0


async def test_keep_and_the_grant_are_on_the_record(fake: Fake) -> None:
    async with Leases(fake) as host:
        sandbox_id = new_id()
        lease: types.LeaseResult = await host.ask(sandbox_id, egress={"mode": "none"}).result()
        assert lease.egress == types.Egress(mode="none")
        (record,) = fake.sandboxes()
        assert (record.keep, record.egress, record.store_id) == (False, "none", "store")
        await host.attach(sandbox_id, keep=True)
        assert fake.sandboxes()[0].keep is True
        await host.attach(sandbox_id)
        assert fake.sandboxes()[0].keep is True
        with pytest.raises(errors.NotSupported):
            await host.acquire(egress={"mode": "listed", "hosts": ["example.org"]})
        await host.destroy(sandbox_id)


async def test_the_files_are_the_hosts_to_copy_where_the_config_says_so(fake: Fake) -> None:
    async with Leases(fake, local_root=True) as host:
        sandbox_id = new_id()
        lease: types.LeaseResult = await host.ask(sandbox_id).result()
        assert lease.local_root == lease.working_directory == str(fake.files(sandbox_id))
        await host.destroy(sandbox_id)
    async with Leases(fake) as host:
        lease = await host.ask(sandbox_id := new_id()).result()
        assert lease.local_root is None
        await host.destroy(sandbox_id)


async def test_a_config_is_refused_with_the_path_of_its_fault(fake: Fake) -> None:
    wrong = {
        "faults": [{"point": "acquire.before", "action": "late", "by_s": 1}, {"point": "nowhere", "action": "crash"}]
    }
    async with Leases(fake) as host:
        for config, field in (
            ({"max_sandboxs": 1}, "config.max_sandboxs"),
            (wrong, "config.faults[1].point"),
            ({"faults": [{"point": "list.before", "action": "half-create"}]}, "config.faults[0]"),
            ({"faults": [{"point": "list.before", "action": "crush"}]}, "config.faults[0].action"),
            ({"faults": [{"point": "list.before", "action": "crash", "by_s": 1}]}, "config.faults[0].by_s"),
            ({"requests_per_s": -1}, "config"),
        ):
            result: types.ValidateConfigResult = await host.call("validateConfig", {"config": config})
            assert next(issue.field for issue in result.issues) == field, config
            with pytest.raises(errors.ConfigInvalid):
                await host.ask(config=config).result()
        assert fake.left() == []


async def test_a_validated_config_has_its_defaults(fake: Fake) -> None:
    async with Leases(fake) as host:
        result: types.ValidateConfigResult = await host.call("validateConfig", {"config": {"seed": 7}})
    config = json.loads(bytes(result.config))
    assert (config["seed"], config["clock"], config["faults"]) == (7, "real", [])


async def test_a_create_that_the_machine_does_not_allow_leaves_nothing(fake: Fake) -> None:
    (fake.state_dir / "files").touch()
    async with Leases(fake) as host:
        with pytest.raises(errors.Unavailable):
            await host.acquire()
        assert fake.sandboxes() == []
        assert await host.listed() == []
    (fake.state_dir / "files").unlink()


async def test_a_destroy_does_not_wait_for_a_call_that_an_order_holds(fake: Fake) -> None:
    fake.order("execute.started", "late", by_s=600)
    async with Leases(fake) as host:
        sandbox_id = await host.acquire()
        held = host.run(sandbox_id, "sleep 600")
        await fake.seen("fault")
        assert await host.destroy(sandbox_id) == "destroyed"
        held.cancel()
        with pytest.raises(errors.WireError):
            await held.result()
