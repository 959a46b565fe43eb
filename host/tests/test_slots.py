"""Slots: never more than there are, none lost, nobody forgotten."""

import asyncio
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.tests.wire import turn
from sandport.worker.slots import Slots

Do = Literal["take", "free", "cancel", "full", "room"]


@given(
    steps=st.lists(st.sampled_from(["take", "free", "cancel", "full", "room"]), max_size=60), limit=st.integers(1, 4)
)
def test_whatever_happens_no_slot_is_lost_and_nobody_waits_beside_a_free_one(steps: list[Do], limit: int) -> None:
    """bazelbuild/bazel#26292 (B08): slots that a cancel did not give back added up until none was left."""
    asyncio.run(exercise(steps, limit))


async def exercise(steps: list[Do], limit: int) -> None:
    slots = Slots(limit)
    holders: list[None] = []
    waiting: list[asyncio.Task[None]] = []
    full = False

    async def take() -> None:
        if not slots.take_now():
            await slots.take(None)
            slots.served()
        holders.append(None)

    for step in steps:
        match step:
            case "take":
                waiting.append(asyncio.ensure_future(take()))
                await turn(1)
            case "free" if holders:
                holders.pop()
                slots.free()
            case "cancel" if any(not task.done() for task in waiting):
                # At once and the one that is next, so that it may fall together with the slot that it is handed.
                next(task for task in waiting if not task.done()).cancel()
            case "full":
                full = True
                slots.pipe_is_full()
            case "room":
                full = False
                slots.pipe_has_room()
        assert slots.used <= limit
    await turn(2 * len(waiting) + 4)
    assert slots.used == len(holders)
    if any(not task.done() for task in waiting):
        assert full or slots.used == limit
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.anyio
async def test_while_the_pipe_is_full_a_free_slot_waits_too() -> None:
    slots = Slots(1)
    assert slots.take_now()
    waiting = asyncio.ensure_future(slots.take(None))
    await turn()
    slots.pipe_is_full()
    slots.free()
    await turn()
    assert not waiting.done()
    assert not slots.take_now()
    slots.pipe_has_room()
    await waiting
    assert slots.used == 1


@pytest.mark.anyio
async def test_a_slot_that_is_handed_to_somebody_who_is_cancelled_goes_to_the_next() -> None:
    slots = Slots(1)
    assert slots.take_now()
    first, second = (asyncio.ensure_future(slots.take(None)) for _ in range(2))
    await turn()
    slots.free()
    first.cancel()
    async with asyncio.timeout(30):
        await second
    assert first.cancelled()
    assert slots.used == 1


@pytest.mark.anyio
async def test_who_waits_longest_comes_first() -> None:
    slots = Slots(1)
    assert slots.take_now()
    order: list[int] = []

    async def take(number: int) -> None:
        await slots.take(None)
        order.append(number)
        slots.served()

    tasks = [asyncio.ensure_future(take(number)) for number in range(4)]
    await turn()
    assert not slots.take_now()
    for _ in tasks:
        slots.free()
        await turn()
    assert order == [0, 1, 2, 3]
    await asyncio.gather(*tasks)


@pytest.mark.anyio
async def test_who_gets_none_in_time_is_told_and_takes_none() -> None:
    slots = Slots(1)
    assert slots.take_now()
    with pytest.raises(TimeoutError):
        await slots.take(0.01)
    slots.free()
    assert (slots.used, slots.take_now()) == (0, True)


@pytest.mark.anyio
async def test_who_gives_up_is_forgotten_while_all_is_held() -> None:
    slots = Slots(1)
    assert slots.take_now()
    tasks = [asyncio.ensure_future(slots.take(None)) for _ in range(100)]
    await turn()
    assert len(slots._waiters) == 100
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(slots._waiters) == 0


@pytest.mark.anyio
async def test_the_end_of_the_connection_lets_everybody_go() -> None:
    slots = Slots(1)
    assert slots.take_now()
    tasks = [asyncio.ensure_future(slots.take(None)) for _ in range(3)]
    await turn()
    slots.close()
    await asyncio.gather(*tasks)
