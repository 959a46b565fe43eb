"""Several workers on one sandbox at once: what belongs to whom, and what is left when one of them goes."""

import asyncio
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.local.tests.leases import Lease, unique_sleep
from providers.local.tests.machine import (
    arguments_of,
    children_of,
    descriptors_of,
    entries,
    environment_of,
    pids,
    running,
    started,
    state_of,
    until,
    wait_for_end,
)
from providers.local.tests.worker import Worker
from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import Limits

Start = Callable[..., Worker]


@pytest.fixture
def start(state_dir: Path) -> Iterator[Start]:
    """Starts workers on the test's state, and kills them in the end."""
    workers: list[Worker] = []

    def start(**more: Any) -> Worker:
        workers.append(Worker(state_dir, **more))
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


def inits_of(path: Path) -> list[int]:
    """Every init of a sandbox, or of all below a folder, found by its arguments."""
    mark = os.fsencode(path)
    return [pid for pid in pids() if any(mark in word for word in arguments_of(pid)) and state_of(pid) not in "ZX"]


@pytest.mark.parametrize("way", ["kill", "end"])
def test_the_end_of_a_worker_ends_what_it_had_started_and_nothing_of_the_others(
    start: Start, state_dir: Path, way: str
) -> None:
    """SPEC LEASE-20."""
    first, second, third = start(), start(), start()
    sandbox_id = first.acquire()
    assert [other.attach(sandbox_id)["state"] for other in (second, third)] == ["attached", "attached"]
    words = {worker: unique_sleep() for worker in (first, second, third)}
    calls = {
        worker: worker.begin("execute", sandboxId=sandbox_id, shell=f"setsid sleep {word} & sleep {word}; exit 5")
        for worker, word in words.items()
    }
    daemon = unique_sleep()
    second.answer(second.begin("execute", sandboxId=sandbox_id, shell=f"setsid -f sleep {daemon} >/dev/null 2>&1"))
    for word in words.values():
        started(word, 2)
    lost = started(words[second], 2)
    getattr(second, way)()
    wait_for_end(*lost)
    for worker in (first, third):
        assert len(running(words[worker])) == 2
        for pid in running(words[worker]):
            os.kill(pid, signal.SIGTERM)
        assert worker.answer(calls[worker])["result"]["exitCode"] == 5
        assert worker.call("execute", sandboxId=sandbox_id, argv=["true"])["exitCode"] == 0
    assert len(running(daemon)) == 1, "what it had left in the background is the sandbox's"
    assert third.destroy(sandbox_id) == "destroyed"
    assert (running(daemon), entries(state_dir)) == ([], [])


def test_the_grace_begins_when_the_last_worker_is_gone(start: Start, state_dir: Path) -> None:
    first, second = start(grace_ms=50), start(grace_ms=300)
    sandbox_id = first.acquire()
    assert second.attach(sandbox_id)["state"] == "attached"
    witness = second.acquire()
    ends = first.init_of(witness)
    second.kill()
    wait_for_end(ends)
    assert first.call("execute", sandboxId=sandbox_id, argv=["true"])["exitCode"] == 0
    init = first.init_of(sandbox_id)
    first.kill()
    wait_for_end(init)
    assert entries(state_dir) == []


@pytest.mark.anyio
async def test_the_grace_is_that_of_the_worker_that_was_there_last(state_dir: Path) -> None:
    def worker(grace_ms: int) -> HostInMemory:
        return HostInMemory(LocalProvider, state_dir=state_dir, limits=Limits(orphan_grace_ms=grace_ms))

    async with worker(60_000) as long:
        lease = await Lease.acquire(long, state_dir)
        async with worker(50) as short:
            await lease.seen_by(short).attach()
        async with worker(600) as other:
            witness = await Lease.acquire(other, state_dir)
            init = witness.init
            assert await long.end_input() == 0
        await asyncio.to_thread(wait_for_end, init)
        assert state_of(lease.init) not in "ZX"
    async with worker(50) as last:
        await lease.seen_by(last).attach()
        init = lease.init
    wait_for_end(init)


def test_a_destroy_by_one_worker_is_a_loss_for_the_command_of_another_and_never_a_result(
    start: Start, state_dir: Path
) -> None:
    first, second = start(), start()
    for _ in range(5):
        sandbox_id = first.acquire()
        second.attach(sandbox_id)
        word = unique_sleep()
        script = f"trap 'exit 0' TERM HUP INT; echo some; sleep {word} & wait; exit 0"
        call = second.begin("execute", sandboxId=sandbox_id, shell=script)
        started(word)
        assert first.destroy(sandbox_id) == "destroyed"
        error = second.answer(call)["error"]
        assert error["data"]["condition"] == "SandboxLost"
        assert error["data"]["partial"]["stdout"] == {"totalBytes": 5, "data": "c29tZQo="}
        assert running(word) == []
        late = second.answer(second.begin("execute", sandboxId=sandbox_id, argv=["true"]))
        assert late["error"]["data"]["condition"] == "LeaseNotFound"
        assert second.attach(sandbox_id)["state"] == "gone"
        assert second.destroy(sandbox_id) == "gone"
    assert entries(state_dir) == []


def kill(init: int) -> None:
    os.kill(init, signal.SIGKILL)
    wait_for_end(init)


def leave(init: int) -> None:
    assert state_of(init) not in "ZX"


@pytest.mark.parametrize("before", [leave, kill], ids=["its init runs", "its init was killed"])
@pytest.mark.parametrize("attached", [0, 1, 3], ids="{} attached".format)
def test_destroys_by_three_workers_at_once_all_end_well(
    start: Start, state_dir: Path, attached: int, before: Callable[[int], None]
) -> None:
    workers = [start() for _ in range(3)]
    for _ in range(2):
        sandbox_id = workers[0].acquire(keep=True)
        workers[0].call("execute", sandboxId=sandbox_id, shell="mkdir -p a/b/c; touch a/b/c/d; (sleep 600 >&- 2>&-) &")
        init = workers[0].init_of(sandbox_id)
        for worker in workers[1:attached]:
            worker.attach(sandbox_id)
        if attached == 0:  # The worker that made it has gone.
            workers[0].close()
            workers[0] = start()
        before(init)
        calls = [worker.begin("destroyLease", sandboxId=sandbox_id) for worker in workers]
        states = {worker.answer(call)["result"]["state"] for worker, call in zip(workers, calls, strict=True)}
        assert states <= {"destroyed", "gone"}
        assert entries(state_dir) == []
        assert state_of(init) in "ZX", "a zombie waits for whoever took it over"
        until(lambda: not any(children_of(worker.process.pid) for worker in workers), "no worker has one of its own")


def test_attaches_by_three_workers_at_once_start_one_init(start: Start, state_dir: Path) -> None:
    workers = [start() for _ in range(3)]
    for _ in range(2):
        sandbox_id = workers[0].acquire()
        workers[1].attach(sandbox_id)
        kill(workers[0].init_of(sandbox_id))
        handle = f"local/1/{sandbox_id}"
        calls = [worker.begin("attachLease", sandboxId=sandbox_id, handle=handle) for worker in workers]
        answers = [worker.answer(call)["result"] for worker, call in zip(workers, calls, strict=True)]
        assert [answer["state"] for answer in answers] == ["attached"] * 3
        assert [answer.get("processesLost", False) for answer in answers[:2]] == [True, True], "they had seen it before"
        assert inits_of(state_dir / sandbox_id) == [workers[0].init_of(sandbox_id)]
        for worker in workers:
            assert worker.call("execute", sandboxId=sandbox_id, argv=["true"])["exitCode"] == 0
        assert workers[2].destroy(sandbox_id) == "destroyed"


@pytest.mark.parametrize("before", [leave, kill], ids=["its init runs", "its init was killed"])
def test_attaches_and_a_destroy_at_once_leave_no_init_without_its_folder(
    start: Start, state_dir: Path, before: Callable[[int], None]
) -> None:
    """The one starts an init while the other removes what the last one has left."""
    workers = [start() for _ in range(3)]
    for number in range(6):
        sandbox_id = workers[0].acquire(keep=True)
        before(workers[0].init_of(sandbox_id))
        calls = []
        for worker in workers:
            if worker is workers[number % 3]:
                calls.append(worker.begin("destroyLease", sandboxId=sandbox_id))
            else:
                calls.append(worker.begin("attachLease", sandboxId=sandbox_id, handle=f"local/1/{sandbox_id}"))
        states = [worker.answer(call)["result"]["state"] for worker, call in zip(workers, calls, strict=True)]
        assert states[number % 3] == "destroyed"
        assert set(states) <= {"destroyed", "attached", "gone"}
        assert entries(state_dir) == []
        until(lambda: inits_of(state_dir) == [], "no init is left")
        for worker in workers:
            late = worker.answer(worker.begin("execute", sandboxId=sandbox_id, argv=["true"]))
            assert late["error"]["data"]["condition"] in {"LeaseNotFound", "NotAttached", "SandboxLost"}


@pytest.mark.anyio
async def test_attaches_by_one_worker_at_once_cost_no_command_that_the_first_one_let_in(
    lease: Lease, state_dir: Path
) -> None:
    async with HostInMemory(LocalProvider, state_dir=state_dir) as other:
        there = lease.seen_by(other)
        before = len(descriptors_of(os.getpid()))
        await there.attach()
        one = len(descriptors_of(os.getpid())) - before
        await there.destroy()
        again = await Lease.acquire(lease.host, state_dir)
        there = again.seen_by(other)
        before = len(descriptors_of(os.getpid()))
        attaches = [asyncio.ensure_future(there.attach()) for _ in range(20)]
        await asyncio.wait(attaches, return_when=asyncio.FIRST_COMPLETED)
        request = there.start("sh", "-c", "sleep 0.1; exit 3")
        assert {(await attach).state for attach in attaches} == {"attached"}
        assert (await request.result()).exit_code == 3
        assert len(descriptors_of(os.getpid())) - before == one
        await there.destroy()


def test_a_loss_that_a_worker_heard_of_and_did_not_pass_on_is_told_again(start: Start, state_dir: Path) -> None:
    """SPEC LEASE-18: the worker may be killed between the init's word and its own answer."""
    first = start()
    sandbox_id = first.acquire(keep=True)
    word = unique_sleep()
    first.begin("execute", sandboxId=sandbox_id, argv=["sleep", word])
    left = started(word)
    first.kill()
    wait_for_end(*left)
    for _ in range(2):
        worker = start()
        assert worker.attach(sandbox_id)["processesLost"]
        worker.kill()
    worker = start()
    assert worker.attach(sandbox_id)["processesLost"]
    worker.call("execute", sandboxId=sandbox_id, argv=["true"])
    worker.kill()
    worker = start()
    assert not worker.attach(sandbox_id).get("processesLost", False)
    assert worker.destroy(sandbox_id) == "destroyed"
    assert entries(state_dir) == []


def test_neither_init_nor_commands_carry_the_workers_token(start: Start) -> None:
    """A host finds what a worker has left by that token, and an init is meant to outlive its worker."""
    token = f"in-of-a-host.{secrets.token_hex(8)}"  # another run on this machine has its own
    worker = start(variables={"SANDPORT_WORKER_TOKEN": token})
    assert any(token.encode() in word for word in environment_of(worker.process.pid))
    sandbox_id = worker.acquire(keep=True)
    word = unique_sleep()
    printed = worker.call("execute", sandboxId=sandbox_id, shell=f"setsid -f sleep {word} >/dev/null 2>&1; env")
    assert "SANDPORT_WORKER_TOKEN" not in printed["stdout"]["data"]
    call = worker.begin("execute", sandboxId=sandbox_id, argv=["sleep", word])
    carriers = [pid for pid in pids() if any(token.encode() in said for said in environment_of(pid))]
    assert carriers == [worker.process.pid]
    for pid in (worker.init_of(sandbox_id), *started(word, 2)):
        assert all(token.encode() not in said for said in (*environment_of(pid), *arguments_of(pid)))
    worker.send({"jsonrpc": "2.0", "method": "cancel", "params": {"id": call}})
    until(lambda: len(running(word)) == 1, "the command has ended, what it left in the background has not")
    assert worker.destroy(sandbox_id) == "destroyed"


def test_calls_of_several_workers_run_side_by_side(start: Start) -> None:
    """Each waits for a file that the next one makes: none of them could end if one held up another."""
    workers = [start() for _ in range(3)]
    sandbox_id = workers[0].acquire()
    for worker in workers[1:]:
        worker.attach(sandbox_id)
    ended = []

    def run(number: int) -> None:
        script = f"touch at{number}; while ! [ -e at{(number + 1) % 3} ]; do sleep 0.01; done; exit {number}"
        ended.append(workers[number].call("execute", sandboxId=sandbox_id, shell=script)["exitCode"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(ended) == [0, 1, 2]
    assert workers[1].destroy(sandbox_id) == "destroyed"
