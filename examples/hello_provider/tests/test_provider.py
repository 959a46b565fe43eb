"""What the kit cannot know of this provider: its own promises, shown with a host in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hello_provider.provider import HelloProvider
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import errors, types


def with_sandbox(story: Callable[[HostInMemory, str], Awaitable[None]], state_dir: Path) -> None:
    """Tell a story with a host and a sandbox of its own."""

    async def tell() -> None:
        async with HostInMemory(HelloProvider, state_dir=state_dir) as host:
            sandbox_id = new_id()
            await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=60_000))
            await story(host, sandbox_id)
            await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))

    asyncio.run(tell())
    assert list(state_dir.iterdir()) == []


def test_a_time_out_says_that_a_group_was_signalled_and_no_more(tmp_path: Path) -> None:
    async def story(host: HostInMemory, sandbox_id: str) -> None:
        params = types.ExecuteParams(sandbox_id=sandbox_id, shell="echo before; sleep 60", timeout_ms=200)
        result: types.ExecuteResult = await host.call("execute", params)
        assert (result.ended, result.tree, result.stdout.data) == ("timedOut", "signalled", b"before\n")

    with_sandbox(story, tmp_path)


def test_what_a_command_leaves_running_runs_on(tmp_path: Path) -> None:
    """That it ends with its sandbox is the kit's to see (LEASE-22). No process number: behind walls it has another."""

    async def story(host: HostInMemory, sandbox_id: str) -> None:
        beats = "setsid sh -c 'while :; do touch beat; sleep 0.02; done' &"
        left: types.ExecuteResult = await host.call("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=beats))
        assert (left.exit_code, left.tree, left.stdout.end) == (0, None, "heldOpen")
        again = "rm -f beat; until [ -e beat ]; do sleep 0.02; done"
        later = types.ExecuteParams(sandbox_id=sandbox_id, shell=again, timeout_ms=60_000)
        seen: types.ExecuteResult = await host.call("execute", later)
        assert seen.ended == "exited"

    with_sandbox(story, tmp_path)


def test_a_command_whose_sandbox_is_destroyed_is_told_so(tmp_path: Path) -> None:
    async def story(host: HostInMemory, sandbox_id: str) -> None:
        params = types.ExecuteParams(sandbox_id=sandbox_id, shell="echo up; sleep 60", live=True)
        live = host.start("execute", params)
        kept = host.start(
            "execute", types.ExecuteParams(sandbox_id=sandbox_id, shell="echo up >&2; touch up; sleep 60")
        )
        await live.received("stdout", 3)
        waits = "while ! [ -e up ]; do sleep 0.02; done"
        await host.call("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=waits, timeout_ms=60_000))
        await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))
        with pytest.raises(errors.SandboxLost):
            await live.result()
        with pytest.raises(errors.SandboxLost) as lost:
            await kept.result()
        assert lost.value.partial is not None
        assert lost.value.partial.stderr.data == b"up\n"

    with_sandbox(story, tmp_path)


def test_a_sandbox_outlives_its_worker(tmp_path: Path) -> None:
    async def tell() -> None:
        sandbox_id = new_id()
        async with HostInMemory(HelloProvider, state_dir=tmp_path) as first:
            acquire = types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=60_000)
            lease: types.LeaseResult = await first.call("acquireLease", acquire)
            await first.call("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell="echo kept >file"))
        async with HostInMemory(HelloProvider, state_dir=tmp_path) as second:
            attach = types.AttachLeaseParams(sandbox_id=sandbox_id, handle=lease.handle)
            attached: types.AttachLeaseResult = await second.call("attachLease", attach)
            assert (attached.state, attached.processes_lost) == ("attached", False)  # nothing ran any more
            read: types.ExecuteResult = await second.call(
                "execute", types.ExecuteParams(sandbox_id=sandbox_id, argv=("cat", "file"))
            )
            assert read.stdout.data == b"kept\n"
            await second.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))

    asyncio.run(tell())
