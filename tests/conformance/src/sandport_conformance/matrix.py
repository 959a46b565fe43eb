"""Proves the kit: runs its checks against workers that are broken on purpose, and writes the table.

Each mutant names the checks that must catch it; each check must catch a mutant. By default a mutant meets only the
checks that it names, and the healthy worker meets all of them; `full` lets every mutant meet every check of its level,
which shows what else it breaks.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .catalogue import find, select
from .declaration import Check, Uses
from .mutants import HEALTHY, Mutant, command_of, every_mutant
from .outcomes import Misuse, Outcome
from .report import Report
from .run import judge
from .times import Times, measure

_LEVEL = "L4"
_AT_ONCE = 8
"""Most of a run is waiting for what a broken worker does not do."""
_PARTS = (("L0", "L1", "L2"), ("L3",), ("L4", "L5", "L6"))
"""The levels that the healthy worker is judged by at the same time."""
_SEED = 1
_RACES = 3
"""Some faults are races (a frame lost where the pipe is full just then): a mutant that lived gets so many more runs in
which to fail. Nothing of the kind holds for a sound worker, which must pass at once."""
_SHORT = 0.1
_NO_VENDOR_S = 8.0
"""The broken workers' sandboxes are directories."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of one mutant.

    Attributes:
        met: Ids of the checks that were run on it.
        killed_by: Ids of the checks that failed, each with its reason.
        wanted: Ids of the checks that had to fail.
    """

    mutant: Mutant
    met: tuple[str, ...]
    killed_by: dict[str, str]
    wanted: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Checks against mutants.

    Attributes:
        checks: The checks that had to kill something.
        controls: The reports of the sound workers with their names: of the healthy one for all checks, in parts; of
            another that mutants are made from for the checks that these must not survive.
        rows: One for each mutant.
    """

    checks: tuple[Check, ...]
    controls: tuple[tuple[str, Report], ...]
    rows: tuple[Row, ...]

    @property
    def problems(self) -> list[str]:
        """What is wrong with the kit; empty when it proves itself."""
        found = []
        results = [(name, result) for name, report in self.controls for result in report.results]
        passed = {result.id for _, result in results if result.outcome is Outcome.PASS}
        for name, result in results:
            # What the healthy worker does not declare, another sound one must.
            elsewhere = result.outcome is Outcome.NOT_APPLICABLE and name == HEALTHY and result.id in passed
            if result.outcome is not Outcome.PASS and not elsewhere:
                found.append(f"{name}, which is sound, does not pass {result.id}: {result.reason}")
        for name, report in self.controls:
            found += [f"after {name}: {text}" for text in report.left]
            found += [f"a fault of the kit in {fault.check}: {fault.traceback}" for fault in report.faults]
            if report.not_started:
                found.append(f"{name}: {report.not_started}")
        for row in self.rows:
            found += [f"{row.mutant.name}: {problem}" for problem in row.problems]
            found += [f"{row.mutant.name} lives through {name}" for name in row.wanted if name not in row.killed_by]
        killing = {name for row in self.rows for name in row.killed_by}
        found += [f"{check.id} kills no mutant" for check in self.checks if check.id not in killing]
        return found

    def table(self) -> str:
        """The table, as Markdown."""
        lines = [
            "# What each check catches",
            "",
            "Written by `sandport-conformance matrix --write`: which broken workers each check must catch.",
            "A check that catches nothing, and a broken worker that nothing catches, fail the kit's tests.",
            "",
            "| check | requirement | caught |",
            "|---|---|---|",
        ]
        for check in self.checks:
            caught = [row.mutant for row in self.rows if check.id in row.wanted]
            names = "<br>".join(f"`{mutant.name}` {mutant.sentence}" for mutant in caught)
            lines.append(f"| {check.id} | {check.title} | {names} |")
        mutants = len(self.rows)
        lines += ["", f"{len(self.checks)} checks, {mutants} broken workers, all of them caught."]
        return "\n".join(lines) + "\n"


def run(*, level: str = _LEVEL, only: Iterable[str] = (), full: bool = False) -> Matrix:
    """Run the checks against the mutants, a few of them at a time.

    Args:
        level: The highest level of checks.
        only: Ids of checks, or names of mutants; everything where empty.
        full: Let every mutant meet every check up to its own level.
    """
    # A broken worker that falls silent is waited for in vain, so little time is given; a healthy one gets it all, and
    # more, for two runs share the machine and what else it does may change while they last.
    times = measure(2.0)
    short = Times(factor=times.factor * _SHORT, vendor_s=_NO_VENDOR_S)
    mutants = every_mutant()
    checks = select(level=level)
    names = tuple(only)
    if names:
        wanted = [mutant for mutant in mutants if mutant.name in names or mutant.name.partition(":")[2] in names]
        chosen = [check for name in names if not _is_mutant(name, mutants) for check in _find(name, mutants)]
        by_check = [mutant for mutant in mutants if set(_wanted(mutant)) & {check.id for check in chosen}]
        mutants = tuple(dict.fromkeys([*wanted, *by_check]))
        checks = tuple(chosen)
    ids = {check.id for check in checks}
    mutants = tuple(mutant for mutant in mutants if names or set(_wanted(mutant)) & ids)
    with _given_up_at_once(ThreadPoolExecutor(_AT_ONCE)) as pool:
        wanted_of = {HEALTHY: ids or {name for mutant in mutants for name in _wanted(mutant)}}
        for mutant in mutants:
            if mutant.made_from != HEALTHY:
                wanted_of.setdefault(mutant.made_from, set()).update(_wanted(mutant))
        controls = [
            (name, pool.submit(judge, command_of(name), only=part, seed=_SEED, times=times))
            for name, wanted in wanted_of.items()
            for part in _in_parts(wanted)
        ]
        # Who meets many checks takes longest; the shortest come last, so that nobody waits for one alone.
        order = sorted(mutants, key=lambda mutant: -len(_wanted(mutant)))
        met = {mutant.name: pool.submit(_meet, mutant, full=full, times=short) for mutant in order}
        rows = tuple(met[mutant.name].result() for mutant in mutants)
        return Matrix(checks=checks, controls=tuple((name, run.result()) for name, run in controls), rows=rows)


@contextmanager
def _given_up_at_once(pool: ThreadPoolExecutor) -> Iterator[ThreadPoolExecutor]:
    """The pool; what has not begun when an exception comes never does."""
    with pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _in_parts(wanted: Iterable[str]) -> list[list[str]]:
    """Checks, a few levels at a time; those that read the record with the level that says most."""
    found: dict[int, list[str]] = {}
    for name in sorted(wanted):
        (check,) = (one for one in find(name) if one.id == name)
        level = "L3" if check.uses is Uses.RECORD else check.level
        found.setdefault(next(n for n, levels in enumerate(_PARTS) if level in levels), []).append(name)
    return list(found.values())


def _find(name: str, mutants: Sequence[Mutant]) -> tuple[Check, ...]:
    try:
        return find(name)
    except Misuse as error:
        names = [mutant.name.partition(":")[2] for mutant in mutants]
        if near := difflib.get_close_matches(name, names, n=3):
            raise Misuse(f"there is no check and no broken worker {name!r}; did you mean {', '.join(near)}?") from error
        raise


def _is_mutant(name: str, mutants: Sequence[Mutant]) -> bool:
    return any(name in (mutant.name, mutant.name.partition(":")[2]) for mutant in mutants)


def _wanted(mutant: Mutant) -> tuple[str, ...]:
    return tuple(check.id for name in mutant.killed_by for check in find(name))


def _meet(mutant: Mutant, *, full: bool, times: Times) -> Row:
    wanted = _wanted(mutant)
    met = wanted
    if full:
        level = max(check.level for name in mutant.killed_by for check in find(name))
        met = tuple(check.id for check in select(level=level))
    row = _meet_once(mutant, met, wanted, times)
    for _ in range(_RACES):
        if set(wanted) <= set(row.killed_by) or row.problems:
            break
        row = _meet_once(mutant, met, wanted, times)
    return row


def _meet_once(mutant: Mutant, met: tuple[str, ...], wanted: tuple[str, ...], times: Times) -> Row:
    # What it leaves is nothing but folders and processes; in a full run a later check must not find them.
    disposable = set(met) <= set(wanted)
    report = judge(mutant.command, only=met, seed=_SEED, times=times, disposable=disposable)
    problems = [f"a fault of the kit in {fault.check}: {fault.traceback}" for fault in report.faults]
    if report.not_started:
        problems.append(f"it could not be started: {report.not_started}")
    return Row(
        mutant=mutant,
        met=met,
        killed_by={result.id: result.reason for result in report.results if result.outcome is Outcome.FAIL},
        wanted=wanted,
        problems=tuple(problems),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `--help`. 0 when the kit proves itself, 1 when it does not, or the written table is old."""
    parser = argparse.ArgumentParser(
        prog="sandport-conformance matrix",
        description="Run the checks against broken workers: each worker must be caught, each check must catch one.",
    )
    parser.add_argument("only", nargs="*", metavar="NAME", help="a check, a requirement or a mutant (default: all)")
    parser.add_argument("--level", default=_LEVEL, help="the highest level of checks (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="let every mutant meet every check of its level")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare the table with the written one")
    chosen = parser.parse_args(arguments)
    matrix = run(level=chosen.level, only=chosen.only, full=chosen.full)
    problems = matrix.problems
    for row in matrix.rows:
        for name, reason in row.killed_by.items():
            also = "" if name in row.wanted else "  (not asked for)"
            sys.stdout.write(f"{row.mutant.name}\n    {name}{also}: {reason[:200]}\n")
    if chosen.write and not problems:
        chosen.write.write_text(matrix.table(), encoding="utf-8")
    if chosen.check and chosen.check.read_text(encoding="utf-8") != matrix.table():
        problems.append(f"{chosen.check} is old: run with --write {chosen.check}")
    sys.stdout.write(f"{len(matrix.rows)} mutants, {len(matrix.checks)} checks, {len(problems)} problems\n")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
