"""The host's side of a connection: requests out, their one outcome in.

Owns: ids, pairing, the states of requests, what is allowed when. Above: whoever reads and writes the pipe and knows
the time; it says "request 7 is over its deadline", never the other way round. Below: framing and codec.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct

from . import codec
from .envelope import Incoming, Notification, Request
from .errors import Cancelled, Detail, ErrorData, ErrorObject, ProtocolViolation, TooLarge, VersionMismatch, from_wire
from .events import (
    HelloReceived,
    HostEvent,
    JunkReceived,
    LateAnswer,
    NotificationReceived,
    RequestEnded,
    ViolationFound,
)
from .framing import LineSplitter
from .limits import DEFAULTS, Limits, agree
from .methods import NOTIFICATIONS
from .states import (
    BY_CAUSE,
    CANCELLING,
    CLOSED,
    MOVES,
    NEW,
    OPEN,
    REQUEST_MOVES,
    TOLD,
    Happening,
    Kind,
    Phase,
    RequestState,
)
from .v1 import CancelParams, CreditParams, InitializedParams, InitializeParams, InitializeResult, PingResult
from .versions import pick

Cause = Literal["cancelled", "deadline"]

_KINDS: dict[str, Kind] = {"initialize": "initialize", "ping": "ping", "shutdown": "shutdown"}
_SAMPLE_BYTES = 120
_WORKER_NOTES = frozenset(name for name, note in NOTIFICATIONS.items() if note.sender == "worker")


class ForbiddenNow(Exception):
    """The caller of the connection asked for something that its phase does not allow; a fault of the caller."""


class _Open(Struct, gc=False):
    method: str
    state: RequestState = OPEN
    cause: Cause | None = None


class HostConnection:
    """Bytes in, events out; commands in, bytes out. Knows no clock and no pipe.

    Frames go on the pipe in the order in which they were made here. What is to be overtaken is made late: a pong says
    which of the calls before it the worker has, and a ping that overtook a call would prove that call lost.

    Ids are integers that count up from 1, so "sent before" is a comparison.
    """

    def __init__(self, limits: Limits = DEFAULTS) -> None:
        self.phase: Phase = NEW
        self.limits = limits
        """Those that the host offers; from the hello on, those in force."""
        # What the worker sends is held against our own ceilings, what we send against the agreed ones.
        self._splitter = LineSplitter(limits.frame_bytes)
        self._depth = limits.depth
        self._open: dict[int, _Open] = {}
        self._last_id = 0
        self._offered: InitializeParams | None = None
        self._junk_bytes = 0
        self.hello: InitializeResult | None = None

    # -------------------------------------------------------------- commands

    @property
    def open_requests(self) -> int:
        """How many ids are open, those included whose caller has been told."""
        return len(self._open)

    def state_of(self, request_id: int) -> RequestState:
        """Where a request stands; `ended` for an id that is not open."""
        entry = self._open.get(request_id)
        return "ended" if entry is None else entry.state

    def send_request(self, method: str, params: Struct | Raw) -> tuple[int, bytes]:
        """The id and the frame of a call.

        Raises:
            ForbiddenNow: The phase does not allow it.
            TooLarge: The frame would pass the worker's ceiling; nothing was sent.
        """
        kind: Kind = _KINDS.get(method, "call")
        phase = MOVES.get((self.phase, kind))
        if phase is None:
            raise ForbiddenNow(f"{method} is not allowed while the connection is {self.phase}")
        request_id = self._last_id + 1
        frame = codec.write(Request(request_id, method, params))
        limit = self.limits.frame_bytes
        if len(frame) - 1 > limit:  # the line feed does not count
            raise TooLarge(
                f"the params of {method} take {len(frame) - 1} bytes; a frame holds {limit}",
                dispatched="no",
                detail=Detail(field="limits.frameBytes", limit=limit),
            )
        if kind == "initialize":
            if not isinstance(params, InitializeParams):
                raise ForbiddenNow("the hello's params must be InitializeParams")
            self._offered = params
        self.phase = phase
        self._last_id = request_id
        self._open[request_id] = _Open(method)
        return request_id, frame

    def send_initialized(self) -> bytes:
        """The frame that ends the hello."""
        self._move("initialized")
        return codec.write(Notification("initialized", InitializedParams()))

    def send_credit(self, request_id: int, stream: Literal["stdout", "stderr", "pty"], size: int) -> bytes:
        """The frame that gives room for `size` more bytes; empty once the request has ended."""
        entry = self._open.get(request_id)
        if entry is None or (self.phase, "control") not in MOVES:
            return b""
        return codec.write(Notification("credit", CreditParams(id=request_id, stream=stream, bytes=size)))

    def send_cancel(self, request_id: int, cause: Cause) -> bytes:
        """The frame that interrupts a call; empty where it ended already or was cancelled before.

        The first cause is the one that the caller will be told.
        """
        entry = self._open.get(request_id)
        if entry is None:
            return b""
        first = entry.state == OPEN
        entry.state, _ = REQUEST_MOVES[entry.state, "cancel"]
        if not first:
            return b""
        entry.cause = cause
        if (self.phase, "control") not in MOVES:
            return b""  # the hello and what stands beside it cannot be interrupted, only told
        return codec.write(Notification("cancel", CancelParams(id=request_id)))

    def tell(self, request_id: int) -> list[HostEvent]:
        """The grace after a cancel is over: end the request for its caller, keep the id open."""
        entry = self._open.get(request_id)
        if entry is None or entry.state != CANCELLING:
            return []
        return [self._end(request_id, entry, "tell")]

    def crash(self) -> list[HostEvent]:
        """The worker is gone: end every request that is open."""
        self.phase = CLOSED
        entries, self._open = self._open, {}
        return [self._end(request_id, entry, "crash") for request_id, entry in entries.items()]

    # -------------------------------------------------------------- reading

    def receive(self, data: bytes) -> list[HostEvent]:
        """What the bytes say, in order. Never raises, whatever they are."""
        events: list[HostEvent] = []
        if self.phase is CLOSED:
            return events
        for line in self._splitter.feed(data):
            self._receive_line(line, events)
            if self.phase is CLOSED:
                return events
        if self._splitter.overflow is not None:
            self._violate(
                events,
                f"a line longer than {self._splitter.max_frame_bytes} bytes (limits.frameBytes)",
                self._splitter.overflow,
                fatal=True,
            )
        return events

    def _receive_line(self, line: bytes, events: list[HostEvent]) -> None:
        piece = codec.read_output(line, depth=self._depth)
        if piece is not None and (self.phase, "report") in MOVES:
            events.append(NotificationReceived("output", piece))
            return
        try:
            message = codec.read(line, depth=self._depth)
        except codec.Unreadable as error:
            if not codec.is_blank(line):
                self._unreadable(line, error, events)
            return
        if message.method.__class__ is str:
            self._receive_note(message, line, events)
        else:
            self._receive_answer(message, line, events)

    def _receive_answer(self, message: Incoming, line: bytes, events: list[HostEvent]) -> None:
        request_id = message.id
        entry = self._open.get(request_id) if request_id.__class__ is int else None
        if entry is None:
            if request_id is None and len(message.error):
                self._violate(events, "the worker could not read a request of ours", line)
            else:
                self._violate(events, "an answer to an id that is not open", line)
            return
        assert isinstance(request_id, int)  # a key of the dict above
        has_result = len(message.result) > 0
        if has_result == (len(message.error) > 0):
            self._violate(events, "an answer has either a result or an error", line)
            return
        method = entry.method
        if has_result:
            if method == "ping":
                self._receive_pong(request_id, entry, message.result, line, events)
            elif method == "initialize":
                self._receive_hello(request_id, message.result, line, events)
            else:
                events.append(self._end(request_id, entry, "result", result=message.result))
            return
        error = codec.read_error(message.error)
        if error is None:
            self._violate(events, "an error object has an integer code and a message", line)
            return
        happening: Happening = "confirmed" if error.code == Cancelled.code else "error"
        if method == "initialize":
            self._move("initialize.error")
        events.append(self._end(request_id, entry, happening, error=error))

    def _receive_note(self, message: Incoming, line: bytes, events: list[HostEvent]) -> None:
        method = message.method
        assert isinstance(method, str)
        if message.id is not UNSET:
            self._violate(events, f"a worker does not call its host ({method})", line)
        elif method not in _WORKER_NOTES:
            return  # unknown notifications are ignored: a newer worker may send them
        elif (self.phase, "report") not in MOVES:
            self._violate(events, f"{method} before the hello was done", line)
        else:
            events.append(NotificationReceived(method, message.params))

    def _receive_hello(self, request_id: int, raw: Raw, line: bytes, events: list[HostEvent]) -> None:
        offered = self._offered
        entry = self._open[request_id]
        assert offered is not None  # `initialize` was sent, or there were no such id
        try:
            hello = codec.read_as(InitializeResult, raw)
            pick(offered.protocol_versions, (hello.protocol_version,), worker_name=hello.provider.name)
        except ValueError as error:
            self._violate(events, f"the hello is unreadable: {error}", line, fatal=True)
            return
        except VersionMismatch as error:
            self._move("initialize.error")
            events.append(self._end(request_id, entry, "error", error=error.to_wire()))
            return
        self._move("initialize.result")
        self.hello = hello
        self.limits = agree(offered.limits, hello.limits)
        ended = self._end(request_id, entry, "result", result=raw)
        # A hello that comes after its caller was told something else is an answer like any other that is late.
        events.append(HelloReceived(request_id, hello) if isinstance(ended, RequestEnded) else ended)

    def _receive_pong(self, request_id: int, entry: _Open, raw: Raw, line: bytes, events: list[HostEvent]) -> None:
        try:
            pong = codec.read_as(PingResult, raw)
        except ValueError as error:
            self._violate(events, f"a pong is unreadable: {error}", line)
            return
        events.append(self._end(request_id, entry, "result", result=raw))
        taken = set(pong.open)
        for other in [i for i in self._open if i < request_id and i not in taken]:
            lost = self._open[other]
            if lost.method in ("ping", "initialize"):
                continue
            violation = ErrorObject(
                ProtocolViolation.code,
                f"the worker lost this {lost.method}: it has neither answered it nor does it still work on it",
                ErrorData(condition="ProtocolViolation", dispatched="unknown"),
            )
            events.append(self._end(other, lost, "lost", error=violation))

    # -------------------------------------------------------------- inside

    def _move(self, kind: Kind) -> None:
        phase = MOVES.get((self.phase, kind))
        if phase is None:
            raise ForbiddenNow(f"{kind} is not allowed while the connection is {self.phase}")
        self.phase = phase

    def _end(
        self,
        request_id: int,
        entry: _Open,
        happening: Happening,
        *,
        result: Raw | None = None,
        error: ErrorObject | None = None,
    ) -> HostEvent:
        before = entry.state
        entry.state, outcome = REQUEST_MOVES[before, happening]
        if entry.state != TOLD:
            self._open.pop(request_id, None)
        if outcome is None:
            return LateAnswer(request_id, entry.method, result, error)
        if outcome == BY_CAUSE:
            return RequestEnded(request_id, entry.method, entry.cause or "cancelled", None, error)
        return RequestEnded(request_id, entry.method, outcome, result, error)

    def _unreadable(self, line: bytes, error: codec.Unreadable, events: list[HostEvent]) -> None:
        if self.hello is None and not error.fatal:
            # A runtime or a wrapper may print before the worker takes the pipe over.
            self._junk_bytes += len(line) + 1
            if self._junk_bytes <= self.limits.junk_bytes:
                events.append(JunkReceived(line))
                return
            rule = f"more than {self.limits.junk_bytes} bytes on stdout before the hello (limits.junkBytes)"
            self._violate(events, rule, line, fatal=True)
            return
        self._violate(events, error.rule, line, fatal=error.fatal)

    def _violate(self, events: list[HostEvent], rule: str, line: bytes, *, fatal: bool = False) -> None:
        events.append(ViolationFound(rule, bytes(line[:_SAMPLE_BYTES]), fatal))
        if fatal:
            self.phase = CLOSED


def error_of(event: RequestEnded | LateAnswer) -> Exception | None:
    """The exception for an event that carries an error object."""
    return None if event.error is None else from_wire(event.error)
