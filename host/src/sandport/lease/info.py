"""A lease as others see it: what `Host.leases` answers and the commands show; the journal is read, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, get_args

from msgspec import Struct

from sandport.errors import UsageError
from sandport.nearest import nearest
from sandport.store.records import SandboxState

from .view import HostProcess, LeaseView, Pending, view

LeaseWord = Literal["requested", "active", "kept", "idle", "ending", "doubtful", "ended"]
"""Being created; in its block; outliving it; at rest; and how far its end is."""
STATES: Final[tuple[LeaseWord, ...]] = get_args(LeaseWord)


class LeaseInfo(Struct, frozen=True, kw_only=True):
    """One lease, read at one moment."""

    id: str
    """What `attach` and `end_lease` take."""
    name: str | None
    state: LeaseWord
    """Its own and its sandbox's, as one word: `requested` is being created, `active` in its block, `kept` outlives it;
    of one that is over: `ending` is not confirmed gone, of a `doubtful` one it is not known whether there is one."""
    reason: str
    """Why it ended; empty while it has not."""
    provider: str
    environment: str
    """The name that it was leased by."""
    sandbox_id: str
    sandbox_state: SandboxState | None
    """None where a later lease has the sandbox."""
    generation: int
    """Of its sandbox: how often that had been leased."""
    kept: bool
    """It outlives its block and process."""
    run: str | None
    tenant: str | None
    principal: str | None
    workspace: str | None
    work_item: str | None
    workload: str | None
    """The six as given to `Host.lease`."""
    requested_at_ms: int
    active_at_ms: int | None
    ended_at_ms: int | None
    expires_at_ms: int | None
    """When the sandbox ends by itself, as far as its provider says; None where a later lease has it, too."""
    owner: HostProcess | None
    """Whose block it is, or who is at its end; None where nobody is, as with one that is kept."""
    in_use_by: tuple[HostProcess, ...]
    """Who has a block, a command or a copy in it now."""
    pending: Pending | None
    """Clean-up that waits; None where there is nothing to do."""
    attempts: int
    """How many attempts to end its sandbox have failed."""
    last_error: str
    """Of the last of them."""


def leases_of(
    root: Path,
    *,
    now_ms: int,
    run: str | None = None,
    name: str | None = None,
    state: str | None = None,
    ended: bool = False,
) -> tuple[LeaseInfo, ...]:
    """The leases of a home that have not ended, and those whose sandbox is not gone; or all. Oldest first.

    Args:
        root: The home's folder; where it or its journal is not there, nothing is leased.
        now_ms: The time, Unix ms.
        run, name, state: Only those with exactly this.
        ended: Also leases that are over, as far as they are remembered; implied by the state `ended`.

    Raises:
        UsageError: There is no such state.
        StoreUnusable: The journal cannot be read.
    """
    if state is not None and state not in STATES:
        raise UsageError(f"state {state}: there is none of this name{nearest(state, STATES)}: {', '.join(STATES)}")
    found = view(root, now_ms=now_ms, ended=ended or state == "ended")
    wanted = {"run": run, "name": name, "state": state}
    asked = {field: value for field, value in wanted.items() if value is not None}
    return tuple(
        info
        for info in map(info_of, found.leases)
        if all(getattr(info, field) == value for field, value in asked.items())
    )


def info_of(found: LeaseView) -> LeaseInfo:
    """What others see of a lease."""
    lease, sandbox = found.lease, found.sandbox
    return LeaseInfo(
        id=lease.id,
        name=lease.name,
        state=_word(found),
        reason=lease.reason,
        provider=sandbox.provider,
        environment=lease.environment,
        sandbox_id=sandbox.id,
        sandbox_state=sandbox.state if found.current else None,
        generation=lease.generation,
        kept=lease.kept,
        run=lease.run,
        tenant=lease.tenant,
        principal=lease.principal,
        workspace=lease.workspace,
        work_item=lease.work_item,
        workload=lease.workload,
        requested_at_ms=lease.requested_at_ms,
        active_at_ms=lease.active_at_ms,
        ended_at_ms=lease.ended_at_ms,
        expires_at_ms=sandbox.expires_at_ms if found.current else None,
        owner=found.owner,
        in_use_by=found.users,
        pending=found.pending,
        attempts=sandbox.attempts if found.current else 0,
        last_error=sandbox.last_error if found.current else "",
    )


def _word(found: LeaseView) -> LeaseWord:
    if found.lease.state == "requested":
        return "requested"
    if found.lease.state == "active":
        return "kept" if found.lease.kept else "active"
    state = found.sandbox.state
    if found.current and state in ("idle", "ending", "doubtful"):
        return state
    return "ended"
