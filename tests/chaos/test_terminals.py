"""Several processes on one store: a short run of them, and proof that a wrong touch is seen."""

import subprocess
import sys
from pathlib import Path

import pytest

from sandport.host import Host
from tests.chaos.fleet import ROOT
from tests.chaos.place import Place
from tests.chaos.terminal import OPERATIONS, Terminal


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_terminals_and_kills_among_them_never_touch_each_others_leases() -> None:
    words = ("--minutes", "0.2", "--seed", "7")
    done = subprocess.run(
        (sys.executable, "-m", "tests.chaos", "terminals", *words),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    did = {line[:18].strip(): int(line[18:]) for line in done.stdout.splitlines() if line.startswith("  ")}
    assert set(did) == {*OPERATIONS, "killed"}
    assert did["run"] + did["keep"] + did["use"] > 0


@pytest.mark.anyio
@pytest.mark.parametrize("announced", [True, False])
async def test_a_lease_that_is_lost_while_it_is_held_is_a_fault_unless_somebody_said_so(
    tmp_path: Path, announced: bool
) -> None:
    place = Place.make(within=tmp_path)
    one, other = Terminal(place, 0, 0), Terminal(place, 1, 0)
    async with one.host() as mine, other.host() as theirs, mine.lease("local") as box:
        if announced:
            other.say("forcing", lease=box.lease_id)
        await theirs.end_lease(box.lease_id, force=True)
        await one.hold(box)
    assert len(place.said("fault")) == (0 if announced else 1)


@pytest.mark.anyio
async def test_a_kept_lease_that_nobody_ended_and_is_not_there_is_a_fault(tmp_path: Path) -> None:
    place = Place.make(within=tmp_path)
    terminal = Terminal(place, 0, 0)
    async with terminal.host() as host:
        await terminal.keep(host)
        await terminal.use(host)
        assert place.said("fault") == []
        await _end_silently(host, place)
        await terminal.use(host)
    assert len(place.said("fault")) == 1


async def _end_silently(host: Host, place: Place) -> None:
    (kept,) = place.said("kept")
    assert (await host.end_lease(kept.lease)).end == "gone"
