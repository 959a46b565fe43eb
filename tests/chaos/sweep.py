"""The sweep: a run is cut at each of its points, by the death of the host, of the worker, or of both."""

from __future__ import annotations

import fnmatch
import itertools
import os
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from msgspec import Struct

from .cell import Account, Order, Stage
from .fleet import PER_CORE, run_all
from .points import Passed, Plan, Point, Who

WHO: tuple[Who, ...] = ("host", "worker", "both")
PROVIDERS = ("local", "fake")
STEPS = ("acquire", "execute", "cancel", "timeout", "keep", "restart", "release", "close", "recovery")
TRIES = 5
"""A point that a run did not come to (output came in other pieces, say) is tried so often."""
MISSED_PER_100 = 2
"""What the dry run passed and no try came to was not swept: a sweep with more such points than these has failed. There
are some on a machine under load: the journal commits together what is queued, so a dry run may have one commit more.
"""

HELD = (
    Stage(job="busy", plan=Plan(Point("acquire", "> acquireLease", 1, "after"), "hold")),
    Stage(job="leaving", plan=Plan(Point("release", "commit ending", 1, "after"), "hold")),
)
"""Two hosts that die in the middle: what the swept recovery has to do with."""


class Cut(Struct, frozen=True, kw_only=True):
    """One run of the sweep."""

    provider: str
    family: str
    """`life` or `recovery`: whose points these are."""
    point: Point
    who: Who

    @property
    def step(self) -> str:
        """Its row in the table."""
        return "recovery" if self.family == "recovery" else self.point.step

    @property
    def name(self) -> str:
        """What `--only` is held against."""
        return f"{self.provider} {self.family} {self.point} {self.who}"

    def order(self, *, keep: bool = False) -> Order:
        """The run."""
        plan = Plan(self.point, self.who)
        stages = (
            (*HELD, Stage(job="settle", plan=plan)) if self.family == "recovery" else (Stage(job="life", plan=plan),)
        )
        return Order(provider=self.provider, stages=stages, keep=keep)


class Result(Struct, frozen=True, kw_only=True):
    """What came of one."""

    cut: Cut
    account: Account

    @property
    def reached(self) -> bool:
        """Whether the run came to its point."""
        return self.account.hits[-1]

    @property
    def faults(self) -> list[str]:
        """What is wrong with it, in words: leftovers, and what was done twice."""
        return wrong_with(self.account)

    @property
    def good(self) -> bool:
        """Whether nothing was left, and nothing done twice."""
        return not self.faults


def wrong_with(account: Account) -> list[str]:
    """What is wrong with a run, in words."""
    twice = {"creates": account.double_creates, "executions": account.double_executions}
    return [*account.faults, *(f"{count} {what} too many" for what, count in twice.items() if count)]


class SweepFailed(Exception):
    """A run that nobody cut did not end as it should: no point can be judged by it."""


def all_cuts(providers: Sequence[str] = PROVIDERS, *, cells: int = 2) -> list[Cut]:
    """Every point of dry runs, with everybody who can die there.

    Raises:
        SweepFailed: A dry run left something.
    """
    orders = {(provider, family): _dry(provider, family) for provider in providers for family in ("life", "recovery")}
    accounts = run_all(list(orders.values()), cells=cells)
    cuts = []
    for (provider, family), account in zip(orders, accounts, strict=True):
        if faults := wrong_with(account):
            raise SweepFailed(f"the {family} of {provider} leaves something though nobody dies: {faults}")
        cuts += list(_cuts(provider, family, account.passed[len(orders[provider, family].stages) - 1]))
    return cuts


def _dry(provider: str, family: str) -> Order:
    stages = (*HELD, Stage(job="settle")) if family == "recovery" else (Stage(job="life"),)
    return Order(provider=provider, stages=stages)


def _cuts(provider: str, family: str, passed: Iterable[Passed]) -> Iterable[Cut]:
    for one in distinct(passed):
        for who in WHO if one.worker else ("host",):
            yield Cut(provider=provider, family=family, point=one.point, who=who)


def distinct(passed: Iterable[Passed]) -> Iterable[Passed]:
    """Points that differ in what the world has seen.

    Right before something that the host does is where it was right after what came before: nothing has happened in
    between. Right before a message from the worker is another matter: the worker has worked.
    """
    before: Passed | None = None
    for one in passed:
        same = before is not None and before.point.when == "after" and before.worker == one.worker
        if not (same and one.point.when == "before" and not one.point.what.startswith("<")):
            yield one
        before = one


def chosen(cuts: Sequence[Cut], *, only: str = "", sample: int | None = None, seed: int = 0) -> list[Cut]:
    """Some of them.

    Args:
        cuts: All.
        only: Those whose name has this text, or something that fits this pattern, in it.
        sample: So many, from every step of every provider as evenly as it goes.
        seed: Which ones these are.
    """
    fitting = [cut for cut in cuts if only in cut.name or fnmatch.fnmatchcase(cut.name, f"*{only}*")]
    if sample is None:
        return fitting
    draw = random.Random(seed)
    heaps: dict[tuple[str, str, str], list[Cut]] = defaultdict(list)
    for cut in fitting:
        heaps[cut.step, cut.provider, cut.who].append(cut)
    for heap in heaps.values():
        draw.shuffle(heap)
    by_step: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for key in draw.sample(sorted(heaps), len(heaps)):
        by_step[key[0]].append(key)
    # Of each step one, then of each another: a small sample has all of them.
    keys = [key for turn in itertools.zip_longest(*by_step.values()) for key in turn if key is not None]
    taken: list[Cut] = []
    while len(taken) < min(sample, len(fitting)):
        for key in keys:
            if heaps[key] and len(taken) < sample:
                taken.append(heaps[key].pop())
    return taken


def swept(cuts: Sequence[Cut], *, cells: int = 2, progress: bool = False) -> list[Result]:
    """Do these runs; one that did not come to its point is done again."""
    started = time.monotonic()
    done = bad = 0
    results: dict[int, Result] = {}
    left = list(range(len(cuts)))

    def on_done(number: int, account: Account) -> None:
        nonlocal done, bad
        result = Result(cut=cuts[left[number]], account=account)
        done += 1
        if not result.good:
            bad += 1
            if progress:
                print(f"\nFAILED {result.cut.name}\n  " + "\n  ".join(result.faults), file=sys.stderr, flush=True)
        if progress and (done % 50 == 0 or done == len(cuts)):
            print(
                f"{done}/{len(cuts)} runs, {bad} bad, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True
            )

    for _ in range(TRIES):
        accounts = run_all([cuts[number].order() for number in left], cells=cells, on_done=on_done)
        for number, account in zip(left, accounts, strict=True):
            results[number] = Result(cut=cuts[number], account=account)
        left = [number for number in left if results[number].good and not results[number].reached]
        if not left:
            break
    return [results[number] for number in range(len(cuts))]


def missed(results: Sequence[Result]) -> list[Result]:
    """Those whose point no try came to: of them nothing is known."""
    return [result for result in results if not result.reached]


def may_miss(points: int) -> int:
    """So many of these points may be missed: the share, rounded up, but never all."""
    return max(0, min(-(-MISSED_PER_100 * points // 100), points - 1))


def has_holes(results: Sequence[Result]) -> bool:
    """Whether more points were missed than may be; a sweep without any point is all hole."""
    return not results or len(missed(results)) > may_miss(len(results))


def summary(results: Sequence[Result]) -> str:
    """How many points there were, how many of them were reached, and what was bad."""
    holes = len(missed(results))
    return (
        f"{len(results)} points, {len(results) - holes} reached, {holes} not reached in {TRIES} tries "
        f"(at most {may_miss(len(results))} may be), {sum(not one.good for one in results)} bad"
    )


def table(results: Sequence[Result]) -> str:
    """Points by step and by who died, and what came of them."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        row = counts[result.cut.step]
        row[result.cut.who] += 1
        row["unreached"] += not result.reached
        row["leftovers"] += bool(result.account.faults)
        row["creates"] += result.account.double_creates
        row["executions"] += result.account.double_executions
    steps = [step for step in STEPS if step in counts] + sorted(set(counts) - set(STEPS))
    columns = ("host", "worker", "both", "leftovers", "creates", "executions", "unreached")
    heads = ("host dies", "worker dies", "both die", "left", "2nd creates", "2nd executions", "not reached")
    total = sum((counts[step] for step in steps), Counter())
    lines = ["step      " + "".join(f"{head:>16}" for head in heads)]
    for step, row in (*((step, counts[step]) for step in steps), ("all", total)):
        lines.append(f"{step:10}" + "".join(f"{row[column]:>16}" for column in columns))
    return "\n".join(lines)


def report(results: Sequence[Result], took_s: float) -> int:
    """Print what came of a sweep; the exit code: 1 where something was bad, or too little was reached."""
    bad = [result for result in results if not result.good]
    for result in bad:
        print(f"\n{result.cut.name}")
        for fault in result.faults:
            print(f"  {fault}")
    print(f"\n{table(results)}\n")
    for result in missed(results):
        print(f"not reached: {result.cut.name}")
    print(f"{summary(results)}; {took_s:.0f} s")
    return int(bool(bad) or has_holes(results))


def main(providers: Sequence[str], *, only: str, sample: int | None, seed: int, cells: int | None) -> int:
    """Sweep, and print what came of it; the exit code."""
    cells = cells or PER_CORE * (os.cpu_count() or 1)
    started = time.monotonic()
    try:
        cuts = chosen(all_cuts(providers, cells=cells), only=only, sample=sample, seed=seed)
    except SweepFailed as error:
        print(error)
        return 1
    print(f"{len(cuts)} points, seed {seed}, {cells} at a time", flush=True)
    results = swept(cuts, cells=cells, progress=True)
    return report(results, time.monotonic() - started)
