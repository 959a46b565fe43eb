"""Measures the product beside its floors: `./dev bench`.

Every row stands beside the least that does the same work, measured in the same round; rounds are short and many, the
order of the variants rotates. A missed goal is told and is no failure; a row that cannot be measured is one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

# Modules are known by their path from the root, as in every other run.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import peer_environment
from tests.bench.machine import this_machine
from tests.bench.order import CannotMeasure
from tests.bench.peer_table import peer_text
from tests.bench.rounds import FULL, QUICK, Record, Trial, measure
from tests.bench.rows_calls import OpenCalls, SequentialCalls
from tests.bench.rows_commands import Commands, FirstCommands, IsolatedCommands, Streams
from tests.bench.rows_files import Files
from tests.bench.rows_memory import HostMemory
from tests.bench.rows_peers import PeerRecord, PeerRounds
from tests.bench.rows_starts import Imports, Starts
from tests.bench.rows_store import Store
from tests.bench.table import document, table

RESULTS = Path(__file__).with_name("RESULTS.md")
TRIALS: tuple[Trial, ...] = (
    SequentialCalls(),
    OpenCalls(),
    Starts(),
    Commands(),
    IsolatedCommands(),
    FirstCommands(),
    Streams(),
    Imports(),
    Store(),
    HostMemory(),
    Files(),
)


def chosen(only: str) -> list[Trial]:
    """The trials that bring the rows that were asked for; all of them for an empty text.

    Raises:
        SystemExit: There is no row of that name.
    """
    wanted = {name for name in only.split(",") if name}
    known = [row.id for trial in TRIALS for row in trial.rows]
    if unknown := sorted(wanted - set(known)):
        raise SystemExit(f"bench: no row {', '.join(unknown)}; there are {', '.join(known)}")
    return [trial for trial in TRIALS if not wanted or wanted & {row.id for row in trial.rows}]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, help="how often everything is measured (10; 2 with --quick)")
    parser.add_argument(
        "--only", default="", metavar="ROWS", help="only the trials with these rows, e.g. R1,R2; none of the peers then"
    )
    parser.add_argument("--no-peers", action="store_true", help="leave out the other libraries, and fetch none")
    parser.add_argument("--quick", action="store_true", help="small counts: shows that every row can be measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number of every round to a file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and after a full run write RESULTS.md."""
    asked = arguments(argv)
    rounds = asked.rounds or (2 if asked.quick else 10)
    machine = this_machine()
    trials = chosen(asked.only)
    peers, absent = peer_rounds(asked)
    record = measure([*trials, *peers], size=QUICK if asked.quick else FULL, rounds=rounds)
    told = peer_text(peers[0].record(record.values["peers"]) if peers else PeerRecord(absent=absent))
    print(f"{machine}; {rounds} rounds{', so small that the numbers mean little' if asked.quick else ''}\n")
    print(table(record.lines))
    print(f"\nPeers. {told}")
    if asked.json is not None:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(as_json(record))))
    if record.failures:
        for name, why in record.failures.items():
            print(f"cannot run: {name}: {why}", file=sys.stderr)
        return 1
    if not asked.quick and not asked.only:
        text = document(record, machine, rounds=rounds, load_after=os.getloadavg()[0], peers=told)
        RESULTS.write_text(text, encoding="utf-8")
    return 0


def peer_rounds(asked: argparse.Namespace) -> tuple[list[PeerRounds], str]:
    """The trial of the peers, or none and why."""
    if asked.only or asked.no_peers:
        return [], "they were not asked for"
    try:
        python = peer_environment.ready()
    except (CannotMeasure, OSError) as error:
        print(f"bench: no peers: {error}", file=sys.stderr)
        return [], str(error) if isinstance(error, CannotMeasure) else "their environment cannot be made"
    pins = peer_environment.pins(peer_environment.PINS.read_text(encoding="utf-8"))
    return [PeerRounds(python, versions={pin.name: pin.version for pin in pins.values()})], ""


def as_json(record: Record) -> object:
    """Everything, with goals as text."""
    return msgspec.to_builtins(record)


if __name__ == "__main__":
    sys.exit(main())
