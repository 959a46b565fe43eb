"""A journal's disk in memory, which refuses a write or does not confirm it when it is told to."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Any, Literal

from sandport.store.errors import StoreUnusable

Trouble = Literal["before", "after"]
"""What the disk does at the next write: refuses it, or takes it and does not confirm."""


class InlineWriter:
    """The store's writer without a thread and a disk: an operation is done when it is asked for, told a turn later.

    Attributes:
        dead: The process that it belongs to was killed: nothing is done or told any more.
        trouble: What happens at the next write.
    """

    def __init__(self, db: sqlite3.Connection, loop: asyncio.AbstractEventLoop) -> None:
        self._db = db
        self._loop = loop
        self.dead = False
        self.over = False
        self.trouble: Trouble | None = None
        self._untold: list[asyncio.Future[Any]] = []

    def end(self) -> None:
        """Nobody looks any more: tell whoever waits something, so that it ends."""
        self.over = True
        for future in self._untold:
            _fail(future, StoreUnusable("the world is over"))

    def submit(self, operation: Callable[[sqlite3.Connection], Any], *, writes: bool) -> asyncio.Future[Any]:
        """Do it, all or nothing."""
        future = self._loop.create_future()
        if self.over:
            _fail(future, StoreUnusable("the world is over"))
            return future
        if self.dead:
            self._untold.append(future)
            return future
        trouble = None
        if writes:
            trouble, self.trouble = self.trouble, None
        if trouble == "before":
            self._loop.call_soon(_fail, future, StoreUnusable("the disk is full", dispatched="no"))
            return future
        self._db.execute("SAVEPOINT one")
        try:
            result = operation(self._db)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the operation's, and told to who asked
            self._db.execute("ROLLBACK TO one")
            self._loop.call_soon(_fail, future, error)
        else:
            if trouble is None:
                self._loop.call_soon(_tell, self, future, result)
            else:
                self._loop.call_soon(_fail, future, StoreUnusable("the disk failed", dispatched="unknown"))
        finally:
            self._db.execute("RELEASE one")
        return future

    async def aclose(self) -> None:
        """Nothing is waiting."""


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _tell(writer: InlineWriter, future: asyncio.Future[Any], result: Any) -> None:
    if writer.dead:
        writer._untold.append(future)
    elif not future.done():
        future.set_result(result)
