"""What the kit cannot know of this provider: its own promises, shown with a host in memory."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hello_provider.provider import HelloProvider
from sandport_sdk.testing import HostInMemory, Request, new_id
from sandport_sdk.v1 import Limits, errors, types


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
        params = types.ExecuteParams(sandbox_id=sandbox_id, shell="echo before; sleep 60", timeout_ms=1500)
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


SLOW = "while :; do echo x; sleep 0.05; done"
FLOOD = "exec yes"
HANG_S = 60


@pytest.mark.parametrize("chatter", [SLOW, FLOOD])
def test_what_a_command_leaves_writing_keeps_nobody_waiting(tmp_path: Path, chatter: str) -> None:
    async def story(host: HostInMemory, sandbox_id: str) -> None:
        def run(then: str, **params: Any) -> Request:
            # By its first line the child is in its own session, out of reach of what becomes of the command.
            shell = f"setsid sh -c 'touch up; {chatter}' & until [ -e up ]; do sleep 0.01; done; rm up; {then}"
            return host.start("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=shell, **params))

        async def of(request: Request) -> types.ExecuteResult:
            result: types.ExecuteResult = await asyncio.wait_for(request.result(), HANG_S)
            return result

        kept = await of(run("echo last >&2; exit 3", timeout_ms=60_000))
        assert (kept.ended, kept.exit_code, kept.stdout.end, kept.stderr.data) == ("exited", 3, "heldOpen", b"last\n")
        live = await of(running := run("exit 0", live=True))
        assert (live.ended, live.stdout.end, running.end_of("stdout")) == ("exited", "heldOpen", "heldOpen")
        assert live.stdout.total_bytes == len(running.stdout)
        late = await of(run("sleep 60", timeout_ms=1500))
        assert (late.ended, late.stdout.end) == ("timedOut", "heldOpen")
        running = run("touch down; sleep 60")
        await host.call(
            "execute", types.ExecuteParams(sandbox_id=sandbox_id, shell="until [ -e down ]; do sleep 0.01; done")
        )
        running.cancel()
        with pytest.raises(errors.Cancelled):
            await of(running)

    with_sandbox(story, tmp_path)


def test_output_that_waits_for_credit_is_the_commands_own_to_its_last_byte(tmp_path: Path) -> None:
    async def tell() -> None:
        limits = Limits(credit_bytes=1000)
        async with HostInMemory(HelloProvider, state_dir=tmp_path, limits=limits, credit="manual") as host:
            sandbox_id = new_id()
            await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=60_000))
            shell = "head -c 50000 /dev/zero; touch over"
            running = host.start("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=shell, live=True))
            over = "until [ -e over ]; do sleep 0.01; done; sleep 0.5"  # past the moment that its streams get
            await host.call("execute", types.ExecuteParams(sandbox_id=sandbox_id, shell=over))
            assert not running.ended
            running.give_credit("stdout", 100_000)
            result: types.ExecuteResult = await asyncio.wait_for(running.result(), HANG_S)
            assert (result.stdout.total_bytes, result.stdout.end) == (50_000, "seen")
            assert running.stdout == bytes(50_000)
            await host.call("destroyLease", types.DestroyLeaseParams(sandbox_id=sandbox_id))

    asyncio.run(tell())


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
