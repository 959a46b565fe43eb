"""Blocking work in a thread of its own, which nobody has to wait for at the exit."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["apart"]

_T = TypeVar("_T")


def apart(work: Callable[[], _T], *, name: str) -> asyncio.Future[_T]:
    """The future of blocking work in a thread of its own.

    It may block for as long as somebody else stalls, so it takes no place of a pool. Whoever cancels the future leaves
    the thread alone: it has to be ended by what it works with.

    Raises:
        RuntimeError: No thread can be started: the interpreter ends (from Python 3.12 on), or the machine has no room.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def tell(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: _T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
