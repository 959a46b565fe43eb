"""A worker that has made and ended many sandboxes is as it was: descriptors, children, files, processes."""

import os
import signal
from pathlib import Path

import pytest

from providers.local.tests.leases import ISOLATION
from providers.local.tests.machine import children_of, descriptors_of, entries, until, wait_for_end
from providers.local.tests.worker import Worker
from sandport_sdk.testing import new_id

CYCLES = 200
AT_ONCE = 10


@pytest.mark.slow
def test_two_hundred_sandboxes_later_a_worker_holds_what_it_held_before(state_dir: Path) -> None:
    """agent-sandbox#1306 and others: each lease left a little behind."""
    worker = Worker(state_dir)
    try:
        cycle(worker, kills=True)
        before = len(descriptors_of(worker.process.pid))
        for number in range(CYCLES // AT_ONCE):
            cycle(worker, kills=number % 5 == 0)
            assert entries(state_dir) == []
        until(lambda: children_of(worker.process.pid) == [], "no zombie is left")
        until(lambda: len(descriptors_of(worker.process.pid)) == before, "no descriptor is left")
        assert worker.call("listLeases").get("leases", []) == []
    finally:
        worker.close()


def kill(init: int) -> None:
    os.kill(init, signal.SIGKILL)
    wait_for_end(init)


def cycle(worker: Worker, *, kills: bool) -> None:
    """Ten sandboxes at once: kept and not, used and not, and where it says so two with an init that was killed."""
    made = [new_id() for _ in range(AT_ONCE)]
    calls = [
        worker.begin(
            "acquireLease", sandboxId=name, ttlMs=600_000, keep=number % 2 == 0, config={"isolation": ISOLATION}
        )
        for number, name in enumerate(made)
    ]
    for call in calls:
        assert "result" in worker.answer(call)
    for name in made[::3]:
        worker.call("execute", sandboxId=name, shell="touch file; sleep 600 >/dev/null 2>&1 &")
    if kills:
        kill(worker.init_of(made[1]))
        assert worker.attach(made[1])["processesLost"]
        kill(worker.init_of(made[2]))
    calls = [worker.begin("destroyLease", sandboxId=name) for name in made]
    assert [worker.answer(call)["result"]["state"] for call in calls] == ["destroyed"] * AT_ONCE
