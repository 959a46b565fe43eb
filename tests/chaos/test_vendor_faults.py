"""A vendor that loses answers, creates late, lists with a delay, or is down: no sandbox lives on, no live one is ended.

Time is virtual, the host's and the vendor's, and both move together.

Sources: verifiers#2406 (an interrupted create leaks for a day), E2B#1658, railway-ts-sdk#87, arcboxlabs/arcbox#536 (the
answer to a create is lost).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandport.clock import VirtualClock
from sandport.configuration import Configuration, EnvironmentSettings, HostSettings, ProviderSettings
from sandport.errors import DeadlineExceeded, SandportError, Unavailable
from sandport.host import Host
from sandport.log import Log
from sandport.numbers import Restart, StopLadder, Timing
from sandport.sandbox import Sandbox
from sandport_protocol.limits import Limits
from sandport_provider_fake.testing import Fake

pytestmark = pytest.mark.anyio

HOUR_S = 3600.0
WITHIN_S = 30.0
TIMING = Timing(
    acquire_s=0.3,
    call_s=1.0,
    destroy_s=1.0,
    close_grace_s=2.0,
    suspect_s=0.2,
    stop=StopLadder(drain_s=1.0, eof_s=1.0, term_s=1.0, kill_s=5.0),
    restart=Restart(at_most=1000, first_delay_s=0.001, longest_delay_s=0.001),
)
LIMITS = Limits(cancel_grace_ms=300)


class World:
    """A host, a vendor, and one time for both."""

    def __init__(self, home: Path) -> None:
        self.fake = Fake(home)
        self.fake.clock.stand_still()
        self.clock = VirtualClock(start_ms=round(self.fake.clock.now_s * 1000))
        self.log: list[str] = []

    @contextlib.asynccontextmanager
    async def host(self, **config: object) -> AsyncIterator[Host]:
        settings = Configuration(
            host=HostSettings(timing=TIMING),
            providers={"fake": ProviderSettings(limits=LIMITS)},
            environments={"vendor": EnvironmentSettings(provider="fake", config=dict(config))},
        )
        log = Log(lambda level, event, fields: self.log.append(f"{level}: {event}"))
        async with Host.open(settings, home=self.fake.home, clock=self.clock, log=log) as host:
            yield host

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a fact that gives no event."""
        end = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < end, f"waited in vain; the log: {self.log}, the vendor: {self.fake.journal()}"
            await asyncio.sleep(0.002)

    async def pass_time(self, total_s: float, *, step_s: float = 5.0) -> None:
        """Let so much time go by; after each step the clean-up has done what was due."""
        for _ in range(round(total_s / step_s)):
            self.fake.clock.advance(step_s)
            self.clock.advance(step_s)
            await self.until(lambda: self.clock.sleeping > 0)

    def there(self) -> set[str]:
        """What the vendor has."""
        return {record.sandbox_id for record in self.fake.sandboxes()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


async def states(host: Host) -> dict[str, str]:
    return {row.id: row.state for row in await host.store.sandboxes()}


async def lives(box: Sandbox) -> None:
    assert (await box.execute(["sh", "-c", "echo here"])).stdout.data == b"here\n"


FAULTS = {
    "the answer is lost": ("acquire.before-answer", "lose-answer", {}),
    "it fails after the record was made": ("acquire.after-record", "error", {}),
    "it is made by half": ("acquire.after-record", "half-create", {}),
    "it is there and nobody sees it yet": ("acquire.before-answer", "hide", {"for_s": 40.0, "scope": "everything"}),
    "the worker dies with the answer": ("acquire.before-answer", "crash", {}),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_create_that_came_to_nothing_for_its_caller_is_gone_once_it_can_be_seen(
    world: World, fault: str
) -> None:
    point, action, members = FAULTS[fault]
    world.fake.set_up(create_settle_s=60)
    async with world.host(list_delay_s=30.0) as host, host.lease("vendor") as live:
        if action == "hide":  # it hides, and its answer is lost
            world.fake.order("acquire.before-answer", "lose-answer")
        world.fake.order(point, action, **members)
        with pytest.raises(SandportError):
            async with host.lease("vendor"):
                pytest.fail("there was a lease")
        (lost,) = world.there() - {live.id}
        assert (await states(host))[lost] == "doubtful"
        await world.pass_time(20)
        assert lost in world.there()
        assert (await states(host))[lost] == "doubtful"
        await world.pass_time(130)
        assert world.there() == {live.id}
        assert await states(host) == {live.id: "leased"}
        await lives(live)
    world.fake.assert_nothing_left()
    world.fake.assert_once()


async def test_a_create_that_never_was_is_looked_for_until_the_settle_time_is_over(world: World) -> None:
    world.fake.set_up(create_settle_s=60)
    async with world.host() as host, host.lease("vendor") as live:
        world.fake.order("acquire.before", "error", condition="Unavailable", dispatched="unknown")
        with pytest.raises(Unavailable):
            async with host.lease("vendor"):
                pytest.fail("there was a lease")
        await world.pass_time(50)
        assert sorted((await states(host)).values()) == ["doubtful", "leased"]
        await world.pass_time(30)
        assert await states(host) == {live.id: "leased"}
        await lives(live)
    world.fake.assert_nothing_left()


async def test_a_create_that_succeeds_after_its_caller_was_told_otherwise_is_undone(world: World) -> None:
    async with world.host() as host, host.lease("vendor") as live:
        world.fake.order("acquire.before-answer", "freeze")
        with pytest.raises(DeadlineExceeded):
            async with host.lease("vendor"):
                pytest.fail("there was a lease")
        (late,) = world.there() - {live.id}
        frozen = world.fake.journal("create", sandboxId=late)[0]["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
        await world.until(lambda: world.there() == {live.id})
        await world.pass_time(60)
        assert await states(host) == {live.id: "leased"}
        await lives(live)
    world.fake.assert_nothing_left()
    world.fake.assert_once()


async def test_a_vendor_that_is_down_for_an_hour_finds_nothing_forgotten_and_nothing_live_ended(world: World) -> None:
    world.fake.set_up(create_settle_s=60)
    async with world.host() as host, host.lease("vendor", ttl_s=3 * HOUR_S) as live:
        async with host.lease("vendor", ttl_s=3 * HOUR_S) as ended:
            # The next create is made, its answer is lost, and with it the vendor, which does not say for how long.
            world.fake.order("acquire.before-answer", "error", condition="Unavailable")
            world.fake.order("call.before", "error", condition="Unavailable", times=0, after=1)
            with pytest.raises(Unavailable):
                async with host.lease("vendor", ttl_s=3 * HOUR_S):
                    pytest.fail("there was a lease")
        with pytest.raises(Unavailable):
            async with host.lease("vendor"):
                pytest.fail("there was a lease")
        assert len(world.there()) == 3
        await world.pass_time(HOUR_S, step_s=30)
        assert len(world.there()) == 3
        assert (await states(host))[ended.id] == "ending"
        tries = [receipt for receipt in await host.store.receipts(ended.id) if receipt.what == "attempt failed"]
        assert 6 <= len(tries) <= 30  # never given up, and no storm
        world.fake.clear()
        await world.pass_time(900, step_s=30)
        assert world.there() == {live.id}
        assert await states(host) == {live.id: "leased"}
        await lives(live)
    world.fake.assert_nothing_left()
    world.fake.assert_once()


async def test_a_host_that_is_opened_while_the_vendor_is_down_ends_what_the_last_one_could_not(world: World) -> None:
    async with world.host() as first:
        async with first.lease("vendor", ttl_s=3 * HOUR_S, keep=True, name="mine") as kept:
            pass
        async with first.lease("vendor", ttl_s=3 * HOUR_S):
            world.fake.order("call.before", "down", for_s=HOUR_S)
            with pytest.raises(Unavailable):
                async with first.lease("vendor"):
                    pytest.fail("there was a lease")
        assert len(world.there()) == 2
    async with world.host() as second:
        await world.pass_time(HOUR_S / 2, step_s=60)
        assert len(world.there()) == 2
        await world.pass_time(HOUR_S, step_s=60)
        assert world.there() == {kept.id}
        async with second.attach("mine") as box:
            await lives(box)
        await second.end_lease("mine")
    world.fake.assert_nothing_left()


async def test_an_end_whose_answer_is_lost_and_a_list_that_still_shows_it_end_in_gone(world: World) -> None:
    async with world.host() as host, host.lease("vendor") as live:
        world.fake.order("destroy.half", "stale-list", for_s=120.0)
        world.fake.order("destroy.before-answer", "error", condition="Unavailable")
        async with host.lease("vendor") as ended:
            pass
        await world.pass_time(300)
        assert world.there() == {live.id}
        assert ended.id not in await states(host)
        await lives(live)
    world.fake.assert_nothing_left()
