"""D: leases in the store, beside bare sqlite3 with the same tables and statements."""

from __future__ import annotations

import contextlib

from .machine import cores
from .order import Do, subject
from .rounds import Goal, Row, Size, Values, median, rotated

_CALLERS = 64


class Store:
    """Acquires of many callers, and single changes of one."""

    name = "store"
    rows = (
        Row(
            id="D1",
            what="leases acquired by 64 callers: three durable changes each (FULL)",
            unit="/s",
            ours="acquires",
            floor="bare acquires",
            beside="sqlite3, not durable (NORMAL), one transaction for all three changes",
            goal=Goal("at least", 1.0),
        ),
        Row(
            id="D1t",
            what="the same",
            unit="/s",
            ours="acquires",
            floor="bare acquires, three transactions",
            beside="sqlite3, not durable (NORMAL), a transaction for each change",
        ),
        Row(
            id="D1s",
            what="p50 of one durable change by a single caller",
            unit="us",
            ours="request",
            floor="bare request",
            beside="the same sqlite3 transaction (FULL) through run_in_executor",
            goal=Goal("at most", 1.5),
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Blocks of each, in turns; each process has files of its own on the same disk."""
        rates: dict[str, list[float]] = {"acquires": [], "bare acquires": [], "bare acquires, three transactions": []}
        times: dict[str, list[float]] = {"request": [], "bare request": []}
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(subject("sandport store", cores=cores()))
            bare = stack.enter_context(subject("floor store", cores=cores()))
            for block in range(size.blocks):
                for kind in rotated(tuple(rates), turn + block):
                    who, do = _way(kind)
                    [took_s] = (ours if who == "ours" else bare).measure(do, count=size.acquires, callers=_CALLERS)
                    rates[kind].append(size.acquires / took_s)
                for kind in rotated(tuple(times), turn + block):
                    times[kind] += (ours if kind == "request" else bare).measure("requests", count=size.requests)
        return {kind: median(reached) for kind, reached in rates.items()} | {
            kind: 1e6 * median(taken) for kind, taken in times.items()
        }


def _way(kind: str) -> tuple[str, Do]:
    match kind:
        case "acquires":
            return "ours", "acquires"
        case "bare acquires":
            return "bare", "acquires"
    return "bare", "acquires, three transactions"
