"""A worker that is killed at any point leaves what a list shows and a destroy removes, or nothing."""

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from providers.local.tests import stepping
from providers.local.tests.leases import ISOLATION, Lease, unique_sleep
from providers.local.tests.machine import (
    PATIENCE_S,
    arguments_of,
    entries,
    environment_of,
    pids,
    state_of,
    until,
    wait_for_end,
)
from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import Limits, errors, types

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SHORT_MS = 50
MOMENTS = 200
MOST_STEPS = 200
"""No call has so many; a loop that comes there goes on for ever."""
Order = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def stepper() -> Iterator[Order]:
    """Runs one worker to its death; see `stepping`."""
    program = subprocess.Popen(
        [sys.executable, "-P", stepping.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    into, out = program.stdin, program.stdout

    def order(*, isolation: str = ISOLATION, **what: Any) -> dict[str, Any]:
        into.write(json.dumps({"isolation": isolation, **what}) + "\n")
        into.flush()
        assert select.select([out], [], [], PATIENCE_S)[0], "the worker hangs"
        answer: dict[str, Any] = json.loads(out.readline())
        assert answer["killed"], answer["step"]
        return answer

    yield order
    into.close()
    assert program.wait(PATIENCE_S) == 0
    out.close()


@pytest.fixture
async def host(state_dir: Path) -> AsyncIterator[HostInMemory]:
    limits = Limits(orphan_grace_ms=SHORT_MS)
    async with HostInMemory(LocalProvider, state_dir=state_dir, store_id="s", limits=limits) as host:
        yield host


def running_in(folder: Path) -> list[int]:
    """Live processes that show the folder in their arguments or environment: inits, and what runs under them."""
    mark = os.fsencode(folder)
    return [
        pid
        for pid in pids()
        if state_of(pid) not in "ZX" and any(mark in word for word in (*arguments_of(pid), *environment_of(pid)))
    ]


async def listed(host: HostInMemory) -> set[str]:
    answer: types.ListLeasesResult = await host.call("listLeases", types.ListLeasesParams())
    return {entry.sandbox_id for entry in answer.leases}


async def nothing_is_left(host: HostInMemory, state_dir: Path) -> None:
    assert await listed(host) == set()
    assert (entries(state_dir), running_in(state_dir)) == ([], [])


@pytest.mark.parametrize(("keep", "isolation"), [(False, ISOLATION), (True, "none")], ids=["not kept", "kept"])
async def test_an_acquire_that_is_killed_before_any_step_leaves_what_can_be_found_and_ended(
    stepper: Order, host: HostInMemory, state_dir: Path, *, keep: bool, isolation: str
) -> None:
    seen = []
    for number in range(MOST_STEPS):
        lease = Lease(host, state_dir, new_id())
        alone = number % 3 == 2
        answer = stepper(
            verb="acquire",
            stateDir=str(state_dir),
            sandboxId=lease.id,
            keep=keep,
            isolation=isolation,
            step=number,
            graceMs=SHORT_MS if alone else 600_000,
        )
        seen.append(answer["step"])
        # What a keeper has forked looks like it, until it is bubblewrap.
        until(lambda: len(running_in(state_dir)) <= 1, "no more than one process stays")
        if alone and not keep:
            until(lambda: running_in(state_dir) == [], "an init that nobody came to ends by itself")
        elif not alone:
            assert await listed(host) == set(entries(state_dir)) <= {lease.id}
            if lease.path.exists():  # An id serves one create, also where that was cut.
                with pytest.raises(errors.InvalidParams):
                    await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=lease.id, ttl_ms=60_000))
            if number % 3 == 1:
                assert (await lease.attach()).state in {"attached", "gone"}
        assert await lease.destroy() in {"destroyed", "gone"}
        await nothing_is_left(host, state_dir)
        if not answer["step"]:
            break
    assert {"os.mkdir", "os.rename", "fcntl.flock", "socket.bind", "os.posix_spawn", "socket.sendmsg", ""} <= set(seen)


async def test_an_init_that_no_worker_came_to_ends_after_one_grace_and_removes_its_folder(
    stepper: Order, host: HostInMemory, state_dir: Path
) -> None:
    """Also that of a sandbox that was to be kept: nobody was told of it."""
    lease = Lease(host, state_dir, new_id())
    order = {"verb": "acquire", "stateDir": str(state_dir), "sandboxId": lease.id, "keep": True, "graceMs": SHORT_MS}
    names = [stepper(**order, step=0)["step"]]
    while names[-1] != "socket.sendmsg":
        await lease.destroy()
        names.append(stepper(**order, step=len(names))["step"])
    # What comes before the socket asks bubblewrap for its version, which `subprocess` spawns too from Python 3.13 on.
    started = names[names.index("socket.bind") :]
    assert started.count("os.posix_spawn") == 1, "it was started, and then its worker was killed before the hello"
    until(lambda: entries(state_dir) == [], "it has ended by itself")
    until(lambda: running_in(state_dir) == [], "and is gone")


def leave(init: int) -> None:
    assert state_of(init) not in "ZX"


def kill(init: int) -> None:
    os.kill(init, signal.SIGKILL)
    wait_for_end(init)


BEFORE = pytest.mark.parametrize("before", [leave, kill], ids=["its init runs", "its init was killed"])


@BEFORE
@pytest.mark.parametrize(("keep", "isolation"), [(None, ISOLATION), (True, "none")], ids=["as it is", "kept"])
async def test_an_attach_that_is_killed_before_any_step_leaves_one_init_at_most_and_the_files(
    stepper: Order,
    host: HostInMemory,
    state_dir: Path,
    before: Callable[[int], None],
    *,
    keep: bool | None,
    isolation: str,
) -> None:
    for number in range(MOST_STEPS):
        lease = await Lease.acquire(host, state_dir, isolation=isolation)
        await lease.sh("echo kept > file")
        before(lease.init)
        order = {"verb": "attach", "stateDir": str(state_dir), "sandboxId": lease.id, "graceMs": 600_000}
        answer = stepper(**order, keep=keep, step=number)
        assert await listed(host) == {lease.id}
        assert len(running_in(lease.path)) <= 1
        if number % 2 or before is leave:
            assert (await lease.attach()).state == "attached"
            assert (await lease.sh("cat file")).stdout.data == b"kept\n"
            assert len(running_in(lease.path)) == 1
        assert await lease.destroy() == "destroyed"
        await nothing_is_left(host, state_dir)
        if not answer["step"]:
            break
    else:
        raise AssertionError("the attach has no end")


@pytest.mark.parametrize(
    ("before", "attached", "isolation"),
    [(leave, True, ISOLATION), (leave, False, ISOLATION), (kill, False, ISOLATION), (kill, False, "none")],
    ids=["attached", "not attached", "its keeper was killed", "its init was killed"],
)
async def test_a_destroy_that_is_killed_before_any_step_is_finished_by_a_repeat(
    stepper: Order,
    host: HostInMemory,
    state_dir: Path,
    before: Callable[[int], None],
    attached: bool,
    isolation: str,
) -> None:
    word = unique_sleep()
    for number in (*range(25), *range(25, MOST_STEPS, 3)):  # From there on it is one removal after another.
        lease = await Lease.acquire(host, state_dir, keep=True, isolation=isolation)
        await lease.sh(f"mkdir -p a/b; touch a/b/c; echo whole > z; setsid -f sleep {word} >/dev/null 2>&1")
        before(lease.init)
        order = {"verb": "destroy", "stateDir": str(state_dir), "sandboxId": lease.id, "graceMs": SHORT_MS}
        answer = stepper(**order, attached=attached, step=number)
        if number % 2:
            state = (await lease.attach()).state
            assert state in {"attached", "gone"}
            if state == "attached":
                whole = "test -e a/b/c && test -d $TMPDIR && cat z"
                assert (await lease.sh(whole)).stdout.data == b"whole\n", "nothing was removed yet"
        elif lease.path.exists():
            assert await listed(host) == {lease.id}
        assert await lease.destroy() in {"destroyed", "gone"}
        await nothing_is_left(host, state_dir)
        if not answer["step"]:
            break
    else:
        raise AssertionError("the destroy has no end")


async def test_workers_that_are_killed_at_random_moments_leave_nothing_that_a_list_does_not_show(
    stepper: Order, host: HostInMemory, state_dir: Path
) -> None:
    seed = int.from_bytes(os.urandom(4))
    print(f"seed {seed}")
    chance = random.Random(seed)
    word = unique_sleep()
    shown, longest_s = 0, 0.08
    for number in range(MOMENTS):
        order = {"verb": "life", "stateDir": str(state_dir), "word": word, "graceMs": 600_000}
        stepper(**order, delayS=chance.uniform(0.0, longest_s))
        if number % 10 < 9:
            continue  # Those of ten at once, so that workers end what others are in the middle of.
        there = await listed(host)
        for name in there:
            assert await Lease(host, state_dir, name).destroy() in {"destroyed", "gone"}
        shown += len(there)
        if len(there) < 2:
            longest_s *= 1.5  # A busy machine: its workers get less far.
        await nothing_is_left(host, state_dir)
    # How many is the machine's to say; none would mean that every worker was killed before it had begun.
    assert shown > MOMENTS / 20, "hardly any was killed with a sandbox in its hands"
