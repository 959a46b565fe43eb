"""The clock of a test moves when it is told to."""

import asyncio

import pytest

from sandport.clock import SystemClock, VirtualClock


def test_sleepers_wake_when_their_time_has_come_and_not_before() -> None:
    async def main() -> None:
        clock = VirtualClock(start_ms=1000)
        woken: list[str] = []

        async def sleeper(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            woken.append(name)

        tasks = [asyncio.ensure_future(sleeper(name, s)) for name, s in (("hour", 3600), ("second", 1), ("now", 0))]
        await tasks[2]
        assert clock.sleeping == 2
        assert (woken, clock.next_wake_s()) == (["now"], 1)
        clock.advance(0.999)
        await asyncio.sleep(0)
        assert woken == ["now"]
        clock.advance(0.001)
        await tasks[1]
        assert (woken, clock.now_ms(), clock.next_wake_s()) == (["now", "second"], 2000, 3599)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert (clock.sleeping, clock.next_wake_s()) == (0, None)
        clock.advance(3600)

    asyncio.run(main())


def test_the_machines_clock_goes_on() -> None:
    async def main() -> None:
        clock = SystemClock()
        before = clock.now_ms()
        await clock.sleep(0.002)
        assert clock.now_ms() > before > 1_600_000_000_000

    asyncio.run(main())
