"""How a worker notices that its host is gone, where no end of input says so."""

import asyncio
import os
import sys

import pytest

from sandport_sdk.parent import ParentWatch, SilenceWatch
from sdk.tests.rawworker import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_a_parent_that_was_gone_before_is_noticed_at_once() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await child.wait()
    gone = asyncio.Event()
    watch = ParentWatch(asyncio.get_running_loop(), child.pid, gone.set)
    async with asyncio.timeout(PATIENCE_S):
        await gone.wait()
    watch.stop()


async def test_a_process_that_is_not_the_parent_any_more_is_no_parent() -> None:
    """hashicorp/nomad#23969 (O10): the number was given to a stranger, who lives."""
    gone = asyncio.Event()
    watch = ParentWatch(asyncio.get_running_loop(), os.getpid(), gone.set)
    async with asyncio.timeout(PATIENCE_S):
        await gone.wait()
    watch.stop()


@pytest.mark.parametrize("parent", [0, 1])
async def test_a_change_of_parent_counts_and_not_its_number(parent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ipython/ipykernel PR #233 (O06), ipython/ipykernel#517 (O05): 1 is legal, and so is 0, a parent outside."""
    present = parent
    monkeypatch.setattr(os, "getppid", lambda: present)
    gone = asyncio.Event()
    watch = ParentWatch(asyncio.get_running_loop(), parent, gone.set, poll_s=0.001)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not gone.is_set()
    if parent == 0:  # no pidfd of it is to be had, so this is what a look every now and then finds
        present = 4321
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()
    watch.stop()


async def test_silence_is_measured_from_what_was_heard_last() -> None:
    loop = asyncio.get_running_loop()
    silent: asyncio.Future[float] = loop.create_future()
    watch = SilenceWatch(loop, lambda: 0.05, lambda: silent.set_result(loop.time()))
    heard = watch.heard
    for _ in range(10):
        await asyncio.sleep(0.01)
        watch.heard = heard = loop.time()
    async with asyncio.timeout(PATIENCE_S):
        assert await silent - heard >= 0.05
    watch.stop()
