"""One thread that owns a connection to SQLite and commits together whatever is queued.

Above: `sqlite.SqliteStore`, on an event loop. Below: a connection that `file` opened. What the callers of one turn of
the loop ask for goes to the thread as one batch, as does all that was asked for while the batch before was written: one
transaction, one flush of the disk, one wake-up of the loop.

Each operation fails alone. A batch first runs without savepoints, since nearly all operations that are refused have
changed nothing by then; where one did, everything is rolled back and runs again with a savepoint for each. A failure of
the disk or of the lock is the whole batch's.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final

from .errors import StoreClosed, StoreUnusable
from .file import TRIES, UNREADABLE, damaged

Operation = Callable[[sqlite3.Connection], Any]
"""What runs inside a transaction; it may run twice, where the first run is rolled back."""

_MOST_AT_ONCE: Final = 512
"""Operations in one transaction: a bound on how long the first of them waits for the last."""
_CLOSE_S: Final = 10.0
_OUR_OWN: Final = frozenset({sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
"""Primary codes of failures that belong to one statement; any other is the connection's or the file's."""


class _Job:
    __slots__ = ("error", "future", "operation", "result", "writes")

    def __init__(self, operation: Operation, future: asyncio.Future[Any], *, writes: bool) -> None:
        self.operation = operation
        self.future = future
        self.writes = writes
        self.result: Any = None
        self.error: BaseException | None = None


class Writer:
    """The thread, and the way to it from one event loop.

    Args:
        connect: Opens the connection, in the thread; again after a failure of the disk.
        explain: What a failure of SQLite means for whoever uses the store, and whether it may have been committed.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        explain: Callable[[sqlite3.Error, bool], StoreUnusable],
    ) -> None:
        self._connect = connect
        self._explain = explain
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._waiting: list[_Job] = []
        self._queue: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._ended = self._loop.create_future()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sandport-store", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation, *, writes: bool) -> asyncio.Future[Any]:
        """Have an operation run; the future has its result once that is on disk.

        Raises:
            StoreClosed: There is no thread any more, or it is another process's.
        """
        if self._closing:
            raise StoreClosed("the store was closed with its host; use a host inside of its block")
        if os.getpid() != self._pid:
            raise StoreClosed("the store belongs to the process that this one was forked from; open a host here")
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._waiting:
            # Whoever else asks in this turn of the loop shares the transaction.
            self._loop.call_soon(self._hand_over)
        self._waiting.append(_Job(operation, future, writes=writes))
        return future

    async def aclose(self) -> None:
        """Have everything written that was asked for, and end the thread.

        Raises:
            StoreUnusable: It did not end in time; what was asked for last may not be on disk.

        Repeat: waits for the same end. Cancel: it ends alone.
        """
        if os.getpid() != self._pid:
            return
        if not self._closing:
            self._closing = True
            self._hand_over()
            self._queue.put(None)
        done, _ = await asyncio.wait([self._ended], timeout=_CLOSE_S)
        if not done:
            raise StoreUnusable(
                f"the store did not finish writing within {_CLOSE_S:g} s; what was asked for last may not be on disk",
                dispatched="unknown",
            )
        self._thread.join(_CLOSE_S)  # it has nothing left to do but to end

    # --- on the loop ---

    def _hand_over(self) -> None:
        if self._waiting:
            self._queue.put(self._waiting)
            self._waiting = []

    def _resolve(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            if job.future.done():
                continue  # its caller was cancelled
            if job.error is None:
                job.future.set_result(job.result)
            else:
                job.future.set_exception(job.error)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # --- in the thread ---

    def _run(self) -> None:
        db: sqlite3.Connection | None = None
        last = False
        while not last:
            batch = self._queue.get()
            jobs: list[_Job] = []
            while batch is not None:
                jobs += batch
                if len(jobs) >= _MOST_AT_ONCE:
                    break
                try:
                    batch = self._queue.get_nowait()
                except Empty:
                    break
            last = batch is None
            if jobs:
                db = self._work(db, jobs)
                self._tell(self._resolve, jobs)
            del jobs, batch
        if db is not None:
            db.close()
        self._tell(self._end)

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:
            # The loop is closed: nobody waits any more, and what was asked for is on disk.
            return

    def _work(self, db: sqlite3.Connection | None, jobs: Sequence[_Job]) -> sqlite3.Connection | None:
        """Do all of it; the connection to go on with, or None where it cannot be trusted any more."""
        try:
            if db is None:
                db = self._connect()
            if any(job.writes for job in jobs):
                self._write(db, jobs)
            else:
                for job in jobs:
                    _attempt(db, job)
        except BaseException as error:  # noqa: BLE001 - a thread that dies would leave its callers waiting for ever
            for job in jobs:
                job.result, job.error = None, self._told(error)
            if db is not None:
                # Nothing of the transaction is wanted, and a connection that saw the disk fail is not used again.
                with contextlib.suppress(sqlite3.Error):
                    db.close()
            return None
        return db

    def _told(self, error: BaseException) -> BaseException:
        """What one caller gets: an error of its own, since each raises it in a task of its own."""
        if isinstance(error, UNREADABLE):
            told: BaseException = self._explain(damaged(error), False)
        elif isinstance(error, sqlite3.Error):
            told = self._explain(error, isinstance(error, _CommitFailed))
        else:
            told = copy.copy(error)
        told.__cause__ = error
        return told

    def _write(self, db: sqlite3.Connection, jobs: Sequence[_Job]) -> None:
        _begin(db)
        for job in jobs:
            before = db.total_changes
            _attempt(db, job)
            if job.error is not None and db.total_changes != before:
                break
        else:
            _commit(db)
            return
        db.execute("ROLLBACK")
        _begin(db)
        for job in jobs:
            db.execute("SAVEPOINT operation")
            _attempt(db, job)
            if job.error is not None:
                db.execute("ROLLBACK TO operation")
            db.execute("RELEASE operation")
        _commit(db)


class _CommitFailed(sqlite3.Error):
    """The disk failed while it confirmed."""


def _attempt(db: sqlite3.Connection, job: _Job) -> None:
    """Run one operation; its own failure stays with it.

    Raises:
        sqlite3.Error: The connection, the lock or the disk failed.
        UnicodeDecodeError, msgspec.DecodeError: What was read is damaged.
    """
    job.result = job.error = None
    try:
        job.result = job.operation(db)
    except UNREADABLE:
        raise
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None and type(error) is sqlite3.OperationalError:
            # The driver's own complaint about what it read, as of text that is none.
            raise damaged(error) from error
        if code is not None and code & 0xFF not in _OUR_OWN:
            raise
        job.error = error
    except Exception as error:  # noqa: BLE001 - it is the caller's, who gets it
        job.error = error


def _begin(db: sqlite3.Connection) -> None:
    for attempt in range(TRIES):
        try:
            db.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == TRIES - 1:
                raise


def _commit(db: sqlite3.Connection) -> None:
    try:
        db.execute("COMMIT")
    except sqlite3.Error as error:
        failure = _CommitFailed(str(error))
        failure.sqlite_errorcode = error.sqlite_errorcode
        failure.sqlite_errorname = error.sqlite_errorname
        raise failure from error
