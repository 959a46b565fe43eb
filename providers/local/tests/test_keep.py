"""A kept sandbox outlives its workers, to its end or expiry; one that is not kept ends after one grace."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from providers.local.tests.leases import Lease, unique_sleep
from providers.local.tests.machine import entries, running, started, state_of, until, wait_for_end
from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import Limits, errors

pytestmark = pytest.mark.anyio

SHORT_MS = 30
WITNESS_MS = 300


def worker(state_dir: Path, grace_ms: int = SHORT_MS) -> HostInMemory:
    return HostInMemory(LocalProvider, state_dir=state_dir, limits=Limits(orphan_grace_ms=grace_ms))


@contextlib.asynccontextmanager
async def a_grace_goes_by(state_dir: Path) -> AsyncIterator[None]:
    """Around what leaves a sandbox alone: comes back when one with a much longer grace, left no earlier, has ended."""
    async with worker(state_dir, WITNESS_MS) as other:
        witness = await Lease.acquire(other, state_dir)
        init = witness.init
        yield
    wait_for_end(init)


async def destroy(lease: Lease, state_dir: Path) -> None:
    async with worker(state_dir) as last:
        assert await lease.seen_by(last).destroy() == "destroyed"
    assert entries(state_dir) == []


async def test_a_kept_sandbox_outlives_its_worker_with_what_runs_in_the_background(state_dir: Path) -> None:
    word = unique_sleep()
    async with a_grace_goes_by(state_dir), worker(state_dir) as host:
        lease = await Lease.acquire(host, state_dir, keep=True)
        await lease.sh(f"echo kept > file; setsid -f sleep {word} >/dev/null 2>&1")
        left = started(word)
    assert state_of(lease.init) not in "ZX"
    assert (running(word), lease.record["keep"]) == (left, True)
    async with worker(state_dir) as later:
        there = lease.seen_by(later)
        answer = await there.attach()
        assert (answer.state, answer.processes_lost) == ("attached", False)
        assert (await there.sh("cat file")).stdout.data == b"kept\n"
        assert await there.destroy() == "destroyed"
    assert (running(word), entries(state_dir)) == ([], [])


async def test_an_attach_that_does_not_speak_of_it_leaves_it_kept(state_dir: Path) -> None:
    async with worker(state_dir) as host:
        lease = await Lease.acquire(host, state_dir, keep=True)
    async with a_grace_goes_by(state_dir), worker(state_dir) as later:
        assert (await lease.seen_by(later).attach()).state == "attached"
    assert (lease.path.exists(), lease.record["keep"]) == (True, True)
    await destroy(lease, state_dir)


@pytest.mark.parametrize("known", [True, False], ids=["by its own worker", "by another worker"])
async def test_an_attach_can_keep_a_sandbox(state_dir: Path, *, known: bool) -> None:
    async with a_grace_goes_by(state_dir), worker(state_dir) as host, worker(state_dir) as other:
        lease = await Lease.acquire(host, state_dir)
        assert not lease.record["keep"]
        assert (await lease.seen_by(host if known else other).attach(keep=True)).state == "attached"
        assert lease.record["keep"]
    assert lease.path.exists()
    await destroy(lease, state_dir)


@pytest.mark.parametrize("known", [True, False], ids=["by its own worker", "by another worker"])
async def test_an_attach_can_bring_the_grace_back(state_dir: Path, *, known: bool) -> None:
    async with worker(state_dir) as host, worker(state_dir) as other:
        lease = await Lease.acquire(host, state_dir, keep=True)
        init = lease.init
        await lease.seen_by(host if known else other).attach(keep=False)
        assert not lease.record["keep"]
    wait_for_end(init)
    assert entries(state_dir) == []


async def test_a_kept_sandbox_whose_folder_was_removed_by_hand_ends(state_dir: Path) -> None:
    """Nobody could find it any more, and its expiry may be far away."""
    word = unique_sleep()
    async with worker(state_dir) as host:
        lease = await Lease.acquire(host, state_dir, keep=True)
        await lease.sh(f"setsid -f sleep {word} >/dev/null 2>&1")
        init = lease.init
        started(word)
    shutil.rmtree(lease.path)
    wait_for_end(init)
    assert running(word) == []


async def test_expiry_ends_a_kept_sandbox_that_nobody_is_attached_to(state_dir: Path) -> None:
    word = unique_sleep()
    async with worker(state_dir) as host:
        lease = await Lease.acquire(host, state_dir, ttl_ms=1_000, keep=True)
        await lease.sh(f"setsid -f sleep {word} >/dev/null 2>&1")
        init = lease.init
    wait_for_end(init)
    assert (running(word), entries(state_dir)) == ([], [])


@pytest.mark.parametrize("keep", [None, True], ids=["as the record says", "as the attach says"])
async def test_an_init_that_is_started_anew_keeps_what_the_record_keeps(state_dir: Path, *, keep: bool | None) -> None:
    async with a_grace_goes_by(state_dir), worker(state_dir) as host:
        lease = await Lease.acquire(host, state_dir, keep=keep is None)
        init = lease.init
        os.kill(init, signal.SIGKILL)
        wait_for_end(init)
        async with worker(state_dir) as other:
            answer = await lease.seen_by(other).attach(keep=keep)
            assert (answer.state, answer.processes_lost) == ("attached", True)
    assert state_of(lease.init) not in "ZX"
    assert lease.record["keep"]
    await destroy(lease, state_dir)


async def test_an_init_that_is_started_anew_has_the_grace_again_where_the_attach_says_so(state_dir: Path) -> None:
    async with worker(state_dir) as host:
        lease = await Lease.acquire(host, state_dir, keep=True)
        os.kill(lease.init, signal.SIGKILL)
        wait_for_end(lease.init)
        assert (await lease.attach(keep=False)).state == "attached"
        init = lease.init
        assert not lease.record["keep"]
    wait_for_end(init)
    assert entries(state_dir) == []


async def test_a_machine_that_is_shut_down_leaves_the_files_of_a_kept_sandbox(state_dir: Path) -> None:
    """A shutdown sends SIGTERM to every process; the files of what is kept must be there after it."""
    word = unique_sleep()
    async with worker(state_dir) as host:
        lease = await Lease.acquire(host, state_dir, keep=True)
        await lease.sh(f"echo kept > file; setsid -f sleep {word} >/dev/null 2>&1")
        init = lease.init
        os.kill(init, signal.SIGTERM)
        wait_for_end(init)
        assert running(word) == []
        with pytest.raises(errors.SandboxLost):
            await lease.run("true")
        answer = await lease.attach()
        assert (answer.state, answer.processes_lost) == ("attached", True)
        assert (await lease.sh("cat file")).stdout.data == b"kept\n"
        await lease.destroy()


async def test_what_cannot_be_recorded_does_not_count(lease: Lease) -> None:
    said = (lease.path / "record.json").read_bytes()
    (lease.path / "record.json").write_bytes(b"{")
    with pytest.raises(errors.Unavailable) as caught:
        await lease.attach(keep=True)
    assert caught.value.dispatched == "no"
    (lease.path / "record.json").write_bytes(said)
    assert (await lease.run("true")).exit_code == 0
    assert (await lease.attach(keep=True)).state == "attached"
    assert lease.record == {**json.loads(said), "keep": True}


async def test_workers_that_disagree_at_once_leave_record_and_init_in_agreement(state_dir: Path) -> None:
    async with worker(state_dir) as first, worker(state_dir) as second:
        lease = await Lease.acquire(first, state_dir)
        for _ in range(10):
            kept, unkept = lease.attach(keep=True), lease.seen_by(second).attach(keep=False)
            await asyncio.gather(kept, unkept)
        recorded, init = lease.record["keep"], lease.init
        async with a_grace_goes_by(state_dir):
            await first.end_input()
            await second.end_input()
        until(lambda: (state_of(init) not in "ZX") == recorded, "what was recorded is what holds")
    if recorded:
        await destroy(lease, state_dir)
