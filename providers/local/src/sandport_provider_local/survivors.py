"""What outlives an init that died without ending its sandbox, and how it is ended.

Such an end leaves nobody who knows the processes, so they are found by a mark in their environment, which every
command has and whatever it starts inherits. One that wiped its environment is found only below one that did not. Of an
isolated sandbox there is one that all others end with: PID 1 inside, which its keeper has recorded.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from .places import INIT_TOKEN
from .proc import Stat, all_pids, freeze_and_kill, has_variable, read_stat, user_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .places import Place

SANDBOX_ID = "SANDPORT_SANDBOX_ID"
PROCESS = "SANDPORT_PROCESS"
PAUSE_S = 0.002
"""Between two looks: what is killed takes a moment to be gone, and amid an exec a process shows no environment."""
SWEEP_S = 5.0
"""After that, what still runs is named and left to the next try."""


def sweep(place: Place, *, inits: bool = False) -> list[int]:
    """Kill every process of ours that carries the sandbox's mark, with all below it; blocks for some milliseconds.

    What runs under an init that is alive is not meant, nor what one has started that only comes up: the sandbox may
    have got a new one meanwhile.

    Args:
        place: The sandbox's folder.
        inits: Whether an init that has not come to say who it is goes too. Only for who holds the folder's lock:
            without it, that may be one which another worker is starting.

    Returns:
        Those that are still there after `SWEEP_S` seconds; empty when two looks in a row found none.
    """
    deadline = time.monotonic() + SWEEP_S
    quiet = 0
    while True:
        found = find(place, inits=inits)
        quiet = 0 if found else quiet + 1
        if quiet == 2:
            return []
        if time.monotonic() > deadline:
            return [process.pid for process in found]
        freeze_and_kill(found)
        time.sleep(PAUSE_S)


def find(place: Place, *, inits: bool = False) -> list[Stat]:
    """Live processes of this user or the sandbox's, other than this one, that carry its mark and have lost its init."""
    marks = [f"{SANDBOX_ID}={place.sandbox_id}".encode()]
    record = place.read_record()
    if place.is_copy(record):
        return []  # what carries the mark belongs to the folder that this one was copied from
    opens = f"{INIT_TOKEN}={record.token}".encode() if record is not None else None
    if inits and opens is not None:
        marks.append(opens)
    users = {os.geteuid()}
    if record is not None and record.boundary is not None and record.boundary.uid is not None:
        users.add(record.boundary.uid)
    others = (pid for pid in all_pids() if pid != os.getpid())
    marked = [found for pid in others if (found := _with_mark(pid, marks, users)) is not None]
    # Read after the look: what an init has started that came up meanwhile would be taken for what the one before left.
    identity = place.read_identity()
    if identity is not None and identity.is_alive(record.token if record is not None else None):
        return [process for process in marked if process.pid != identity.pid and identity.pid not in _above(process)]
    inside = identity.inside() if identity is not None else None
    left = marked if inside is None else [inside, *(process for process in marked if process.pid != inside.pid)]
    if inits or opens is None:
        return left
    # Bubblewrap carries the mark from its first moment, and its keeper says who it is once the init in there is up.
    return [process for process in left if not any(has_variable(pid, opens) for pid in _above(process))]


def _above(process: Stat) -> Iterator[int]:
    """The numbers of those above a process, its parent's first; not that of the machine's first process."""
    above: Stat | None = process
    while above is not None and above.ppid > 1:
        yield above.ppid
        above = read_stat(above.ppid)


def _with_mark(pid: int, marks: list[bytes], users: set[int]) -> Stat | None:
    found = read_stat(pid)
    if found is None or not found.live or not any(has_variable(pid, mark) for mark in marks):
        return None
    owner = user_of(pid)
    again = read_stat(pid)  # Or what we read in between may be of another process that got the number.
    return found if owner in users and again is not None and again.start_ticks == found.start_ticks else None
