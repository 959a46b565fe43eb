"""A lease as the commands show it, and what clean-up is pending."""

from __future__ import annotations

from msgspec import Struct

from sandport.lease.info import LeaseInfo, LeaseWord
from sandport.lease.view import HostProcess, Pending, Why
from sandport.store.records import SandboxState

from .messages import unicode_text
from .moments import iso, until

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
    state: LeaseWord
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
    owner: HostProcess | None
    in_use_by: tuple[HostProcess, ...]
    pending: PendingFacts | None


def facts_of(info: LeaseInfo) -> LeaseFacts:
    """What is shown of a lease."""
    waits = info.pending
    return LeaseFacts(
        id=info.id,
        name=info.name,
        state=info.state,
        reason=unicode_text(info.reason),
        provider=info.provider,
        environment=info.environment,
        sandbox=info.sandbox_id,
        sandbox_state=info.sandbox_state,
        generation=info.generation,
        kept=info.kept,
        run=info.run,
        tenant=info.tenant,
        principal=info.principal,
        workspace=info.workspace,
        work_item=info.work_item,
        workload=info.workload,
        requested_at=iso(info.requested_at_ms),
        active_at=iso(info.active_at_ms),
        ended_at=iso(info.ended_at_ms),
        expires_at=iso(info.expires_at_ms),
        owner=info.owner,
        in_use_by=info.in_use_by,
        pending=None
        if waits is None
        else PendingFacts(
            why=waits.why,
            due_at=iso(waits.due_at_ms or None),
            taken=waits.taken,
            attempts=info.attempts,
            last_error=unicode_text(info.last_error),
        ),
    )


def pending_text(info: LeaseInfo, now_ms: int) -> str:
    """What clean-up waits for, and when it is due; empty where nothing waits."""
    waits = info.pending
    if waits is None:
        return ""
    tries = info.attempts
    tried = f", {tries} {'try' if tries == 1 else 'tries'} failed" if tries else ""
    return f"{_PENDING[waits.why]}; {_when(waits, now_ms)}{tried}"


def _when(waits: Pending, now_ms: int) -> str:
    return "clean-up is at it" if waits.taken else f"clean-up is due {until(waits.due_at_ms, now_ms)}"


def process_text(process: HostProcess) -> str:
    """A process for a person."""
    if process.pid is None:
        return process.instance
    dead = "" if process.live else ", dead"
    return f"{process.pid} ({process.command}{dead})"
