"""The peers' table says what was recorded, whoever fails, and their environment is a closed list.

Nothing here needs that environment, or fetches anything.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.bench import peer_environment, run
from tests.bench.machine import cores, this_machine
from tests.bench.order import ROOT, CannotMeasure, subject
from tests.bench.peer_table import peer_text
from tests.bench.rounds import QUICK, Record, Spread, measure
from tests.bench.rows_peers import PEERS, ROWS, PeerRecord, PeerRounds, peer_line
from tests.bench.table import document

PINS = peer_environment.pins(peer_environment.PINS.read_text(encoding="utf-8"))
VERSIONS = {pin.name: pin.version for pin in PINS.values()}
R1, R2 = ROWS[:2]


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_peers_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    rounds = [
        {"R1 ours": 100.0, "R1 mcp": 2000.0},
        {"R1 ours": 200.0, "R1 mcp": 3000.0},
        {"R1 ours": 100.0, "R1 mcp": 1000.0},
    ]
    line = peer_line(R1, "mcp", rounds)
    assert line is not None
    assert line.ratio == Spread(15.0, 10.0, 12.5, 17.5, 20.0)
    assert (line.ours.median, line.theirs.median, line.rounds) == (100.0, 2000.0, 3)


def test_a_round_without_a_peer_counts_neither_for_it_nor_for_ours() -> None:
    line = peer_line(R2, "grpc.aio", [{"R2 ours": 50_000.0}, {"R2 ours": 30_000.0, "R2 grpc.aio": 1500.0}])
    assert line is not None
    assert (line.ratio.median, line.ours.median, line.rounds) == (0.05, 30_000.0, 1)
    assert peer_line(R2, "mcp", [{"R2 ours": 50_000.0}]) is None


def test_the_table_has_each_row_of_each_peer_with_versions_and_what_was_cut() -> None:
    names = ("ours", *(peer.name for peer in PEERS))
    values = {f"{row.id} {name}": 10.0 * (1 + place) for row in ROWS for place, name in enumerate(names)}
    text = peer_text(PeerRecord(versions={peer.name: VERSIONS[peer.pin] for peer in PEERS}, values=[values]))
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in text.splitlines() if line[:1] == "|"][2:]
    assert [(row[0], row[2]) for row in rows] == [(row.id, peer.name) for row in ROWS for peer in PEERS]
    assert [row[5] for row in rows] == ["2.00", "3.00", "4.00"] * len(ROWS)
    for peer in PEERS:
        assert f"({peer.pin} {VERSIONS[peer.pin]})" in text
        assert peer.why in text
    assert "1/16 of our calls for R2" in text
    assert "Not measured" not in text
    assert max(map(len, text.splitlines()[:3])) <= 120


@pytest.mark.slow
def test_a_peer_that_dies_is_told_and_not_counted(tmp_path: Path) -> None:
    """One ends at its first order, one at its second, one lacks its library; ours and the run go on."""
    answer = '{"values":[1.0,1.0]}'
    body = f"""case "$3" in
    *mcp) read order; exit 3 ;;
    *grpc*) read order; echo '{answer}'; read order; exit 4 ;;
    *) exec {sys.executable} "$@" ;;
esac"""
    trial = PeerRounds(program(tmp_path / "python", body), versions=VERSIONS)
    record = measure([trial], size=QUICK, rounds=1)
    assert record.failures == {}
    assert {name.split(" ", 1)[1] for name in record.values["peers"][0]} == {"ours"}
    told = trial.record(record.values["peers"])
    assert told.lines == ()
    text = peer_text(told)
    assert "- mcp failed in round 1: the measuring process peer mcp ended with 3" in text
    assert "- grpc.aio failed in round 1: the measuring process peer grpc.aio ended with 4" in text
    assert "- python-lsp-jsonrpc failed in round 1: the measuring process peer python-lsp-jsonrpc ended with 1" in text


def test_a_peer_that_says_nothing_is_ended(tmp_path: Path) -> None:
    silent = program(tmp_path / "python", "exec sleep 600")
    with (
        subject("peer mcp", cores=cores(), python=silent, patience_s=0.05) as who,
        pytest.raises(CannotMeasure, match=r"peer mcp was not done after 0\.05 s"),
    ):
        who.measure("calls")


def test_the_pins_are_exact_sorted_and_nothing_is_there_that_nothing_needs() -> None:
    assert list(PINS) == sorted(PINS)
    assert {pin.needed_by for pin in PINS.values()} <= {*PINS, "bench"}
    for pin in PINS.values():
        chain = [pin]
        while (above := chain[-1].needed_by) != "bench":
            assert PINS[above] not in chain, f"{pin.name} is needed in a circle"
            chain.append(PINS[above])
    measured = {pin.name for pin in PINS.values() if pin.needed_by == "bench"}
    assert {peer.pin for peer in PEERS} < measured
    ours = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").split())
    assert PINS["msgspec"].version == ours["msgspec"], "the harness itself is to be the same on both sides"


def test_each_import_of_a_peers_program_is_pinned() -> None:
    given = {"google": "protobuf", "grpc": "grpcio", "pylsp_jsonrpc": "python-lsp-jsonrpc", "mcp_types": "mcp-types"}
    for source in Path(peer_environment.__file__).with_name("peers").glob("*.py"):
        found = re.findall(r"^(?:from|import) (\w+)", source.read_text(encoding="utf-8"), re.MULTILINE)
        foreign = set(found) - set(sys.stdlib_module_names) - {"tests"}
        assert {given.get(name, name) for name in foreign} <= PINS.keys(), source.name


@pytest.mark.parametrize("line", ["mcp", "mcp>=2", "mcp==2.3.0", "mcp==2.*  # bench", "-r other.txt", ""])
def test_a_line_that_is_no_pin_with_its_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="not a pin"):
        peer_environment.pins(f"# a comment\n{line}\n")


def test_without_network_a_run_has_no_peers_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = tmp_path / "peers.txt"
    pins.write_text("mcp==2.3.0  # bench\n", encoding="utf-8")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(
        peer_environment, "ready", lambda made=peer_environment.ready: made(folder=tmp_path / "venv", file=pins)
    )
    asked = run.arguments([])
    trials, absent = run.peer_rounds(asked)
    assert trials == []
    assert peer_text(PeerRecord(absent=absent)) == (
        "None in this run: pip could not install the peers (is there a network?)."
    )
    assert not (tmp_path / "venv" / ".stamp").exists()


def test_an_environment_that_is_made_and_pinned_so_is_used_as_it_is(tmp_path: Path) -> None:
    pins = tmp_path / "peers.txt"
    pins.write_text("mcp==2.3.0  # bench\n", encoding="utf-8")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    program(tmp_path / "venv" / "bin" / "python", "exit 1")
    (tmp_path / "venv" / ".stamp").write_text(f"{sys.version}\n{pins.read_text(encoding='utf-8')}", encoding="utf-8")
    assert peer_environment.ready(folder=tmp_path / "venv", file=pins) == str(tmp_path / "venv" / "bin" / "python")


@pytest.mark.parametrize("said", [["--no-peers"], ["--only", "R1"]])
def test_who_asks_for_no_peers_gets_none(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> str:
        raise CannotMeasure("asked for")

    monkeypatch.setattr(peer_environment, "ready", never)
    assert run.peer_rounds(run.arguments(said)) == ([], "they were not asked for")


def test_the_results_have_a_part_for_the_peers() -> None:
    record = Record(lines=(), failures={}, values={})
    told = peer_text(PeerRecord(absent="they were not asked for"))
    text = document(record, this_machine(), rounds=3, load_after=0.0, peers=told)
    assert text.endswith("\n## Peers\n\nNone in this run: they were not asked for.\n")
    assert os.fspath(Path(sys.prefix)) not in text
