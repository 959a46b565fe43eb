"""What `sandport doctor` says of the journal: how much is in it, who uses it, and what waits for clean-up."""

from __future__ import annotations

import os

from msgspec import Struct

from sandport.errors import UsageError
from sandport.home import home_path
from sandport.lease.info import info_of
from sandport.lease.view import HostProcess, View, view
from sandport.store.states import SANDBOX_STATES

from .checks import Check
from .lease_facts import LeaseFacts, facts_of, pending_text, process_text
from .messages import REAP, unicode_text
from .moments import now_ms, span
from .status import human_bytes

_MOST_NAMED = 5


class JournalFacts(Struct, frozen=True, kw_only=True, rename="camel"):
    """The journal, for `--json`."""

    path: str
    size_bytes: int
    sandboxes: dict[str, int]
    """How many in which state."""
    processes: tuple[HostProcess, ...]
    """Those that have it open, and the dead that left something in it."""
    pending: tuple[LeaseFacts, ...]
    """What `sandport reap` would see to."""


def look_at_journal() -> tuple[JournalFacts | None, list[Check]]:
    """Read it, and nothing else; no facts where it cannot be read."""
    try:
        found = view(home_path(os.environ), now_ms=now_ms())
    except UsageError as error:
        message, _, fix = unicode_text(str(error)).partition("\n")
        return None, [Check(name="journal", state="wrong", detail=message, fix=fix or None)]
    facts = JournalFacts(
        path=unicode_text(str(found.path)),
        size_bytes=found.size_bytes,
        sandboxes={state: found.counts[state] for state in SANDBOX_STATES},
        processes=found.processes,
        pending=tuple(facts_of(info_of(one)) for one in found.pending),
    )
    return facts, [_journal(found), _processes(found), _clean_up(found)]


def _journal(found: View) -> Check:
    counted = ", ".join(f"{number} {state}" for state, number in found.counts.items() if number)
    return Check(
        name="journal",
        state="ok",
        detail=f"{unicode_text(str(found.path))}, {human_bytes(found.size_bytes)}, sandboxes: {counted or 'none'}",
    )


def _processes(found: View) -> Check:
    live = [process for process in found.processes if process.live]
    dead = [process for process in found.processes if not process.live]
    parts = [f"{len(live)} live" + _listed([_since(process, found.now_ms) for process in live])]
    if not dead:
        return Check(name="processes", state="ok", detail=parts[0])
    parts.append(f"{len(dead)} dead that left something" + _listed([process_text(process) for process in dead]))
    return Check(name="processes", state="warning", detail="; ".join(parts), fix=REAP)


def _clean_up(found: View) -> Check:
    if not found.pending:
        return Check(name="clean-up", state="ok", detail="nothing waits")
    waits = [
        f"{one.sandbox.id} at {one.sandbox.provider}, {pending_text(info_of(one), found.now_ms)}"
        for one in found.pending
    ]
    mine = any(one.pending is not None and not one.pending.taken for one in found.pending)
    return Check(
        name="clean-up",
        state="warning" if mine else "ok",
        detail=f"{len(waits)} {'waits' if len(waits) == 1 else 'wait'}{_listed(waits, '; ')}",
        fix=f"to have it done now: {REAP}" if mine else None,
    )


def _since(process: HostProcess, now: int) -> str:
    return process_text(process) + (f" for {span(now - process.since_ms)}" if process.since_ms is not None else "")


def _listed(words: list[str], between: str = ", ") -> str:
    more = [f"and {len(words) - _MOST_NAMED} more"] if len(words) > _MOST_NAMED else []
    return f": {between.join([*words[:_MOST_NAMED], *more])}" if words else ""
