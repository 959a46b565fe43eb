"""The client of one connection, its worker's answers written by hand: order, slots, cancels, lost answers."""

import asyncio
import gc
import weakref
from functools import partial
from typing import Any

import pytest
from msgspec import Raw

from host.tests.wire import Message, Wire, hello_with, turn
from sandport.errors import (
    CallCancelled,
    DeadlineExceeded,
    ProtocolViolation,
    SandportError,
    TooLarge,
    WorkerCrashed,
    WorkerWedged,
)
from sandport.lane import OutputLane
from sandport.worker.open_call import OpenCall, OutputSink
from sandport.worker.report import CrashReport, Kind
from sandport_protocol.codec import encode
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.slices import SLICE_BYTES
from sandport_protocol.v1 import OutputParams, ProbeParams, ProbeResult, ProgressParams, ShutdownParams

pytestmark = pytest.mark.anyio


def params(size: int = 0) -> ProbeParams:
    return ProbeParams(config=Raw(encode({"x": "y" * size})))


async def begin(wire: Wire, *, deadline_s: float | None = None, sink: OutputSink | None = None) -> OpenCall:
    return await wire.client.begin(METHODS["probe"], params(), deadline_s=deadline_s, sink=sink)


async def probe(wire: Wire, *, deadline_s: float | None = None) -> ProbeResult:
    return await wire.client.call(METHODS["probe"], params(), ProbeResult, deadline_s=deadline_s)


def of(frames: list[Message], method: str) -> list[Message]:
    return [frame for frame in frames if frame.get("method") == method]


def report(kind: Kind = "exit") -> CrashReport:
    return CrashReport(id="c0ffee00", provider="scripted", pid=1, exit_code=3, uptime_s=1.0, phase="serving", kind=kind)


async def failure_of(call: OpenCall) -> SandportError:
    with pytest.raises(SandportError) as raised:
        await call.future
    return raised.value


async def test_a_call_says_how_long_its_host_will_wait() -> None:
    """Advice for the vendor's own calls; a call without a deadline says nothing."""
    wire = await Wire().greet()
    await begin(wire, deadline_s=2.5)
    await begin(wire)
    first, second = wire.frames()
    assert first["params"]["_meta"] == {"deadlineMs": 2500}
    assert "_meta" not in second["params"]


# ------------------------------------------------------------------ order


async def test_calls_of_one_turn_leave_together_and_in_order() -> None:
    """microsoft/vscode-languageserver-node#634 (F22)."""
    wire = await Wire().greet()
    calls = [await begin(wire) for _ in range(10)]
    await turn()
    assert [frame["id"] for frame in wire.frames()] == [call.id for call in calls]


async def test_a_cancel_never_overtakes_its_call() -> None:
    wire = await Wire().greet()
    calls = [await begin(wire) for _ in range(5)]
    wire.client.cancel(calls[-1], "cancelled")
    assert [frame["method"] for frame in wire.frames()] == ["probe"] * 5 + ["cancel"]


async def test_while_the_pipe_is_full_a_ping_goes_out_and_a_call_waits() -> None:
    """modelcontextprotocol/python-sdk#1333 (B10): what is queued must not stop control messages.

    And since a pong names what the worker has, a ping may not overtake a call that was made before it: the call is
    made when it can be written.
    """
    wire = await Wire().greet()
    wire.client.pause_writing()
    waiting = asyncio.ensure_future(probe(wire))
    pinging = asyncio.ensure_future(wire.client.ping(deadline_s=30))
    await turn()
    (ping,) = wire.frames()
    assert ping["method"] == "ping"
    wire.answer(ping["id"], {"open": []})
    await pinging
    wire.client.resume_writing()
    await turn()
    (call,) = wire.frames()
    wire.answer(call["id"], {})
    await waiting


async def test_a_call_cancelled_while_the_pipe_is_full_leaves_nothing_on_the_wire() -> None:
    """microsoft/vscode-languageserver-node#1282 (C05): look before sending."""
    wire = await Wire().greet()
    wire.client.pause_writing()
    waiting = asyncio.ensure_future(probe(wire))
    await turn()
    waiting.cancel()
    await asyncio.wait((waiting,))
    wire.client.resume_writing()
    await turn()
    assert wire.frames() == []


async def test_a_large_call_goes_out_in_slices_and_others_wait_until_it_is_through() -> None:
    wire = await Wire().greet()
    large = params(10 * SLICE_BYTES)
    sizes: list[int] = []

    class FullAt(type(wire.pipe)):  # type: ignore[misc]
        def write(self, data: Any) -> None:
            sizes.append(len(data))
            super().write(data)
            wire.client.pause_writing()

    wire.pipe.__class__ = FullAt
    first = await wire.client.begin(METHODS["probe"], large, deadline_s=None)
    second = asyncio.ensure_future(probe(wire))
    await turn()
    assert sizes == [SLICE_BYTES]
    while not second.done() and len(sizes) < 20:
        wire.client.resume_writing()
        await turn()
        frames = wire.frames() if sizes[-1] < SLICE_BYTES else []
        for frame in frames:
            wire.answer(frame["id"], {})
    assert first.future.done()
    assert await second == ProbeResult()
    assert sizes[:10] == [SLICE_BYTES] * 10


async def test_a_pipe_that_breaks_in_the_middle_of_a_large_call_gets_no_more_of_it() -> None:
    """asyncio warns of each write to a pipe that is lost."""
    wire = await Wire().greet()
    sizes: list[int] = []

    class Breaks(type(wire.pipe)):  # type: ignore[misc]
        def write(self, data: Any) -> None:
            sizes.append(len(data))

        def is_closing(self) -> bool:
            return len(sizes) >= 3

    wire.pipe.__class__ = Breaks
    call = await wire.client.begin(METHODS["probe"], params(10 * SLICE_BYTES), deadline_s=None)
    wire.client.resume_writing()
    wire.client.finish_writing()
    assert sizes == [SLICE_BYTES] * 3
    wire.client.close(report(), "it crashed")
    assert isinstance(await failure_of(call), WorkerCrashed)


async def test_what_is_left_of_a_large_call_goes_out_before_the_pipe_is_closed() -> None:
    wire = await Wire().greet()
    wire.client.pause_writing()
    await wire.client.begin(METHODS["ping"], params(3 * SLICE_BYTES), deadline_s=None)
    wire.client.finish_writing()
    (frame,) = wire.frames()
    assert frame["method"] == "ping"


async def test_a_large_burst_stops_when_the_pipe_says_that_it_is_full() -> None:
    wire = await Wire().greet()
    large = params(100_000)
    tasks = []

    async def call() -> None:
        await wire.client.call(METHODS["probe"], large, ProbeResult, deadline_s=None)

    class FullAt(type(wire.pipe)):  # type: ignore[misc]
        def write(self, data: Any) -> None:
            super().write(data)
            wire.client.pause_writing()

    wire.pipe.__class__ = FullAt
    tasks = [asyncio.ensure_future(call()) for _ in range(50)]
    await turn(10)
    assert len(wire.frames()) <= 4
    wire.client.close(report(), "it crashed")
    assert all(isinstance(r, WorkerCrashed) for r in await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_frame_beyond_the_workers_ceiling_is_not_sent_and_costs_no_slot() -> None:
    wire = await Wire(Limits(frame_bytes=10_000, in_flight=1)).greet()
    for _ in range(3):
        with pytest.raises(TooLarge) as raised:
            await wire.client.begin(METHODS["probe"], params(20_000), deadline_s=None)
        assert raised.value.dispatched == "no"
    assert wire.frames() == []
    await begin(wire)
    assert len(wire.frames()) == 1


# ------------------------------------------------------------------ slots


async def test_no_more_calls_are_in_flight_than_agreed_and_the_rest_follow() -> None:
    wire = await Wire(Limits(in_flight=3)).greet()
    tasks = [asyncio.ensure_future(probe(wire)) for _ in range(10)]
    await turn()
    seen = 0
    while seen < 10:
        frames = wire.frames()
        assert len(frames) <= 3
        seen += len(frames)
        for frame in frames:
            wire.answer(frame["id"], {})
        await turn()
    await asyncio.gather(*tasks)


@pytest.mark.slow
async def test_ten_thousand_waiting_calls_do_not_hold_up_a_ping() -> None:
    """modelcontextprotocol/python-sdk#1333 via #2163 (B10)."""
    wire = await Wire(Limits(in_flight=16)).greet()
    tasks = [asyncio.ensure_future(probe(wire)) for _ in range(10_000)]
    await turn()
    assert len(of(wire.frames(), "probe")) == 16
    pinging = asyncio.ensure_future(wire.client.ping(deadline_s=30))
    await turn()
    (ping,) = wire.frames()
    wire.answer(ping["id"], {"open": list(range(2, 18))})
    await pinging
    wire.client.close(report(), "it crashed")
    assert all(isinstance(r, WorkerCrashed) for r in await asyncio.gather(*tasks, return_exceptions=True))


async def test_a_shutdown_needs_no_slot() -> None:
    wire = await Wire(Limits(in_flight=1)).greet()
    await begin(wire)
    await wire.client.begin(METHODS["shutdown"], ShutdownParams(), deadline_s=None)
    assert [frame["method"] for frame in wire.frames()] == ["probe", "shutdown"]


async def test_slots_come_back_after_ten_times_as_many_cancels() -> None:
    """bazelbuild/bazel#26292 (B08): capacity decayed to nothing."""
    capacity = 4
    wire = await Wire(Limits(in_flight=capacity)).greet()
    for _ in range(10):
        tasks = [asyncio.ensure_future(probe(wire)) for _ in range(capacity)]
        await turn()
        for task in tasks:
            task.cancel()
        await turn()
        for cancel in of(wire.frames(), "cancel"):
            wire.refuse(cancel["params"]["id"], -32026, condition="Cancelled", dispatched="no")
        await asyncio.wait(tasks)
    tasks = [asyncio.ensure_future(probe(wire)) for _ in range(capacity)]
    await turn()
    assert len(of(wire.frames(), "probe")) == capacity
    for task in tasks:
        task.cancel()
    wire.client.close(report(), "it crashed")
    await asyncio.wait(tasks)


async def test_a_slot_comes_back_with_the_answer_that_came_too_late() -> None:
    """bazelbuild/bazel#26292 (B08): a slot is the worker's until it has answered, and not a moment longer."""
    late: list[str] = []
    wire = await Wire(
        Limits(in_flight=1, cancel_grace_ms=0), on_late=lambda method, params, result: late.append(method)
    ).greet()
    call = await begin(wire)
    wire.client.cancel(call, "cancelled")
    assert isinstance(await failure_of(call), CallCancelled)
    waiting = asyncio.ensure_future(probe(wire))
    await turn()
    assert of(wire.frames(), "probe") == [
        {"jsonrpc": "2.0", "id": call.id, "method": "probe", "params": {"config": {"x": ""}}}
    ]
    wire.answer(call.id, {})
    await turn()
    assert late == ["probe"]
    (next_call,) = wire.frames()
    wire.answer(next_call["id"], {})
    await waiting


async def test_a_call_that_gets_no_slot_before_its_deadline_was_not_sent() -> None:
    wire = await Wire(Limits(in_flight=1)).greet()
    await begin(wire)
    with pytest.raises(DeadlineExceeded) as raised:
        await probe(wire, deadline_s=0.01)
    assert raised.value.dispatched == "no"
    assert "1 calls are in flight" in str(raised.value)
    assert len(wire.frames()) == 1


# ------------------------------------------------------------------ one outcome


async def test_a_result_that_crosses_a_cancel_wins() -> None:
    wire = await Wire().greet()
    call = await begin(wire)
    wire.client.cancel(call, "cancelled")
    wire.answer(call.id, {"without": ["pty"]})
    assert wire.client.result_of(call, await call.future, ProbeResult).without == ("pty",)


async def test_a_result_of_the_same_moment_as_the_callers_cancel_is_not_lost() -> None:
    wire = await Wire().greet()
    call = await begin(wire)

    async def wait() -> None:
        await call.future

    waiter = asyncio.ensure_future(wait())
    await turn()
    waiter.cancel()
    wire.answer(call.id, {"without": ["pty"]})
    await asyncio.wait((waiter,))
    assert waiter.cancelled()
    settled = await wire.client.settle(call)
    assert isinstance(settled, Raw)
    assert of(wire.frames(), "cancel") == []


async def test_a_confirmed_cancel_says_what_became_of_the_effect() -> None:
    wire = await Wire().greet()
    call = await begin(wire)
    wire.client.cancel(call, "cancelled")
    wire.refuse(call.id, -32026, "stopped", condition="Cancelled", dispatched="no")
    error = await failure_of(call)
    assert isinstance(error, CallCancelled)
    assert error.dispatched == "no"
    assert "stopped" in str(error)


async def test_a_deadline_is_the_hosts_own_and_sends_a_cancel() -> None:
    """modelcontextprotocol/python-sdk#2507, #1458 (C01): a time-out stayed local, and the worker worked on."""
    wire = await Wire(Limits(cancel_grace_ms=0)).greet()
    call = await begin(wire, deadline_s=0.001)
    error = await failure_of(call)
    assert isinstance(error, DeadlineExceeded)
    assert error.dispatched == "unknown"
    assert [frame["method"] for frame in wire.frames()] == ["probe", "cancel"]


async def test_a_call_that_never_ends_after_its_cancel_is_a_wedge() -> None:
    """bazelbuild/bazel#10288 (B06): no reply, and the host waited for ever."""
    wire = await Wire(Limits(cancel_grace_ms=0, wedge_ms=1)).greet()
    call = await begin(wire)
    wire.client.cancel(call, "cancelled")
    await failure_of(call)
    async with asyncio.timeout(30):
        assert "probe did not end" in await wire.wedge
    wire.client.close(report("wedge"), "it was ended")
    with pytest.raises(WorkerWedged):
        await probe(wire)


async def test_every_call_ends_exactly_once_however_answers_and_cancels_fall() -> None:
    """modelcontextprotocol/python-sdk PR #3188, PR #1153 (C04): cancelled requests were answered, or answered twice."""
    wire = await Wire().greet()
    calls = [await begin(wire) for _ in range(60)]
    ends: list[int] = []
    for call in calls:
        call.future.add_done_callback(lambda _, call=call: ends.append(call.id))  # type: ignore[misc]
    for number, call in enumerate(calls):
        steps = ["cancel", "answer", "error", "cancel", "answer"][number % 3 : number % 5 + 1] or ["answer"]
        for step in steps:
            if step == "cancel":
                wire.client.cancel(call, "cancelled")
            elif step == "answer":
                wire.answer(call.id, {})
            else:
                wire.refuse(call.id, -32026, condition="Cancelled", dispatched="no")
    await turn()
    wire.client.close(report(), "it crashed")
    await asyncio.gather(*(call.future for call in calls), return_exceptions=True)
    await turn()
    assert sorted(ends) == [call.id for call in calls]
    cancels = [frame["params"]["id"] for frame in of(wire.frames(), "cancel")]
    assert len(cancels) == len(set(cancels))


async def test_a_reply_twice_or_to_nobody_is_noted_and_dropped() -> None:
    """microsoft/vs-streamjsonrpc#489, PR #492 (C02): an unknown id closed the connection."""
    wire = await Wire().greet()
    call = await begin(wire)
    wire.answer(call.id, {})
    wire.answer(call.id, {})
    wire.answer(999, {})
    await call.future
    assert len([line for _, line in wire.records if "an id that is not open" in line]) == 2
    later = asyncio.ensure_future(probe(wire))
    await turn()
    wire.answer(of(wire.frames(), "probe")[-1]["id"], {})
    await later
    assert wire.fatal == []


@pytest.mark.parametrize("form", [str, float], ids=["as text", "as a float"])
async def test_an_id_of_another_type_answers_nothing(form: Any) -> None:
    """modelcontextprotocol/python-sdk#192, #961, DeusData/codebase-memory-mcp#253 (C07): ids were coerced."""
    wire = await Wire().greet()
    call = await begin(wire)
    wire.answer(form(call.id), {})
    await turn()
    assert not call.future.done()
    wire.answer(call.id, {})
    await call.future


# ------------------------------------------------------------------ what is not the wire


async def test_a_lost_answer_is_told_to_its_caller_with_what_the_worker_wrote_instead() -> None:
    """bazelbuild/bazel#4897 (F02): the author took it for a crash of the host; nobody said that stdout is reserved."""
    wire = await Wire().greet()
    call = await begin(wire)
    wire.raw(b'here I am {"jsonrpc":"2.0","id":%d,"result":{}}\n' % call.id)
    await turn()
    ping = wire.frames()[-1]
    wire.answer(ping["id"], {"open": []})
    error = await failure_of(call)
    assert isinstance(error, ProtocolViolation)
    assert error.dispatched == "unknown"
    assert "here I am" in str(error)
    assert "stdout" in str(error)


async def test_a_flood_of_junk_costs_a_bounded_log_and_one_ping_for_all_that_came_together() -> None:
    wire = await Wire().greet()
    wire.raw(b"junk\n" * 1000)
    await turn()
    assert [frame["method"] for frame in wire.frames()] == ["ping"]
    assert len(wire.records) == 101


class Full:
    """A sink whose disk is full."""

    def feed(self, piece: OutputParams) -> str | None:
        raise OSError(28, "No space left on device")


async def test_output_that_cannot_be_stored_ends_its_call_and_no_other() -> None:
    """modelcontextprotocol/python-sdk#1401 (C10): an exception in the reader was swallowed, and waiters hung."""
    wire = await Wire().greet()
    call, other = await begin(wire, sink=Full()), await begin(wire)
    wire.say({"method": "output", "params": {"id": call.id, "stream": "stdout", "offset": 0, "data": "eA=="}})
    with pytest.raises(OSError, match="No space"):
        await call.future
    assert of(wire.frames(), "cancel")[0]["params"]["id"] == call.id
    wire.answer(other.id, {})
    await other.future
    assert wire.fatal == []


async def test_an_ended_call_lets_go_of_its_output_at_once() -> None:
    """Lane and call hold each other, and a host that runs for days kept the output of every command."""
    wire = await Wire().greet()

    async def one() -> weakref.ref[OutputLane]:
        lane = OutputLane(("stdout",), 1024, take=lambda stream, data: None)
        call = await begin(wire, sink=lane)
        lane.bind(partial(wire.client.give_credit, call))
        wire.answer(call.id, {})
        await call.future
        return weakref.ref(lane)

    gc.disable()
    try:
        lane = await one()
        await turn()
        assert lane() is None
    finally:
        gc.enable()


async def test_a_failed_call_can_be_collected() -> None:
    """Its error holds the frames that it went through, and one of them the call."""
    wire = await Wire().greet()

    async def one() -> weakref.ref[asyncio.Future[Raw]]:
        call = await begin(wire)
        wire.refuse(call.id, -32603)
        await failure_of(call)
        return weakref.ref(call.future)

    future = await one()
    await turn()
    gc.collect()
    assert future() is None


async def test_a_fault_in_the_reader_ends_the_worker_and_with_it_every_call() -> None:
    """modelcontextprotocol/python-sdk#1401 (C10)."""
    wire = await Wire().greet()
    call = await begin(wire)

    def fail(progress: ProgressParams) -> None:
        raise KeyError(progress.id)

    call.on_progress = fail
    wire.say({"method": "progress", "params": {"id": call.id}})
    assert len(wire.fatal) == 1
    assert "KeyError" in wire.fatal[0]
    wire.client.close(report("violation"), "it was ended")
    assert isinstance(await failure_of(call), WorkerCrashed)


async def test_progress_stops_with_a_crash_and_its_call_fails() -> None:
    """microsoft/vscode-languageserver-node#656 (C11): progress stayed open after a crash."""
    wire = await Wire().greet()
    call = await begin(wire)
    told: list[ProgressParams] = []
    call.on_progress = told.append
    wire.say({"method": "progress", "params": {"id": call.id, "message": "half of it"}})
    wire.client.close(report(), "it crashed")
    error = await failure_of(call)
    assert isinstance(error, WorkerCrashed)
    assert error.report is wire.client.report
    wire.say({"method": "progress", "params": {"id": call.id, "message": "from the grave"}})
    assert [progress.message for progress in told] == ["half of it"]


async def test_a_worker_that_ended_before_the_hello_is_told_as_that() -> None:
    wire = Wire()
    wire.client.close(report(), "it crashed")
    with pytest.raises(WorkerCrashed, match="exited with code 3"):
        await wire.client.hello(hello_with(wire.limits))


async def test_a_worker_that_breaks_the_wire_right_after_its_hello_is_told_as_that() -> None:
    wire = Wire(Limits(frame_bytes=1000))
    greeting = asyncio.ensure_future(wire.client.hello(hello_with(wire.limits)))
    await turn()
    hello = (
        b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"provider":{"name":"x","version":"0"},'
        b'"supportedMethods":[]}}\n'
    )
    wire.raw(hello + b"x" * 2000)
    with pytest.raises(ProtocolViolation, match="frameBytes"):
        await greeting


async def test_after_the_end_calls_fail_at_once_with_the_same_report() -> None:
    """autozimu/LanguageClient-neovim#320, sublimelsp/LSP#236 (R10): each keystroke logged a broken pipe."""
    wire = await Wire().greet()
    open_calls = [await begin(wire) for _ in range(50)]
    told = report()
    wire.client.close(told, "it crashed")
    for call in open_calls:
        error = await failure_of(call)
        assert isinstance(error, WorkerCrashed)
        assert error.report is told
        assert error.dispatched == "unknown"
    for _ in range(1000):
        with pytest.raises(WorkerCrashed) as raised:
            await probe(wire)
        assert raised.value.report is told
        assert raised.value.dispatched == "no"
    assert wire.records == []
