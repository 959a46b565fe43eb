"""A sample of the sweep, and proof that it can find something."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.cell import Account, Order, Stage
from tests.chaos.fleet import run_all
from tests.chaos.place import Place
from tests.chaos.points import Ledger, Passed, Plan, Point
from tests.chaos.stock import described, files_left, kernel_left, marked
from tests.chaos.sweep import (
    STEPS,
    Cut,
    Result,
    all_cuts,
    chosen,
    distinct,
    has_holes,
    missed,
    report,
    summary,
    swept,
    table,
)

AT_A_TIME = 4


def cut(name: str, who: str, *, recovers: bool) -> Order:
    return Order(
        provider="local",
        stages=(Stage(job="life", plan=Plan(Point.parse(name), who)),),  # type: ignore[arg-type]
        recovers=recovers,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sample_of_all_crash_points_leaves_nothing_and_does_nothing_twice() -> None:
    cuts = all_cuts(cells=AT_A_TIME)
    assert {one.step for one in cuts} == set(STEPS)
    sample = chosen(cuts, sample=27)
    assert {one.step for one in sample} == set(STEPS)
    results = swept(sample, cells=AT_A_TIME)
    assert [(one.cut.name, one.faults) for one in results if not one.good] == []
    assert len(missed(results)) <= len(results) // 5, summary(results)


@pytest.mark.slow
def test_where_the_next_start_does_not_clean_up_the_same_runs_leave_something() -> None:
    orders = [
        cut("acquire/< acquireLease answered#1:after", "host", recovers=False),
        cut("execute/> execute#1:after", "both", recovers=False),
        cut("release/commit ending#1:after", "both", recovers=False),
    ]
    for order, account in zip(orders, run_all(orders, cells=2), strict=True):
        assert account.hits == (True,), order
        assert [fault for fault in account.faults if fault.startswith("a row is left")], order
        assert [fault for fault in account.faults if fault.startswith(("process ", "a file of the home"))], order


def test_a_point_is_known_again_by_its_name() -> None:
    point = Point("execute", "< execute answered", 2, "before")
    assert Point.parse(str(point)) == point
    with pytest.raises(ValueError, match="names no point"):
        Point.parse("execute")


def test_moments_between_which_nothing_happened_are_one() -> None:
    names = ("s/commit a#1:before", "s/commit a#1:after", "s/> b#1:before", "s/> b#1:after", "s/< c#1:before")
    points = [Passed(Point.parse(name), True) for name in names]
    assert [str(one.point) for one in distinct(points)] == [names[0], names[1], names[3], names[4]]


def test_a_sample_is_the_same_for_the_same_seed_and_spread_over_all_steps() -> None:
    cuts = [
        Cut(provider="local", family="life", point=Point(step, f"> m{n}", 1, "after"), who="host")
        for step in STEPS
        for n in range(20)
    ]
    sample = chosen(cuts, sample=len(STEPS), seed=4)
    assert sample == chosen(cuts, sample=len(STEPS), seed=4)
    assert sample != chosen(cuts, sample=len(STEPS), seed=5)
    assert sorted(one.point.step for one in sample) == sorted(STEPS)
    assert len(chosen(cuts, only="execute/")) == 20


def test_the_table_counts_what_went_wrong() -> None:
    one = Cut(provider="local", family="life", point=Point("acquire", "> a", 1, "after"), who="both")
    bad = Account(faults=("something",), hits=(True,), double_creates=1, double_executions=2)
    assert Result(cut=one, account=bad).faults == ["something", "1 creates too many", "2 executions too many"]
    last = table([Result(cut=one, account=bad)]).splitlines()[-1]
    assert last.split() == ["all", "0", "0", "1", "1", "1", "2", "0"]


@pytest.mark.parametrize(("points", "may"), [(1, 0), (2, 1), (27, 1), (50, 1), (51, 2), (200, 4)])
def test_a_sweep_may_miss_two_points_in_a_hundred_and_never_all(points: int, may: int) -> None:
    one = Cut(provider="local", family="life", point=Point("acquire", "> a", 1, "after"), who="both")

    def results(holes: int) -> list[Result]:
        return [Result(cut=one, account=Account(hits=(number >= holes,))) for number in range(points)]

    assert (has_holes(results(may)), has_holes(results(may + 1)), has_holes([])) == (False, True, True)
    told = f"{points} points, {points - may} reached, {may} not reached in 5 tries (at most {may} may be), 0 bad"
    assert summary(results(may)) == told


def test_a_sweep_with_holes_fails_and_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    cuts = [
        Cut(provider="fake", family="life", point=Point("acquire", "> a", nth, "after"), who="host") for nth in (1, 2)
    ]
    reached, hole = (Result(cut=one, account=Account(hits=(one.point.nth == 1,))) for one in cuts)
    assert report([reached], 1.0) == 0
    assert "not reached:" not in capsys.readouterr().out
    assert report([reached, hole, hole], 1.0) == 1
    told = capsys.readouterr().out
    assert f"not reached: {hole.cut.name}\n3 points, 1 reached, 2 not reached in 5 tries (at most 1 may be)" in told


# ------------------------------------------------------------------ stock


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place.make(within=tmp_path)
    made.home.mkdir()
    return made


def test_stock_finds_a_process_by_its_environment_and_its_open_files(place: Place) -> None:
    mark = place.root / "marked"
    mark.touch()
    waits = (sys.executable, "-c", "import sys; sys.stdin.read()")
    by_environment = subprocess.Popen(waits, stdin=subprocess.PIPE, env=os.environ | {"A": f"{place.root}/x"})
    with mark.open() as file:
        by_file = subprocess.Popen(waits, stdin=subprocess.PIPE, stderr=file)
    try:
        assert {by_environment.pid, by_file.pid} <= set(marked(str(place.root)))
        assert "sys.stdin.read()" in described(by_file.pid)
    finally:
        for process in (by_environment, by_file):
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert not {by_environment.pid, by_file.pid} & set(marked(str(place.root)))


def test_stock_finds_files_and_sockets(place: Place) -> None:
    assert files_left(place) == kernel_left(place) == []
    (place.home / "workers").mkdir()
    (place.home / "workers" / "local").mkdir()
    (place.home / "version").touch()
    assert files_left(place) == []
    (place.home / "workers" / "local" / "spabc").mkdir()
    (place.tmp / "forgotten").touch()
    assert files_left(place) == ["a file of the home: workers/local/spabc", "a temporary file: forgotten"]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place.out / "s"))
        assert len(kernel_left(place)) == 1


def test_a_ledger_has_what_was_written_before_a_kill(place: Place) -> None:
    ledger = Ledger(place.ledger(0))
    line = Passed(Point("acquire", "commit created", 1, "before"), True, "sp1", True)
    assert ledger.read() == []
    ledger.write(line)
    assert ledger.read() == [line]
