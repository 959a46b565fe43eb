"""R: calls. The reference pair and the whole stack, in turns within a round."""

from __future__ import annotations

import contextlib

from . import blocks
from .machine import cores
from .order import Do, Subject, subject
from .rounds import Goal, Row, Size, Values, median, rotated

_KINDS = ("ref", "sandport")
_SMALL = blocks.SMALL_CHARACTERS
_LARGE = blocks.LARGE_CHARACTERS


class SequentialCalls:
    """One call after the other, both ends on one core; the core changes from round to round."""

    name = "calls"
    rows = (
        Row(
            id="R1",
            what="p50 of a sequential 1 KB echo, one core",
            unit="us",
            ours="echo",
            floor="ref",
            beside="reference pair",
            goal=Goal("at most", 1.6),
        ),
        Row(
            id="R1c",
            what="processor time of that call on both ends",
            unit="us",
            ours="echo cpu",
            floor="ref cpu",
            beside="reference pair",
        ),
        Row(
            id="R1a",
            what="the same p50",
            unit="us",
            ours="echo",
            floor="ref, allocator ready",
            beside="reference pair whose reads map no memory anew, as ours",
        ),
        Row(
            id="R1t",
            what="the same through a method of the protocol (probe)",
            unit="us",
            ours="typed",
            floor="ref",
            beside="reference pair",
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Blocks of each variant, in turns; the median of all calls of the round."""
        own = cores()
        one = (own[turn % len(own)],)
        times: dict[str, list[float]] = {"ref": [], "ref, allocator ready": [], "echo": [], "typed": []}
        spent: dict[str, list[float]] = {kind: [] for kind in times}
        with contextlib.ExitStack() as stack:
            subjects = {
                kind: stack.enter_context(subject(kind, cores=one)) for kind in (*_KINDS, "ref, allocator ready")
            }
            for block in range(size.call_blocks):
                for kind in rotated(tuple(times), turn + block):
                    who = subjects.get(kind, subjects["sandport"])
                    do: Do = "typed calls" if kind == "typed" else "calls"
                    cpu_s, *taken_s = who.measure(do, count=size.calls, size_bytes=_SMALL)
                    times[kind] += taken_s
                    spent[kind].append(cpu_s)
        return {kind: 1e6 * median(taken) for kind, taken in times.items()} | {
            f"{kind} cpu": 1e6 * median(taken) for kind, taken in spent.items()
        }


class OpenCalls:
    """Sixty-four calls open at once, and large ones, on every core."""

    name = "calls in flight"
    rows = (
        Row(
            id="R2",
            what="calls a second, 64 in flight",
            unit="/s",
            ours="sandport rate",
            floor="ref rate",
            beside="reference pair",
            goal=Goal("at least", 0.4),
        ),
        Row(
            id="R3",
            what="processor time of a call on both ends, 64 in flight",
            unit="us",
            ours="sandport cpu",
            floor="ref cpu",
            beside="reference pair",
        ),
        Row(
            id="R5",
            what="16 MiB echo",
            unit="ms",
            ours="sandport large",
            floor="sandport middle",
            beside="1 MiB echo, both ours",
            goal=Goal("at most", 20),
        ),
        Row(
            id="R5r",
            what="16 MiB echo",
            unit="ms",
            ours="sandport large",
            floor="ref large",
            beside="reference pair",
        ),
        Row(
            id="R4",
            what="1 MiB echo",
            unit="ms",
            ours="sandport middle",
            floor="ref middle",
            beside="reference pair",
        ),
        Row(
            id="R8",
            what="resident memory of an idle worker",
            unit="MiB",
            ours="sandport worker rss",
            floor="ref worker rss",
            beside="reference server",
        ),
        Row(
            id="R8p",
            what="proportional memory of an idle worker",
            unit="MiB",
            ours="sandport worker pss",
            floor="ref worker pss",
            beside="reference server",
        ),
        Row(
            id="R8h",
            what="resident memory of a host with one worker",
            unit="MiB",
            ours="sandport host rss",
            floor="ref host rss",
            beside="reference client",
        ),
        Row(
            id="R8hp",
            what="proportional memory of a host with one worker",
            unit="MiB",
            ours="sandport host pss",
            floor="ref host pss",
            beside="reference client",
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Memory first, while nothing was called yet; then the blocks."""
        values: Values = {}
        with contextlib.ExitStack() as stack:
            subjects = {kind: stack.enter_context(subject(kind, cores=cores())) for kind in _KINDS}
            for kind, who in subjects.items():
                sizes = who.measure("memory")
                names = ("host rss", "host pss", "worker rss", "worker pss")
                values |= {f"{kind} {name}": taken / 2**20 for name, taken in zip(names, sizes, strict=True)}
            values |= _in_flight(subjects, size, turn)
            values |= _large(subjects, size, turn)
        return values


def _in_flight(subjects: dict[str, Subject], size: Size, turn: int) -> Values:
    rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    spent: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for block in range(size.blocks):
        for kind in rotated(_KINDS, turn + block):
            rate, cpu_s = subjects[kind].measure("in flight", count=size.calls_in_flight, size_bytes=_SMALL)
            rates[kind].append(rate)
            spent[kind].append(cpu_s)
    return {f"{kind} rate": median(rates[kind]) for kind in _KINDS} | {
        f"{kind} cpu": 1e6 * median(spent[kind]) for kind in _KINDS
    }


def _large(subjects: dict[str, Subject], size: Size, turn: int) -> Values:
    times: dict[str, list[float]] = {}
    for block in range(size.blocks):
        for kind in rotated(_KINDS, turn + block):
            for name, characters in (("middle", _LARGE), ("large", 16 * _LARGE)):
                _, *taken = subjects[kind].measure("large", count=size.large_calls, size_bytes=characters)
                times.setdefault(f"{kind} {name}", []).extend(taken)
    return {name: 1e3 * median(taken) for name, taken in times.items()}
