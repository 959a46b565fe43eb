"""The time of day as the host sees it: for clean-up's delays, settle times and expiry, and for nothing else.

Deadlines of the protocol belong to the event loop. A test moves a `VirtualClock` through an hour in no time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    """Where the host takes its time from."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch; may go back where the machine's clock is set back.

        May be called from any thread.
        """
        ...

    async def sleep(self, seconds_s: float) -> None:
        """Wait for so long by this clock.

        Cancel: leaves nothing behind.
        """
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds_s: float) -> None:
        """Wait for so long by the event loop's clock."""
        await asyncio.sleep(seconds_s)


class VirtualClock:
    """A clock that moves when it is told to.

    Args:
        start_ms: What it shows at first.
    """

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = start_ms
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        """What it shows."""
        return self._now_ms

    @property
    def sleeping(self) -> int:
        """How many tasks wait for it to move."""
        return sum(not future.done() for _, _, future in self._sleepers)

    async def sleep(self, seconds_s: float) -> None:
        """Wait until the clock was moved so far; a turn of the loop where that is nothing."""
        if seconds_s <= 0:
            await asyncio.sleep(0)
            return
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now_ms + max(1, round(seconds_s * 1000)), next(self._order), future))
        await future

    def advance(self, seconds_s: float) -> None:
        """Move on at once, and wake everybody whose time has come; they run in the loop's next turn.

        One that sleeps again after it woke counts from the new time: to see each of several waits, move in steps.
        """
        self._now_ms += round(seconds_s * 1000)
        while self._sleepers and self._sleepers[0][0] <= self._now_ms:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)

    def next_wake_s(self) -> float | None:
        """Seconds until the first sleeper's time comes; None where nobody sleeps."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return (self._sleepers[0][0] - self._now_ms) / 1000 if self._sleepers else None
