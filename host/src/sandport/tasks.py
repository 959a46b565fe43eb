"""What a host does by itself while its block lasts: clean-up, and the workers of its providers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from .closing import outliving
from .log import Log


class Tasks:
    """The tasks of a host, and what failed in them.

    They are the host's own and no task group of the block's: a cancel around the block must reach the leases in it
    before it reaches the workers that end them, and the block may be left from another task than it was entered.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._running: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have it done; a failure is logged at once, and raised by `raise_failure`."""
        task = outliving(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("critical", f"{task.get_name()} failed: {error!r}")
            self._failures.append(error)

    async def end(self) -> None:
        """Cancel all, and wait for the end of each."""
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.wait(self._running)

    def raise_failure(self) -> None:
        """Raise the first failure, if there was one."""
        if self._failures:
            raise self._failures[0]
