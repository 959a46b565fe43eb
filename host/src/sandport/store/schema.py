"""The tables in SQLite, as the list of steps that led to them.

A step is never changed once it was released: a change is one more step at the end. `PRAGMA user_version` says how many
were taken; each is one transaction together with that number, so a crash leaves the version before it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Migration(Struct, frozen=True):
    """One step from a version to the next."""

    what: str
    statements: tuple[str, ...]


# Whole pages go to the log, and an index on random ids dirties another page with each row. So ids are looked up in two
# indexes only; all else goes by `key`, in the order of writing, where what is written together lies together. Indexes
# leave out what changes with each move.
_FIRST: Final = Migration(
    "sandboxes, leases, uses, receipts",
    (
        "CREATE TABLE store (store_id TEXT NOT NULL, made_at_ms INTEGER NOT NULL)",
        """
        CREATE TABLE sandbox (
            key INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            generation INTEGER NOT NULL,
            state TEXT NOT NULL
                CHECK (state IN ('intended', 'creating', 'leased', 'idle', 'ending', 'doubtful', 'gone')),
            provider TEXT NOT NULL,
            provider_version TEXT NOT NULL,
            environment TEXT NOT NULL,
            config BLOB NOT NULL,
            secrets BLOB NOT NULL,
            tenant TEXT,
            handle TEXT,
            lease_result BLOB,
            owner TEXT,
            settle_ms INTEGER NOT NULL,
            quiet_since_ms INTEGER,
            created_at_ms INTEGER NOT NULL,
            changed_at_ms INTEGER NOT NULL,
            expires_at_ms INTEGER,
            attempts INTEGER NOT NULL,
            due_at_ms INTEGER NOT NULL,
            last_error TEXT NOT NULL
        )
        """,
        "CREATE INDEX sandbox_live ON sandbox (created_at_ms) WHERE state <> 'gone'",
        "CREATE INDEX sandbox_gone ON sandbox (changed_at_ms) WHERE state = 'gone'",
        """
        CREATE TABLE lease (
            key INTEGER PRIMARY KEY,
            sandbox_key INTEGER NOT NULL REFERENCES sandbox (key) ON DELETE CASCADE,
            id TEXT NOT NULL UNIQUE,
            sandbox_id TEXT NOT NULL,
            generation INTEGER NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('requested', 'active', 'ended')),
            reason TEXT NOT NULL,
            environment TEXT NOT NULL,
            name TEXT,
            kept INTEGER NOT NULL,
            owner TEXT,
            run TEXT,
            tenant TEXT,
            principal TEXT,
            workspace TEXT,
            workload TEXT,
            env BLOB NOT NULL,
            requested_at_ms INTEGER NOT NULL,
            active_at_ms INTEGER,
            ended_at_ms INTEGER,
            UNIQUE (sandbox_key, generation)
        )
        """,
        "CREATE UNIQUE INDEX lease_name ON lease (name) WHERE name IS NOT NULL AND state <> 'ended'",
        "CREATE INDEX lease_live ON lease (requested_at_ms) WHERE state <> 'ended'",
        """
        CREATE TABLE use (
            lease_key INTEGER NOT NULL REFERENCES lease (key) ON DELETE CASCADE,
            instance TEXT NOT NULL,
            since_ms INTEGER NOT NULL,
            count INTEGER NOT NULL CHECK (count > 0),
            PRIMARY KEY (lease_key, instance)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE receipt (
            key INTEGER PRIMARY KEY,
            sandbox_key INTEGER NOT NULL REFERENCES sandbox (key) ON DELETE CASCADE,
            generation INTEGER NOT NULL,
            at_ms INTEGER NOT NULL,
            what TEXT NOT NULL,
            detail TEXT NOT NULL,
            instance TEXT NOT NULL
        )
        """,
        "CREATE INDEX receipt_sandbox ON receipt (sandbox_key)",
    ),
)

_WORK_ITEM: Final = Migration("the embedder's id of a task", ("ALTER TABLE lease ADD COLUMN work_item TEXT",))

# x'80' is MessagePack's empty map. What it replaces is overwritten: `file` opens with secure_delete.
_NO_OLD_VARIABLES: Final = Migration(
    "leases that have ended keep no variables",
    ("UPDATE lease SET env = x'80' WHERE state = 'ended' AND env <> x'80'",),
)

MIGRATIONS: Final[tuple[Migration, ...]] = (_FIRST, _WORK_ITEM, _NO_OLD_VARIABLES)
"""All steps, the oldest first; the version of a store is how many of them it has taken."""
