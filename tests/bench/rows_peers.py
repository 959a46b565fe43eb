"""P: what other ways to call a Python process take for the work of R1, R2, R5 and S1, in turns with ours.

A peer that fails is told and left out from then on; that says nothing of ours, so the run goes on and succeeds.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from . import blocks
from .machine import cores
from .order import CannotMeasure, Subject, subject
from .rounds import Row, Size, Spread, Values, median, rotated

PATIENCE_S = 30.0
"""For one order; the slowest takes two seconds on an idle machine."""
_SMALL = blocks.SMALL_CHARACTERS
_LARGE = blocks.LARGE_CHARACTERS
_CALL_BLOCKS = 4
_BLOCKS = 2
_LARGE_BLOCKS = 3
"""In a round, or as many as the size says where that is fewer."""


class Peer(Struct, frozen=True, kw_only=True):
    """One way to call a process, and how much of it a run can wait for."""

    name: str
    pin: str
    """The distribution whose version is told."""
    way: str
    calls_share: int = 1
    """One in so many of our sequential calls."""
    flight_share: int = 1
    """One in so many of our calls in flight."""
    large: int = 3
    """Calls of 16 MiB in a round, at most."""
    starts: int = 3
    """Starts in a round, at most."""
    why: str = ""
    """Why it is measured less often than ours."""


PEERS = (
    Peer(
        name="mcp",
        pin="mcp",
        way="its client and its low level server over stdio",
        calls_share=5,
        flight_share=16,
        large=1,
        starts=1,
        why="a call takes it a millisecond, a start more than half a second, and 16 MiB, read in quadratic time, "
        "more than one",
    ),
    Peer(
        name="python-lsp-jsonrpc",
        pin="python-lsp-jsonrpc",
        way="threads over stdio; the caller blocks where it is alone",
        flight_share=2,
        large=2,
        why="16 MiB take it a third of a second",
    ),
    Peer(
        name="grpc.aio",
        pin="grpcio",
        way="a Unix socket, protobuf, no ceiling on messages",
        calls_share=3,
        flight_share=4,
        why="a call takes it several times as long",
    ),
)

OURS = Peer(name="ours", pin="", way="the product's own")
_PARTS = {peer.name: peer for peer in (OURS, *PEERS)}


class PeerRow(Struct, frozen=True):
    """One kind of work."""

    id: str
    what: str
    unit: str
    better: Literal["less", "more"] = "less"


ROWS = (
    PeerRow("R1", "p50 of a sequential 1 KB echo, one core", "us"),
    PeerRow("R2", "calls a second, 64 in flight", "/s", "more"),
    PeerRow("R5", "16 MiB echo / 1 MiB echo, of the same", "x"),
    PeerRow("R5r", "16 MiB echo", "ms"),
    PeerRow("S1", "spawn to the first answer", "ms"),
)


class PeerLine(Struct, frozen=True, kw_only=True):
    """A row of one peer with what came out, over the rounds in which it was measured."""

    row: PeerRow
    peer: str
    ours: Spread
    theirs: Spread
    ratio: Spread
    """Theirs / ours."""
    rounds: int


class PeerRecord(Struct, frozen=True, kw_only=True):
    """What a run says of the peers."""

    versions: dict[str, str] = {}
    """By the peer's name."""
    values: list[Values] = []
    """Of each round; a name is `R1 mcp`, and a peer that failed has none."""
    failures: dict[str, str] = {}
    """Peers that failed, and how."""
    absent: str = ""
    """Why none was measured."""

    @property
    def lines(self) -> tuple[PeerLine, ...]:
        """Each row of each peer that was measured in any round."""
        made = (peer_line(row, peer.name, self.values) for row in ROWS for peer in PEERS)
        return tuple(line for line in made if line is not None)


def peer_line(row: PeerRow, peer: str, values: Sequence[Values]) -> PeerLine | None:
    """One row over the rounds in which both were measured; None where there is no such round."""
    pairs = [
        (value[f"{row.id} {OURS.name}"], value[f"{row.id} {peer}"]) for value in values if f"{row.id} {peer}" in value
    ]
    if not pairs:
        return None
    return PeerLine(
        row=row,
        peer=peer,
        ours=Spread.of([ours for ours, _ in pairs]),
        theirs=Spread.of([theirs for _, theirs in pairs]),
        ratio=Spread.of([theirs / ours for ours, theirs in pairs]),
        rounds=len(pairs),
    )


class PeerRounds:
    """The trial; its own lines are none, what came out is in `record`.

    Args:
        python: The interpreter of the peers' environment.
        versions: Of the distributions there, by name.
        patience_s: How long one order of a peer may take.
    """

    name = "peers"
    rows: tuple[Row, ...] = ()

    def __init__(self, python: str, *, versions: dict[str, str], patience_s: float = PATIENCE_S) -> None:
        self._python = python
        self._versions = {peer.name: versions[peer.pin] for peer in PEERS}
        self._patience_s = patience_s
        self.failures: dict[str, str] = {}

    def record(self, values: list[Values]) -> PeerRecord:
        """What the rounds brought."""
        return PeerRecord(versions=self._versions, values=values, failures=dict(self.failures))

    def run(self, size: Size, turn: int) -> Values:
        """Sequential calls on one core, then all else on every core; ours and each peer in turns."""
        own = cores()
        with tempfile.TemporaryDirectory() as folder:
            with self._subjects((own[turn % len(own)],), folder) as who:
                values = self._calls(who, size, turn)
            with self._subjects(own, folder) as who:
                values |= self._in_flight(who, size, turn)
                values |= self._large(who, size, turn)
                values |= self._starts(who, size, turn)
        # What a peer did before it failed in this round is not counted either.
        return {name: value for name, value in values.items() if name.split(" ", 1)[1] not in self.failures}

    @contextlib.contextmanager
    def _subjects(self, where: tuple[int, ...], folder: str) -> Iterator[dict[str, Subject]]:
        with contextlib.ExitStack() as stack:
            subjects = {OURS.name: stack.enter_context(subject("sandport", cores=where))}
            for peer in PEERS:
                if peer.name not in self.failures:
                    subjects[peer.name] = stack.enter_context(
                        subject(
                            f"peer {peer.name}",
                            cores=where,
                            python=self._python,
                            environ={"TMPDIR": folder},  # a peer that is killed leaves nothing behind
                            patience_s=self._patience_s,
                        )
                    )
            yield subjects

    def _turns(
        self, subjects: dict[str, Subject], count: int, turn: int, measure: Callable[[str, Subject, int], None]
    ) -> None:
        """Each in each block; a peer that fails is out."""
        for block in range(count):
            for name in rotated(tuple(subjects), turn + block):
                if name in self.failures:
                    continue
                try:
                    measure(name, subjects[name], block)
                except (CannotMeasure, OSError) as error:
                    if name == OURS.name:
                        raise
                    self.failures[name] = f"in round {turn + 1}: {error}"

    def _calls(self, subjects: dict[str, Subject], size: Size, turn: int) -> Values:
        times: dict[str, list[float]] = {}

        def one(name: str, who: Subject, block: int) -> None:
            count = max(1, size.calls // _PARTS[name].calls_share)
            _, *taken_s = who.measure("calls", count=count, size_bytes=_SMALL)
            times.setdefault(f"R1 {name}", []).extend(taken_s)

        self._turns(subjects, min(size.call_blocks, _CALL_BLOCKS), turn, one)
        return {name: 1e6 * median(taken_s) for name, taken_s in times.items()}

    def _in_flight(self, subjects: dict[str, Subject], size: Size, turn: int) -> Values:
        rates: dict[str, list[float]] = {}

        def one(name: str, who: Subject, block: int) -> None:
            count = max(blocks.IN_FLIGHT, size.calls_in_flight // _PARTS[name].flight_share)
            rate, _ = who.measure("in flight", count=count, size_bytes=_SMALL)
            rates.setdefault(f"R2 {name}", []).append(rate)

        self._turns(subjects, min(size.blocks, _BLOCKS), turn, one)
        return {name: median(rate) for name, rate in rates.items()}

    def _large(self, subjects: dict[str, Subject], size: Size, turn: int) -> Values:
        middle: dict[str, list[float]] = {}
        large: dict[str, list[float]] = {}

        def one(name: str, who: Subject, block: int) -> None:
            _, *taken_s = who.measure("large", count=size.large_calls, size_bytes=_LARGE)
            middle.setdefault(name, []).extend(taken_s)
            if block < _PARTS[name].large:
                _, *taken_s = who.measure("large", count=1, size_bytes=16 * _LARGE)
                large.setdefault(name, []).extend(taken_s)

        self._turns(subjects, min(size.blocks, _LARGE_BLOCKS), turn, one)
        values: Values = {}
        for name, taken_s in large.items():
            values[f"R5 {name}"] = median(taken_s) / median(middle[name])
            values[f"R5r {name}"] = 1e3 * median(taken_s)
        return values

    def _starts(self, subjects: dict[str, Subject], size: Size, turn: int) -> Values:
        times: dict[str, list[float]] = {}

        def one(name: str, who: Subject, block: int) -> None:
            if block < _PARTS[name].starts:
                times.setdefault(f"S1 {name}", []).extend(who.measure("start"))

        self._turns(subjects, size.starts, turn, one)
        return {name: 1e3 * median(taken_s) for name, taken_s in times.items()}
