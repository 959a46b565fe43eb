"""`sandport leases list`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sandport.home import home_path
from sandport.lease.info import LeaseInfo, leases_of

from .answers import answered
from .lease_facts import facts_of, pending_text, process_text
from .listing import put_json, put_table
from .messages import say
from .moments import now_ms, span

HEAD = ("LEASE", "NAME", "STATE", "PROVIDER", "ENVIRONMENT", "RUN", "AGE", "EXPIRES", "IN USE BY", "PENDING")


class Choice(Struct, frozen=True, kw_only=True):
    """Which leases are wanted."""

    ended: bool = False
    run: str | None = None
    state: str | None = None

    def look(self, now: int) -> tuple[LeaseInfo, ...]:
        """Those, as they are now.

        Raises:
            UsageError: There is no such state; the journal cannot be read.
        """
        return leases_of(home_path(os.environ), now_ms=now, run=self.run, state=self.state, ended=self.ended)


def show_all(choice: Choice, *, as_json: bool) -> int:
    """Print the list; always 0."""
    with answered(as_json=as_json):
        now = now_ms()
        found = choice.look(now)
        if as_json:
            leases: list[Any] = [facts_of(one) for one in found]
            put_json({"leases": leases, "pending": pending_in(found)})
            return 0
        if found:
            put_table(HEAD, [row(one, now) for one in found])
        else:
            say(
                "there are no such leases"
                if choice.run is not None or choice.state is not None
                else "there are no leases"
            )
        if (text := waiting(found)) is not None:
            say(text)
    return 0


def pending_in(found: Sequence[LeaseInfo]) -> int:
    """How many clean-up waits for."""
    return sum(one.pending is not None for one in found)


def waiting(found: Sequence[LeaseInfo]) -> str | None:
    """What clean-up waits for, and what to do; None where nothing waits."""
    number = pending_in(found)
    if not number:
        return None
    return f"{number} {'waits' if number == 1 else 'wait'} for clean-up; to have it done now: sandport reap"


def row(one: LeaseInfo, now: int) -> list[str]:
    """The cells of a lease, under `HEAD`."""
    expires_ms = one.expires_at_ms
    over = one.sandbox_state in (None, "gone") or expires_ms is None
    expires = "-" if over or expires_ms is None else span(expires_ms - now) if expires_ms > now else "over"
    return [
        one.id,
        one.name or "-",
        one.state,
        one.provider,
        one.environment,
        one.run or "-",
        span(now - one.requested_at_ms),
        expires,
        ", ".join(process_text(user) for user in one.in_use_by) or "-",
        pending_text(one, now) or "-",
    ]
