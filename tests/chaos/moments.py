"""Killing from outside, at a moment that the journal tells and chance moves on a little."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from pathlib import Path

from msgspec import Struct

from .place import Place, Row, read_rows
from .points import Who
from .stock import living

COMES_WITHIN_S = 20.0
"""Far more than a crowd's whole life."""
_LOOK_S = 0.002


class Moment(Struct, frozen=True):
    """When somebody dies."""

    state: str
    """Once a sandbox or a lease is in this state; empty: at once."""
    extra_s: float
    """And then so much later."""
    who: Who


def strike(place: Place, host: int, moment: Moment) -> list[Row] | None:
    """Wait for the moment and kill whom it means.

    Returns:
        The journal then; None where the host had ended before.
    """
    until = time.monotonic() + COMES_WITHIN_S
    while moment.state and not any(moment.state in (row.state, row.lease_state) for row in look(place)):
        if not living(host) or time.monotonic() > until:
            return None
        time.sleep(_LOOK_S)
    # The one wait of these runs that is no wait for an event: it is what makes the moment random.
    time.sleep(moment.extra_s)
    if moment.who == "host":
        workers = []
    else:
        while not (workers := workers_of(host)):
            if not living(host) or time.monotonic() > until:
                return None
            time.sleep(_LOOK_S)
    rows = look(place)
    if not living(host):
        return None
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if moment.who != "worker":
        os.kill(host, signal.SIGKILL)
    return rows


def look(place: Place) -> list[Row]:
    """The journal as others see it while its host lives; nothing where there is none yet."""
    path = place.home / "journal.db"
    if not path.exists():
        return []
    try:
        return read_rows(path)
    except sqlite3.OperationalError:
        return []  # it is being made


def workers_of(host: int) -> list[int]:
    """The processes that a host started, and that have become workers."""
    children: set[int] = set()
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{host}/task"):
            with contextlib.suppress(OSError):
                children.update(map(int, Path(f"/proc/{host}/task/{task}/children").read_text().split()))
    return sorted(child for child in children if _is_worker(child))


def _is_worker(pid: int) -> bool:
    try:
        return b"sandport_provider_" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
