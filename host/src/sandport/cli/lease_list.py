"""`sandport leases list`."""

from __future__ import annotations

import os
from typing import Any

from sandport.home import home_path
from sandport.lease.view import LeaseView, View, view

from .answers import answered
from .lease_facts import facts_of, pending_text, process_text, word
from .listing import put_json, put_table
from .messages import say
from .moments import now_ms, span

HEAD = ("LEASE", "NAME", "STATE", "PROVIDER", "ENVIRONMENT", "RUN", "AGE", "EXPIRES", "IN USE BY", "PENDING")


def show_all(*, ended: bool, as_json: bool) -> int:
    """Print the list; always 0."""
    with answered(as_json=as_json):
        root, now = home_path(os.environ), now_ms()
        found = view(root, now_ms=now, ended=ended)
        if as_json:
            leases: list[Any] = [facts_of(one) for one in found.leases]
            put_json({"leases": leases, "pending": len(found.pending)})
            return 0
        if found.leases:
            put_table(HEAD, [row(one, now) for one in found.leases])
        else:
            say("there are no leases")
        if (text := waiting(found)) is not None:
            say(text)
    return 0


def waiting(found: View) -> str | None:
    """What clean-up waits for, and what to do; None where nothing waits."""
    number = len(found.pending)
    if not number:
        return None
    return f"{number} {'waits' if number == 1 else 'wait'} for clean-up; to have it done now: sandport reap"


def row(one: LeaseView, now: int) -> list[str]:
    """The cells of a lease, under `HEAD`."""
    lease, expires_ms = one.lease, one.sandbox.expires_at_ms
    over = not one.current or one.sandbox.state == "gone" or expires_ms is None
    expires = "-" if over or expires_ms is None else span(expires_ms - now) if expires_ms > now else "over"
    return [
        lease.id,
        lease.name or "-",
        word(one),
        one.sandbox.provider,
        lease.environment,
        lease.run or "-",
        span(now - lease.requested_at_ms),
        expires,
        ", ".join(process_text(user) for user in one.users) or "-",
        pending_text(one, now) or "-",
    ]
