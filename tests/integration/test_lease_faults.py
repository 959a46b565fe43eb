"""What goes wrong around a lease: callbacks that fail, a cancel between two steps, a disk that is full for a while."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sandport.configuration import ProviderSettings
from sandport.errors import Internal, StoreUnusable
from sandport.host import Host
from sandport_provider_fake.testing import Fake
from tests.integration.stage import PATIENCE_S, QUICK, eventually
from tests.integration.test_lease_life import LEASE, running, said
from tests.integration.vendor import Vendor, entered_before_a_cancel, states, victim

pytestmark = pytest.mark.anyio


def refuse(monkeypatch: pytest.MonkeyPatch, host: Host, method: str, *, times: int) -> Callable[[], int]:
    """Have the journal refuse a change so many times, as on a full disk; how often it still will."""
    change = getattr(host.store, method)
    left = times

    async def full(*arguments: Any, **members: Any) -> Any:
        nonlocal left
        if left > 0:
            left -= 1
            raise StoreUnusable("the disk is full", dispatched="no")
        return await change(*arguments, **members)

    monkeypatch.setattr(host.store, method, full)
    return lambda: left


async def gone(host: Host) -> None:
    """Wait until the journal has nothing else."""
    async with asyncio.timeout(PATIENCE_S):
        while set(await states(host)) != {"gone"}:  # noqa: ASYNC110 - a row has no event
            await asyncio.sleep(0.01)


async def killed(vendor: Vendor, body: str) -> str:
    """What a host said before it was killed."""
    with running(victim(vendor.fake.home, body)) as process:
        word = await said(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return word


# ------------------------------------------------------------------ using


async def test_an_attach_that_is_cancelled_at_any_turn_of_the_loop_uses_nothing(vendor: Vendor) -> None:
    attached = False
    async with vendor.host() as host:
        async with host.lease("env", keep=True, name="kept"):
            pass
        turns = 0
        while not attached:
            attached = await entered_before_a_cancel(host.attach("kept"), turns)
            assert await host.store.uses() == [], turns
            turns += 1 if turns < 30 else 1 + turns // 4
        assert (await host.end_lease("kept")).end == "gone"
    vendor.fake.assert_nothing_left()


# ------------------------------------------------------------------ callbacks


async def test_a_callback_that_fails_does_not_stop_the_clean_up(vendor: Vendor) -> None:
    told: list[str] = []

    def fails(why: str) -> None:
        told.append(why)
        raise ValueError("the embedder's own fault")

    async with vendor.host() as host, vendor.host() as other, host.lease("env", on_lost=fails) as sandbox:
        await other.end_lease(sandbox.lease_id, force=True)
        await eventually(lambda: bool(told))
        await killed(vendor, LEASE)
        await vendor.fake.until(lambda: not vendor.fake.sandboxes(), "the end of what the dead host left")
    assert told == ["another process ended it"]
    vendor.fake.assert_nothing_left()


async def test_a_run_that_cannot_be_asked_for_is_left_alone_until_it_can(vendor: Vendor) -> None:
    word: bool | None = None
    asked = asyncio.Event()

    def lives(run: str) -> bool:
        asked.set()
        if word is None:
            raise ConnectionError("the scheduler is down")
        return word

    await killed(vendor, LEASE)
    async with vendor.host(is_run_live=lives) as host:
        await host.clean_up()
        await asked.wait()
        assert await states(host) == {"leased": 1}
        word = False
        await host.clean_up()
        assert await states(host) == {"gone": 1}
    vendor.fake.assert_nothing_left()


async def test_a_word_on_a_run_that_does_not_come_holds_nobody_up(vendor: Vendor) -> None:
    """Whoever ends a lease waits for it, and could not even be cancelled before it came."""
    asked: list[str] = []

    async def never(run: str) -> bool:
        asked.append(run)
        await asyncio.Event().wait()
        return True

    async with vendor.host() as host, host.lease("env", keep=True, name="ours"):
        pass
    await killed(vendor, LEASE)
    timing = msgspec.structs.replace(QUICK, embedder_s=0.05)
    async with vendor.host(is_run_live=never, timing=timing) as host:
        async with asyncio.timeout(PATIENCE_S):
            await host.end_lease("ours", reason="a test")
        assert asked
        assert set(asked) == {"r7"}
        # No word is none: its sandbox is left alone, and asked for again.
        assert await states(host) == {"leased": 1, "gone": 1}
    async with vendor.host() as host:
        await host.clean_up()
        assert await states(host) == {"gone": 2}
    vendor.fake.assert_nothing_left()


# ------------------------------------------------------------------ one vendor and the others


async def test_a_vendor_that_does_not_answer_holds_up_the_clean_up_of_no_other(vendor: Vendor) -> None:
    slow = Fake(vendor.fake.home, provider="slow")
    slow.order("destroy.before", "hang", times=0)
    fake = (sys.executable, "-m", "sandport_provider_fake")
    others = {"slow": ProviderSettings(command=fake)}
    leases = "\n".join(f'await leases.enter_async_context(host.lease("slow", workload="{one}"))' for one in range(9))
    body = f"""
import contextlib
async with contextlib.AsyncExitStack() as leases:
    {leases.replace(chr(10), chr(10) + "    ")}
    await leases.enter_async_context(host.lease("fake"))
    print("all", flush=True)
    await asyncio.sleep(600)
"""
    config = vendor.fake.home / "two.toml"
    config.write_text(f"version = 1\n[providers.slow]\ncommand = {json.dumps(fake)}\n")
    with running(victim(vendor.fake.home, body, config=str(config))) as process:
        await said(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    async with vendor.host(others=others) as host:
        # In the same pass, although there are more of the slow one's than are tried at once,
        await vendor.fake.until(lambda: not vendor.fake.sandboxes(), "the end of what the dead host left")
        # and in later ones, while that one goes on.
        vendor.fake.order("destroy.before", "error", condition="Unavailable", dispatched="no", times=1)
        async with host.lease("env"):
            pass
        await vendor.fake.until(lambda: not vendor.fake.sandboxes(), "the end of a lease that was tried again")
        assert len(slow.sandboxes()) == 9
        slow.clear()
        host.abandon()
    vendor.fake.assert_nothing_left()


# ------------------------------------------------------------------ the machine


async def test_clean_up_goes_on_after_it_could_not_be_told_who_lives(vendor: Vendor) -> None:
    async with vendor.host() as host:
        await host.clean_up()
        folder, aside = host.home.root / "instances", host.home.root / "aside"
        folder.rename(aside)
        folder.write_bytes(b"")
        with pytest.raises(StoreUnusable):
            await host.clean_up()
        await eventually(lambda: bool(vendor.records.texts("error")))
        folder.unlink()
        aside.rename(folder)
        await killed(vendor, LEASE)
        await vendor.fake.until(lambda: not vendor.fake.sandboxes(), "the end of what the dead host left")
    vendor.fake.assert_nothing_left()


# ------------------------------------------------------------------ the journal


async def test_an_end_that_could_not_be_written_is_written_by_the_same_host(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with vendor.host() as host:
        left = refuse(monkeypatch, host, "ending", times=1)
        async with host.lease("env"):
            pass
        assert left() == 0
        await gone(host)
    vendor.fake.assert_nothing_left()


async def test_a_create_whose_doubt_could_not_be_written_is_looked_for_by_the_same_host(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    vendor.fake.order("acquire.before-answer", "error", condition="Internal", dispatched="unknown")
    async with vendor.host() as host:
        left = refuse(monkeypatch, host, "doubtful", times=1)
        with pytest.raises(Internal):
            async with host.lease("env"):
                pytest.fail("there is a lease")
        assert left() == 0
        await gone(host)
    vendor.fake.assert_nothing_left()


async def test_a_block_ends_quietly_where_only_the_receipt_of_its_end_could_not_be_written(
    vendor: Vendor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with vendor.host() as host:
        left = refuse(monkeypatch, host, "gone", times=1)
        async with host.lease("env"):
            pass
        assert left() == 0
        await gone(host)
    assert not vendor.records.texts("critical")
    vendor.fake.assert_nothing_left()


# ------------------------------------------------------------------ ending


async def test_an_end_that_a_dead_host_had_begun_is_ended_on_request(vendor: Vendor) -> None:
    vendor.fake.order("destroy.before", "freeze", only={"method": "destroyLease"})
    body = """
async with host.lease("fake") as sandbox:
    print(sandbox.lease_id, flush=True)
"""
    with running(victim(vendor.fake.home, body)) as process:
        lease_id = await said(process)
        await vendor.fake.seen("fault")
        process.send_signal(signal.SIGKILL)
        process.wait()
    async with Host.open(home=vendor.fake.home, cleans_up=False, log=vendor.records.log) as host:
        assert (await host.end_lease(lease_id)).end == "gone"
    vendor.fake.assert_nothing_left()


async def test_two_hosts_end_one_lease_at_once(vendor: Vendor) -> None:
    async with vendor.host() as first, vendor.host() as second:
        for _ in range(10):
            async with first.lease("env", keep=True, name="one"):
                pass
            ends = await asyncio.gather(first.end_lease("one"), second.end_lease("one"))
            assert "gone" in [end.end for end in ends]
    vendor.fake.assert_nothing_left()


async def test_a_host_closes_in_time_although_the_vendor_says_later(vendor: Vendor) -> None:
    vendor.fake.order("destroy.before", "throttle", retry_after_ms=3_600_000, times=0)
    async with vendor.host() as host, host.lease("env"):
        pass
    vendor.fake.clear()
    async with vendor.host() as host, asyncio.timeout(60):
        while await states(host) != {"gone": 1}:  # it is the next host's first look that ends it, or one after that
            await host.clean_up()
            await asyncio.sleep(0.02)
    vendor.fake.assert_nothing_left()


async def test_a_host_that_closes_ends_what_blocks_that_outlive_it_hold(vendor: Vendor) -> None:
    leased: asyncio.Queue[None] = asyncio.Queue()
    over = asyncio.Event()

    async def hold(host: Host) -> None:
        async with host.lease("env"):
            leased.put_nowait(None)
            await over.wait()

    async with vendor.host() as host:
        holding = [asyncio.ensure_future(hold(host)) for _ in range(3)]
        for _ in holding:
            await leased.get()
    vendor.fake.assert_nothing_left()
    over.set()
    await asyncio.gather(*holding)
    assert not vendor.records.texts("error")
