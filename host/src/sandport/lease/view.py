"""What the journal of a home says, read and nothing else: for lists, `doctor` and completions.

No worker is started, nothing is recovered, no file is made but SQLite's own two beside the journal. What the next host
of the home would clean up is marked, not touched.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from sandport.instances import INSTANCE_ID, is_live
from sandport.store import file, queries
from sandport.store.errors import LeaseUnknown, StoreTooNew, StoreUnusable
from sandport.store.records import LeaseRow, Receipt, SandboxRow, SandboxState, Use
from sandport.store.schema import MIGRATIONS
from sandport.store.states import CLEANED, SANDBOX_STATES

_WHO_LIVES = "Sandport keeps there which of its processes live\ngive this user the right to read it"
Why = Literal["ownerDead", "expired", "doubtful", "ending"]
"""Its process died; its time is over; whether it was created is not known; its end is not confirmed."""


class HostProcess(Struct, frozen=True, kw_only=True, rename="camel"):
    """A process that has, or had, the journal open."""

    instance: str
    live: bool
    pid: int | None = None
    """None where its file is not there any more, or cannot be read."""
    command: str = ""
    since_ms: int | None = None


class Pending(Struct, frozen=True, kw_only=True):
    """Clean-up that the next host of this home would do."""

    why: Why
    due_at_ms: int
    """When the next attempt is due; in the past, or 0: with the next host that is opened."""
    taken: bool = False
    """A live process is at it."""


class LeaseView(Struct, frozen=True, kw_only=True):
    """A lease with its sandbox and everybody who has to do with it, read at one moment."""

    lease: LeaseRow
    sandbox: SandboxRow
    owner: HostProcess | None
    uses: tuple[Use, ...]
    users: tuple[HostProcess, ...]
    """Of each use."""
    pending: Pending | None
    receipts: tuple[Receipt, ...] = ()

    @property
    def current(self) -> bool:
        """The sandbox's latest lease; what is true of the sandbox says something of this lease too."""
        return self.lease.generation == self.sandbox.generation


class View(Struct, frozen=True, kw_only=True):
    """A journal at one moment."""

    path: Path
    size_bytes: int
    """With SQLite's own two files; 0 where there is no journal yet."""
    now_ms: int
    counts: dict[SandboxState, int]
    leases: tuple[LeaseView, ...]
    """Those that have not ended, and those whose sandbox is not gone; or all. Oldest first."""
    processes: tuple[HostProcess, ...]
    """Who has the journal open, and the dead that rows still name."""

    @property
    def pending(self) -> tuple[LeaseView, ...]:
        """Those that clean-up waits for."""
        return tuple(view for view in self.leases if view.pending is not None)


def view(root: Path, *, now_ms: int, ended: bool = False) -> View:
    """Read the journal of a home.

    Args:
        root: The home's folder; where it or its journal is not there, nothing is leased.
        now_ms: The time, Unix ms.
        ended: Also leases that are over, as far as they are remembered.

    Raises:
        StoreUnusable: The journal cannot be read.
    """
    path = root / "journal.db"
    with _reading(path) as db:
        if db is None:
            nothing: dict[SandboxState, int] = dict.fromkeys(SANDBOX_STATES, 0)
            return View(
                path=path, size_bytes=0, now_ms=now_ms, counts=nothing, leases=(), processes=_processes(root, set())
            )
        counts = queries.counts(db)
        leases = queries.leases(db, ended=ended)
        sandboxes = {row.id: row for row in queries.sandboxes(db, None, None)}
        if not ended:
            known = {(lease.sandbox_id, lease.generation) for lease in leases}
            over = [row for row in sandboxes.values() if (row.id, row.generation) not in known]
            leases += [lease for row in over if (lease := queries.lease_of(db, row.ref)) is not None]
        found = [(lease, sandboxes.get(lease.sandbox_id) or _sandbox_of(db, lease)) for lease in leases]
        uses = queries.uses(db, None)
        owners = queries.owners(db)
    people = _People(root)
    views = [_lease_view(lease, sandbox, uses, people, now_ms=now_ms) for lease, sandbox in found]
    return View(
        path=path,
        size_bytes=sum(_size(Path(f"{path}{suffix}")) for suffix in ("", "-wal", "-shm")),
        now_ms=now_ms,
        counts=counts,
        leases=tuple(sorted(views, key=lambda one: one.lease.requested_at_ms)),
        processes=_processes(root, owners),
    )


def lease_view(root: Path, which: str, *, now_ms: int) -> LeaseView:
    """One lease, with its receipts.

    Args:
        root: The home's folder.
        which: An id, a name, a sandbox's id, or the beginning of an id that only it has.
        now_ms: The time, Unix ms.

    Raises:
        LeaseUnknown: There is none.
        StoreUnusable: The journal cannot be read.
    """
    with _reading(root / "journal.db") as db:
        if db is None:
            raise LeaseUnknown(f"there is no lease {which!r}; nothing was ever leased here", asked=which)
        leased = queries.leased(db, which)
        uses = queries.uses(db, leased.lease.id)
        receipts = tuple(
            receipt
            for receipt in queries.receipts(db, leased.sandbox.id)
            if receipt.generation == leased.lease.generation
        )
    return _lease_view(leased.lease, leased.sandbox, uses, _People(root), now_ms=now_ms, receipts=receipts)


def lease_names(root: Path) -> list[str]:
    """The ids and names of the leases that have not ended.

    Raises:
        StoreUnusable: The journal cannot be read.
    """
    with _reading(root / "journal.db") as db:
        leases = [] if db is None else queries.leases(db, ended=False)
    return [name for lease in leases for name in (lease.name, lease.id) if name is not None]


def process_of(root: Path, instance: str) -> HostProcess:
    """Who an instance is.

    Raises:
        StoreUnusable: Whether it lives cannot be told.
    """
    path = root / "instances" / instance
    try:
        live = is_live(root, instance)
    except OSError as error:
        raise StoreUnusable(f"{path}: {error.strerror}; {_WHO_LIVES}") from error
    try:
        facts = json.loads(path.read_bytes())
        pid, command, since_ms = int(facts["pid"]), str(facts["argv0"]), int(facts["sinceMs"])
    except (OSError, ValueError, KeyError, TypeError):
        # It ended meanwhile, or its file is damaged: who it was is for people only, nothing is decided by it.
        return HostProcess(instance=instance, live=live)
    return HostProcess(instance=instance, live=live, pid=pid, command=os.path.basename(command), since_ms=since_ms)


# --- the parts of it ---


class _People:
    """Each instance is asked once for a view."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, HostProcess] = {}

    def __call__(self, instance: str) -> HostProcess:
        if instance not in self._known:
            self._known[instance] = process_of(self._root, instance)
        return self._known[instance]


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection | None]:
    """A connection for one moment of the journal; None where there is none yet."""
    if not path.exists():
        yield None
        return
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        try:
            db.execute("BEGIN")
            # One that another process is just making has nothing in it.
            yield db if _is_made(db, path) else None
        finally:
            db.close()
    except sqlite3.Error as error:
        raise file.explain(path, error) from error


def _is_made(db: sqlite3.Connection, path: Path) -> bool:
    taken = file.version(db)
    if taken > len(MIGRATIONS):
        raise StoreTooNew(
            f"{path}: was written by a newer Sandport (store version {taken}, this one knows {len(MIGRATIONS)})\n"
            "upgrade sandport, or set SANDPORT_HOME to another folder"
        )
    if 0 < taken < len(MIGRATIONS):
        # A new one takes all steps, one by one, and gets its id last: nothing was ever leased before that.
        if db.execute("SELECT 1 FROM store").fetchone() is None:
            return False
        raise StoreUnusable(
            f"{path}: was written by an older Sandport\nany command that opens it brings it up to this version: "
            "sandport reap"
        )
    return taken > 0


def _sandbox_of(db: sqlite3.Connection, lease: LeaseRow) -> SandboxRow:
    row = queries.sandbox(db, lease.sandbox_id)
    assert row is not None  # a foreign key holds it
    return row


def _lease_view(
    lease: LeaseRow,
    sandbox: SandboxRow,
    uses: list[Use],
    people: _People,
    *,
    now_ms: int,
    receipts: tuple[Receipt, ...] = (),
) -> LeaseView:
    mine = tuple(use for use in uses if use.lease_id == lease.id)
    owner = None if sandbox.owner is None else people(sandbox.owner)
    current = lease.generation == sandbox.generation
    return LeaseView(
        lease=lease,
        sandbox=sandbox,
        owner=owner if current else None,
        uses=mine,
        users=tuple(people(use.instance) for use in mine),
        pending=pending(lease, sandbox, owner, now_ms=now_ms) if current else None,
        receipts=receipts,
    )


def pending(lease: LeaseRow, sandbox: SandboxRow, owner: HostProcess | None, *, now_ms: int) -> Pending | None:
    """What clean-up would do to a sandbox; None where it would leave it alone.

    Args:
        lease: The sandbox's latest.
        sandbox: Its row.
        owner: Who acts on it, as the row says.
        now_ms: The time, Unix ms.
    """
    held = owner is not None and owner.live
    due_at_ms = sandbox.due_at_ms
    if sandbox.state == "gone":
        return None
    if sandbox.state in ("ending", "doubtful"):
        why: Why = "doubtful" if sandbox.state == "doubtful" else "ending"
        return Pending(why=why, due_at_ms=due_at_ms, taken=held)
    if held:
        return None
    kept = lease.kept and sandbox.state == "leased"
    if sandbox.state in CLEANED or (owner is not None and not kept):
        return Pending(why="ownerDead", due_at_ms=due_at_ms)
    if sandbox.expires_at_ms is not None and sandbox.expires_at_ms <= now_ms:
        return Pending(why="expired", due_at_ms=max(sandbox.expires_at_ms, due_at_ms))
    return None


def _processes(root: Path, named: set[str] | frozenset[str]) -> tuple[HostProcess, ...]:
    folder = root / "instances"
    try:
        names = {name for name in os.listdir(folder) if INSTANCE_ID.fullmatch(name)}
    except FileNotFoundError:
        names = set()
    except OSError as error:
        raise StoreUnusable(f"{folder}: {error.strerror}; {_WHO_LIVES}") from error
    found = [process_of(root, instance) for instance in sorted(names | named)]
    return tuple(process for process in found if process.live or process.instance in named)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
