"""An author is told who holds up the loop, and where a thread stands that nothing interrupts.

`dask/distributed#8537` (R07): a worker that was busy was taken for dead, and nothing said with what it was busy.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Iterator
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import pytest

from sandport_sdk.held_loop import LoopWatch, home_of
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import Call, types
from sdk.tests.plain import Plain

HERE = str(Path(__file__))
HANG_S = 60.0
"""Only ends a hang."""
SEVERAL = 2
QUIET_S = 0.25
"""Longer than a busy machine takes to give the loop's thread its turn, since that is no time to be said."""

T = TypeVar("T")


class Opened:
    """What the watch wants to know of a call."""

    def __init__(self, method: str) -> None:
        self.method = method


class OpenCalls(dict[Any, Any]):
    """The calls that are open; how many they are is what the watch asks each time that it looks."""

    def __init__(self, method: str) -> None:
        super().__init__({1: Opened(method)})
        self.looks: SimpleQueue[int] = SimpleQueue()

    def __len__(self) -> int:
        count = super().__len__()
        self.looks.put(count)
        return count

    def several_looks(self) -> None:
        """Block until it has looked a few times from now on."""
        self.looks = SimpleQueue()
        for _ in range(SEVERAL):
            blocks(self.looks)

    def last_look(self) -> None:
        """Block until it has seen that none is open any more."""
        while blocks(self.looks):
            pass


@pytest.fixture
def said() -> Iterator[SimpleQueue[logging.LogRecord]]:
    """What is said, when it is."""
    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    handler = QueueHandler(records)
    handler.setLevel(logging.WARNING)
    log = logging.getLogger("sandport_sdk")
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)


def blocks(news: SimpleQueue[T]) -> T:
    """As an author's code that waits for something in the loop's thread."""
    return news.get(timeout=HANG_S)


async def watched(said: SimpleQueue[logging.LogRecord], home: str) -> list[str]:
    """What is said while a call called `execute` blocks twice, and turns between."""
    calls = OpenCalls("execute")
    watch = LoopWatch(asyncio.get_running_loop(), calls, held_s=0.05)
    watch.home = home
    lines: list[str] = []

    async def handler() -> None:
        for _ in range(2):
            await asyncio.sleep(0)  # the loop turns, so that each time is another one
            lines.append(blocks(said).getMessage())
            calls.several_looks()
        calls.clear()

    watch.wake()
    try:
        await asyncio.create_task(handler(), name="execute")
    finally:
        watch.stop()
    return lines


@pytest.mark.parametrize("home", [str(Path(__file__).parent), ""])
def test_who_holds_up_the_loop_is_named_with_the_place_once_each_time(
    said: SimpleQueue[logging.LogRecord], home: str
) -> None:
    for line in asyncio.run(watched(said, home)):
        assert line.startswith(f"the handler of `execute` has held up the event loop for 0.05 s, at {HERE}:")
        assert re.search("in (blocks|handler): make it a plain def", line)
    assert said.empty()


def test_nothing_is_said_where_nothing_is_held_up_or_nothing_is_open(said: SimpleQueue[logging.LogRecord]) -> None:
    async def quiet() -> None:
        loop = asyncio.get_running_loop()
        calls = OpenCalls("execute")
        watch = LoopWatch(loop, calls, held_s=QUIET_S)
        watch.wake()
        await asyncio.to_thread(calls.several_looks)
        calls.clear()
        await asyncio.to_thread(calls.last_look)
        assert said.empty()
        others = OpenCalls("probe")
        other = LoopWatch(loop, others, held_s=QUIET_S)
        other.wake()
        line = blocks(said).getMessage()
        others.several_looks()
        assert "something of the provider's (probe) has held up the event loop" in line  # and of no other call
        others.clear()
        for each in (watch, other):
            each.stop()

    asyncio.run(quiet())
    assert said.empty()


def test_a_plain_handler_that_goes_on_after_its_cancel_is_said_to_with_the_place(
    tmp_path: Path, said: SimpleQueue[logging.LogRecord]
) -> None:
    lines: list[str] = []

    class Deaf(Plain):
        def probe(  # type: ignore[override]
            self, params: types.ProbeParams, call: Call
        ) -> types.ProbeResult:
            lines.append(blocks(said).getMessage())
            return types.ProbeResult()

    async def tell() -> None:
        async with HostInMemory(Deaf, state_dir=tmp_path) as host:
            probe = host.start("probe", types.ProbeParams())
            await host.call("listLeases", types.ListLeasesParams())  # the handler before it has been given its thread
            probe.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probe.result()

    asyncio.run(tell())
    assert said.empty()
    (line,) = lines
    assert line.startswith(f"probe was cancelled 1 s ago and goes on, at {HERE}:")
    assert "in blocks: nothing interrupts a plain def" in line


def test_the_home_of_a_provider_is_its_folder() -> None:
    assert home_of(Opened) == str(Path(__file__).parent) + "/"
