"""Many deadlines on one timer: each is kept, in time and once, whatever comes and goes around it."""

import asyncio
import math

import pytest

from host.tests.wire import Wire
from sandport.errors import DeadlineExceeded
from sandport.worker.deadlines import Deadlines
from sandport.worker.open_call import OpenCall
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ProbeParams

pytestmark = pytest.mark.anyio


class Open:
    """Deadlines that are open, as a client has calls."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun = self.loop.time()
        self.due: set[float] = set()
        self.over: list[float] = []
        self.looks = 0
        self.first = asyncio.Event()
        self.empty = asyncio.Event()
        self.deadlines = Deadlines(self.loop, self.look)

    def add(self, after_s: float) -> float:
        due = self.begun + after_s
        self.due.add(due)
        self.deadlines.watch(due)
        return due

    def look(self, now: float) -> float:
        self.looks += 1
        over = sorted(due for due in self.due if due <= now)
        self.over += over
        if over:
            self.first.set()
        self.due.difference_update(over)
        if not self.due:
            self.empty.set()
        return min(self.due, default=math.inf)


async def test_each_deadline_is_kept_in_order_whatever_the_order_of_their_coming() -> None:
    calls = Open()
    expected = sorted(calls.add(after_s) for after_s in (0.03, 0.01, 0.05, 0.02, 0.04))
    async with asyncio.timeout(30):
        await calls.empty.wait()
    assert calls.over == expected


async def test_a_deadline_before_the_one_that_is_watched_does_not_wait_for_it() -> None:
    calls = Open()
    calls.add(3600)
    soon = calls.add(0.01)
    async with asyncio.timeout(30):
        await calls.first.wait()
    assert calls.over == [soon]
    calls.deadlines.stop()


async def test_calls_that_end_before_their_deadline_leave_one_timer_and_not_one_each() -> None:
    calls = Open()
    for number in range(1000):
        calls.due.discard(calls.add(0.02 + number / 1e6))
    async with asyncio.timeout(30):
        await calls.empty.wait()
    assert calls.looks == 1


async def test_nothing_is_looked_at_after_the_stop() -> None:
    calls = Open()
    calls.add(0.0)
    calls.deadlines.stop()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert calls.looks == 0


async def begin(wire: Wire, *, deadline_s: float | None) -> OpenCall:
    return await wire.client.begin(METHODS["probe"], ProbeParams(), deadline_s=deadline_s)


async def test_of_many_open_calls_those_over_their_deadline_are_cancelled_and_no_other() -> None:
    wire = await Wire(Limits(cancel_grace_ms=0)).greet()
    long = [await begin(wire, deadline_s=3600) for _ in range(3)]
    short = [await begin(wire, deadline_s=0.01) for _ in range(3)]
    endless = await begin(wire, deadline_s=None)
    for call in short:
        with pytest.raises(DeadlineExceeded):
            await call.future
    cancelled = [frame["params"]["id"] for frame in wire.frames() if frame["method"] == "cancel"]
    assert cancelled == [call.id for call in short]
    for call in (*long, endless):
        wire.answer(call.id, {})
        await call.future
