"""Listing, attaching and ending sandboxes as a host does; no check is in here."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed
from sandport_conformance.schema import Json
from sandport_conformance.session import Session

_MOST_PAGES = 1_000
_LOOK_S = 0.05


def settle(lab: Lab) -> None:
    """Wait until what was created or ended shows in the lists, as long as the provider says that this can take."""
    time.sleep(lab.facts.settle_s)


def settled(lab: Lab, look: Callable[[], dict[str, str]], holds: Callable[[dict[str, str]], object]) -> dict[str, str]:
    """A list that is as it should be, or what it is once the provider's own time for that is over.

    Args:
        lab: Knows the time; a provider that declares none is looked at once.
        look: Lists.
        holds: Whether the list is as it should be.
    """
    deadline = time.monotonic() + lab.facts.settle_s
    while True:
        last = time.monotonic() >= deadline
        found = look()
        if last or holds(found):
            return found
        time.sleep(_LOOK_S)


def listed(lab: Lab, sandbox_id: str | None = None, *, session: Session | None = None) -> dict[str, str]:
    """The handle of every sandbox that a worker lists, by its id, page after page.

    Args:
        lab: Knows the config.
        sandbox_id: List this one only.
        session: The worker; the shared one where None.

    Raises:
        Failed: A sandbox stands on the list twice, or the list has no end.
    """
    found: dict[str, str] = {}
    for page in pages(lab, sandbox_id, session=session):
        for lease in page:
            if lease["sandboxId"] in found:
                raise Failed(f"sandbox {lease['sandboxId']} is listed twice")
            found[lease["sandboxId"]] = lease["handle"]
    return found


def pages(lab: Lab, sandbox_id: str | None = None, *, session: Session | None = None) -> list[list[Json]]:
    """The pages of a list; see `listed`."""
    worker = session or lab.worker
    found: list[list[Json]] = []
    params = lab.with_config() if sandbox_id is None else lab.with_config(sandboxId=sandbox_id)
    cursor: str | None = None
    seen: set[str] = set()
    while True:
        page = worker.call("listLeases", params if cursor is None else {**params, "cursor": cursor})
        found.append(page.get("leases", []))
        cursor = page.get("nextCursor")
        if cursor is None:
            return found
        if cursor in seen or len(found) >= _MOST_PAGES:
            raise Failed(f"a list does not end: nextCursor is {cursor!r:.100} after {len(found)} pages")
        seen.add(cursor)


def attach(lab: Lab, sandbox_id: str, handle: str, *, session: Session | None = None) -> Json:
    """The result of attaching a sandbox."""
    params = lab.with_config(sandboxId=sandbox_id, handle=handle)
    return (session or lab.worker).call("attachLease", params)


def path_of(value: Any) -> Path | None:
    """A path of a lease, text or bytes, on this machine; None where there is none."""
    if value is None:
        return None
    return Path(value if isinstance(value, str) else os.fsdecode(base64.b64decode(value["b64"])))
