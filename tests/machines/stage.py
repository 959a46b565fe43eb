"""The host's `WorkerClient` and the SDK's `Dispatcher`, both real, on one virtual loop, with two pipes in memory.

Every step has arguments that JSON can say, and can be done in any state: a step that finds nothing to do does nothing.
The steps decide when bytes arrive, how many turns the loop makes between them, when time passes, and what handlers,
callers and consumers do. What goes over the wire is judged by `WireMonitor`, what becomes of it in `client_pair`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct, field

from sandport.closing import finished
from sandport.errors import DeadlineExceeded, SandportError, WorkerCrashed
from sandport.lane import OutputLane
from sandport.worker.client import WorkerClient
from sandport.worker.open_call import OpenCall
from sandport.worker.report import CrashReport
from sandport_protocol.codec import encode
from sandport_protocol.errors import ProtocolViolation
from sandport_protocol.limits import DEFAULTS, Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ExecuteResult, InitializeParams, OutputParams, PeerInfo, ShutdownParams, StreamName
from sandport_sdk.dispatch import CLOSE_S, FINISH_S, Dispatcher

from .handlers import STREAMS, Desk, Handler, Order, Policy, params_of, provider_of
from .pipe import Line, Pipe
from .virtual_loop import VirtualLoop, is_ready
from .wire_monitor import Message, Seen, WireMonitor

LIMITS = Limits(frame_bytes=20_000, in_flight=4, credit_bytes=64, chunk_bytes=24)
"""Small ceilings, so that a machine reaches them; the waits are those of everyday."""

GRACE_S = LIMITS.cancel_grace_ms / 1000
WEDGE_S = LIMITS.wedge_ms / 1000
HEARTBEAT_S = LIMITS.heartbeat_ms / 1000
STALL_S = 1.0
"""What the client still reads after a ping's time is over."""
DRAIN_S = LIMITS.drain_ms / 1000
SLACK_S = 1e-6

_HIGH_BYTES = 200
"""In a pipe; from there on its writer is told to hold back."""
_SIDE: contextvars.ContextVar[str] = contextvars.ContextVar("side", default="host")
"""Whose task it is: those of a worker end with its process."""

Side = Literal["worker", "host"]
_NOBODY: Message = {}


class Writer(asyncio.WriteTransport):
    """The writing end of a pipe in memory."""

    def __init__(self, stage: Stage, pipe: Pipe[Message], look: Callable[[bytes], Message]) -> None:
        super().__init__()
        self._stage = stage
        self.pipe = pipe
        self._look = look
        self.paused = False
        self.pause: Callable[[], object] = lambda: None
        self.resume: Callable[[], object] = lambda: None

    def write(self, data: Any) -> None:
        """Take whole frames; never waits."""
        if self.pipe.ended:
            return
        frames = bytes(data)
        if not frames.endswith(b"\n"):
            self._stage.loop.faults.append("FRAME-11: half a frame")
        for line in frames.split(b"\n")[:-1]:
            try:
                message = self._look(line)
            except AssertionError as error:
                # Not raised here: whoever writes might take it for a failure of its own, and log it.
                self._stage.loop.faults.append(str(error))
                message = json.loads(line)
            if not self.pipe.write(line + b"\n", message):
                self._stage.spoilt()
        if len(self.pipe) > _HIGH_BYTES and not self.paused:
            self.paused = True
            self.pause()

    def is_closing(self) -> bool:
        """False until the pipe has ended."""
        return self.pipe.ended

    def drained(self) -> None:
        """Bytes have left the pipe."""
        if self.paused and len(self.pipe) <= _HIGH_BYTES // 2:
            self.paused = False
            self.resume()


class Caller(Struct):
    """Somebody who made a call, and what became of it."""

    method: str
    number: int
    begun_at: float
    deadline_s: float | None
    task: asyncio.Task[Any] = None  # type: ignore[assignment]
    lane: OutputLane | None = None
    permits: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    consumer: asyncio.Task[None] | None = None
    taken: dict[str, bytes] = field(default_factory=lambda: dict.fromkeys(STREAMS, b""))
    cancelled_at: float | None = None
    settled: Raw | SandportError | None = None
    """What a caller that was cut off learned of its call."""
    overdrawn: bool = False
    outcome: str | None = None


class Stage:
    """Both sides, from the hello to the end."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.report = CrashReport(id="0", provider="scripted", pid=1, exit_code=3, uptime_s=1.0, phase="serving")
        self.monitor = WireMonitor(LIMITS)
        self.to_worker: Pipe[Message] = Pipe()
        self.to_host: Pipe[Message] = Pipe()
        self.callers: list[Caller] = []
        self.late: list[tuple[str, object]] = []
        self.late_expected: list[tuple[str, object]] = []
        self.created: list[int] = []
        """Calls of which the host read that a sandbox was created, before their callers were told."""
        self.condemned: list[str] = []
        self.gone = False
        """The worker's process."""
        self.closed = False
        self.frozen_at: float | None = None
        self.must_end_by: float | None = None
        self._told_at: dict[int | str, float] = {}
        self._flows = True
        self._lost_lines = False
        """Something of the worker's stands behind half a line."""
        self._unread = False
        """Something of the host's may stand behind the end of the worker's input."""
        self._drains = False
        self._pings: list[asyncio.Task[None]] = []
        self._beating: asyncio.Task[None] | None = None
        self._failed = False
        self._sides: list[tuple[str, asyncio.Task[Any]]] = []
        self._log = logging.getLogger("sandport_sdk")
        self._log_level = self._log.level
        self._log.setLevel(logging.CRITICAL + 1)
        self.loop.set_task_factory(self._new_task)
        self._in_loop(self._start)
        self.loop.settle()

    def _new_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **rest: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **rest)
        self._sides.append((_SIDE.get(), task))
        return task

    def _in_loop(self, function: Callable[..., object], *arguments: object, side: Side = "host") -> None:
        """Call a function in the loop's next turn, as the loop calls a protocol."""
        context = contextvars.copy_context()
        context.run(_SIDE.set, side)
        self.loop.call_soon(function, *arguments, context=context)

    def _start(self) -> None:
        host_writer = Writer(self, self.to_worker, lambda line: self.monitor.host_writes(line, self.loop.time()))
        worker_writer = Writer(self, self.to_host, self.monitor.worker_writes)
        self.client = WorkerClient(
            "scripted",
            limits=LIMITS,
            log=lambda level, line: None,
            on_late=lambda method, params, result: self.late.append((method, params)),
            on_fatal=self.condemn,
        )
        self.client.write_to(host_writer)
        host_writer.pause, host_writer.resume = self.client.pause_writing, self.client.resume_writing
        self.desk = Desk(self._begun)
        self._writers = (host_writer, worker_writer)

    def _start_worker(self, writer: Writer, slots: int) -> None:
        limits = msgspec.structs.replace(DEFAULTS, in_flight=slots)
        self.dispatcher = Dispatcher(provider_of(self.desk), writer.write, limits=limits)
        writer.pause, writer.resume = self.dispatcher.pause_writing, self.dispatcher.resume_writing

    def _begun(self, number: int) -> None:
        seen = next(seen for seen in self.monitor.requests.values() if seen.number == number)
        if seen.answered:
            self.loop.faults.append(f"{seen.method} {number} begins after it was answered")

    @property
    def serves(self) -> bool:
        """The worker takes calls and answers them, and the host makes some."""
        ends = self._drains or self._unread or self.to_worker.ended
        return not (self.gone or self.closed or ends) and self.frozen_at is None and self.desk.prepared.done()

    # -------------------------------------------------------------- the beginning

    def begin(self, prepared: bool, flows: bool, beats: bool, slots: int = LIMITS.in_flight) -> None:
        """Say hello; then the provider is ready or not yet, and the pipes flow by themselves or not.

        The worker takes `slots` calls at once, and no more are agreed on.
        """
        self.monitor.in_flight = slots
        self._in_loop(self._start_worker, self._writers[1], slots, side="worker")
        hello = InitializeParams(
            protocol_versions=(1,),
            host=PeerInfo(name="machine", version="0"),
            store_id="st",
            state_dir="/",
            limits=LIMITS,
        )
        greeting = self._host_task(self.client.hello(hello))
        self._settle()
        greeting.result()
        if prepared:
            self.get_ready(works=True)
        self._flows = flows
        self._beating = self._host_task(self._beat()) if beats else None

    def get_ready(self, works: bool) -> None:
        """The provider has prepared itself, or cannot."""
        if self.gone or self.desk.prepared.done():
            return
        if works:
            self.desk.prepared.set_result(None)
        else:
            self._failed = self._drains = True
            self.desk.prepared.set_exception(RuntimeError("no vendor"))
            self._must_end_within(FINISH_S)
        self._settle()

    def _host_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(coroutine)

    async def _beat(self) -> None:
        """What the owner of a worker does: ping, and condemn it where nothing comes."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self.client.ping(deadline_s=WEDGE_S)
            except DeadlineExceeded:
                self.condemn("it answers no ping")
                return
            except WorkerCrashed:
                return

    # -------------------------------------------------------------- callers

    def call(self, method: str, policy: Policy, deadline_ms: int, by_hand: bool, padding: int = 0) -> None:
        """Somebody calls; 0 for no deadline, `by_hand` for output that a consumer takes piece by piece."""
        number = len(self.callers) + 1
        deadline_s = deadline_ms / 1000 if deadline_ms else None
        self.desk.handlers[number] = Handler(number, policy)
        caller = Caller(method, number, self.loop.time(), deadline_s)
        self.callers.append(caller)
        caller.task = self._host_task(self._call(caller, params_of(method, number, padding), by_hand))

    def request_of(self, caller: Caller) -> Seen | None:
        """Its call, as it went over the wire."""
        return next((seen for seen in self.monitor.requests.values() if seen.number == caller.number), None)

    def ping(self) -> None:
        """The host looks whether the worker lives."""
        if not self.closed:
            self._pings.append(self._host_task(self._ping()))

    async def _ping(self) -> None:
        with contextlib.suppress(DeadlineExceeded, WorkerCrashed):
            await self.client.ping(deadline_s=WEDGE_S)

    async def _call(self, caller: Caller, params: Struct, by_hand: bool) -> Any:
        if caller.method == "execute":
            return await self._execute(caller, params, by_hand)
        if caller.method == "acquireLease":
            return await self._acquire(caller, params)
        method = METHODS[caller.method]
        return await self.client.call(method, params, method.result, deadline_s=caller.deadline_s)

    async def _acquire(self, caller: Caller, params: Struct) -> Any:
        """As the lease layer does it: who is cut off learns what became of the create."""
        client, method = self.client, METHODS[caller.method]
        call = await client.begin(method, params, deadline_s=caller.deadline_s)
        try:
            raw = await call.future
        except asyncio.CancelledError:
            await finished(self._settle_call(caller, call))
            raise
        return client.result_of(call, raw, method.result)

    async def _settle_call(self, caller: Caller, call: OpenCall) -> None:
        caller.settled = await self.client.settle(call)

    async def _execute(self, caller: Caller, params: Struct, by_hand: bool) -> ExecuteResult:
        def keep(stream: StreamName, data: bytes) -> None:
            caller.taken[stream] += data

        client = self.client
        credit = client.connection.limits.credit_bytes
        lane = caller.lane = OutputLane(STREAMS, credit, None if by_hand else keep)
        call = await client.begin(METHODS["execute"], params, deadline_s=caller.deadline_s, sink=lane)
        lane.bind(partial(client.give_credit, call))
        call.future.add_done_callback(lane.close)
        if by_hand:
            caller.consumer = self._host_task(self._consume(caller, lane))
        try:
            raw = await call.future
        except asyncio.CancelledError:
            await finished(self._settle_call(caller, call))
            raise
        finally:
            lane.close()
        result = client.result_of(call, raw, ExecuteResult)
        if (contradiction := lane.contradiction(result)) is not None:
            raise ProtocolViolation(contradiction, dispatched="yes")
        return result

    async def _consume(self, caller: Caller, lane: OutputLane) -> None:
        while True:
            await caller.permits.acquire()
            piece = await lane.next_piece()
            if piece is None:
                return
            caller.taken[piece[0]] += piece[1]
            lane.taken(piece[0], len(piece[1]))

    def cancel(self, pick: int) -> None:
        """A caller is cut off."""
        waiting = [caller for caller in self.callers if not caller.task.done()]
        if waiting:
            self._cut(waiting[pick % len(waiting)])

    def cut(self, place: int, pick: int) -> None:
        """A caller is cut off, in one of the places of a call's life where there is somebody."""
        places: dict[str, list[Caller]] = {}
        for caller in self.callers:
            if not caller.task.done():
                places.setdefault(self._place_of(caller), []).append(caller)
        if places:
            there = places[sorted(places)[place % len(places)]]
            self._cut(there[pick % len(there)])

    def cut_in_motion(self, pick: int) -> None:
        """Somebody is cut off who has just been let in, answered or told, and goes on in the loop's next turn."""
        waiting = [caller for caller in self.callers if not caller.task.done()]
        if moving := [caller for caller in waiting if is_ready(caller.task)] or waiting:
            self._cut(moving[pick % len(moving)])

    def _place_of(self, caller: Caller) -> str:
        seen = self.request_of(caller)
        if seen is None:
            return "in line"
        return "answered" if seen.answered else "at the worker" if seen.delivered else "on its way"

    def _cut(self, caller: Caller) -> None:
        if caller.cancelled_at is None:
            caller.cancelled_at = self.loop.time()
        caller.task.cancel()

    def take(self, pick: int, pieces: int) -> None:
        """A consumer takes pieces of output."""
        consuming = [caller for caller in self.callers if caller.consumer is not None and not caller.consumer.done()]
        if consuming:
            for _ in range(pieces):
                consuming[pick % len(consuming)].permits.release()
            self._settle_if_flowing()

    # -------------------------------------------------------------- handlers

    def order(self, pick: int, what: str, stream: StreamName = "stdout", size: int = 0) -> None:
        """A handler does something, or ends."""
        running = [handler for handler in self.desk.handlers.values() if handler.runs]
        if running and not self.gone and self.frozen_at is None:
            self._in_loop(running[pick % len(running)].tell, Order(what, stream, size), side="worker")
            self._settle_if_flowing()

    # -------------------------------------------------------------- pipes and time

    def deliver(self, side: Side, size: int) -> None:
        """The next bytes arrive at one side, in the loop's next turn."""
        if side == "worker":
            if self.gone or self.frozen_at is not None:
                return
            chunk, lines = self.to_worker.deliver(size)
            if chunk:
                self._in_loop(self._worker_reads, chunk, lines, side="worker")
                self._in_loop(self._writers[0].drained)
        elif not self.closed:
            chunk, lines = self.to_host.deliver(size)
            if chunk:
                self._in_loop(self._host_reads, chunk, lines)
                self._in_loop(self._writers[1].drained, side="worker")

    def _worker_reads(self, chunk: bytes, lines: list[Line[Message]]) -> None:
        if self.gone or self.dispatcher.ended.done():
            self._unread = True
            return
        for line in lines:
            self.monitor.worker_reads(line.meaning)
        if any(line.meaning.get("method") == "shutdown" for line in lines):
            self._drains = True
            self._must_end_within(DRAIN_S)
        self.dispatcher.receive(chunk)

    def _host_reads(self, chunk: bytes, lines: list[Line[Message]]) -> None:
        if self.closed:
            return
        settled: set[object] = set()
        for line in lines:
            if not line.spoiled:
                self.monitor.host_reads(line.meaning)
            number = line.meaning.get("id")
            if not line.spoiled and number not in settled:
                settled.add(number)
                if "result" in line.meaning:
                    self._result_read(number)
        self.client.data_received(chunk)

    def _result_read(self, number: Any) -> None:
        match self.client.connection.state_of(number):
            case "told":
                self.late_expected.append(self._late(number))
            case "open" | "cancelling" if self.monitor.requests[number].method == "acquireLease":
                self.created.append(self.monitor.requests[number].number)

    def _late(self, number: Any) -> tuple[str, object]:
        seen = self.monitor.requests[number]
        call = self.client._told[number]
        assert call.method == seen.method
        return seen.method, call.params

    def turn(self, count: int) -> None:
        """The loop goes on for a few turns."""
        for _ in range(count):
            self.loop.turn()
            self._pump()

    def settle(self) -> None:
        """The loop goes on until nothing is left to do at this time."""
        self.loop.settle()
        self._settle_if_flowing()

    def come_due(self) -> None:
        """Time passes until the next timer, which goes off in the loop's next turn."""
        self.loop.come_due()

    def wait(self, ms: int) -> None:
        """Time passes; what flows by itself does so meanwhile, every so often."""
        left_s = ms / 1000
        while left_s > 0:
            self._settle_if_flowing()
            part_s = min(left_s, 1.0) if self._flows else left_s
            self.loop.advance(part_s)
            left_s -= part_s
        self._settle_if_flowing()

    def flow(self, on: bool) -> None:
        """From now on what is written arrives at once, or only when it is delivered."""
        self._flows = on
        self._settle_if_flowing()

    def _pump(self) -> bool:
        """Deliver what is there, where the pipes flow; whether there was anything."""
        if not self._flows:
            return False
        before = len(self.to_worker) + len(self.to_host)
        self.deliver("worker", 10**6)
        self.deliver("host", 10**6)
        return before != len(self.to_worker) + len(self.to_host)

    def _settle_if_flowing(self) -> None:
        if self._flows:
            self._settle()

    def _settle(self) -> None:
        self.loop.settle()
        while self._pump():
            self.loop.settle()

    # -------------------------------------------------------------- what a worker should not do

    def answer_again(self, pick: int) -> None:
        """A worker writes an answer once more."""
        answers = self.monitor.answers
        if answers and not self.gone:
            self._raw(answers[pick % len(answers)])
            self._settle_if_flowing()

    def stray(self, what: str) -> None:
        """Something else stands on its stdout."""
        if self.gone:
            return
        if what == "half":
            self.to_host.write_half(b'{"jsonrpc":"2.0","id":4')
        elif what == "print":
            self.to_host.write(b"dbg\n", _NOBODY)
        else:
            self._raw(b'{"jsonrpc":"2.0","id":1000000,"result":{}}')
        self._settle_if_flowing()

    def overdraw(self, pick: int) -> None:
        """A worker sends more output than there is room for: the call loses itself, and nobody else."""
        live = [
            (number, seen)
            for number, seen in self.monitor.requests.items()
            if seen.live and seen.delivered and not seen.answered
        ]
        if not live or self.gone:
            return
        number, seen = live[pick % len(live)]
        room = LIMITS.credit_bytes + seen.granted.get("stdout", 0)
        offset = seen.sent.get("stdout", 0)
        self.callers[seen.number - 1].overdrawn = True
        piece = OutputParams(id=number, stream="stdout", offset=offset, data=bytes(room + 10_000))
        self._raw(b'{"jsonrpc":"2.0","method":"output","params":' + encode(piece) + b"}")
        self._settle_if_flowing()

    def _raw(self, line: bytes) -> None:
        if not self.to_host.write(line + b"\n", json.loads(line)):
            self._lost_lines = True

    def spoilt(self) -> None:
        """A frame stands behind half a line: nobody can read it."""
        self._lost_lines = True

    # -------------------------------------------------------------- ends

    def freeze(self) -> None:
        """The worker hangs: it reads no more, and its handlers get nowhere."""
        if not self.gone and self.frozen_at is None:
            self.frozen_at = self.loop.time()

    def shut_down(self) -> None:
        """The host asks the worker to end."""
        if not self.closed:
            with contextlib.suppress(WorkerCrashed):
                self.loop.run_until_complete(self._shut_down())

    async def _shut_down(self) -> None:
        await self.client.begin(METHODS["shutdown"], ShutdownParams(drain_ms=LIMITS.drain_ms), deadline_s=None)

    def end_input(self) -> None:
        """The worker's input ends, behind what was written."""
        if self.gone or self.frozen_at is not None:
            return
        self.deliver("worker", 10**6)
        self.to_worker.cut(0)
        self._drains = self._unread = True
        self._in_loop(self.dispatcher.finish, "end of input", side="worker")
        self._must_end_within(FINISH_S)
        self.loop.settle()

    def _must_end_within(self, finish_s: float) -> None:
        # The handlers finish, or are cancelled and given up; `prepare` is cancelled; `close` has its bound.
        bound = self.loop.time() + finish_s + 2 * DRAIN_S + CLOSE_S + SLACK_S
        self.must_end_by = bound if self.must_end_by is None else min(self.must_end_by, bound)

    def crash(self, keep: int) -> None:
        """The worker's process dies, in the middle of a write or with everything written."""
        if not self.gone:
            self._die(keep)
            self.loop.settle()

    def _die(self, keep: int) -> None:
        self.gone = True
        self.to_host.cut(keep)
        self.to_worker.cut(0)
        for handler in self.desk.handlers.values():
            handler.process_is_gone = True
        for side, task in self._sides:
            if side == "worker":
                task.cancel()

    def condemn(self, why: str) -> None:
        """What the owner of a worker does about one that cannot be used: kill it."""
        self.condemned.append(why)
        self.loop.call_soon(self._kill)

    def _kill(self) -> None:
        if not self.gone:
            self._die(keep=0)
        self._close()

    def reap(self) -> None:
        """The host learns that the worker is gone, if it is."""
        if self.gone or self.dispatcher.ended.done():
            if not self.gone:
                self.crash(keep=10**6)
            self._in_loop(self._close)
            self.loop.settle()

    def _close(self) -> None:
        if not self.closed:
            self.closed = True
            self.client.close(self.report, "it crashed")
