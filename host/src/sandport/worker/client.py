"""Calls to a worker: protocol callbacks and plain futures, no task, no thread and no lock for a call.

Owns: the pairing of futures with the sans-IO connection, deadlines, cancel grace, the in-flight slots, what is written
when. Above: sandboxes and the supervisor. Below: `HostConnection` and one transport in each direction.

This is the hot path (`tests/bench` R1, R2): a call is one future and one write, and all deadlines share a timer; when
several calls are open, their frames go out together once a turn of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from sandport.closing import finished
from sandport.errors import (
    CallCancelled,
    DeadlineExceeded,
    Internal,
    ProtocolViolation,
    SandportError,
    WorkerCrashed,
    WorkerWedged,
)
from sandport_protocol import codec
from sandport_protocol.events import (
    HelloReceived,
    HostEvent,
    JunkReceived,
    LateAnswer,
    NotificationReceived,
    RequestEnded,
    ViolationFound,
)
from sandport_protocol.host_connection import Cause, ForbiddenNow, HostConnection, error_of
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS, Method
from sandport_protocol.v1 import (
    FailedParams,
    InitializeParams,
    InitializeResult,
    Meta,
    OutputParams,
    Params,
    PingParams,
    PingResult,
    ProgressParams,
    StreamName,
)

from .deadlines import Deadlines
from .open_call import OpenCall, OutputSink
from .outgoing import Outgoing
from .report import CrashReport
from .slots import Slots
from .stderr import Level

_R = TypeVar("_R", bound=Struct)
_JUNK_LINES = 20
"""A banner is shown whole; a loop that prints is not."""
_VIOLATIONS = 100
"""A worker that breaks the wire with every line must not flood the log too."""
_STALL_S = 1.0
"""After a ping's time is over, what came in meanwhile is still read for so long: this process may have been stopped."""


class WorkerClient(asyncio.Protocol):
    """One connection to one worker, from its first byte to its end; never used again after it.

    Args:
        provider: For messages.
        limits: What the host offers.
        log: Where violations, junk and late answers are noted.
        on_late: Told of a result that came after its caller was told something else, with the call's params: a create
            that succeeded after all must be undone.
        on_fatal: Told why this worker cannot be used any more, while its process may still live.
        on_wedged: Told that it does not end a call; `on_fatal` by default.
    """

    def __init__(
        self,
        provider: str,
        *,
        limits: Limits,
        log: Callable[[Level, str], None],
        on_late: Callable[[str, Any, Raw | None], None],
        on_fatal: Callable[[str], None],
        on_wedged: Callable[[str], None] | None = None,
    ) -> None:
        self.provider = provider
        self.connection = HostConnection(limits)
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._on_late = on_late
        self._on_fatal = on_fatal
        self._on_wedged = on_wedged or on_fatal
        self._outgoing = Outgoing(self._loop)
        self._calls: dict[int | str, OpenCall] = {}
        self._told: dict[int | str, OpenCall] = {}
        self._deadlines = Deadlines(self._loop, self._end_overdue)
        self._slots = Slots(limits.in_flight)
        self._ping_is_due = False
        self._junk_lines = 0
        self._violations = 0
        self._last_violation = ""
        self._hello: asyncio.Future[InitializeResult] = self._loop.create_future()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done when the worker serves calls; failed when it said that it cannot."""
        self.input_ended: asyncio.Future[None] = self._loop.create_future()
        """Done when the worker's stdout ended."""
        self.report: CrashReport | None = None
        self._closed: str | None = None
        for future in (self._hello, self.ready):
            future.add_done_callback(_retrieve)

    # -------------------------------------------------------------- the pipe

    def write_to(self, transport: asyncio.WriteTransport) -> None:
        """Set where frames go."""
        self._outgoing.transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes from the worker."""
        try:
            for event in self.connection.receive(data):
                if event.__class__ is RequestEnded:
                    self._finish(event)
                elif event.__class__ is NotificationReceived:
                    self._notified(event)
                else:
                    self._other(event)
        except Exception as error:  # noqa: BLE001 - asyncio would close the pipe and leave every call waiting for ever
            self._log("error", f"reading from the worker failed: {error!r}")
            self._on_fatal(f"reading from it failed: {error!r}")

    def eof_received(self) -> bool | None:
        """The worker's stdout ended; its exit is judged by the process."""
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """The reading side is closed."""
        if not self.input_ended.done():
            self.input_ended.set_result(None)

    def pause_writing(self) -> None:
        """The pipe is full: calls wait before their frames are made, so control messages still overtake them."""
        self._outgoing.pause()
        self._slots.pipe_is_full()

    def resume_writing(self) -> None:
        """The pipe has room again."""
        if self._outgoing.resume():
            self._slots.pipe_has_room()

    def finish_writing(self) -> None:
        """What was sent is all that the pipe gets: it is closed next."""
        self._outgoing.finish()

    # -------------------------------------------------------------- calls

    @property
    def open_methods(self) -> tuple[str, ...]:
        """What is being waited for, oldest first."""
        return tuple(call.method for call in self._calls.values())

    def is_open(self, call: OpenCall) -> bool:
        """Whether the worker may still be at a call, also one whose caller was told already."""
        return call.id in self._calls or call.id in self._told

    @property
    def suspect(self) -> bool:
        """Whether a cancel was left unanswered for its whole grace, and nobody waits for anything else."""
        return bool(self._told) and all(call.method == "ping" for call in self._calls.values())

    async def hello(self, params: InitializeParams) -> InitializeResult:
        """Say hello and get the worker's; afterwards `initialized` is out and `ready` will come.

        Raises:
            WireError: The worker refused, e.g. VersionMismatch.
            ProtocolViolation: What it said was no hello.
        """
        if not self._hello.done():  # what it said or did before may have decided already
            _, frame = self.connection.send_request("initialize", params)
            self._outgoing.control(frame)
        hello = await self._hello
        try:
            self._outgoing.control(self.connection.send_initialized())
        except ForbiddenNow:  # right behind its hello it broke the wire, or ended
            if self._closed is not None:
                raise self._gone(dispatched=False) from None
            raise ProtocolViolation(f"the {self.provider} worker broke the wire: {self._last_violation}") from None
        self._slots.limit = self.connection.limits.in_flight
        return hello

    async def begin(
        self,
        method: Method,
        params: Struct,
        *,
        deadline_s: float | None,
        sink: OutputSink | None = None,
        on_progress: Callable[[ProgressParams], None] | None = None,
    ) -> OpenCall:
        """Send a call; wait only where too many are in flight or the pipe is full.

        Raises:
            WorkerCrashed: The worker is gone; nothing was sent.
            DeadlineExceeded: It could not be sent within `deadline_s`, which counts anew from there.
            TooLarge: The params do not fit in a frame; nothing was sent.

        Cancel: nothing was sent.
        """
        if self._closed is not None:
            raise self._gone(dispatched=False)
        if method.group == "session":
            # What keeps a connection alive and ends it never waits behind the work.
            return self._start(method, params, slotted=False, deadline_s=deadline_s, sink=sink, on_progress=on_progress)
        waited = not self._slots.take_now()
        if waited:
            await self._wait_for_slot(method, deadline_s)
        try:
            return self._start(method, params, slotted=True, deadline_s=deadline_s, sink=sink, on_progress=on_progress)
        except BaseException:  # a cancel too: what was not started keeps no place
            self._slots.free()
            raise
        finally:
            if waited:
                self._slots.served()

    async def _wait_for_slot(self, method: Method, deadline_s: float | None) -> None:
        try:
            await self._slots.take(deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{method.name} was not sent: the {self.provider} worker had no room for it in {deadline_s:g} s "
                f"({self._slots.used} calls are in flight)",
                dispatched="no",
            ) from None
        if self._closed is not None:
            raise self._gone(dispatched=False)

    def _start(
        self,
        method: Method,
        params: Struct,
        *,
        slotted: bool,
        deadline_s: float | None,
        sink: OutputSink | None = None,
        on_progress: Callable[[ProgressParams], None] | None = None,
    ) -> OpenCall:
        if deadline_s is not None and isinstance(params, Params) and params.meta is None:
            # Advice for the vendor's calls; that the time is over is for this side alone to say.
            params = msgspec.structs.replace(params, meta=Meta(deadline_ms=max(1, round(deadline_s * 1000))))
        try:
            request_id, frame = self.connection.send_request(method.name, params)
        except ForbiddenNow as error:
            raise WorkerCrashed(f"the {self.provider} worker takes no calls now: {error}") from None
        call = OpenCall(
            request_id,
            method.name,
            params,
            self._loop.create_future(),
            sink,
            on_progress,
            slotted=slotted,
        )
        self._calls[request_id] = call
        if deadline_s is not None:
            call.due = self._loop.time() + deadline_s
            self._deadlines.watch(call.due)
        if slotted:
            self._outgoing.write(frame, len(self._calls))
        else:
            self._outgoing.control(frame)
        return call

    async def call(
        self,
        method: Method,
        params: Struct,
        result: type[_R],
        *,
        deadline_s: float | None,
        sink: OutputSink | None = None,
    ) -> _R:
        """One call to its one outcome.

        Raises:
            WireError: What the worker answered, by condition.
            DeadlineExceeded: `deadline_s` passed; the worker was told to stop.
            WorkerCrashed: The worker ended first.

        Cancel: sends a cancel and waits for what the worker says, at most the cancel grace.
        """
        call = await self.begin(method, params, deadline_s=deadline_s, sink=sink)
        try:
            raw = await call.future
        except asyncio.CancelledError:
            await finished(self.settle(call))
            raise
        return self.result_of(call, raw, result)

    def send_and_forget(self, method: Method, params: Struct) -> None:
        """Send a call that nobody will wait for, past everything that is queued: the host leaves at once."""
        if self._closed is None:
            with contextlib.suppress(ForbiddenNow):  # it is ending already, and with it what would be asked
                _, frame = self.connection.send_request(method.name, params)
                self._outgoing.control(frame)

    async def settle(self, call: OpenCall) -> Raw | SandportError:
        """Cancel a call whose waiter was cut off, and wait, at most the cancel grace, for its outcome.

        Cancel: stops waiting; run it through `closing.finished`.
        """
        if call.future.cancelled():
            call.future = self._loop.create_future()
            if call.id not in self._calls:
                return CallCancelled("the call had ended", dispatched="unknown")
        self.cancel(call, "cancelled")
        try:
            return await call.future
        except SandportError as error:
            return error

    def result_of(self, call: OpenCall, raw: Raw, result: type[_R]) -> _R:
        """The typed result.

        Raises:
            ProtocolViolation: It does not fit the schema: the effect happened, what is said about it is unusable.
        """
        try:
            return codec.read_as(result, raw)
        except ValueError as error:
            raise ProtocolViolation(
                f"the {self.provider} worker's result of {call.method} does not fit the schema: {error}",
                dispatched="yes",
            ) from None

    def cancel(self, call: OpenCall, cause: Cause) -> None:
        """Interrupt a call; its future ends when the worker answers, or after the cancel grace."""
        if call.id not in self._calls:
            return
        frame = self.connection.send_cancel(call.id, cause)
        if not frame:
            return
        self._outgoing.control(frame)
        limits = self.connection.limits
        call.due = math.inf
        call.timer = self._loop.call_later(limits.cancel_grace_ms / 1000, self._grace_is_over, call)

    def _end_overdue(self, now: float) -> float:
        """Cancel what is over its deadline; the earliest of the others."""
        earliest = math.inf
        for call in tuple(self._calls.values()):
            if call.due <= now:
                self.cancel(call, "deadline")
            else:
                earliest = min(earliest, call.due)
        return earliest

    def _grace_is_over(self, call: OpenCall) -> None:
        for event in self.connection.tell(call.id):
            if isinstance(event, RequestEnded):
                self._told[call.id] = call
                self._finish(event)
                call.timer = self._loop.call_later(self.connection.limits.wedge_ms / 1000, self._never_ended, call)

    def _never_ended(self, call: OpenCall) -> None:
        if call.id in self._told:
            limit_s = self.connection.limits.wedge_ms / 1000
            self._on_wedged(f"{call.method} did not end within {limit_s:g} s after its caller was told")

    async def ping(self, *, deadline_s: float) -> PingResult:
        """Ask whether the worker lives, and find answers that were lost.

        Raises:
            DeadlineExceeded: No pong in time.
        """
        call = await self.begin(METHODS["ping"], PingParams(), deadline_s=None)
        await asyncio.wait((call.future,), timeout=deadline_s)
        if not call.future.done():
            # Where this process was stopped, the pong may lie in the pipe behind other output.
            await asyncio.wait((call.future,), timeout=min(_STALL_S, deadline_s))
        if not call.future.done():
            raise DeadlineExceeded(f"the {self.provider} worker did not answer a ping in {deadline_s:g} s")
        return codec.read_as(PingResult, call.future.result())

    def give_credit(self, call: OpenCall, stream: StreamName, size: int) -> None:
        """Tell the worker that the consumer took so many bytes."""
        if call.id in self._calls:
            self._outgoing.control(self.connection.send_credit(call.id, stream, size))

    # -------------------------------------------------------------- events

    def _finish(self, event: RequestEnded) -> None:
        call = self._calls.pop(event.id, None)
        if call is None:
            if event.method == "initialize" and not self._hello.done():
                self._hello.set_exception(error_of(event) or self._gone(dispatched=False))
            return
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        # The sink gives credit through the call: while each holds the other, the output that it kept stays in memory.
        call.sink = call.on_progress = None
        if call.slotted and event.id not in self._told:
            self._slots.free()
        future = call.future
        if future.cancelled():
            # Its waiter was cut off at the same moment; whoever settles the call is told what came.
            future = call.future = self._loop.create_future()
        if future.done():
            return
        if event.outcome == "result":
            assert event.result is not None  # the connection pairs them
            future.set_result(event.result)
            return
        future.set_exception(self._error(event))
        # An error that nobody waits for any more is not a fault of the program.
        future.add_done_callback(_retrieve)

    def _error(self, event: RequestEnded) -> Exception:
        stated = error_of(event)
        if event.outcome == "crashed":
            return self._gone(dispatched=True)
        if event.outcome == "error":
            if isinstance(stated, ProtocolViolation) and self._last_violation:
                stated.message += f"; the last thing that it did wrong: {self._last_violation}"
            return stated or Internal(f"the {self.provider} worker failed {event.method} without saying why")
        said = f"; the worker says: {stated}" if stated else "; the worker has not answered the cancel yet"
        dispatched = stated.dispatched if isinstance(stated, SandportError) else "unknown"
        error: SandportError
        if event.outcome == "deadline":
            error = DeadlineExceeded(
                f"{event.method} passed the host's deadline and was cancelled{said}", dispatched=dispatched
            )
        else:
            error = CallCancelled(f"{event.method} was cancelled{said}", dispatched=dispatched)
        error.partial = stated.partial if isinstance(stated, SandportError) else None
        return error

    def _notified(self, event: NotificationReceived) -> None:
        if event.method == "output":
            try:
                piece = codec.read_as(OutputParams, event.params)
            except ValueError as error:
                self._violated(f"unreadable output: {error}", _beginning(event.params))
                return
            call = self._calls.get(piece.id)
            if call is None or call.sink is None:
                return  # ended or told already: what comes late is dropped, the counts are in the result
            try:
                broken = call.sink.feed(piece)
            except Exception as error:  # noqa: BLE001 - a full disk, say: it is this call's, and raised at its caller
                self._break(call, error)
                return
            if broken is not None:
                rule = f"the {self.provider} worker broke the rules of output: {broken}"
                self._break(call, ProtocolViolation(rule, dispatched="yes"))
                self._violated(f"output of {call.method}: {broken}", b"")
        elif event.method == "ready":
            if not self.ready.done():
                self.ready.set_result(None)
        elif event.method == "failed":
            self._failed(event)
        elif event.method == "progress":
            self._progressed(event)

    def _break(self, call: OpenCall, error: Exception) -> None:
        """End a call whose output cannot be taken; it loses itself only, not the worker."""
        if not call.future.done():
            call.future.set_exception(error)
            call.future.add_done_callback(_retrieve)
        call.sink = None
        self.cancel(call, "cancelled")

    def _failed(self, event: NotificationReceived) -> None:
        try:
            message = codec.read_as(FailedParams, event.params).message
        except ValueError:
            message = "it did not say why in a readable way"
        if not self.ready.done():
            self.ready.set_exception(Internal(f"the {self.provider} provider cannot serve: {message}"))
        else:
            self._log("error", f"the provider cannot serve any more: {message}")

    def _progressed(self, event: NotificationReceived) -> None:
        try:
            progress = codec.read_as(ProgressParams, event.params)
        except ValueError as error:
            self._violated(f"unreadable progress: {error}", _beginning(event.params))
            return
        call = self._calls.get(progress.id)
        if call is not None and call.on_progress is not None:
            call.on_progress(progress)

    def _other(self, event: HostEvent) -> None:
        if isinstance(event, HelloReceived):
            if not self._hello.done():
                self._hello.set_result(event.hello)
        elif isinstance(event, ViolationFound):
            self._violated(event.rule, event.sample, fatal=event.fatal)
        elif isinstance(event, JunkReceived):
            self._junk_lines += 1
            sample = event.line[:200].decode("utf-8", "backslashreplace")
            if self._junk_lines <= _JUNK_LINES:
                self._log("warning", f"stdout before the hello is tolerated, but it belongs to the wire: {sample!r}")
            elif self._junk_lines == _JUNK_LINES + 1:
                self._log("warning", "there is more on stdout before the hello; it is counted and not shown")
        elif isinstance(event, LateAnswer):
            call = self._told.pop(event.id, None)
            if call is None:
                return
            if call.timer is not None:
                call.timer.cancel()
            if call.slotted:
                self._slots.free()
            if event.error is None or event.result is not None:
                self._on_late(event.method, call.params, event.result)

    def _violated(self, rule: str, sample: bytes, *, fatal: bool = False) -> None:
        shown = f"; it began with {sample.decode('utf-8', 'backslashreplace')!r}" if sample else ""
        hint = "; stdout is reserved for the wire, print to stderr" if "JSON" in rule else ""
        self._last_violation = f"{rule}{shown}{hint}"
        self._violations += 1
        if fatal or self._violations <= _VIOLATIONS:
            self._log("error" if fatal else "warning", f"protocol violation: {self._last_violation}")
        elif self._violations == _VIOLATIONS + 1:
            self._log("warning", f"protocol violation number {self._violations}; more are not shown")
        if fatal:
            if not self._hello.done():
                self._hello.set_exception(ProtocolViolation(f"the {self.provider} worker: {self._last_violation}"))
            self._on_fatal(f"protocol violation: {self._last_violation}")
        elif not self._ping_is_due:
            # The line may have been an answer: the pong will tell whose. One for all that came in together.
            self._ping_is_due = True
            self._loop.call_soon(self._look_for_lost_answers)

    def _look_for_lost_answers(self) -> None:
        self._ping_is_due = False
        if self.connection.phase == "serving" and self._closed is None:
            self._start(METHODS["ping"], PingParams(), slotted=False, deadline_s=None)

    # -------------------------------------------------------------- the end

    def close(self, report: CrashReport | None, reason: str) -> None:
        """The worker is gone: every open call ends now, every later one fails at once."""
        if self._closed is not None:
            return
        self._closed = reason
        self.report = report
        for event in self.connection.crash():
            if isinstance(event, RequestEnded):
                self._finish(event)
        error = self._gone(dispatched=False)
        for future in (self._hello, self.ready):
            if not future.done():
                future.set_exception(error)
        for call in self._told.values():
            if call.timer is not None:
                call.timer.cancel()
        self._told.clear()
        self._deadlines.stop()
        self._outgoing.drop()
        self._slots.close()

    def _gone(self, *, dispatched: bool) -> WorkerCrashed | WorkerWedged:
        report = self.report
        what = report.summary() if report is not None else f"the {self.provider} worker: {self._closed or 'gone'}"
        mark = f" [crash {report.id}]" if report is not None else ""
        kind = WorkerWedged if report is not None and report.kind == "wedge" else WorkerCrashed
        return kind(what + mark, report=report, dispatched="unknown" if dispatched else "no")


def _beginning(params: Raw | Struct) -> bytes:
    return bytes(params)[:120] if isinstance(params, Raw) else b""


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark a failure as seen: it is told through another way, or nobody is there any more."""
    if not future.cancelled():
        future.exception()
