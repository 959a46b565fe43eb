"""The harness measures every row, and tells what could not be measured; how fast anything is decides nothing here."""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.bench import ref_pair, relay, run
from tests.bench.machine import this_machine
from tests.bench.rounds import QUICK, Goal, Record, Row, Size, Spread, Trial, Values, line_of, measure, rotated
from tests.bench.table import document, table

SCRIPT = Path(run.__file__)
ROW = Row(id="X1", what="a | b", unit="ms", ours="ours", floor="floor", beside="floor", goal=Goal("at most", 1.5))


@pytest.mark.slow
@pytest.mark.parametrize("trial", run.TRIALS, ids=lambda trial: trial.name)
def test_a_quick_run_measures_every_row(trial: Trial, tmp_path: Path) -> None:
    ids = [row.id for row in trial.rows]
    if any("bubblewrap" in row.what or "isolated" in row.what for row in trial.rows) and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    numbers = tmp_path / "numbers.json"
    done = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--rounds", "1", "--only", ids[0], "--json", numbers],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for row in trial.rows:
        [line] = [line for line in done.stdout.splitlines() if line.startswith(f"| {row.id} |")]
        assert row.what in line
    record = msgspec.json.decode(numbers.read_bytes(), type=Record)
    assert [line.row.id for line in record.lines] == ids
    assert all(value > 0 for values in record.values[trial.name] for value in values.values())


def test_every_row_has_an_id_of_its_own() -> None:
    ids = [row.id for trial in run.TRIALS for row in trial.rows]
    assert len(ids) == len(set(ids))


class Known:
    """A trial whose numbers are known."""

    name = "known"
    rows = (ROW,)

    def __init__(self, *rounds: Values) -> None:
        self._rounds = rounds

    def run(self, size: Size, turn: int) -> Values:
        return self._rounds[turn]


class Broken:
    """A trial that cannot run."""

    name = "broken"
    rows = (ROW,)

    def run(self, size: Size, turn: int) -> Values:
        raise FileNotFoundError("no such worker")


def test_a_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    """A machine that is twice as slow in one round changes both numbers and no ratio."""
    line = line_of(ROW, [{"ours": 10, "floor": 8}, {"ours": 24, "floor": 20}, {"ours": 13, "floor": 10}])
    assert line.ratio == Spread(1.25, 1.2, 1.225, 1.275, 1.3)
    assert line.met is True


def test_a_missed_goal_is_told_and_is_no_failure() -> None:
    record = measure([Known({"ours": 3.0, "floor": 1.0})], size=QUICK, rounds=1)
    assert record.failures == {}
    assert "**not met**" in table(record.lines)
    assert r"a \| b" in table(record.lines)


def test_a_trial_that_cannot_run_is_told_and_the_others_go_on() -> None:
    record = measure([Broken(), Known({"ours": 1.0, "floor": 1.0}, {"ours": 1.0, "floor": 1.0})], size=QUICK, rounds=2)
    assert record.failures == {"broken": "FileNotFoundError: no such worker"}
    assert [line.rounds for line in record.lines] == [2]


def test_a_run_that_could_not_measure_a_row_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TRIALS", (Broken(),))
    assert run.main(["--quick", "--only", "X1"]) == 1


def test_a_row_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match="no row R77; there are R1"):
        run.main(["--only", "R77"])


def test_the_results_name_neither_the_machine_nor_a_folder() -> None:
    machine = this_machine()
    text = document(Record(lines=(), failures={}, values={}), machine, rounds=3, load_after=0.0, peers="")
    assert str(machine) in text
    assert "/" not in str(machine)


def test_the_order_of_the_variants_rotates() -> None:
    assert [rotated(("a", "b", "c"), turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]


def test_the_floors_relay_every_byte(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"a line\n" * 100_000)
    assert relay.stream("text", str(source), 700_000) > 0
    assert relay.stream("base64", str(source), 700_000) > 0


@pytest.mark.anyio
async def test_the_reference_pair_echoes_what_does_not_fit_in_a_pipe() -> None:
    client = ref_pair.RefClient(allocator_ready=True)
    await client.start()
    assert await client.echo("x" * 1_000_000) == "x" * 1_000_000
    await client.stop()
