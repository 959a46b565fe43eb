"""Measures the statements of a store without the store: one connection, no rows made, no checks, no other thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, Self

from sandport.store.schema import MIGRATIONS

from . import lease_rows
from .order import Order

Statements = Sequence[tuple[str, tuple[Any, ...]]]

_LEASE: Final = (
    "INSERT INTO lease VALUES (NULL, (SELECT key FROM sandbox WHERE id = ?),"
    " ?, ?, 1, 'requested', '', 'local', NULL, 0, ?, 'run-1', NULL, NULL, NULL, NULL, ?, ?, NULL, NULL, NULL)"
)
_SANDBOX: Final = (
    "INSERT INTO sandbox VALUES"
    " (NULL, ?, 1, 'intended', 'local', '', 'local', ?, ?, NULL, NULL, NULL, ?, 0, NULL, ?, ?, NULL, 0, 0, '')"
)
_USE: Final = "INSERT INTO use SELECT key, ?, ?, 1 FROM lease WHERE id = ?"
_CREATING: Final = (
    "UPDATE sandbox SET state = 'creating', provider_version = ?, settle_ms = ?, changed_at_ms = ?"
    " WHERE id = ? AND generation = ? AND state = 'intended' AND owner = ?"
)
_CREATED: Final = (
    "UPDATE sandbox SET state = 'leased', handle = ?, lease_result = ?, expires_at_ms = ?, changed_at_ms = ?"
    " WHERE id = ? AND generation = ? AND state = 'creating' AND owner = ?"
)
_ACTIVE: Final = (
    "UPDATE lease SET state = 'active', active_at_ms = ?"
    " WHERE id = ? AND sandbox_id = ? AND generation = ? AND state = 'requested'"
)
_RECEIPT: Final = "INSERT INTO receipt SELECT NULL, key, 1, ?, ?, ?, ? FROM sandbox WHERE id = ?"
_NONE: Final = b"\x80"


def acquire(number: int) -> tuple[Statements, Statements, Statements]:
    """The statements of the three changes of one acquire: request, creating, created."""
    sandbox, lease, owner, now = lease_rows.id_of("sp", number), lease_rows.id_of("le", number), lease_rows.OWNER, 1
    request = (
        (_SANDBOX, (sandbox, lease_rows.CONFIG, _NONE, owner, now, now)),
        (_LEASE, (sandbox, lease, sandbox, owner, _NONE, now)),
        (_USE, (owner, now, lease)),
        (_RECEIPT, (now, "requested", "", owner, sandbox)),
    )
    creating = (
        (_CREATING, ("1.0", 1000, now, sandbox, 1, owner)),
        (_RECEIPT, (now, "creating", "", owner, sandbox)),
    )
    created = (
        (_CREATED, (lease_rows.HANDLE, lease_rows.RESULT, 5, now, sandbox, 1, owner)),
        (_ACTIVE, (now, lease, sandbox, 1)),
        (_RECEIPT, (now, "created", lease_rows.HANDLE, owner, sandbox)),
    )
    return request, creating, created


class FloorStore:
    """The standard library's sqlite3 on the same tables."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    async def __aenter__(self) -> Self:
        self._folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sandport-bench-"))
        self._normal = self._open("normal", "NORMAL")
        self._full = self._open("full", "FULL")
        self._hop = self._stack.enter_context(ThreadPoolExecutor(1))
        self._next = 0
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stack.close()

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""
        numbers = range(self._next, self._next + order.count)
        self._next += order.count
        match order.do:
            case "acquires":
                made = [(*request, *creating, *created) for request, creating, created in map(acquire, numbers)]
                return (self._took_s(made),)
            case "acquires, three transactions":
                return (self._took_s([statements for number in numbers for statements in acquire(number)]),)
            case "requests":
                return tuple([await self._request(number) for number in numbers])
        raise ValueError(f"a store does not do {order.do!r}")

    def _open(self, name: str, synchronous: Literal["NORMAL", "FULL"]) -> sqlite3.Connection:
        path = os.path.join(self._folder, name)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._stack.callback(db.close)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA foreign_keys = ON")
        for migration in MIGRATIONS:
            for statement in migration.statements:
                db.execute(statement)
        return db

    def _took_s(self, transactions: Sequence[Statements]) -> float:
        begun = time.perf_counter()
        for statements in transactions:
            _transaction(self._normal, statements)
        return time.perf_counter() - begun

    async def _request(self, number: int) -> float:
        """Seconds of one durable change in a thread."""
        request, _, _ = acquire(number)
        loop = asyncio.get_running_loop()
        begun = time.perf_counter()
        await loop.run_in_executor(self._hop, _transaction, self._full, request)
        return time.perf_counter() - begun


def _transaction(db: sqlite3.Connection, statements: Statements) -> None:
    db.execute("BEGIN IMMEDIATE")
    for statement, values in statements:
        db.execute(statement, values)
    db.execute("COMMIT")
