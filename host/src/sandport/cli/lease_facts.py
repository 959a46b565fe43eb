"""A lease as the commands show it: one word for its state, and what clean-up is pending."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sandport.lease.view import LeaseView, Pending, Process, Why
from sandport.store.records import SandboxState

from .messages import unicode_text
from .moments import iso, until

Word = Literal["requested", "active", "kept", "idle", "ending", "doubtful", "ended"]
"""Being created; in its block; outliving it; at rest; and how far its end is."""

_PENDING: dict[Why, str] = {
    "ownerDead": "its process is dead",
    "expired": "its time is over",
    "doubtful": "whether it was created is not known",
    "ending": "its end is not confirmed",
}


class PendingFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Clean-up that waits."""

    why: Why
    due_at: str | None
    """Null: with the next command that starts something."""
    taken: bool
    """A live process is at it."""
    attempts: int
    last_error: str


class LeaseFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """One lease."""

    id: str
    name: str | None
    state: Word
    reason: str
    """Why it ended."""
    provider: str
    environment: str
    sandbox: str
    sandbox_state: SandboxState | None
    """Null where a later lease has the sandbox."""
    generation: int
    kept: bool
    run: str | None
    tenant: str | None
    principal: str | None
    workspace: str | None
    work_item: str | None
    workload: str | None
    requested_at: str | None
    active_at: str | None
    ended_at: str | None
    expires_at: str | None
    owner: Process | None
    in_use_by: tuple[Process, ...]
    pending: PendingFacts | None


def facts_of(view: LeaseView) -> LeaseFacts:
    """What is shown of a lease."""
    lease, sandbox, waits = view.lease, view.sandbox, view.pending
    return LeaseFacts(
        id=lease.id,
        name=lease.name,
        state=word(view),
        reason=unicode_text(lease.reason),
        provider=sandbox.provider,
        environment=lease.environment,
        sandbox=sandbox.id,
        sandbox_state=sandbox.state if view.current else None,
        generation=lease.generation,
        kept=lease.kept,
        run=lease.run,
        tenant=lease.tenant,
        principal=lease.principal,
        workspace=lease.workspace,
        work_item=lease.work_item,
        workload=lease.workload,
        requested_at=iso(lease.requested_at_ms),
        active_at=iso(lease.active_at_ms),
        ended_at=iso(lease.ended_at_ms),
        expires_at=iso(sandbox.expires_at_ms) if view.current else None,
        owner=view.owner,
        in_use_by=view.users,
        pending=None
        if waits is None
        else PendingFacts(
            why=waits.why,
            due_at=iso(waits.due_at_ms or None),
            taken=waits.taken,
            attempts=sandbox.attempts,
            last_error=unicode_text(sandbox.last_error),
        ),
    )


def word(view: LeaseView) -> Word:
    """Its state and its sandbox's, as one word."""
    if view.lease.state == "requested":
        return "requested"
    if view.lease.state == "active":
        return "kept" if view.lease.kept else "active"
    state = view.sandbox.state
    if view.current and state in ("idle", "ending", "doubtful"):
        return state
    return "ended"


def pending_text(view: LeaseView, now_ms: int) -> str:
    """What clean-up waits for, and when it is due; empty where nothing waits."""
    waits = view.pending
    if waits is None:
        return ""
    tries = view.sandbox.attempts
    tried = f", {tries} {'try' if tries == 1 else 'tries'} failed" if tries else ""
    return f"{_PENDING[waits.why]}; {_when(waits, now_ms)}{tried}"


def _when(waits: Pending, now_ms: int) -> str:
    return "clean-up is at it" if waits.taken else f"clean-up is due {until(waits.due_at_ms, now_ms)}"


def process_text(process: Process) -> str:
    """A process for a person."""
    if process.pid is None:
        return process.instance
    dead = "" if process.live else ", dead"
    return f"{process.pid} ({process.command}{dead})"
