"""The threads in which plain `def` handlers run: few, made when the first is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import Future, ThreadPoolExecutor

_T = TypeVar("_T")

MAX_THREADS = 32
"""Blocking handlers that run at once; further calls wait for their turn."""


class HandlerThreads:
    """A bounded pool; costs nothing until something is submitted."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, function: Callable[..., _T], *arguments: object) -> Future[_T]:
        """Run a function in a thread, with the context of the caller."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="handler")
        return self._pool.submit(copy_context().run, function, *arguments)

    def report(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the loop, from any thread; nothing where the loop is over."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The worker ended while this thread was still running: nobody is left to be told.
            if not self._loop.is_closed():
                raise

    def stop(self) -> None:
        """Start nothing more; threads that are idle end."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
