"""Clean-up that is finished whatever cancels its caller, and however often."""

import asyncio

import anyio
import pytest

from host.tests.wire import turn
from sandport.closing import finished, finished_within

pytestmark = pytest.mark.anyio


class Work:
    """Something that takes as long as the test says."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.ended = False

    async def __call__(self) -> str:
        await self.may_end.wait()
        self.ended = True
        return "done"


async def test_the_result_is_that_of_the_work() -> None:
    work = Work()
    work.may_end.set()
    assert await finished(work()) == "done"


async def test_a_failure_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await finished(fail())


async def test_several_cancels_of_the_loop_cut_nothing_and_are_passed_on_at_the_end() -> None:
    work = Work()
    caller = asyncio.ensure_future(finished(work()))
    for _ in range(3):
        await turn()
        caller.cancel()
    await turn()
    assert not caller.done()
    work.may_end.set()
    await asyncio.wait((caller,))
    assert work.ended
    assert caller.cancelled()


async def test_a_cancelled_scope_cuts_nothing_and_is_waited_out_in_peace() -> None:
    """anyio cancels what waits in a cancelled scope again in each turn of the loop; that would be a busy wait."""
    work = Work()
    task = asyncio.current_task()
    assert task is not None
    cancels = None
    with anyio.CancelScope() as scope:
        scope.cancel()
        asyncio.get_running_loop().call_later(0.02, work.may_end.set)
        await finished(work())
        cancels = task.cancelling()
    assert work.ended
    assert cancels == 0
    await asyncio.sleep(0)  # nothing of the cancel is left behind


async def test_a_time_out_of_the_loop_is_raised_when_the_work_is_over() -> None:
    work = Work()
    asyncio.get_running_loop().call_later(0.03, work.may_end.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await finished(work())
    assert work.ended


async def test_a_limit_ends_the_wait_and_not_the_work() -> None:
    work = Work()
    task = asyncio.ensure_future(work())
    assert not await finished_within(task, 0.01)
    work.may_end.set()
    assert await finished_within(task, 30)
    assert task.result() == "done"


async def test_a_limit_holds_under_a_cancel_too() -> None:
    work = Work()
    task = asyncio.ensure_future(work())
    caller = asyncio.ensure_future(finished_within(task, 0.02))
    await turn()
    caller.cancel()
    await asyncio.wait((caller,), timeout=30)
    assert caller.cancelled()
    assert not task.done()
    work.may_end.set()
    await task
