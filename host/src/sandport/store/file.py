"""The file of a SQLite store: opened, brought to this version, and what its failures mean."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from sandport.private import open_private

from .errors import StoreTooNew, StoreUnusable
from .schema import MIGRATIONS, Migration

PATIENCE_S: Final = 20.0
"""How long to wait for a file that other processes hold; each of their transactions takes milliseconds."""
TRIES: Final = 4
"""In how many parts, each a wait of SQLite's own."""

UNREADABLE: Final = (UnicodeDecodeError, msgspec.DecodeError)
"""What reading a damaged file raises beside SQLite's own errors."""

_ADVICE: Final[dict[int, str]] = {
    sqlite3.SQLITE_FULL: "free space on that disk, then repeat; nothing is lost",
    sqlite3.SQLITE_IOERR: "see that its disk is not full and works (dmesg), then repeat",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user, or set SANDPORT_HOME to another",
    sqlite3.SQLITE_CANTOPEN: "make the file and its folder writable for this user, or set SANDPORT_HOME to another",
    sqlite3.SQLITE_PERM: "make the file and its folder writable for this user, or set SANDPORT_HOME to another",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it, or move it away; "
    "`sandport reap --unknown` then finds what its leases left",
    sqlite3.SQLITE_NOTADB: "the file is damaged or no store: restore it, or move it away; "
    "`sandport reap --unknown` then finds what its leases left",
    sqlite3.SQLITE_BUSY: "another process holds it locked: end that one, or repeat",
}


def connect(path: Path, *, store_id: str | None, now_ms: int, patience_s: float = PATIENCE_S) -> sqlite3.Connection:
    """Open the store of a path, made where there is none, at this version.

    Args:
        path: The file; its folder exists.
        store_id: The id that it must have; a new store gets it.
        now_ms: The time, for a new one.
        patience_s: How long to wait for other processes that open, make or close it at this moment; a transaction later
            waits a part of that at a time (`TRIES`).

    Raises:
        StoreUnusable: It cannot be opened, or is another store's.
        StoreTooNew: A newer version wrote it.
    """
    try:
        # SQLite gives its other files the mode of this one.
        os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise StoreUnusable(
            f"{path}: {error.strerror}; Sandport keeps its leases there: {_ADVICE[sqlite3.SQLITE_CANTOPEN]}"
        ) from error
    until = time.monotonic() + patience_s
    while True:
        try:
            return _opened(path, store_id, now_ms, patience_s / TRIES)
        except UNREADABLE as error:
            raise explain(path, damaged(error)) from error
        except sqlite3.Error as error:
            # SQLite does not wait for everything: not for another one that turns a new file into one with a log.
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise explain(path, error) from error
            time.sleep(random.uniform(0.005, 0.05))


def _opened(path: Path, store_id: str | None, now_ms: int, wait_s: float) -> sqlite3.Connection:
    with contextlib.ExitStack() as undo:
        db = sqlite3.connect(path, timeout=wait_s, isolation_level=None)
        undo.callback(db.close)
        _check_known(db, path, len(MIGRATIONS))  # before anything is changed
        _prepare(db)
        migrate(db, path)
        _identify(db, path, store_id, now_ms)
        undo.pop_all()
    return db


def _primary(error: sqlite3.Error) -> int:
    """SQLite's code without its details; 0 where the driver itself complains."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def explain(path: Path, error: sqlite3.Error, *, maybe_done: bool = False) -> StoreUnusable:
    """What a failure of SQLite means, and what to do.

    Args:
        path: The file.
        error: What it raised.
        maybe_done: Whether the transaction may be on disk all the same.
    """
    advice = _ADVICE.get(_primary(error))
    tail = f"\n{advice}" if advice else ""
    return StoreUnusable(
        f"{path}: {error}; Sandport keeps its leases there{tail}",
        retry="later",
        dispatched="unknown" if maybe_done else "no",
    )


def damaged(error: Exception) -> sqlite3.DatabaseError:
    """SQLite's own word for it, where something else noticed first that what was read makes no sense."""
    said = sqlite3.DatabaseError(f"it cannot be read: {error}")
    said.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return said


def version(db: sqlite3.Connection) -> int:
    """How many migrations the file has taken."""
    found: int = db.execute("PRAGMA user_version").fetchone()[0]
    return found


def migrate(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Take the steps that the file has not taken yet, each with its number in one transaction.

    Raises:
        StoreTooNew: It has taken more steps than there are.
        sqlite3.Error: A step failed; the file is at the version before it.
    """
    _check_known(db, path, len(migrations))
    while (taken := version(db)) < len(migrations):
        db.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have been faster.
            if version(db) == taken:
                for statement in migrations[taken].statements:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {taken + 1}")
            db.execute("COMMIT")
        finally:
            if db.in_transaction:  # a step, or the end, did not work
                db.execute("ROLLBACK")


def _check_known(db: sqlite3.Connection, path: Path, known: int) -> None:
    if (taken := version(db)) > known:
        raise StoreTooNew(
            f"{path}: was written by a newer Sandport (store version {taken}, this one knows {known})\n"
            "upgrade sandport, or set SANDPORT_HOME to another folder"
        )


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA temp_store = MEMORY")
    # What is blanked or dropped (variables of ended leases) is not left in free parts of the file; Debian's default.
    db.execute("PRAGMA secure_delete = ON")
    db.execute("PRAGMA journal_mode = WAL")


def _identify(db: sqlite3.Connection, path: Path, store_id: str | None, now_ms: int) -> None:
    found = db.execute("SELECT store_id FROM store").fetchone()
    if found is None:
        db.execute(
            "INSERT INTO store SELECT ?, ? WHERE NOT EXISTS (SELECT 1 FROM store)", (store_id or new_id("st"), now_ms)
        )
        found = db.execute("SELECT store_id FROM store").fetchone()
    if store_id is not None and found[0] != store_id:
        raise StoreUnusable(
            f"{path}: is the store {found[0]}, and its folder is that of {store_id}: one came from elsewhere\n"
            "put back the file that belongs there, or set SANDPORT_HOME to another folder"
        )


_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz234567"


def new_id(kind: str) -> str:
    """Two letters and 26 of base32 (130 bits): legal as a DNS label, a label's value and a file's name."""
    return kind + "".join(_LETTERS[byte & 31] for byte in os.urandom(26))
