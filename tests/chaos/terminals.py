"""Several terminals on one store, for minutes: no lease is touched by the wrong one.

The driver starts them, kills one now and then and starts another in its place, stops them all, and takes stock.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter

from msgspec import Struct

from .cell import Order, Stage, become_reaper, die_with_parent, victim, wait_for
from .place import DELAYS, TIMING, Place
from .stock import files_left, kernel_left, living, processes_left, reap
from .terminal import OPERATIONS, Terminal

STOP_WITHIN_S = 60.0


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of it."""

    faults: tuple[str, ...]
    did: Counter[str]
    killed: int


def settings() -> str:
    """A sandport.toml for the command, like what the library is given."""
    stop = TIMING.stop
    return f"""\
version = 1

[host.timing]
close_grace_s = {TIMING.close_grace_s}
stop = {{ drain_s = {stop.drain_s}, eof_s = {stop.eof_s}, term_s = {stop.term_s}, kill_s = {stop.kill_s} }}

[host.clean_up]
first_s = {DELAYS.first_s}
longest_s = {DELAYS.longest_s}
absent_s = {DELAYS.absent_s}

[providers.local]
env = ["TMPDIR"]

[providers.fake]
env = ["TMPDIR"]
"""


def start(place: Place, number: int, seed: int) -> int:
    """Fork a terminal; its pid."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent()
        log = os.open(place.log(number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        asyncio.run(Terminal(place, number, seed).main())
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is in the log, and the code tells
        traceback.print_exc()
    finally:
        os._exit(code)


def _tail(place: Place, number: int) -> str:
    return place.log(number).read_text(errors="replace")[-3000:]


def drive(*, minutes: float, seed: int, terminals: int = 3) -> Outcome:
    """Run them, and take stock; this process becomes the reaper of what they leave."""
    become_reaper()
    draw = random.Random(seed)
    place = Place.make()
    (place.root / "sandport.toml").write_text(settings())
    faults: list[str] = []
    count = killed = 0
    running: dict[int, int] = {}
    until = time.monotonic() + minutes * 60
    next_kill = time.monotonic() + draw.uniform(2, 5)
    while time.monotonic() < until:
        while len(running) < terminals:
            running[start(place, count, seed)] = count
            count += 1
        for pid in [pid for pid in running if not living(pid)]:
            faults += [f"terminal {running[pid]} ended by itself:\n{_tail(place, running.pop(pid))}"]
        if time.monotonic() > next_kill:
            pid = draw.choice(sorted(running))
            os.kill(pid, signal.SIGKILL)
            running.pop(pid)
            killed += 1
            next_kill = time.monotonic() + draw.uniform(1, 5)
        reap()
        time.sleep(0.02)
    (place.root / "stop").touch()
    end = time.monotonic() + STOP_WITHIN_S
    while any(map(living, running)) and time.monotonic() < end:
        reap()
        time.sleep(0.02)
    for pid in filter(living, running):
        faults.append(f"terminal {running[pid]} does not stop:\n{_tail(place, running[pid])}")
        os.kill(pid, signal.SIGKILL)
    status = wait_for(victim(place, Order(provider="mixed", stages=()), count, Stage(job="settle")))
    if status != 0:
        faults.append(f"the next start ended with {status}:\n{_tail(place, count)}")
    faults += [event.detail for event in place.said("fault")]
    faults += processes_left(place) + kernel_left(place) + files_left(place)
    faults += [f"a row is left: {row}" for row in place.rows() if row.state != "gone"]
    did = Counter(event.how for event in place.said("did"))
    if faults:
        print(f"left in {place.root}")
    else:
        place.remove()
    return Outcome(faults=tuple(faults), did=did, killed=killed)


def main(*, minutes: float, seed: int | None, terminals: int) -> int:
    """Drive, and print what came of it; the exit code."""
    seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    print(f"seed {seed}, {terminals} terminals, {minutes:g} minutes", flush=True)
    outcome = drive(minutes=minutes, seed=seed, terminals=terminals)
    for name in OPERATIONS:
        print(f"  {name:16}{outcome.did[name]:>6}")
    print(f"  {'killed':16}{outcome.killed:>6}")
    for fault in outcome.faults:
        print(f"FAULT {fault}")
    return 1 if outcome.faults else 0
