"""What a command leaves behind, and a host that takes nothing, keep no command of this worker from its answer."""

from __future__ import annotations

import base64

import pytest

from examples.stdlib_worker.tests.raw_host import Worker

SLOW = "while :; do echo x; sleep 0.05; done"
FLOOD = "exec yes"


@pytest.mark.parametrize("chatter", [SLOW, FLOOD])
def test_what_a_command_leaves_writing_keeps_nobody_waiting(worker: Worker, chatter: str) -> None:
    kept = worker.answer(worker.leave(chatter, "echo last >&2; exit 3", timeoutMs=60_000))
    assert (kept["ended"], kept["exitCode"], kept["stdout"]["end"]) == ("exited", 3, "heldOpen")
    assert base64.b64decode(kept["stderr"]["data"]) == b"last\n"

    late = worker.answer(worker.leave(chatter, "sleep 60", timeoutMs=1500))
    assert (late["ended"], late["stdout"]["end"]) == ("timedOut", "heldOpen")

    number = worker.leave(chatter, "touch down; sleep 60")
    worker.wait_for("down")
    worker.tell("cancel", id=number)
    assert worker.answer(number)["condition"] == "Cancelled"

    number = worker.leave(chatter, "exit 0", live=True)
    worker.take(number)
    live = worker.answer(number)
    assert (live["ended"], live["stdout"]["end"]) == ("exited", "heldOpen")
    assert live["stdout"]["totalBytes"] == len(worker.output[number])


def test_output_that_waits_for_credit_is_the_commands_own_to_its_last_byte(worker: Worker) -> None:
    number = worker.run("head -c 50000 /dev/zero; touch over", live=True)
    worker.wait_for("over")
    assert worker.answer(worker.run("sleep 0.5"))["ended"] == "exited"  # past the moment that its streams get
    worker.credit(number, 50_000)
    result = worker.answer(number)
    assert (result["ended"], result["stdout"]) == ("exited", {"totalBytes": 50_000, "end": "seen"})
    assert worker.output[number] == bytes(50_000)


def test_a_cancel_is_answered_where_a_command_has_ended_and_nobody_takes_its_output(worker: Worker) -> None:
    number = worker.run("head -c 50000 /dev/zero; touch over", live=True)
    worker.wait_for("over")
    worker.tell("cancel", id=number)
    assert worker.answer(number)["condition"] == "Cancelled"
