"""The table of a run, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .machine import Machine
from .rounds import Line, Record, Spread

_HEADERS = ("row", "what", "ours", "floor", "ratio", "quartiles", "min..max", "goal", "")
_MET = {True: "met", False: "**not met**", None: ""}


def table(lines: Sequence[Line]) -> str:
    """One line per row; medians over the rounds, and the spread of the per-round ratios."""
    return markdown(_HEADERS, map(_cells, lines))


def markdown(headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Rows of cells as a table."""
    ruled = [headers, ("---",) * len(headers), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in ruled)


def document(record: Record, machine: Machine, *, rounds: int, load_after: float, peers: str) -> str:
    """The whole of RESULTS.md; `peers` is the text of their part."""
    goals = [line for line in record.lines if line.met is not None]
    met = sum(1 for line in goals if line.met)
    return f"""# Benchmarks: the last full run

Written by `./dev bench`; do not edit. Each row stands beside its floor, measured in the same round: the least that does
the same work with the same loop and codec. "ours" and "floor" are medians over {rounds} rounds; the ratio is the median
of the per-round ratios, with their quartiles and extremes. Rows without a goal are for information.

{machine}, {load_after:.1f} after it.

{met} of {len(goals)} goals met.

{table(record.lines)}

## Peers

{peers}
"""


def _cells(line: Line) -> tuple[str, ...]:
    row, ratio = line.row, line.ratio
    what = f"{row.what} / {row.beside}" if row.beside else row.what
    floor = "" if line.floor is None else f"{number(line.floor.median)} {row.unit}"
    told = ("", "", "") if ratio is None else told_spread(ratio)
    goal = "" if row.goal is None else str(row.goal)
    return (row.id, what, f"{number(line.ours.median)} {row.unit}", floor, *told, goal, _MET[line.met])


def told_spread(ratio: Spread) -> tuple[str, str, str]:
    """The cells of a ratio: its median, quartiles and extremes."""
    quartiles = f"{number(ratio.lower_quartile)}..{number(ratio.upper_quartile)}"
    return number(ratio.median), quartiles, f"{number(ratio.low)}..{number(ratio.high)}"


def number(value: float) -> str:
    """Three digits, or all before the point."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3f}"
