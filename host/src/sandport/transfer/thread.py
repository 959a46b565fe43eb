"""Blocking work of a copy, kept off the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from sandport.closing import finished

__all__ = ["in_a_thread"]

_T = TypeVar("_T")


async def in_a_thread(work: Callable[[], _T], stop: threading.Event) -> _T:
    """The result of blocking work, which looks at `stop` between its steps.

    Cancel: sets `stop` and waits for the end of the work, which clears its scratch away.
    """
    working = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        # Until the work has ended the descriptors that it uses must stay what they are.
        stop.set()
        await finished(_settled(working))
        raise


async def _settled(working: asyncio.Future[_T]) -> None:
    await asyncio.wait((working,))
    working.exception()  # seen: it was cut off, which is what its caller is told
