"""Trials, the rows made of them, and the ratios of many short rounds.

Only what was measured in one round is ever compared: a shared machine is twice as slow one minute and not the next.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

Values = dict[str, float]
"""What one round of a trial measured, by name."""


class Size(Struct, frozen=True, kw_only=True):
    """How much is done in one round of each trial."""

    calls: int = 150
    """Sequential calls in a block."""
    call_blocks: int = 8
    """Blocks of sequential calls of each variant in a round, in turns."""
    blocks: int = 4
    """Blocks of anything else."""
    calls_in_flight: int = 6000
    large_calls: int = 3
    acquires: int = 1500
    requests: int = 100
    idle_leases: int = 200
    idle_workers: int = 10
    starts: int = 3
    commands: int = 30
    sandboxes: int = 10
    """In a block; a round has enough of them for a p99 that is not just the slowest."""
    streams: int = 2
    stream_bytes: int = 128 * 1024 * 1024
    small_files: int = 10_000
    copies: int = 3
    """Of the small files by each way."""
    large_file_bytes: int = 1024 * 1024 * 1024


FULL = Size()
QUICK = Size(
    calls=50,
    call_blocks=2,
    blocks=2,
    calls_in_flight=640,
    large_calls=1,
    acquires=100,
    requests=10,
    idle_leases=10,
    idle_workers=2,
    starts=1,
    commands=3,
    sandboxes=1,
    streams=1,
    stream_bytes=4 * 1024 * 1024,
    small_files=200,
    copies=1,
    large_file_bytes=8 * 1024 * 1024,
)


class Goal(Struct, frozen=True):
    """What the median of the ratios should be."""

    kind: Literal["at most", "at least"]
    limit: float

    def met(self, ratio: float) -> bool:
        """Whether a ratio is good enough."""
        return ratio <= self.limit if self.kind == "at most" else ratio >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.kind == 'at most' else '>='} {self.limit:g}"


class Row(Struct, frozen=True, kw_only=True):
    """One line of the table: a value of ours, and beside it the floor of the same round."""

    id: str
    what: str
    unit: str
    ours: str
    """The name of our value."""
    floor: str = ""
    """The name of the value that it is held against; empty for a fact that is only told."""
    beside: str = ""
    """What the floor is, in words."""
    goal: Goal | None = None
    """None: for information."""


class Trial(Protocol):
    """Something that is measured once in each round."""

    @property
    def name(self) -> str:
        """For the progress."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """What is told of it."""

    def run(self, size: Size, turn: int) -> Values:
        """Measure once; the order of the variants is rotated by `turn`."""


class Spread(Struct, frozen=True):
    """The middle of some numbers and how far they are apart."""

    median: float
    low: float
    lower_quartile: float
    upper_quartile: float
    high: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """The spread of at least one number."""
        ordered = sorted(numbers)
        if len(ordered) == 1:
            return cls(*ordered * 5)
        lower, median, upper = statistics.quantiles(ordered, n=4, method="inclusive")
        return cls(median, ordered[0], lower, upper, ordered[-1])


class Line(Struct, frozen=True, kw_only=True):
    """A row with what came out."""

    row: Row
    ours: Spread
    floor: Spread | None
    ratio: Spread | None
    rounds: int

    @property
    def met(self) -> bool | None:
        """Whether the goal was met; None where there is none."""
        if self.row.goal is None or self.ratio is None:
            return None
        return self.row.goal.met(self.ratio.median)


class Record(Struct, frozen=True, kw_only=True):
    """What a whole run brought."""

    lines: tuple[Line, ...]
    failures: dict[str, str]
    """Trials that could not run, and why."""
    values: dict[str, list[Values]]
    """Everything that was measured, by trial and round."""


def rotated(names: Sequence[str], turn: int) -> tuple[str, ...]:
    """The names, beginning with another one in each turn."""
    start = turn % len(names)
    return (*names[start:], *names[:start])


def median(numbers: Sequence[float]) -> float:
    """The median, as a float."""
    return float(statistics.median(numbers))


def measure(trials: Sequence[Trial], *, size: Size, rounds: int) -> Record:
    """Every trial once per round, round after round; a trial that fails is reported and left out from then on."""
    values: dict[str, list[Values]] = {trial.name: [] for trial in trials}
    failures: dict[str, str] = {}
    for turn in range(rounds):
        for trial in trials:
            if trial.name in failures:
                continue
            begun = time.monotonic()
            try:
                values[trial.name].append(trial.run(size, turn))
            except Exception as error:  # noqa: BLE001 - whatever kept one trial from running, the others still can
                failures[trial.name] = f"{type(error).__name__}: {error}"
            print(_progress(trial, values[trial.name], failures, turn, rounds, begun), file=sys.stderr, flush=True)
    lines = [line for trial in trials for line in _lines(trial.rows, values[trial.name])]
    return Record(lines=tuple(lines), failures=failures, values=values)


def _lines(rows: Sequence[Row], values: Sequence[Values]) -> list[Line]:
    return [line_of(row, values) for row in rows] if values else []


def line_of(row: Row, values: Sequence[Values]) -> Line:
    """One row over the rounds that were measured."""
    ours = [value[row.ours] for value in values]
    if not row.floor:
        return Line(row=row, ours=Spread.of(ours), floor=None, ratio=None, rounds=len(ours))
    floors = [value[row.floor] for value in values]
    ratios = [mine / floor for mine, floor in zip(ours, floors, strict=True)]
    return Line(row=row, ours=Spread.of(ours), floor=Spread.of(floors), ratio=Spread.of(ratios), rounds=len(ours))


def _progress(
    trial: Trial, values: Sequence[Values], failures: dict[str, str], turn: int, rounds: int, begun: float
) -> str:
    head = f"round {turn + 1}/{rounds} {trial.name} ({time.monotonic() - begun:.1f} s)"
    if trial.name in failures:
        return f"{head}: cannot run: {failures[trial.name]}"
    last = [line_of(row, values[-1:]) for row in trial.rows]
    told = [f"{line.row.id} {line.ratio.median:.2f}x" for line in last if line.ratio is not None]
    return f"{head}: {', '.join(told) or 'measured'}"
