"""Processes in the style of the standard library: input, output as it comes, signals, the end."""

import asyncio
import signal

import pytest

from sandport.errors import NotSupported, ProcessNotFound, WorkerCrashed
from sandport_protocol.limits import Limits
from tests.integration.conftest import OpenHost
from tests.integration.stage import PATIENCE_S, Journal, alive, eventually, worker

pytestmark = pytest.mark.anyio

WITH_PROCESSES = worker("well_behaved", "--processes")
MIB = 1024 * 1024


async def test_a_process_answers_what_it_is_told(open_host: OpenHost) -> None:
    async with (
        open_host(folders=WITH_PROCESSES) as host,
        host.lease("folders") as sandbox,
        sandbox.start(shell='while read line; do echo "<$line>"; done; exit 4', stdin=True) as process,
    ):
        output = process.output()
        for word in (b"one", b"two"):
            assert await process.stdin.write(word + b"\n") == 4
            assert await anext(output) == ("stdout", b"<" + word + b">\n")
        await process.stdin.close()
        await process.stdin.close()
        outcome = await process.wait()
        assert (outcome.ended, outcome.exit_code) == ("exited", 4)
        assert not process.running


async def test_output_that_nobody_iterates_is_kept(open_host: OpenHost) -> None:
    async with (
        open_host(folders=WITH_PROCESSES) as host,
        host.lease("folders") as sandbox,
        sandbox.start(shell="echo out; echo err >&2", output_limit_bytes=100) as process,
    ):
        outcome = await process.wait()
        assert (bytes(outcome.stdout), bytes(outcome.stderr)) == (b"out\n", b"err\n")
        assert await process.wait() == outcome


async def test_an_iteration_that_is_left_does_not_stall_the_process(open_host: OpenHost) -> None:
    """What comes after it is kept for the outcome; the process would wait for credit for ever otherwise."""
    limits = Limits(credit_bytes=64 * 1024)
    async with (
        open_host(folders=WITH_PROCESSES, limits=limits) as host,
        host.lease("folders") as sandbox,
        sandbox.start(["head", "-c", str(2 * MIB), "/dev/zero"]) as process,
    ):
        taken = 0
        async for _, data in process.output():
            taken += len(data)
            if taken >= 64 * 1024:  # all of its credit
                break
        outcome = await process.wait()
        assert outcome.exit_code == 0
        assert outcome.stdout.total_bytes == 2 * MIB


async def test_one_task_iterates_and_another_waits(open_host: OpenHost) -> None:
    async with (
        open_host(folders=WITH_PROCESSES) as host,
        host.lease("folders") as sandbox,
        sandbox.start(["seq", "100000"]) as process,
    ):
        got = bytearray()

        async def collect() -> None:
            async for _, data in process.output():
                got.extend(data)

        collecting = asyncio.ensure_future(collect())
        await asyncio.sleep(0)
        outcome = await process.wait()
        await collecting
        assert outcome.stdout.total_bytes == len(got)
        assert bytes(got).endswith(b"\n100000\n")


async def test_a_signal_ends_it_and_is_named(open_host: OpenHost) -> None:
    """47, 48: earendil-works/pi#8992, nearai/ironclaw#7764: a signal was reported as 0, or masked."""
    async with (
        open_host(folders=WITH_PROCESSES) as host,
        host.lease("folders") as sandbox,
        sandbox.start(["sleep", "600"]) as process,
    ):
        assert await process.signal(signal.SIGTERM)
        outcome = await process.wait()
        assert (outcome.ended, outcome.exit_code, outcome.signal) == ("signalled", None, 15)
        assert not await process.signal(signal.SIGTERM)
        assert not await process.kill()


async def test_the_end_of_the_block_ends_the_process(open_host: OpenHost, journal: Journal) -> None:
    async with (
        open_host(folders=worker("well_behaved", "--processes", journal=journal.path)) as host,
        host.lease("folders") as sandbox,
    ):
        async with sandbox.start(["sleep", "600"]):
            (entry,) = await journal.until("executes")
            assert alive(entry["child"])
        assert not alive(entry["child"])


async def test_a_cancel_in_the_block_ends_the_process(open_host: OpenHost, journal: Journal) -> None:
    async with (
        open_host(folders=worker("well_behaved", "--processes", journal=journal.path)) as host,
        host.lease("folders") as sandbox,
    ):

        async def run() -> None:
            async with sandbox.start(["sleep", "600"], stdin=True) as process:
                await process.wait()

        running = asyncio.ensure_future(run())
        (entry,) = await journal.until("executes")
        await eventually(lambda: journal.received("waitProcess") == 1)
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((running,))
        assert running.cancelled()
        assert not alive(entry["child"])


async def test_a_cancel_that_falls_together_with_the_start_leaves_no_process(
    open_host: OpenHost, journal: Journal
) -> None:
    async with (
        open_host(folders=worker("well_behaved", "--processes", journal=journal.path)) as host,
        host.lease("folders") as sandbox,
    ):
        for turns in range(6):

            async def run() -> None:
                async with sandbox.start(["sleep", "600"]):
                    await asyncio.Event().wait()

            running = asyncio.ensure_future(run())
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait((running,))
        await eventually(lambda: not any(alive(entry["child"]) for entry in journal.of("executes")))


@pytest.mark.parametrize("iterated", [False, True])
async def test_large_input_goes_through_the_pipe_piece_by_piece(open_host: OpenHost, iterated: bool) -> None:
    """39, inspect_k8s_sandbox: input over about 28 MiB reset the connection."""
    data = bytes(range(256)) * 4096 * 24  # more than a frame may have
    assert len(data) > Limits().frame_bytes
    got = bytearray()
    async with open_host(folders=WITH_PROCESSES) as host, host.lease("folders") as sandbox:
        outcome = await sandbox.execute(
            ["cat"],
            stdin=data,
            output_limit_bytes=len(data),
            on_output=(lambda stream, piece: got.extend(piece)) if iterated else None,
        )
        assert outcome.exit_code == 0
        assert bytes(outcome.stdout) == data
        assert not iterated or bytes(got) == data


async def test_large_input_that_is_not_read_is_the_programs_own_business(open_host: OpenHost) -> None:
    async with open_host(folders=WITH_PROCESSES) as host, host.lease("folders") as sandbox:
        outcome = await sandbox.execute(shell="head -c 1; exit 6", stdin=b"x" * 5 * MIB)
        assert (bytes(outcome.stdout), outcome.exit_code) == (b"x", 6)


async def test_small_input_needs_no_processes(open_host: OpenHost) -> None:
    """38, langsmith-sdk#3453, cloudflare#141, mastra#24336: nobody closed the input, and the program waited."""
    async with open_host(folders=worker("well_behaved")) as host, host.lease("folders") as sandbox:
        assert bytes((await sandbox.execute(["cat"], stdin=b"x" * MIB)).stdout) == b"x" * MIB
        assert (await sandbox.execute(["cat"])).ok
        with pytest.raises(NotSupported, match="has no processes"):
            await sandbox.execute(["cat"], stdin=b"x" * (MIB + 1))
        with pytest.raises(NotSupported, match="has no processes"):
            async with sandbox.start(["cat"]):
                pytest.fail("it was started")


async def test_more_commands_than_a_sandbox_can_run_wait_their_turn(open_host: OpenHost) -> None:
    """44, asyncssh#244: the eleventh of several commands at once failed."""
    limited = worker("well_behaved", "--processes", "--at-most", "4")
    async with open_host(folders=limited) as host, host.lease("folders") as sandbox:
        async with sandbox.start(["cat"], stdin=True) as process:
            outcomes = await asyncio.gather(*(sandbox.execute(shell=f"exit {number}") for number in range(20)))
            assert [outcome.exit_code for outcome in outcomes] == list(range(20))
            assert process.running
        calls = [asyncio.ensure_future(sandbox.execute(["sleep", "600"])) for _ in range(6)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        assert (await sandbox.execute(["true"])).ok


async def test_a_crash_ends_the_process_for_its_host_with_what_was_received(
    open_host: OpenHost, journal: Journal
) -> None:
    async with (
        open_host(folders=worker("well_behaved", "--processes", journal=journal.path)) as host,
        host.lease("folders") as sandbox,
    ):
        async with sandbox.start(shell="echo begun; exec sleep 600", stdin=True) as process:
            running = await host._supervisor("folders").worker()
            waiting = asyncio.ensure_future(process.wait())
            await eventually(lambda: process._lane.received("stdout") == 6)
            running.process.signal_group(signal.SIGKILL)
            await running.ended
            with pytest.raises(WorkerCrashed) as raised:
                await waiting
            assert raised.value.partial is not None
            assert raised.value.partial.stdout.data == b"begun\n"
            with pytest.raises(ProcessNotFound):
                await process.stdin.write(b"x")
        assert (await sandbox.execute(["true"])).ok


async def test_an_iteration_raises_the_crash_of_its_worker_and_does_not_look_complete(open_host: OpenHost) -> None:
    """C11, microsoft/vscode-languageserver-node#656: what showed progress stayed open after a crash."""
    async with open_host(folders=WITH_PROCESSES) as host, host.lease("folders") as sandbox:
        running = await host._supervisor("folders").worker()
        async with sandbox.start(shell="echo begun; exec sleep 600") as process:
            output = process.output()
            assert await anext(output) == ("stdout", b"begun\n")
            running.process.signal_group(signal.SIGKILL)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(WorkerCrashed):
                    await anext(output)
            with pytest.raises(WorkerCrashed):
                await process.wait()
            assert not process.running
