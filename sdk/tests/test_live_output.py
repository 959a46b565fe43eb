"""Live output under credit, and plain handlers in their threads."""

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from sandport_protocol.limits import Limits
from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import Call, errors, types
from sdk.tests.plain import DONE, Plain, command

pytestmark = pytest.mark.anyio

# ------------------------------------------------------------ live output


async def test_output_is_sent_under_credit_with_offsets_and_end_marks() -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            await call.output("stdout", b"abcdef")
            await call.output("stderr", bytearray(b"xy"))
            await call.end("stderr", "heldOpen")
            await call.output("stdout", memoryview(b"gh"))
            assert (call.sent("stdout"), call.sent("stderr"), call.sent("pty")) == (8, 2, 0)
            await call.end("stdout", "seen")
            return DONE

    async with HostInMemory(Made, limits=Limits(chunk_bytes=4)) as host:
        request = host.start("execute", command())
        assert await request.result() == DONE
        assert request.stdout == b"abcdefgh"
        assert [(p.stream, p.offset, p.data, p.end) for p in request.pieces] == [
            ("stdout", 0, b"abcd", None),
            ("stdout", 4, b"ef", None),
            ("stderr", 0, b"xy", None),
            ("stderr", 2, b"", "heldOpen"),
            ("stdout", 6, b"gh", None),
            ("stdout", 8, b"", "seen"),
        ]
        assert request.end_of("stderr") == "heldOpen"


async def test_output_waits_for_credit_and_a_stalled_stream_stalls_only_itself() -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            async with asyncio.TaskGroup() as group:
                group.create_task(call.output("stdout", b"o" * 25))
                group.create_task(call.output("stderr", b"e" * 25))
            for stream in ("stdout", "stderr"):
                await call.end(stream, "seen")
            return DONE

    async with HostInMemory(Made, limits=Limits(credit_bytes=10), credit="manual") as host:
        request = host.start("execute", command())
        assert await request.received("stdout", 10) == b"o" * 10
        request.give_credit("stderr", 100)
        assert await request.received("stderr", 25) == b"e" * 25
        assert len(request.stdout) == 10
        assert not request.ended
        request.give_credit("stdout", 15)
        await request.result()
        assert request.stdout == b"o" * 25


async def test_callbacks_can_send_output_without_a_task() -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            left = bytearray(b"0123456789" * 5)
            done = asyncio.get_running_loop().create_future()

            def pump() -> None:
                while size := min(len(left), call.credit_left("stdout")):
                    assert call.try_output("stdout", bytes(left[:size]))
                    del left[:size]
                if left:
                    assert call.credit_left("stdout") == 0
                    assert not call.try_output("stdout", b"x")
                    call.on_credit("stdout", pump)
                else:
                    done.set_result(None)

            call.on_credit("stdout", pump)
            await done
            call.send_end("stdout", "seen")
            call.send_end("stderr", "seen")
            return DONE

    async with HostInMemory(Made, limits=Limits(credit_bytes=7)) as host:
        request = host.start("execute", command())
        await request.result()
        assert request.stdout == b"0123456789" * 5


async def test_output_waits_for_the_pipe_too() -> None:
    full = asyncio.Event()

    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            await call.output("stdout", b"1")
            await full.wait()
            await call.output("stdout", b"2")
            await call.progress("after the pipe was full")
            for stream in ("stdout", "stderr"):
                await call.end(stream, "seen")
            return DONE

    async with HostInMemory(Made) as host:
        worker = host._worker
        assert worker is not None
        request = host.start("execute", command())
        await request.received("stdout", 1)
        worker.pause_writing()
        full.set()
        assert await host.call("probe") == types.ProbeResult()  # an answer does not wait
        assert request.stdout == b"1"
        worker.resume_writing()
        await request.result()
        assert request.stdout == b"12"
        assert [report.message for report in request.progress] == ["after the pipe was full"]


async def test_a_wait_follows_each_stream_from_the_offset_that_it_names() -> None:
    class Made(Plain):
        async def start_process(self, params: Any, call: Call) -> types.StartProcessResult:
            return types.StartProcessResult()

        async def write_process(self, params: Any, call: Call) -> types.WriteProcessResult:
            return types.WriteProcessResult(taken_bytes=0)

        async def signal_process(self, params: Any, call: Call) -> types.SignalProcessResult:
            return types.SignalProcessResult(delivered=False)

        async def wait_process(self, params: types.WaitProcessParams, call: Call) -> types.WaitProcessResult:
            await call.output("pty", b"new")
            assert call.sent("pty") == 3
            await call.end("pty", "seen")
            return types.WaitProcessResult(ended="exited", exit_code=0)

    async with HostInMemory(Made) as host:
        start = types.StreamOffset(stream="pty", offset=100)
        params = types.WaitProcessParams(sandbox_id=new_id(), process_id="p", from_offset=(start,))
        request = host.start("waitProcess", params)
        await request.result()
        assert [(piece.offset, piece.data) for piece in request.pieces] == [(100, b"new"), (103, b"")]


@pytest.mark.parametrize(
    ("streams", "missing"),
    [((), "stderr and stdout"), (("stdout",), "stderr"), (("stderr",), "stdout")],
)
async def test_a_forgotten_end_mark_is_a_fault_of_the_provider(streams: tuple[Any, ...], missing: str) -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            assert call.credit_left("pty")  # asking is not using
            for stream in streams:
                await call.end(stream, "seen")
            return DONE

    async with HostInMemory(Made) as host:
        with pytest.raises(errors.Internal, match=f"before it ended the output of {missing}"):
            await host.call("execute", command())


async def test_output_after_its_end_mark_is_a_fault_of_the_provider() -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            await call.end("stdout", "seen")
            await call.output("stdout", b"more")
            return DONE

    async with HostInMemory(Made) as host:
        with pytest.raises(errors.Internal, match="output for stdout after its end mark"):
            await host.call("execute", command())


async def test_a_task_that_outlives_its_call_cannot_send_output() -> None:
    late: list[BaseException] = []
    tasks = []

    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            async def outlives() -> None:
                try:
                    await call.output("stdout", b"more than the credit")
                except errors.Internal as error:
                    late.append(error)
                    await call.progress("dropped")

            tasks.append(asyncio.create_task(outlives()))
            await asyncio.sleep(0)
            raise errors.SandboxLost("gone")

    async with HostInMemory(Made, limits=Limits(credit_bytes=4), credit="manual") as host:
        request = host.start("execute", command())
        with pytest.raises(errors.SandboxLost):
            await request.result()
        await tasks[0]
        assert "after execute was answered" in str(late[0])
        assert request.stdout == b"more"
        assert request.progress == []


# ------------------------------------------------------------ threads and cancels


async def test_a_plain_handler_sends_output_from_its_thread() -> None:
    class Made(Plain):
        def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:  # type: ignore[override]
            assert threading.current_thread() is not threading.main_thread()
            for stream in ("stdout", "stderr"):
                call.run(call.output(stream, b"from a thread"))
                call.run(call.end(stream, "seen"))
            return DONE

    async with HostInMemory(Made, limits=Limits(credit_bytes=5)) as host:
        request = host.start("execute", command())
        assert await request.result() == DONE
        assert (request.stdout, request.stderr) == (b"from a thread", b"from a thread")


async def test_what_a_plain_handler_sets_in_its_context_ends_with_it() -> None:
    mark: ContextVar[str] = ContextVar("mark", default="clean")

    class Made(Plain):
        def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:  # type: ignore[override]
            found = mark.get()
            mark.set("left over")
            return types.ProbeResult(without=(found,))

    async with HostInMemory(Made) as host:
        for _ in range(3):
            assert await host.call("probe") == types.ProbeResult(without=("clean",))


async def test_a_cancel_ends_a_plain_handler_that_waits_for_credit() -> None:
    class Made(Plain):
        def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:  # type: ignore[override]
            call.run(call.output("stdout", b"more than fits"))
            return DONE

    async with HostInMemory(Made, limits=Limits(credit_bytes=4), credit="manual") as host:
        request = host.start("execute", command())
        await request.received("stdout", 4)
        request.cancel()
        with pytest.raises(errors.Cancelled) as caught:
            await request.result()
        assert caught.value.dispatched == "unknown"


@pytest.mark.parametrize("waits", [True, False])
async def test_a_cancel_interrupts_one_wait_of_a_plain_handler_and_leaves_its_cleaning_up_alone(waits: bool) -> None:
    cleaned = []
    begun, cancelled = asyncio.Event(), threading.Event()

    class Made(Plain):
        def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:  # type: ignore[override]
            async def begin() -> None:
                begun.set()
                if waits:
                    await asyncio.sleep(3600)

            async def clean() -> None:
                await asyncio.sleep(0)
                cleaned.append(call.id)

            try:
                call.run(begin())
                cancelled.wait()
                call.run(asyncio.sleep(3600))  # not waiting when the cancel came: interrupted here
            finally:
                call.run(clean())
            return DONE

    async with HostInMemory(Made) as host:
        request = host.start("execute", command())
        await begun.wait()
        request.cancel()
        cancelled.set()
        with pytest.raises(errors.Cancelled):
            await request.result()
        assert cleaned == [request.id]


async def test_waiting_in_the_loop_for_the_loop_is_refused() -> None:
    class Made(Plain):
        async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
            call.run(call.output("stdout", b"x"))
            return DONE

    async with HostInMemory(Made) as host:
        with pytest.raises(errors.Internal, match="await the coroutine"):
            await host.call("execute", command())


async def test_a_handler_in_the_loop_can_wait_for_its_cancel() -> None:
    class Made(Plain):
        async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
            watch = asyncio.create_task(call.cancelled.wait())
            try:
                await asyncio.sleep(3600)
            finally:
                await watch
            return types.ProbeResult()

    async with HostInMemory(Made) as host:
        request = host.start("probe")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(errors.Cancelled) as caught:
            await request.result()
        assert caught.value.dispatched == "no"  # a probe changes nothing


async def test_an_error_that_a_client_makes_of_a_cancel_is_still_a_cancel() -> None:
    class Made(Plain):
        async def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise ConnectionError("the request was aborted") from None
            raise AssertionError

    async with HostInMemory(Made) as host:
        request = host.start("acquireLease", types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(errors.Cancelled, match="the request was aborted"):
            await request.result()
