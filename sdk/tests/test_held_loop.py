"""An author is told who holds up the loop, and where a thread stands that nothing interrupts.

`dask/distributed#8537` (R07): a worker that was busy was taken for dead, and nothing said with what it was busy.
"""

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from sandport_sdk.held_loop import LoopWatch, home_of
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import Call, types
from sdk.tests.plain import Plain

HERE = str(Path(__file__))
HANG_S = 60.0


class Opened:
    """What the watch wants to know of a call."""

    def __init__(self, method: str) -> None:
        self.method = method


def blocks(until: Any) -> None:
    """As an author's code that waits for something in the loop's thread."""
    deadline = time.monotonic() + HANG_S
    while not until() and time.monotonic() < deadline:
        time.sleep(0.01)


async def watched(caplog: pytest.LogCaptureFixture, home: str) -> list[str]:
    """What is said while a call called `execute` blocks twice, and turns between."""
    calls: dict[Any, Any] = {}
    watch = LoopWatch(asyncio.get_running_loop(), calls, held_s=0.05)
    watch.home = home

    async def handler() -> None:
        for count in (1, 2):
            blocks(lambda: len(caplog.records) >= count)  # noqa: B023 - called at once
            await asyncio.sleep(0.2)  # the loop turns, so that the next time is another one

    calls[1] = Opened("execute")
    watch.wake()
    task = asyncio.create_task(handler(), name="execute")
    try:
        await task
    finally:
        calls.clear()
        watch.stop()
    return [record.getMessage() for record in caplog.records]


def _some_looks() -> Any:
    """Becomes true after a few times the limit."""
    began = time.monotonic()
    return lambda: time.monotonic() - began > 0.1


@pytest.mark.parametrize("home", [str(Path(__file__).parent), ""])
def test_who_holds_up_the_loop_is_named_with_the_place_once_each_time(
    caplog: pytest.LogCaptureFixture, home: str
) -> None:
    caplog.set_level(logging.WARNING)
    said = asyncio.run(watched(caplog, home))
    assert len(said) == 2
    for line in said:
        assert line.startswith(f"the handler of `execute` has held up the event loop for 0.05 s, at {HERE}:")
        assert "in blocks: make it a plain def" in line


def test_nothing_is_said_where_nothing_is_held_up_or_nothing_is_open(caplog: pytest.LogCaptureFixture) -> None:
    async def quiet() -> None:
        calls: dict[Any, Any] = {}
        watch = LoopWatch(asyncio.get_running_loop(), calls, held_s=0.02)
        calls[1] = Opened("execute")
        watch.wake()
        await asyncio.sleep(0.2)
        calls.clear()
        await asyncio.to_thread(blocks, lambda: watch.asleep)
        blocks(_some_looks())
        watch.stop()

    caplog.set_level(logging.WARNING)
    asyncio.run(quiet())
    assert [record for record in caplog.records if record.name == "sandport_sdk"] == []


def test_a_plain_handler_that_goes_on_after_its_cancel_is_said_to_with_the_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    class Deaf(Plain):
        def probe(  # type: ignore[override]
            self, params: types.ProbeParams, call: Call
        ) -> types.ProbeResult:
            blocks(lambda: caplog.records)
            return types.ProbeResult()

    async def tell() -> None:
        async with HostInMemory(Deaf, state_dir=tmp_path) as host:
            probe = host.start("probe", types.ProbeParams())
            await host.call("listLeases", types.ListLeasesParams())  # the handler before it has been given its thread
            probe.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probe.result()

    asyncio.run(tell())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"probe was cancelled 1 s ago and goes on, at {HERE}:")
    assert "in blocks: nothing interrupts a plain def" in line


def test_the_home_of_a_provider_is_its_folder() -> None:
    assert home_of(Opened) == str(Path(__file__).parent) + "/"
