"""Nothing waits for ever, and nothing that waits holds up anything else: deadlines, cancels, wedges, credit."""

import asyncio
import os
import signal

import anyio
import msgspec
import pytest

from sandport.errors import CallCancelled, Cancelled, DeadlineExceeded, ProtocolViolation, WorkerWedged
from sandport.numbers import Timing
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ExecuteParams
from tests.integration.conftest import OpenHost
from tests.integration.stage import PATIENCE_S, QUICK, Journal, Records, alive, eventually, worker
from tests.integration.vendor import Vendor

pytestmark = pytest.mark.anyio

BRIEF = Timing(command_margin_s=0.1, stop=QUICK.stop, restart=QUICK.restart)
"""A command's deadline is its time-out and a tenth of a second."""


# ------------------------------------------------------------------ deadlines and cancels


async def test_a_worker_that_never_answers_is_cancelled_then_told_then_ended(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    """B06, 13: bazelbuild/bazel#10288, cloudflare/sandbox-sdk#320: no reply, and the host waited for ever."""
    limits = Limits(cancel_grace_ms=100, wedge_ms=1500)
    command = worker("never_answers", journal=journal.path)
    async with open_host(scripted=command, timing=BRIEF, limits=limits) as host, host.lease("scripted") as sandbox:
        with pytest.raises(DeadlineExceeded) as raised:
            await sandbox.execute(["x"], timeout_s=1.4)
        assert raised.value.dispatched == "unknown"
        assert raised.value.partial is not None
        assert raised.value.partial.stdout.data == b"partial"
        assert len(await journal.until("cancelled")) == 1
        await records.until(lambda text: "execute did not end within 1.5 s after its caller was told" in text)
        running = host._supervisor("scripted")
        await eventually(lambda: running.current is None)
        await host.describe("scripted")
        assert running.starts == 2


async def test_a_worker_that_answers_no_ping_is_ended_and_its_calls_are_told_so(open_host: OpenHost) -> None:
    """R07, dask/distributed#8537: busy looked dead, and dead was given up."""
    limits = Limits(heartbeat_ms=50, wedge_ms=1500)
    async with open_host(scripted=worker("never_answers", "--deaf"), limits=limits) as host:
        async with host.lease("scripted") as sandbox:
            with pytest.raises(WorkerWedged, match=r"answered no ping for 1\.5 s") as raised:
                await sandbox.execute(["x"])
            assert raised.value.report is not None
            assert raised.value.report.kind == "wedge"
        assert host._supervisor("scripted").starts == 2


async def test_a_worker_that_is_only_slow_is_left_alone(open_host: OpenHost, journal: Journal) -> None:
    """R07, dask/distributed#8537."""
    limits = Limits(heartbeat_ms=20, wedge_ms=20_000)
    async with open_host(scripted=worker("never_answers", "--confirms", journal=journal.path), limits=limits) as host:
        async with host.lease("scripted") as sandbox:
            call = asyncio.ensure_future(sandbox.execute(["x"]))
            await journal.until("received", 5, method="ping")
            assert not call.done()
            call.cancel()
            await asyncio.wait((call,))
        assert host._supervisor("scripted").starts == 1


async def test_a_stopped_worker_goes_on_where_it_was(open_host: OpenHost, journal: Journal) -> None:
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        running = await host._supervisor("scripted").worker()
        os.kill(running.process.pid, signal.SIGSTOP)
        call = asyncio.ensure_future(sandbox.execute(["true"]))
        await eventually(lambda: "execute" in running.client.open_methods)
        os.kill(running.process.pid, signal.SIGCONT)
        assert (await call).ok
    assert len(journal.of("started")) == 1


async def test_the_answer_that_a_worker_forgot_is_found_out_by_a_ping(open_host: OpenHost) -> None:
    async with open_host(scripted=worker("never_answers", "--forgets")) as host, host.lease("scripted") as sandbox:
        with pytest.raises(ProtocolViolation, match="the worker lost this execute") as raised:
            await sandbox.execute(["x"])
        assert raised.value.partial is not None
        assert raised.value.partial.stdout.data == b"partial"


async def test_after_fifty_deadlines_the_worker_works_on_nothing(open_host: OpenHost, journal: Journal) -> None:
    """C01, modelcontextprotocol/python-sdk#2507, #1458: time-outs were local, and the worker's handlers leaked."""
    command = worker("never_answers", "--confirms", journal=journal.path)
    async with open_host(scripted=command, timing=BRIEF) as host, host.lease("scripted") as sandbox:
        calls = [sandbox.execute(["x"], timeout_s=0.05) for _ in range(50)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {DeadlineExceeded}
        ends = await journal.until("cancelled", 50)
        assert ends[-1]["open"] == 0
        running = await host._supervisor("scripted").worker()
        assert running.client.open_methods == ()


async def test_a_cancelled_call_is_cancelled_at_the_worker_and_says_so(open_host: OpenHost, journal: Journal) -> None:
    """C01, modelcontextprotocol/python-sdk#2507, #1458."""
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with anyio.move_on_after(30) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: sandbox.execute(["sleep", "600"]))
                await journal.until("executes")
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        (end,) = await journal.until("ended")
        assert end["killed"] == "cancelled"
        assert (await sandbox.execute(["true"])).ok


async def test_a_call_in_a_cancelled_scope_leaves_nothing_on_the_wire(open_host: OpenHost, journal: Journal) -> None:
    """C05, microsoft/vscode-languageserver-node#1282: what was cancelled before the call was missed."""
    async with (
        open_host(scripted=worker("well_behaved", "--processes", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sandbox.execute(["true"])
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with sandbox.start(["true"]):
                pytest.fail("it was started")
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with open_host(scripted=worker("well_behaved", journal=journal.path)) as host, host.lease("scripted"):
            pytest.fail("there is a lease")
    assert journal.received("execute") == journal.received("startProcess") == 0
    assert journal.received("acquireLease") == 1


async def test_capacity_is_whole_again_after_ten_times_as_many_cancels(open_host: OpenHost, journal: Journal) -> None:
    """B08, bazelbuild/bazel#26292: slots were not given back, until there were none."""
    limits = Limits(in_flight=4)
    command = worker("never_answers", "--confirms", journal=journal.path)
    async with open_host(scripted=command, limits=limits) as host, host.lease("scripted") as sandbox:
        for number in range(10):
            calls = [asyncio.ensure_future(sandbox.execute(["x"])) for _ in range(4)]
            await journal.until("executes", 4 * (number + 1))
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        calls = [asyncio.ensure_future(sandbox.execute(["x"])) for _ in range(4)]
        entries = await journal.until("executes", 44)
        assert entries[-1]["open"] == 4
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


async def test_the_end_of_the_host_reaches_the_handlers_of_a_worker(open_host: OpenHost, journal: Journal) -> None:
    """C06, microsoft/vs-streamjsonrpc#64: the other side never learnt that nobody listens any more."""
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        call = asyncio.ensure_future(sandbox.execute(["sleep", "600"]))
        await journal.until("executes")
        running = await host._supervisor("scripted").worker()
        running.let_go()
        (report,) = await asyncio.gather(running.ended)
        assert report.exit_code == 0
        await asyncio.wait((call,))
        assert call.exception() is not None


async def test_the_end_of_the_host_reaches_the_handlers_of_a_worker_on_the_sdk(vendor: Vendor) -> None:
    """C06, microsoft/vs-streamjsonrpc#64: a handler that waits for what does not come is cancelled, and ends what it
    had begun."""
    timing = msgspec.structs.replace(QUICK, exit_drain_s=PATIENCE_S)
    async with vendor.host(timing=timing, limits=Limits(drain_ms=300)) as host, host.lease("env") as sandbox:
        told = asyncio.Event()
        pids: list[int] = []

        def begun(stream: str, data: bytes) -> None:
            pids.append(int(data))
            told.set()

        call = asyncio.ensure_future(sandbox.execute(shell="echo $$; exec sleep 600", on_output=begun))
        await told.wait()
        running = await host._supervisor("fake").worker()
        running.let_go()
        async with asyncio.timeout(PATIENCE_S):
            report = await asyncio.shield(running.ended)
        assert (report.exit_code, report.signal) == (0, None)
        await asyncio.wait((call,))
        assert isinstance(call.exception(), Cancelled)  # and was not ended with the process around it
        await eventually(lambda: not alive(pids[0]))


async def test_a_cancel_from_another_task_is_told_as_one(open_host: OpenHost) -> None:
    async with open_host(scripted=worker("never_answers", "--confirms")) as host, host.lease("scripted"):
        client = (await host._supervisor("scripted").worker()).client
        params = ExecuteParams(sandbox_id="sp" + "a" * 26, argv=("x",))
        call = await client.begin(METHODS["execute"], params, deadline_s=None)
        client.cancel(call, "cancelled")
        with pytest.raises(CallCancelled, match="stopped") as raised:
            await call.future
        assert raised.value.dispatched == "yes"


# ------------------------------------------------------------------ pipes and credit


async def test_eight_mebibytes_on_stderr_before_the_answer_block_nothing(open_host: OpenHost, records: Records) -> None:
    """B01, anthropics/claude-agent-sdk-python#103: stderr's pipe was full, and both sides waited."""
    async with open_host(scripted=worker("noisy")) as host, host.lease("scripted") as sandbox:
        assert (await sandbox.execute(["much"])).ok
    assert len(records.texts("info")) >= 8 * 1024 * 1024 // 64


async def test_a_process_beyond_its_credit_loses_that_call_only(open_host: OpenHost, journal: Journal) -> None:
    limits = Limits(credit_bytes=128 * 1024)
    async with (
        open_host(scripted=worker("overdraws", journal=journal.path), limits=limits) as host,
        host.lease("scripted") as sandbox,
    ):

        async def stall(stream: str, data: bytes) -> None:
            await asyncio.Event().wait()

        with pytest.raises(ProtocolViolation, match="beyond its credit") as raised:
            await sandbox.execute(["flood"], on_output=stall)
        assert raised.value.partial is not None
        assert raised.value.partial.stdout.total_bytes == 128 * 1024
        assert len(await journal.until("cancelled")) == 1
        assert bytes((await sandbox.execute(["x"])).stdout) == b"ok"
        assert host._supervisor("scripted").starts == 1


async def test_a_worker_that_uses_its_credit_whole_is_in_order(open_host: OpenHost) -> None:
    async with open_host(scripted=worker("overdraws")) as host, host.lease("scripted") as sandbox:
        outcome = await sandbox.execute(["fill"])
        assert bytes(outcome.stdout) == b"x" * 1024 * 1024


async def test_a_consumer_that_stalls_stalls_only_its_own_command(open_host: OpenHost, journal: Journal) -> None:
    """B09, nushell/nushell#6934, #11911; 14, cloudflare/sandbox-sdk#438: one stuck command wedged all the others."""
    limits = Limits(credit_bytes=64 * 1024)
    resume = asyncio.Event()
    stalled = asyncio.Event()
    taken = 0

    async def stall(stream: str, data: bytes) -> None:
        nonlocal taken
        stalled.set()
        await resume.wait()
        taken += len(data)

    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path), limits=limits) as host,
        host.lease("scripted") as sandbox,
    ):
        size = 4 * 1024 * 1024
        slow = asyncio.ensure_future(sandbox.execute(["head", "-c", str(size), "/dev/zero"], on_output=stall))
        await stalled.wait()
        for _ in range(3):
            outcome = await sandbox.execute(["head", "-c", str(size), "/dev/zero"])
            assert outcome.stdout.total_bytes == size
        assert not slow.done()
        assert taken == 0
        resume.set()
        outcome = await slow
        assert outcome.stdout.total_bytes == size == taken


async def test_a_time_out_runs_on_while_a_consumer_stalls(open_host: OpenHost) -> None:
    """24, microsandbox#1549: a time-out did not fire while a stream was left open."""
    resume = asyncio.Event()

    async def stall(stream: str, data: bytes) -> None:
        await resume.wait()

    async with open_host(scripted=worker("well_behaved")) as host, host.lease("scripted") as sandbox:
        call = asyncio.ensure_future(sandbox.execute(shell="echo x; exec sleep 600", timeout_s=1.5, on_output=stall))
        loop = asyncio.get_running_loop()
        loop.call_later(1.6, resume.set)
        outcome = await call
        assert (outcome.ended, outcome.exit_code, outcome.signal) == ("timedOut", None, 9)
        assert bytes(outcome.stdout) == b"x\n"


async def test_output_of_one_command_arrives_in_order_and_whole(open_host: OpenHost) -> None:
    """32, E2B#1442: the tail of the output was missing."""
    got = bytearray()
    async with open_host(scripted=worker("well_behaved")) as host, host.lease("scripted") as sandbox:
        outcome = await sandbox.execute(["seq", "200000"], on_output=lambda stream, data: got.extend(data))
    expected = b"".join(b"%d\n" % number for number in range(1, 200_001))
    assert bytes(got) == expected
    assert bytes(outcome.stdout) == expected
