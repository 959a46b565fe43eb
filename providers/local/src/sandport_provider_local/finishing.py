"""What a cancel must not leave half done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

R = TypeVar("R")


async def to_its_end(work: Coroutine[Any, Any, R]) -> R:
    """What the work comes to. It must be bounded: nothing interrupts it.

    Cancel: passed on once the work has ended, however that ended.
    """
    running = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from running.exception()
    return running.result()
