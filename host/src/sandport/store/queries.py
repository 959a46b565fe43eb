"""Reading from SQLite, inside a transaction or outside one."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from sqlite3 import Connection

from sandport.nearest import nearest

from .errors import LeaseUnknown
from .records import Leased, LeaseRow, Receipt, Ref, SandboxRow, SandboxState, Use
from .rows import (
    LEASE_COLUMNS,
    RECEIPT_COLUMNS,
    SANDBOX_COLUMNS,
    USE_COLUMNS,
    lease_row,
    receipt_row,
    sandbox_row,
    use_row,
)
from .states import CLEANED, SANDBOX_STATES

_SHORTEST_BEGINNING = 4
"""Characters of an id: two say only what it is an id of."""
_MOST_TOLD = 5

_LISTED = "(SELECT value FROM json_each(?))"
"""A list of any length as one parameter."""

# What is over stays for weeks, so what is not is always looked for by an index that holds nothing else.
_LIVE_SANDBOXES = "sandbox INDEXED BY sandbox_live WHERE state <> 'gone'"
_LIVE_LEASES = "lease INDEXED BY lease_live WHERE state <> 'ended'"

_SANDBOX = f"SELECT {SANDBOX_COLUMNS} FROM sandbox WHERE id = ?"
_LEASE = f"SELECT {LEASE_COLUMNS} FROM lease WHERE id = ?"
_LEASE_OF = f"""
    SELECT {LEASE_COLUMNS} FROM lease WHERE sandbox_key = (SELECT key FROM sandbox WHERE id = ?) AND generation = ?
"""
_MEANT = (
    _LEASE,
    f"SELECT {LEASE_COLUMNS} FROM lease WHERE name = ? AND state <> 'ended'",
    f"""
    SELECT {LEASE_COLUMNS} FROM lease WHERE sandbox_key = (SELECT key FROM sandbox WHERE id = ?)
    ORDER BY generation DESC LIMIT 1
    """,
    f"SELECT {LEASE_COLUMNS} FROM lease WHERE name = ? ORDER BY key DESC LIMIT 1",
)
"""What somebody may mean by one word, the likeliest first."""
_BEGUN = "(substr(id, 1, length(:it)) = :it OR substr(sandbox_id, 1, length(:it)) = :it) ORDER BY key DESC LIMIT :most"
_BEGUN_WITH = (
    f"SELECT {LEASE_COLUMNS} FROM {_LIVE_LEASES} AND {_BEGUN}",
    f"SELECT {LEASE_COLUMNS} FROM lease WHERE state = 'ended' AND {_BEGUN}",
)
_USES = f"SELECT {USE_COLUMNS} FROM use JOIN lease ON lease.key = lease_key"
_RECEIPTS = f"""
    SELECT {RECEIPT_COLUMNS} FROM receipt JOIN sandbox ON sandbox.key = sandbox_key
    WHERE sandbox.id = ? ORDER BY receipt.key
"""
_CLEANED = ", ".join(f"'{state}'" for state in sorted(CLEANED))
_NOBODYS_WORK = f"owner IS NULL AND (state IN ({_CLEANED}) OR expires_at_ms IS NOT NULL)"
_NOBODYS_TIME = f"CASE WHEN state IN ({_CLEANED}) THEN due_at_ms ELSE max(due_at_ms, expires_at_ms) END"
_WORK = f"""
    SELECT {SANDBOX_COLUMNS} FROM {_LIVE_SANDBOXES} AND due_at_ms <= :now_ms AND (
        ({_NOBODYS_WORK} AND {_NOBODYS_TIME} <= :now_ms)
        OR (owner = :by AND state IN ('ending', 'doubtful'))
        OR owner IN (SELECT value FROM json_each(:dead)))
    ORDER BY due_at_ms, key
"""
_NEXT_DUE = f"SELECT min({_NOBODYS_TIME}) FROM {_LIVE_SANDBOXES} AND {_NOBODYS_WORK}"
_OWNERS = f"""
    SELECT owner FROM {_LIVE_SANDBOXES} AND owner IS NOT NULL
    UNION SELECT owner FROM {_LIVE_LEASES} AND owner IS NOT NULL
    UNION SELECT instance FROM use
"""


def listed(values: Collection[str]) -> str:
    """The parameter for a list."""
    return json.dumps(sorted(values)) if values else "[]"


def sandbox(db: Connection, sandbox_id: str) -> SandboxRow | None:
    """The row of this id."""
    found = db.execute(_SANDBOX, (sandbox_id,)).fetchone()
    return None if found is None else sandbox_row(found)


def lease_by_id(db: Connection, lease_id: str) -> LeaseRow:
    """The lease of exactly this id.

    Raises:
        LeaseUnknown: There is none.
    """
    found = db.execute(_LEASE, (lease_id,)).fetchone()
    if found is None:
        raise _unknown(db, lease_id)
    return lease_row(found)


def lease_of(db: Connection, ref: Ref) -> LeaseRow | None:
    """The lease of one generation."""
    found = db.execute(_LEASE_OF, (ref.sandbox_id, ref.generation)).fetchone()
    return None if found is None else lease_row(found)


def lease(db: Connection, which: str) -> LeaseRow:
    """The lease that somebody means: see `Store.lease`."""
    asked, which = which, _decoded(which)
    for meant in _MEANT:
        found = db.execute(meant, (which,)).fetchone()
        if found is not None:
            return lease_row(found)
    if len(which) >= _SHORTEST_BEGINNING:
        for begun_with in _BEGUN_WITH:
            begun = db.execute(begun_with, {"it": which, "most": _MOST_TOLD}).fetchall()
            if len(begun) == 1:
                return lease_row(begun[0])
            if begun:
                ids = [lease_row(values).id for values in begun]
                raise LeaseUnknown(
                    f"{which!r} is the beginning of several: {', '.join(ids)}; give more of it",
                    asked=which,
                    nearest=ids,
                )
    raise _unknown(db, asked)


def _decoded(which: str) -> str:
    """A word of a command line as the text that its bytes are, also where the locale could not read them."""
    try:
        return os.fsencode(which).decode()
    except UnicodeError:
        return which.encode("utf-8", "backslashreplace").decode()  # no row has it, and SQLite takes it


def _unknown(db: Connection, which: str) -> LeaseUnknown:
    # Only a person's mistake comes here; whoever has thousands of leases can wait for their names to be compared.
    import difflib

    known: list[str] = []
    for values in db.execute(f"SELECT id, name, sandbox_id FROM {_LIVE_LEASES}"):
        known += [value for value in values if value is not None]
    close = difflib.get_close_matches(which, known, n=3)
    return LeaseUnknown(f"there is no lease {which!r}{nearest(which, known)}", asked=which, nearest=close)


def leased(db: Connection, which: str) -> Leased:
    """The lease that somebody means, with its sandbox."""
    return with_sandbox(db, lease(db, which))


def with_sandbox(db: Connection, row: LeaseRow) -> Leased:
    """A lease with its sandbox."""
    of = sandbox(db, row.sandbox_id)
    assert of is not None  # a foreign key holds it
    return Leased(lease=row, sandbox=of)


def sandboxes(
    db: Connection, states: Collection[SandboxState] | None, owners: Collection[str | None] | None
) -> list[SandboxRow]:
    """The rows in these states of these owners."""
    live = states is None or "gone" not in states
    sql = f"SELECT {SANDBOX_COLUMNS} FROM {_LIVE_SANDBOXES if live else 'sandbox WHERE true'}"
    parameters: list[str] = []
    if states is not None:
        sql += f" AND state IN {_LISTED}"
        parameters.append(listed(states))
    if owners is not None:
        nobody = "owner IS NULL OR " if None in owners else ""
        sql += f" AND ({nobody}owner IN {_LISTED})"
        parameters.append(listed([owner for owner in owners if owner is not None]))
    return [sandbox_row(values) for values in db.execute(f"{sql} ORDER BY created_at_ms, key", parameters)]


def leases(db: Connection, *, ended: bool) -> list[LeaseRow]:
    """The leases, oldest first."""
    among = "lease" if ended else _LIVE_LEASES
    found = db.execute(f"SELECT {LEASE_COLUMNS} FROM {among} ORDER BY requested_at_ms, key")
    return [lease_row(values) for values in found]


def uses(db: Connection, lease_id: str | None) -> list[Use]:
    """Who uses a lease, or any."""
    if lease_id is None:
        found = db.execute(f"{_USES} ORDER BY since_ms, lease_key, instance")
    else:
        found = db.execute(f"{_USES} WHERE lease.id = ? ORDER BY since_ms, instance", (lease_id,))
    return [use_row(values) for values in found]


def receipts(db: Connection, sandbox_id: str) -> list[Receipt]:
    """What was done to a sandbox."""
    return [receipt_row(values) for values in db.execute(_RECEIPTS, (sandbox_id,))]


def work(db: Connection, now_ms: int, by: str, dead: Collection[str]) -> list[SandboxRow]:
    """What clean-up should look at: see `Store.work`."""
    return [sandbox_row(values) for values in db.execute(_WORK, {"now_ms": now_ms, "by": by, "dead": listed(dead)})]


def next_due_ms(db: Connection) -> int | None:
    """When the first of nobody's rows is up."""
    found: int | None = db.execute(_NEXT_DUE).fetchone()[0]
    return found


def owners(db: Connection) -> frozenset[str]:
    """Who owns or uses something."""
    return frozenset(values[0] for values in db.execute(_OWNERS))


def counts(db: Connection) -> dict[SandboxState, int]:
    """How many are in each state."""
    found = dict(db.execute("SELECT state, count(*) FROM sandbox GROUP BY state").fetchall())
    return {state: found.get(state, 0) for state in SANDBOX_STATES}
