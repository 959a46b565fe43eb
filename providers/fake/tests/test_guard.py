"""What runs in a sandbox ends with its worker, with the sandbox, and with the guard: whatever it is, and however."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from providers.fake.tests.leases import Leases
from providers.fake.tests.worker import Worker, alive
from sandport_provider_fake.testing import WITHIN_S, Fake
from sandport_sdk.v1 import errors

# Leaves its session, its parent and its environment; the number of the process is in the file `escaped`.
ESCAPES = """
setsid sh -c 'env -i sh -c "echo \\$\\$ >escaped; exec sleep 600" &' </dev/null >/dev/null 2>&1 &
while [ ! -s escaped ]; do sleep 0.01; done
"""


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text().strip() != "", f"{path} was not written")
    return int(path.read_text())


def guards_of(fake: Fake, sandbox_id: str) -> list[int]:
    return [int(name) for name in os.listdir(fake.state_dir / "guards" / sandbox_id) if name.isdigit()]


@pytest.mark.parametrize("end", ["SIGKILL", "end of input", "SIGTERM"])
def test_a_worker_that_ends_takes_what_it_started_with_it_and_leaves_the_sandbox(fake: Fake, end: str) -> None:
    with Worker(fake) as first, Worker(fake) as second:
        sandbox_id = first.acquire()
        first.call("execute", sandboxId=sandbox_id, shell=ESCAPES + "echo kept >file")
        first.begin("execute", sandboxId=sandbox_id, shell="echo $$ >running; exec sleep 600")
        escaped = pid_in(fake.files(sandbox_id) / "escaped")
        running = pid_in(fake.files(sandbox_id) / "running")
        if end == "SIGKILL":
            first.kill()
        elif end == "SIGTERM":
            first.process.terminate()
            assert first.process.wait() == 0
        else:
            assert first.close() == 0
        attached = second.attach(sandbox_id)
        assert (attached["state"], attached["processesLost"]) == ("attached", True)
        assert not alive(escaped)
        assert not alive(running)
        assert second.call("execute", sandboxId=sandbox_id, argv=["cat", "file"])["exitCode"] == 0
        assert second.destroy(sandbox_id) == "destroyed"


def test_nothing_is_lost_where_nothing_ran(fake: Fake) -> None:
    with Worker(fake) as first, Worker(fake) as second:
        sandbox_id = first.acquire()
        first.call("execute", sandboxId=sandbox_id, argv=["true"])
        first.kill()
        assert second.attach(sandbox_id).get("processesLost", False) is False
        assert second.destroy(sandbox_id) == "destroyed"


def test_a_destroy_ends_what_another_worker_runs_there_also_where_that_is_stopped(fake: Fake) -> None:
    with Worker(fake) as first, Worker(fake) as second:
        sandbox_id = first.acquire()
        first.call("execute", sandboxId=sandbox_id, shell=ESCAPES)
        running = first.begin("execute", sandboxId=sandbox_id, shell="echo $$ >running; exec sleep 600")
        pids = [pid_in(fake.files(sandbox_id) / name) for name in ("escaped", "running")]
        (guard,) = guards_of(fake, sandbox_id)
        first.process.send_signal(signal.SIGSTOP)
        os.kill(guard, signal.SIGSTOP)
        assert second.destroy(sandbox_id) == "destroyed"
        assert not any(map(alive, pids))
        first.process.send_signal(signal.SIGCONT)
        assert first.answer(running)["error"]["data"]["condition"] == "SandboxLost"
        assert first.error("execute", sandboxId=sandbox_id, argv=["true"])["dispatched"] == "no"


def test_a_killed_guard_loses_the_command_and_leaves_nothing_of_it(fake: Fake) -> None:
    with Worker(fake) as worker:
        sandbox_id = worker.acquire()
        running = worker.begin("execute", sandboxId=sandbox_id, shell="echo $$ >running; sleep 600")
        pid = pid_in(fake.files(sandbox_id) / "running")
        (guard,) = guards_of(fake, sandbox_id)
        os.kill(guard, signal.SIGKILL)
        assert worker.answer(running)["error"]["data"]["condition"] == "SandboxLost"
        until(lambda: not alive(pid), "the command outlives its guard")
        assert worker.call("execute", sandboxId=sandbox_id, argv=["true"])["exitCode"] == 0
        assert worker.destroy(sandbox_id) == "destroyed"


def test_a_command_that_stops_its_guard_is_ended_all_the_same(fake: Fake) -> None:
    with Worker(fake) as worker:
        sandbox_id = worker.acquire()
        named = {"sandboxId": sandbox_id, "processId": "p"}
        stops = "until [ -e go ]; do sleep 0.01; done; kill -STOP $PPID; sleep 600"
        worker.call("startProcess", shell=stops, timeoutMs=1000, **named)
        (fake.files(sandbox_id) / "go").touch()
        assert worker.call("waitProcess", **named)["ended"] == "timedOut"
        (guard,) = guards_of(fake, sandbox_id)
        os.kill(guard, signal.SIGSTOP)
        asked = worker.begin("execute", sandboxId=sandbox_id, argv=["true"])
        assert worker.call("ping") == {"open": [asked]}
        worker.send({"jsonrpc": "2.0", "method": "cancel", "params": {"id": asked}})
        assert worker.answer(asked)["error"]["data"]["condition"] == "Cancelled"
        assert worker.destroy(sandbox_id) == "destroyed"


@pytest.mark.slow
def test_other_sandboxes_are_served_while_what_a_killed_guard_left_is_ended(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandport_provider_fake.guard.PAUSE_S", 5.0)  # before what was killed is looked for again

    async def tell() -> None:
        async with Leases(fake) as host:
            killed, other = await host.acquire(), await host.acquire()
            await host.execute(other, "true")
            running = host.run(killed, "echo $$ >up.new; mv up.new up; exec sleep 600")
            await host.execute(killed, "until [ -e up ]; do sleep 0.01; done")
            pid = int((fake.files(killed) / "up").read_text())
            (guard,) = guards_of(fake, killed)
            os.kill(guard, signal.SIGKILL)
            await asyncio.to_thread(until, lambda: not alive(pid), "nothing ends what it left")
            assert (await host.execute(other, "true")).exit_code == 0
            assert not running.ended, "it is still at it"
            with pytest.raises(errors.SandboxLost):
                await running.result()
            assert [await host.destroy(one) for one in (killed, other)] == ["destroyed", "destroyed"]

    asyncio.run(tell())


def test_a_sandbox_ends_though_a_call_of_a_command_that_has_ended_hangs(fake: Fake) -> None:
    fake.order("execute.started", "hang")
    with Worker(fake) as worker:
        sandbox_id = worker.acquire()
        worker.begin("execute", sandboxId=sandbox_id, shell="echo $$ >over")
        pid = pid_in(fake.files(sandbox_id) / "over")
        until(lambda: not alive(pid) and fake.journal("fault") != [], "the command does not end")
        assert worker.destroy(sandbox_id) == "destroyed"


def test_worker_and_guard_killed_at_once_leave_what_the_next_attach_ends(fake: Fake) -> None:
    with Worker(fake) as first, Worker(fake) as second:
        sandbox_id = first.acquire()
        first.begin("execute", sandboxId=sandbox_id, shell="echo $$ >running; sleep 600")
        pid = pid_in(fake.files(sandbox_id) / "running")
        (guard,) = guards_of(fake, sandbox_id)
        first.process.send_signal(signal.SIGSTOP)  # or it would clean up behind its guard before it is killed
        os.kill(guard, signal.SIGKILL)
        first.kill()
        assert second.attach(sandbox_id)["processesLost"] is True
        assert not alive(pid)
        assert second.destroy(sandbox_id) == "destroyed"


def test_workers_share_a_sandbox_and_the_end_of_one_leaves_the_others_calls_alone(fake: Fake) -> None:
    with Worker(fake) as first, Worker(fake) as second:
        sandbox_id = first.acquire()
        assert second.attach(sandbox_id).get("processesLost", False) is False
        first.call("execute", sandboxId=sandbox_id, shell="sleep 600 >/dev/null 2>&1 &")
        held = second.begin("execute", sandboxId=sandbox_id, shell="touch up; while [ ! -e go ]; do sleep 0.01; done")
        until((fake.files(sandbox_id) / "up").exists, "the second worker's command did not start")
        first.kill()
        (fake.files(sandbox_id) / "go").touch()
        assert second.answer(held)["result"]["exitCode"] == 0
        assert second.destroy(sandbox_id) == "destroyed"


def test_a_fork_bomb_ends_with_its_sandbox(fake: Fake) -> None:
    bomb = (
        "i=0; while [ $i -lt 40 ]; do (while :; do sh -c 'sleep 0.01 & sleep 0.01'; done) & i=$((i+1)); done; touch up"
    )
    with Worker(fake) as worker:
        sandbox_id = worker.acquire()
        worker.call("execute", sandboxId=sandbox_id, shell=f"{{ {bomb}; }} >/dev/null 2>&1")
        assert worker.destroy(sandbox_id) == "destroyed"


def test_a_folder_that_nobody_may_enter_goes_too(fake: Fake) -> None:
    """Where the tests run as root every folder can be entered; then this shows that such a tree is removed at all."""
    with Worker(fake) as worker:
        sandbox_id = worker.acquire()
        worker.call("execute", sandboxId=sandbox_id, shell="mkdir -p a/b && touch a/b/c && chmod 0 a/b a")
        assert worker.destroy(sandbox_id) == "destroyed"


def test_what_a_worker_asked_before_it_was_killed_does_not_begin_after(fake: Fake) -> None:
    with Worker(fake) as first, Worker(fake) as second:
        sandbox_id = first.acquire()
        first.call("execute", sandboxId=sandbox_id, argv=["true"])
        (guard,) = guards_of(fake, sandbox_id)
        os.kill(guard, signal.SIGSTOP)
        asked = first.begin("execute", sandboxId=sandbox_id, shell="touch begun")
        until(lambda: len(fake.journal("execute")) == 2, "the worker did not take the call")
        assert first.call("ping") == {"open": [asked]}  # so it has passed the call on
        first.kill()
        os.kill(guard, signal.SIGCONT)
        assert second.attach(sandbox_id)["state"] == "attached"
        assert not (fake.files(sandbox_id) / "begun").exists()
        assert second.destroy(sandbox_id) == "destroyed"


@pytest.mark.slow
def test_a_worker_killed_at_any_moment_of_a_command_leaves_nothing_that_runs(fake: Fake) -> None:
    with Worker(fake) as watcher:
        with Worker(fake) as first:
            sandbox_id = first.acquire()
            began = time.monotonic()
            first.call("execute", sandboxId=sandbox_id, shell=ESCAPES)
            took_s = time.monotonic() - began
        for cut in range(8):
            with Worker(fake) as worker:
                worker.attach(sandbox_id)
                (fake.files(sandbox_id) / "escaped").unlink(missing_ok=True)
                worker.begin("execute", sandboxId=sandbox_id, shell=ESCAPES + "sleep 600")
                time.sleep(took_s * cut / 6)  # the moment of the cut is what varies, and nothing is judged by it
                worker.kill()
            until(lambda: guards_of(fake, sandbox_id) == [], "the guard of a killed worker does not end")
            assert running_in(fake, sandbox_id) == []
            escaped = fake.files(sandbox_id) / "escaped"
            if escaped.exists() and (text := escaped.read_text().strip()):
                assert not alive(int(text))
        assert watcher.destroy(sandbox_id) == "destroyed"


def running_in(fake: Fake, sandbox_id: str) -> list[str]:
    return [line for line in fake.left() if line.startswith("process ") and line.endswith(sandbox_id)]
