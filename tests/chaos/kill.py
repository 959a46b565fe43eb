"""`kill -9` of the host, the workers, or both, at random moments of a crowd of twenty leases."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence

from msgspec import Struct

from .cell import Account, FakeOrder, Order, Stage
from .fleet import run_all
from .moments import Moment
from .points import Who
from .sweep import wrong_with

KINDS: tuple[Who, ...] = ("host", "worker", "both")
STATES = ("intended", "creating", "leased", "ending", "doubtful", "requested", "active")
"""Every state that is no end, of sandboxes and leases; but `idle`: no host rests a sandbox."""
AIMED_AT = ("intended", "creating", "leased", "ending", "doubtful", "")
TIMES = 3
"""Each state must be hit so often with each kind."""
CELLS = 3
"""A crowd is a crowd already."""

ORDERS = (
    FakeOrder("acquire.after-record", "error", 0.25),
    FakeOrder("destroy.half", "error", 0.2),
)
"""A vendor that fails sometimes: without it no create is ever doubtful for long."""
SETTLE_S = 0.4


class Killed(Struct, frozen=True):
    """One moment, and what came of it."""

    moment: Moment
    account: Account

    def hit(self, state: str) -> int:
        """How many sandboxes or leases were in a state."""
        return sum(state in (row.state, row.lease_state) for row in self.account.rows)


def moments(kind: Who, count: int, seed: int) -> list[Moment]:
    """Random moments, each state aimed at as often as the others."""
    draw = random.Random(f"{seed} {kind}")
    found = []
    for number in range(count):
        state = AIMED_AT[number % len(AIMED_AT)]
        later_s = draw.uniform(0, 1.5) if not state else draw.choice((0.0, draw.uniform(0, 0.01), draw.uniform(0, 0.1)))
        found.append(Moment(state, later_s, kind))
    return found


def order(moment: Moment, seed: int, *, recovers: bool = True, provider: str = "mixed") -> Order:
    """A crowd, cut at a moment."""
    return Order(
        provider=provider,
        stages=(Stage(job="crowd", moment=moment),),
        seed=seed,
        orders=ORDERS,
        settle_s=SETTLE_S,
        recovers=recovers,
    )


def killed(
    which: Sequence[Moment], seed: int, *, recovers: bool = True, provider: str = "mixed", cells: int = CELLS
) -> list[Killed]:
    """Do it."""
    orders = [order(moment, seed + number, recovers=recovers, provider=provider) for number, moment in enumerate(which)]

    def on_done(number: int, account: Account) -> None:
        print("!" if wrong_with(account) else ".", end="", file=sys.stderr, flush=True)

    accounts = run_all(orders, cells=cells, on_done=on_done)
    print(file=sys.stderr)
    return [Killed(moment, account) for moment, account in zip(which, accounts, strict=True)]


def faults(one: Killed) -> list[str]:
    """What is wrong with a run."""
    found = wrong_with(one.account)
    return found if one.account.struck else [*found, "the moment never came"]


def table(kind: Who, done: Sequence[Killed]) -> str:
    """State by moment: how many were in it, `+` for more than nine."""
    lines = [f"{kind} dies; a column is a moment"]
    for state in STATES:
        counts = [one.hit(state) for one in done]
        digits = "".join("." if not count else str(count) if count < 10 else "+" for count in counts)
        lines.append(f"  {state:10}{digits}  {sum(map(bool, counts))} times")
    return "\n".join(lines)


def missed(done: Sequence[Killed]) -> list[str]:
    """States that were not hit often enough."""
    least = TIMES if len(done) >= TIMES * len(AIMED_AT) else 1
    return [state for state in STATES if sum(bool(one.hit(state)) for one in done) < least]


def main(*, seed: int | None, count: int, recovers: bool, cells: int | None) -> int:
    """Kill, and print what came of it; the exit code."""
    seed = int.from_bytes(os.urandom(4)) if seed is None else seed
    print(f"seed {seed}", flush=True)
    started = time.monotonic()
    failed = False
    for kind in KINDS:
        done = killed(moments(kind, count, seed), seed, recovers=recovers, cells=cells or CELLS)
        print(table(kind, done))
        bad = [(one, found) for one in done if (found := faults(one))]
        for one, found in bad:
            print(f"  {one.moment}")
            for fault in found:
                print(f"    {fault}")
        if few := missed(done):
            print(f"  hit too seldom: {', '.join(few)}")
        print(
            f"  {len(done)} moments, {len(bad)} with leftovers or worse, {time.monotonic() - started:.0f} s", flush=True
        )
        failed = failed or bool(bad) or bool(few)
    return int(failed)
