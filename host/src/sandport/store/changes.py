# ruff: noqa: D103 - `store.Store` says what each of them does
"""What the methods of a store do to the tables of SQLite, each inside a transaction that the writer opened.

Every change of a sandbox is one UPDATE whose condition names id, generation, the states that the table of moves allows,
and the owner. Where it finds no row, the row as it is now goes out with Stale.
"""

from __future__ import annotations

from collections.abc import Collection
from sqlite3 import Connection, IntegrityError
from typing import Any, Final, NoReturn

from . import queries
from .errors import InUse, NameTaken, Stale
from .records import Leased, LeaseRow, Ref, SandboxRow, Use, What
from .rows import (
    EMPTY,
    LEASE,
    LEASE_COLUMNS,
    SANDBOX,
    SANDBOX_COLUMNS,
    USE_COLUMNS,
    lease_values,
    marks,
    sandbox_values,
    use_row,
)
from .states import MOVES, Move, states_for

_LONGEST_TOLD: Final = 4000
"""Characters of an error or a reason."""
MOST_PRUNED: Final = 500
"""Sandboxes that are dropped in one transaction."""
_MOST_KEPT: Final = 100
"""Receipts of failed attempts for one sandbox, and of looks at its vendor's list: a vendor may be down for weeks."""

_INSERT_SANDBOX = f"INSERT INTO sandbox ({SANDBOX_COLUMNS}) VALUES ({marks(SANDBOX)})"
_INSERT_LEASE = f"INSERT INTO lease ({LEASE_COLUMNS}, sandbox_key) SELECT {marks(LEASE)}, key FROM sandbox WHERE id = ?"
_INSERT_USE = """
    INSERT INTO use (lease_key, instance, since_ms, count)
    SELECT key, ?, ?, 1 FROM lease WHERE id = ? AND state <> 'ended'
"""
_INSERT_RECEIPT = """
    INSERT INTO receipt (sandbox_key, generation, at_ms, what, detail, instance)
    SELECT key, ?, ?, ?, ?, ? FROM sandbox WHERE id = ?
"""

_OWN = "owner = ?"
_OWN_OR_FREE = "(owner IS NULL OR owner = ? OR owner IN (SELECT value FROM json_each(?)))"


def _update(move: Move, changes: str = "", *, owner: str = _OWN) -> str:
    """The statement of a move: its changes, then changed_at_ms; then id, generation, and what the owner needs."""
    states = states_for(move)
    leads_to = {MOVES[state, move] for state in states}
    to = f"state = '{leads_to.pop()}', " if len(leads_to) == 1 else ""
    among = ", ".join(f"'{state}'" for state in states)
    changes = f"{changes}, " if changes else ""
    return (
        f"UPDATE sandbox SET {to}{changes}changed_at_ms = ?"
        f" WHERE id = ? AND generation = ? AND state IN ({among}) AND {owner}"
    )


_CREATING = _update("creating", "provider_version = ?, settle_ms = ?")
_CREATED = _update("created", "handle = ?, lease_result = ?, expires_at_ms = ?")
_REFUSED = _update("refused", "owner = NULL")
_DOUBTFUL = _update("doubtful", "quiet_since_ms = ?, due_at_ms = ?, last_error = ?")
_REST = _update("rest", "owner = NULL")
_REUSE = _update("reuse", "generation = generation + 1, owner = ?", owner="owner IS NULL")
_ENDING = _update("ending", "owner = ?, due_at_ms = ?, attempts = 0, last_error = ''", owner=_OWN_OR_FREE)
_ENDING_ANYWAY = _update("ending", "owner = ?, due_at_ms = ?, attempts = 0, last_error = ''", owner="1")
_GONE = _update("gone", "owner = NULL")
_SEEN = _update("seen", "quiet_since_ms = ?, handle = coalesce(?, handle)")
_FAILED = _update("failed", "owner = NULL, attempts = attempts + ?, last_error = ?, due_at_ms = ?")
_CLAIM = _update("claim", "owner = ?", owner=_OWN_OR_FREE)
_RELEASE = _update("release", "owner = NULL")
_FORGET = _update("forget", "owner = NULL, last_error = ?", owner="1")

_OF_REF = "sandbox_key = (SELECT key FROM sandbox WHERE id = ?) AND generation = ?"
# Its variables may be secrets, and nobody runs anything in it any more.
_ENDED = f"state = 'ended', env = x'{EMPTY.hex()}', reason = ?, ended_at_ms = ?"
_END_LEASE = f"UPDATE lease SET {_ENDED} WHERE {_OF_REF} AND state <> 'ended'"
_DROP_USES = f"DELETE FROM use WHERE lease_key = (SELECT key FROM lease WHERE {_OF_REF})"
_OTHERS_USES = f"""
    SELECT {USE_COLUMNS} FROM use JOIN lease ON lease.key = lease_key
    WHERE {_OF_REF} AND state <> 'ended'
        AND instance <> ? AND instance NOT IN (SELECT value FROM json_each(?))
    ORDER BY since_ms, instance
"""


# --- getting a sandbox ---


def request(db: Connection, now_ms: int, sandbox: SandboxRow, lease: LeaseRow) -> None:
    if (sandbox.state, lease.state) != ("intended", "requested"):
        raise ValueError(f"a request is intended and requested, not {sandbox.state} and {lease.state}")
    if (sandbox.id, sandbox.generation) != (lease.sandbox_id, lease.generation):
        raise ValueError("the lease is not one of this sandbox and generation")
    if sandbox.owner is None or lease.owner != sandbox.owner:
        raise ValueError("the sandbox and the lease need one owner, the same")
    try:
        db.execute(_INSERT_SANDBOX, sandbox_values(sandbox, now_ms))
    except IntegrityError:
        _stale(db, "request", sandbox.ref, sandbox.owner)
    _insert_lease(db, lease, sandbox.owner, now_ms)
    _receipt(db, sandbox.ref, now_ms, "requested", "", sandbox.owner)


def creating(db: Connection, now_ms: int, ref: Ref, by: str, provider_version: str, settle_ms: int) -> None:
    _move(db, "creating", _CREATING, (provider_version, settle_ms, now_ms), ref, by)
    _receipt(db, ref, now_ms, "creating", "", by)


def created(
    db: Connection,
    now_ms: int,
    ref: Ref,
    lease_id: str,
    by: str,
    handle: str,
    lease_result: bytes,
    expires_at_ms: int | None,
) -> None:
    _move(db, "created", _CREATED, (handle, lease_result, expires_at_ms, now_ms), ref, by)
    _change_lease(db, ref, lease_id, "state = 'active', active_at_ms = ?", (now_ms,))
    _receipt(db, ref, now_ms, "created", handle, by)


def refused(db: Connection, now_ms: int, ref: Ref, lease_id: str, by: str, reason: str) -> None:
    _move(db, "refused", _REFUSED, (now_ms,), ref, by)
    _change_lease(db, ref, lease_id, _ENDED, (_told(reason), now_ms))
    db.execute(_DROP_USES, (ref.sandbox_id, ref.generation))
    _receipt(db, ref, now_ms, "refused", reason, by)


def doubtful(db: Connection, now_ms: int, ref: Ref, by: str, reason: str) -> None:
    _move(db, "doubtful", _DOUBTFUL, (now_ms, now_ms, _told(reason), now_ms), ref, by)
    _end_lease(db, ref, now_ms, reason)
    _receipt(db, ref, now_ms, "doubtful", reason, by)


def rest(db: Connection, now_ms: int, ref: Ref, lease_id: str, by: str, reason: str) -> None:
    uses = _others_uses(db, ref, by, ())
    if uses:
        _in_use(db, "rest", ref, by, uses)
    _move(db, "rest", _REST, (now_ms,), ref, by)
    lease = queries.lease_by_id(db, lease_id)
    if (lease.sandbox_id, lease.generation) != (ref.sandbox_id, ref.generation):
        _stale_lease(db, lease_id, "is not the lease of that generation")
    _end_lease(db, ref, now_ms, reason)
    _receipt(db, ref, now_ms, "idle", reason, by)


def reuse(db: Connection, now_ms: int, ref: Ref, lease: LeaseRow, by: str) -> SandboxRow:
    if (lease.sandbox_id, lease.generation, lease.state, lease.owner) != (
        ref.sandbox_id,
        ref.generation + 1,
        "active",
        by,
    ):
        raise ValueError("the lease of a sandbox that is used again is active, of the next generation, and its taker's")
    _move(db, "reuse", _REUSE, (by, now_ms), ref, by, owner=())
    _insert_lease(db, lease, by, now_ms)
    _receipt(db, Ref(ref.sandbox_id, lease.generation), now_ms, "leased again", "", by)
    return _now(db, ref)


# --- ending it ---


def ending(
    db: Connection, now_ms: int, ref: Ref, by: str, reason: str, *, force: bool, dead: Collection[str]
) -> SandboxRow:
    if force:
        _move(db, "ending", _ENDING_ANYWAY, (by, now_ms, now_ms), ref, by, owner=())
    else:
        uses = _others_uses(db, ref, by, dead)
        if uses:
            _in_use(db, "ending", ref, by, uses)
        _move(db, "ending", _ENDING, (by, now_ms, now_ms), ref, by, owner=(by, queries.listed(dead)))
    _end_lease(db, ref, now_ms, reason)
    _receipt(db, ref, now_ms, "ending", reason, by)
    return _now(db, ref)


def gone(db: Connection, now_ms: int, ref: Ref, by: str, what: What, detail: str) -> None:
    _move(db, "gone", _GONE, (now_ms,), ref, by)
    _end_lease(db, ref, now_ms, what)
    _receipt(db, ref, now_ms, what, detail, by)


def seen(db: Connection, now_ms: int, ref: Ref, by: str, handle: str | None) -> None:
    _move(db, "seen", _SEEN, (now_ms, handle, now_ms), ref, by)
    _receipt_of_many(db, ref, now_ms, "seen", handle or "", by)


def failed(db: Connection, now_ms: int, ref: Ref, by: str, error: str, due_at_ms: int, *, counts: bool) -> None:
    _move(db, "failed", _FAILED, (int(counts), _told(error), due_at_ms, now_ms), ref, by)
    db.execute(f"UPDATE lease SET owner = NULL WHERE {_OF_REF} AND state <> 'ended'", (ref.sandbox_id, ref.generation))
    if counts:
        _receipt_of_many(db, ref, now_ms, "attempt failed", error, by)


def claim(db: Connection, now_ms: int, ref: Ref, by: str, dead: Collection[str]) -> SandboxRow:
    before = queries.sandbox(db, ref.sandbox_id)
    among = queries.listed(dead)
    _move(db, "claim", _CLAIM, (by, now_ms), ref, by, owner=(by, among))
    assert before is not None  # the update found it, in the same transaction
    db.execute(
        f"UPDATE lease SET owner = ? WHERE {_OF_REF} AND state <> 'ended'",
        (by, ref.sandbox_id, ref.generation),
    )
    if dead:
        db.execute(
            f"{_DROP_USES} AND instance IN (SELECT value FROM json_each(?))",
            (ref.sandbox_id, ref.generation, among),
        )
    if before.owner is not None and before.owner != by:
        _receipt(db, ref, now_ms, "taken over", before.owner, by)
    return _now(db, ref)


def forget(db: Connection, now_ms: int, sandbox_id: str, by: str, reason: str) -> None:
    row = queries.sandbox(db, sandbox_id)
    if row is None:
        _stale(db, "forget", Ref(sandbox_id), by)
    _move(db, "forget", _FORGET, (_told(reason), now_ms), row.ref, by, owner=())
    _end_lease(db, row.ref, now_ms, "forgotten")
    _receipt(db, row.ref, now_ms, "forgotten", reason, by)


# --- using a lease ---


def use(db: Connection, now_ms: int, lease_id: str, by: str) -> Leased:
    added = db.execute(
        """
        INSERT INTO use (lease_key, instance, since_ms, count)
        SELECT key, ?, ?, 1 FROM lease WHERE id = ? AND state = 'active'
        ON CONFLICT (lease_key, instance) DO UPDATE SET count = count + 1
        """,
        (by, now_ms, lease_id),
    )
    if added.rowcount != 1:
        _stale_lease(db, lease_id, "is not active")
    return queries.with_sandbox(db, queries.lease_by_id(db, lease_id))


def unuse(db: Connection, now_ms: int, lease_id: str, by: str) -> None:
    one = "WHERE lease_key = (SELECT key FROM lease WHERE id = ?) AND instance = ?"
    if db.execute(f"DELETE FROM use {one} AND count = 1", (lease_id, by)).rowcount == 0:
        db.execute(f"UPDATE use SET count = count - 1 {one}", (lease_id, by))


def unuse_all(db: Connection, now_ms: int, instances: Collection[str]) -> int:
    return db.execute(
        "DELETE FROM use WHERE instance IN (SELECT value FROM json_each(?))", (queries.listed(instances),)
    ).rowcount


def keep(db: Connection, now_ms: int, lease_id: str, by: str, name: str | None, *, kept: bool) -> LeaseRow:
    # One that is kept no more must be somebody's, or nothing would ever end it.
    owner = "owner" if kept else ":by"
    try:
        changed = db.execute(
            f"""
            UPDATE lease SET kept = :kept, name = coalesce(:name, name), owner = {owner}
            WHERE id = :id AND state <> 'ended' AND (owner IS NULL OR owner = :by)
            """,
            {"kept": int(kept), "name": name, "id": lease_id, "by": by},
        )
    except IntegrityError:
        _name_taken(db, name)
        raise
    if changed.rowcount != 1:
        _stale_lease(db, lease_id, f"has ended or is not {by}'s")
    row = queries.lease_by_id(db, lease_id)
    db.execute(
        "UPDATE sandbox SET owner = ?, changed_at_ms = ? WHERE id = ? AND generation = ?",
        (row.owner, now_ms, row.sandbox_id, row.generation),
    )
    _receipt(db, Ref(row.sandbox_id, row.generation), now_ms, "kept" if kept else "not kept", name or "", by)
    return row


def release(db: Connection, now_ms: int, lease_id: str, by: str) -> None:
    changed = db.execute(
        "UPDATE lease SET owner = NULL WHERE id = ? AND state = 'active' AND kept AND owner = ?", (lease_id, by)
    )
    if changed.rowcount != 1:
        _stale_lease(db, lease_id, f"is not active, not kept, or not {by}'s")
    row = queries.lease_by_id(db, lease_id)
    ref = Ref(row.sandbox_id, row.generation)
    _move(db, "release", _RELEASE, (now_ms,), ref, by)
    unuse(db, now_ms, lease_id, by)
    _receipt(db, ref, now_ms, "released", "", by)


# --- upkeep ---


def prune(db: Connection, now_ms: int, older_than_ms: int) -> int:
    # Leases, uses and receipts go with it; not so many at once that others would notice.
    return db.execute(
        """
        DELETE FROM sandbox WHERE key IN (
            SELECT key FROM sandbox INDEXED BY sandbox_gone WHERE state = 'gone' AND changed_at_ms < ? LIMIT ?)
        """,
        (older_than_ms, MOST_PRUNED),
    ).rowcount


# --- the parts they are made of ---


def _move(
    db: Connection,
    move: Move,
    statement: str,
    changes: tuple[Any, ...],
    ref: Ref,
    by: str,
    *,
    owner: tuple[str, ...] | None = None,
) -> None:
    """Run a move's statement; `owner` are the parameters of its condition on the owner."""
    where = (by,) if owner is None else owner
    if db.execute(statement, (*changes, ref.sandbox_id, ref.generation, *where)).rowcount != 1:
        _stale(db, move, ref, by)


def _now(db: Connection, ref: Ref) -> SandboxRow:
    row = queries.sandbox(db, ref.sandbox_id)
    assert row is not None  # it was changed in this transaction
    return row


def _told(text: str) -> str:
    """What somebody said, as text of a bounded length: it may quote a file's name, or a program's whole output."""
    if len(text) > _LONGEST_TOLD:
        text = f"{text[: _LONGEST_TOLD // 2]} [...] {text[-_LONGEST_TOLD // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _receipt(db: Connection, ref: Ref, now_ms: int, what: What, detail: str, by: str) -> None:
    if detail:
        detail = _told(detail)
    db.execute(_INSERT_RECEIPT, (ref.generation, now_ms, what, detail, by, ref.sandbox_id))


def _receipt_of_many(db: Connection, ref: Ref, now_ms: int, what: What, detail: str, by: str) -> None:
    """A receipt of a kind of which only the latest are kept."""
    _receipt(db, ref, now_ms, what, detail, by)
    db.execute(
        """
        DELETE FROM receipt WHERE key IN (
            SELECT key FROM receipt
            WHERE sandbox_key = (SELECT key FROM sandbox WHERE id = ?) AND what = ?
            ORDER BY key DESC LIMIT -1 OFFSET ?)
        """,
        (ref.sandbox_id, what, _MOST_KEPT),
    )


def _insert_lease(db: Connection, lease: LeaseRow, by: str, now_ms: int) -> None:
    """Insert a new lease, used by its owner."""
    try:
        db.execute(_INSERT_LEASE, (*lease_values(lease, now_ms), lease.sandbox_id))
    except IntegrityError:
        _name_taken(db, lease.name)
        _stale_lease(db, lease.id, "is there already")
    db.execute(_INSERT_USE, (by, now_ms, lease.id))


def _change_lease(db: Connection, ref: Ref, lease_id: str, changes: str, values: tuple[str | int, ...]) -> None:
    """Change the requested lease of a generation."""
    changed = db.execute(
        f"UPDATE lease SET {changes} WHERE id = ? AND sandbox_id = ? AND generation = ? AND state = 'requested'",
        (*values, lease_id, ref.sandbox_id, ref.generation),
    )
    if changed.rowcount != 1:
        _stale_lease(db, lease_id, "is not the requested lease of that generation")


def _end_lease(db: Connection, ref: Ref, now_ms: int, reason: str) -> None:
    """End the lease of a generation, and all uses of it, where it has not ended."""
    if db.execute(_END_LEASE, (_told(reason), now_ms, ref.sandbox_id, ref.generation)).rowcount:
        db.execute(_DROP_USES, (ref.sandbox_id, ref.generation))


def _others_uses(db: Connection, ref: Ref, by: str, dead: Collection[str]) -> list[Use]:
    found = db.execute(_OTHERS_USES, (ref.sandbox_id, ref.generation, by, queries.listed(dead)))
    return [use_row(values) for values in found]


def _in_use(db: Connection, move: Move, ref: Ref, by: str, uses: list[Use]) -> NoReturn:
    row = queries.sandbox(db, ref.sandbox_id)
    if row is None or row.generation != ref.generation or row.state not in states_for(move):
        _stale(db, move, ref, by)
    who = ", ".join(use.instance for use in uses)
    raise InUse(f"sandbox {ref.sandbox_id} is in use by {who}; wait for it to finish, or force it", uses=uses, row=row)


def _stale(db: Connection, move: Move, ref: Ref, by: str) -> NoReturn:
    row = queries.sandbox(db, ref.sandbox_id)
    if row is None:
        raise Stale(f"{move}: there is no sandbox {ref.sandbox_id}")
    raise Stale(
        f"{move}: sandbox {ref.sandbox_id} (generation {ref.generation}, for {by}) is {row.state}, "
        f"generation {row.generation}, of {row.owner or 'nobody'}",
        row=row,
        lease=queries.lease_of(db, row.ref),
    )


def _stale_lease(db: Connection, lease_id: str, how: str) -> NoReturn:
    """Raise Stale for a lease; LeaseUnknown where there is none."""
    row = queries.lease_by_id(db, lease_id)
    raise Stale(
        f"lease {lease_id} {how}: it is {row.state}, of {row.owner or 'nobody'}",
        row=queries.sandbox(db, row.sandbox_id),
        lease=row,
    )


def _name_taken(db: Connection, name: str | None) -> None:
    found = db.execute("SELECT id FROM lease WHERE name = ? AND state <> 'ended'", (name,)).fetchone()
    if found is not None:
        assert name is not None
        raise NameTaken(name, found[0])
