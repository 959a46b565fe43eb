"""What runs in a sandbox ends with it, at whatever moment it was started."""

from __future__ import annotations

import time

from examples.stdlib_worker.tests.raw_host import Worker
from sandport_conformance.processes import running
from sandport_sdk.testing import new_id

TURNS = 60
DYING_S = 20
"""What was killed is seen until it has died; what was not killed sleeps for ten minutes."""


def test_a_command_that_starts_while_its_sandbox_is_destroyed_does_not_outlive_it(worker: Worker) -> None:
    """The kit's LEASE-9 saw one on a loaded machine: it ran already, and was not known yet."""
    ends = set()
    for _ in range(TURNS):
        sandbox_id = new_id()
        worker.lease(sandbox_id)
        command = worker.ask("execute", sandboxId=sandbox_id, shell=f"sleep 600; : {sandbox_id}")
        end = worker.ask("destroyLease", sandboxId=sandbox_id)
        assert worker.answer(end) == {"state": "destroyed"}
        deadline = time.monotonic() + DYING_S
        while (left := running(f": {sandbox_id}")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == []
        result = worker.answer(command)
        ends.add(result.get("ended") or result["condition"])
    assert ends <= {"SandboxLost", "NotAttached"}
