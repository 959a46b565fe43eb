"""The worker's side of a connection: calls in, exactly one answer out for each.

Owns: which ids are open, what is allowed when, and the answers that need no provider (a pong, a refusal). Above: the
serve loop of an SDK. Below: framing and codec.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Raw, Struct

from . import codec
from .envelope import Failure, Id, Incoming, Notification, Success
from .errors import CONDITIONS, Detail, ErrorData, ErrorObject, InvalidRequest, ParseFailed, Retry
from .events import NotificationReceived, ReplyDue, RequestReceived, ViolationFound, WorkerEvent
from .framing import LineSplitter
from .limits import DEFAULTS, Limits
from .methods import NOTIFICATIONS
from .states import CLOSED, DRAINING, MOVES, NEW, REFUSALS, Kind, Phase
from .v1 import OutputParams, PingResult

_CODES = {condition.__name__: condition.code for condition in CONDITIONS}
_KINDS: dict[str, Kind] = {"initialize": "initialize", "ping": "ping", "shutdown": "shutdown"}
_NOTES: dict[str, Kind] = {
    name: "initialized" if name == "initialized" else "control"
    for name, note in NOTIFICATIONS.items()
    if note.sender == "host"
}
_SAMPLE_BYTES = 120


class NotOpen(Exception):
    """An answer for an id that is not open: it was answered already, or never asked. A fault of the caller."""


class WorkerConnection:
    """Bytes in, events out; answers in, bytes out. Knows no clock and no pipe.

    Frames go on the pipe in the order in which they were made here. What is to be overtaken is made late: a pong that
    overtook an answer would prove that answer lost, since it no longer lists the id.
    """

    def __init__(self, limits: Limits = DEFAULTS) -> None:
        self.phase: Phase = NEW
        self.limits = limits
        """This side's own; set to the agreed ones by `negotiated`."""
        # What the host sends is held against our own ceilings, what we send against the agreed ones.
        self._splitter = LineSplitter(limits.frame_bytes)
        self._depth = limits.depth
        self._open: dict[Id, str] = {}
        self._methods: frozenset[str] = frozenset()

    @property
    def open_ids(self) -> tuple[Id, ...]:
        """Requests that were taken and not yet answered, oldest first."""
        return tuple(self._open)

    def negotiated(self, methods: Iterable[str], limits: Limits) -> None:
        """Say what the hello that goes out next advertises: anything else is refused from then on."""
        self._methods = frozenset(methods)
        self.limits = limits

    def close(self) -> None:
        """Nothing more is read or refused."""
        self.phase = CLOSED

    # -------------------------------------------------------------- answers

    def send_result(self, request_id: Id, result: Struct | Raw | object) -> bytes:
        """The frame of a result; an error frame instead where the result would not fit in a frame.

        Raises:
            NotOpen: The id was answered already.
        """
        method = self._method_of(request_id)
        frame = codec.write(Success(request_id, result))
        if self._fits(frame):
            self._settle(request_id, method, "initialize.result")
            return frame
        return self.send_error(request_id, codec.too_large(self.limits.frame_bytes, f"the result of {method}"))

    def send_error(self, request_id: Id, error: ErrorObject) -> bytes:
        """The frame of an error; without what an interrupted command had produced where that would not fit.

        Raises:
            NotOpen: The id was answered already.
        """
        method = self._method_of(request_id)
        frame = codec.write(Failure(request_id, error))
        if not self._fits(frame):
            detail = error.data.detail if error.data is not None else None
            frame = codec.write(Failure(request_id, _shortened(error, detail)))
        if not self._fits(frame):
            frame = codec.write(Failure(request_id, _shortened(error, None)))
        self._settle(request_id, method, "initialize.error")
        return frame

    def send_output(self, params: OutputParams) -> bytes:
        """The frame of a piece of output."""
        return codec.write(Notification("output", params))

    def send_notification(self, method: str, params: Struct) -> bytes:
        """The frame of any other notification."""
        return codec.write(Notification(method, params))

    # -------------------------------------------------------------- reading

    def receive(self, data: bytes) -> list[WorkerEvent]:
        """What the bytes say, in order. Never raises, whatever they are."""
        events: list[WorkerEvent] = []
        if self.phase is CLOSED:
            return events
        for line in self._splitter.feed(data):
            self._receive_line(line, events)
            if self.phase is CLOSED:
                return events
        if self._splitter.overflow is not None:
            rule = f"a line longer than {self._splitter.max_frame_bytes} bytes (limits.frameBytes)"
            events.append(ReplyDue(codec.write(Failure(None, _object("ParseFailed", rule)))))
            events.append(ViolationFound(rule, self._splitter.overflow, fatal=True))
            self.phase = CLOSED
        return events

    def _receive_line(self, line: bytes, events: list[WorkerEvent]) -> None:
        try:
            message = codec.read(line, depth=self._depth)
        except codec.Unreadable as error:
            if codec.is_blank(line):
                return
            condition = ParseFailed if error.parse else InvalidRequest
            answer = ErrorObject(condition.code, error.rule, ErrorData(condition=condition.__name__, dispatched="no"))
            events.append(ReplyDue(codec.write(Failure(None, answer))))
            events.append(ViolationFound(error.rule, bytes(line[:_SAMPLE_BYTES]), error.fatal))
            if error.fatal:
                self.phase = CLOSED
            return
        if message.method.__class__ is str:
            if message.id.__class__ is int or message.id.__class__ is str:
                self._receive_request(message, events)
                return
            if message.id is not None:
                self._receive_note(message, line, events)
                return
            rule = "an id is a string or an integer, never null"
        else:
            rule = "a message to a worker has a method"
        events.append(ReplyDue(codec.write(Failure(None, _object("InvalidRequest", rule)))))
        events.append(ViolationFound(rule, bytes(line[:_SAMPLE_BYTES])))

    def _receive_request(self, message: Incoming, events: list[WorkerEvent]) -> None:
        request_id, method = message.id, message.method
        assert isinstance(request_id, int | str)
        assert isinstance(method, str)
        if request_id in self._open:
            self._refuse(events, request_id, "InvalidRequest", f"id {request_id!r:.80} is open already")
            return
        kind: Kind = _KINDS.get(method, "call")
        phase = MOVES.get((self.phase, kind))
        if phase is None:
            condition = REFUSALS[self.phase]
            if self.phase == DRAINING:
                why = "the worker is shutting down"
            elif kind == "initialize":
                condition, why = "InvalidRequest", "the hello was said already; the first one holds"
            else:
                why = f"{method:.80} before the hello was done"
            self._refuse(events, request_id, condition, why)
            return
        if method == "ping":
            events.append(ReplyDue(codec.write(Success(request_id, PingResult(open=self.open_ids)))))
            return
        if kind == "call":
            if method not in self._methods:
                why = f"{method:.80} is not one of the supportedMethods of this worker"
                self._refuse(events, request_id, "MethodNotFound", why)
                return
            if len(self._open) >= self.limits.in_flight:
                why = f"{len(self._open)} requests are in flight already (limits.inFlight)"
                self._refuse(events, request_id, "Overloaded", why)
                return
        self.phase = phase
        self._open[request_id] = method
        events.append(RequestReceived(request_id, method, message.params))

    def _receive_note(self, message: Incoming, line: bytes, events: list[WorkerEvent]) -> None:
        method = message.method
        assert isinstance(method, str)
        kind = _NOTES.get(method)
        if kind is None:
            return  # unknown notifications are ignored: a newer host may send them
        phase = MOVES.get((self.phase, kind))
        if phase is None:
            events.append(ViolationFound(f"{method} while the connection is {self.phase}", bytes(line[:_SAMPLE_BYTES])))
            return
        self.phase = phase
        events.append(NotificationReceived(method, message.params))

    def _method_of(self, request_id: Id) -> str:
        method = self._open.get(request_id)
        if method is None:
            raise NotOpen(f"id {request_id!r} is not open")
        return method

    def _settle(self, request_id: Id, method: str, kind: Literal["initialize.result", "initialize.error"]) -> None:
        del self._open[request_id]
        if method == "initialize":
            # A hello that is answered after the end of input changes nothing any more.
            self.phase = MOVES.get((self.phase, kind), self.phase)

    def _fits(self, frame: bytes) -> bool:
        return len(frame) - 1 <= self.limits.frame_bytes  # the line feed does not count

    @staticmethod
    def _refuse(events: list[WorkerEvent], request_id: Id, condition: str, why: str) -> None:
        events.append(ReplyDue(codec.write(Failure(request_id, _object(condition, why)))))


def _object(condition: str, message: str) -> ErrorObject:
    retry: Retry = "later" if condition in ("Unavailable", "Overloaded") else "never"
    return ErrorObject(_CODES[condition], message, ErrorData(condition=condition, retry=retry, dispatched="no"))


def _shortened(error: ErrorObject, detail: Detail | None) -> ErrorObject:
    """The same failure without what may be long."""
    data = error.data or ErrorData()
    kept = ErrorData(
        condition=data.condition,
        retry=data.retry,
        retry_after_ms=data.retry_after_ms,
        dispatched=data.dispatched,
        detail=detail,
    )
    return ErrorObject(error.code, error.message[:4096], kept)
