"""A real `HostConnection` and a real `WorkerConnection` with two byte pipes between them, and the books of both.

Every step has arguments that JSON can say, and can be done in any state: a step that finds nothing to do does nothing.
Before the bytes of a step reach a connection, its book says which events must come; what comes is compared with that,
event by event. The pipes keep their order, as pipes do; everything else may happen at any time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Raw, Struct

from sandport_protocol import codec
from sandport_protocol.envelope import Failure, Request
from sandport_protocol.errors import (
    Cancelled,
    ErrorData,
    ErrorObject,
    Internal,
    Kept,
    Partial,
    TooLarge,
    Unavailable,
    VersionMismatch,
)
from sandport_protocol.events import (
    HelloReceived,
    HostEvent,
    JunkReceived,
    LateAnswer,
    NotificationReceived,
    ReplyDue,
    RequestEnded,
    RequestReceived,
    ViolationFound,
    WorkerEvent,
)
from sandport_protocol.host_connection import Cause, ForbiddenNow, HostConnection
from sandport_protocol.limits import Limits, agree
from sandport_protocol.v1 import (
    InitializeParams,
    InitializeResult,
    OutputParams,
    PeerInfo,
    PingParams,
    ProgressParams,
    ProviderInfo,
    ShutdownParams,
    StreamName,
)
from sandport_protocol.worker_connection import NotOpen, WorkerConnection

from .books import Asked, Event, HostBook, Said, WorkerBook, error_of, result_of
from .lifecycle import CODES, METHODS, OUTCOMES
from .pipe import Pipe

LIMITS = Limits(frame_bytes=4_000, depth=8, in_flight=4, credit_bytes=64, chunk_bytes=24, junk_bytes=200)
"""Small, so that a machine reaches every one of them."""

HELLO = Said("ask", method="initialize")
_TOO_MUCH = LIMITS.frame_bytes + 500
_HOW: dict[str, str] = {"result": "result", "error": "error", "cancelled": "confirmed", "partial": "confirmed"}
"""What an answer means to the host's request, by how it is given; whatever does not fit in a frame is an error."""

STRAY: dict[str, tuple[bytes, Said]] = {
    "print": (b"dbg", Said("garbage")),
    "bytes": (b"\xff\xfe", Said("garbage")),
    "batch": (b"[]", Said("garbage")),
    "blank": (b" \t", Said("blank")),
    "deep": (b"[" * 9 + b"]" * 9, Said("fatal")),
    "oversized": (b"x" * _TOO_MUCH, Said("fatal")),
    "call": (b'{"jsonrpc":"2.0","id":1,"method":"execute"}', Said("call", method="execute")),
    "nobody": (b'{"jsonrpc":"2.0","id":999999,"result":{}}', Said("answer", id=999_999, happening="result")),
    "text id": (b'{"jsonrpc":"2.0","id":"1","result":{}}', Said("answer", id="1", happening="result")),
    "unknown note": (b'{"jsonrpc":"2.0","method":"x-y/z"}', Said("note", method="x-y/z")),
}
"""What a worker, or what it started, may write that is no proper answer."""

ODD: dict[str, tuple[bytes, Said]] = {
    "garbage": (b"{", Said("garbage", condition="ParseFailed")),
    "batch": (b"[]", Said("garbage", condition="InvalidRequest")),
    "null id": (b'{"jsonrpc":"2.0","id":null,"method":"probe"}', Said("garbage", condition="InvalidRequest")),
    "answer": (b'{"jsonrpc":"2.0","id":1,"result":{}}', Said("garbage", condition="InvalidRequest")),
    "blank": (b"", Said("blank")),
    "deep": (b"[" * 9 + b"]" * 9, Said("fatal", condition="ParseFailed")),
    "oversized": (b"x" * _TOO_MUCH, Said("fatal", condition="ParseFailed")),
    "unknown note": (b'{"jsonrpc":"2.0","method":"x-y/z"}', Said("note", method="x-y/z")),
    "initialized": (b'{"jsonrpc":"2.0","method":"initialized","params":{}}', Said("note", None, "initialized", {})),
}
"""What another host may write that ours does not, or not now."""


class Pair:
    """Both connections, from the first byte to the last."""

    def __init__(self) -> None:
        self.host = HostConnection(LIMITS)
        self.worker = WorkerConnection(LIMITS)
        self.host_book = HostBook(LIMITS.junk_bytes)
        self.worker_book = WorkerBook(LIMITS.in_flight)
        self.to_worker: Pipe[Said] = Pipe(LIMITS.frame_bytes)
        self.to_host: Pipe[Said] = Pipe(LIMITS.frame_bytes)
        self._number = 0
        """Of the latest call, in its params and in its result: an answer that went astray shows."""
        self._numbers: dict[int | str, int] = {}
        """Of each request that the worker has open, as its params say."""
        self._answers: list[tuple[bytes, Said]] = []
        self._answered: list[int | str] = []
        self._room: dict[tuple[int | str, str], int] = {}
        self._sent: dict[tuple[int | str, str], int] = {}
        self._received: dict[tuple[int, str], int] = {}

    # -------------------------------------------------------------- the host's commands

    def begin(self, served: bool) -> None:
        """Start before the hello, or behind it."""
        if served:
            self.hello(offered=1)
            self.deliver_all()
            self.greet(how="good")
            self.deliver_all()
            self.initialized()
            self.deliver_all()

    def hello(self, offered: int) -> None:
        """Say hello."""
        params = InitializeParams(
            protocol_versions=(offered,),
            host=PeerInfo(name="pair", version="0"),
            store_id="st",
            state_dir="/",
            limits=LIMITS,
        )
        self._ask("initialize", params, number=offered)

    def initialized(self) -> None:
        """End the hello."""
        if not self.host_book.may("initialized"):
            _must_raise(ForbiddenNow, self.host.send_initialized)
            return
        self.host_book.move("initialized")
        self.to_worker.write(self.host.send_initialized(), Said("note", method="initialized", content={}))

    def call(self, method: str, padding: int = 0) -> None:
        """Ask for something."""
        self._number += 1
        params = {"of": self._number} | ({"padding": "x" * padding} if padding else {})
        self._ask(method, Raw(codec.encode(params)), number=self._number, too_large=padding > LIMITS.frame_bytes)

    def ping(self) -> None:
        """Ask whether the worker lives."""
        self._ask("ping", PingParams())

    def shutdown(self) -> None:
        """Ask the worker to end."""
        self._ask("shutdown", ShutdownParams())

    def _ask(self, method: str, params: Struct | Raw, *, number: int = 0, too_large: bool = False) -> None:
        book = self.host_book
        kind = method if method in ("initialize", "ping", "shutdown") else "call"
        if not book.may(kind):
            _must_raise(ForbiddenNow, lambda: self.host.send_request(method, params))
            return
        if too_large:
            _must_raise(TooLarge, lambda: self.host.send_request(method, params))
            return
        request_id, frame = self.host.send_request(method, params)
        assert request_id == len(book.asked) + 1, "ids count up from 1, and none is used again"
        book.move(kind)
        content = json.loads(frame).get("params", {})
        whole = self.to_worker.write(frame, Said("ask", request_id, method, content))
        book.asked[request_id] = Asked(method, number, spoiled=not whole)

    def cancel(self, pick: int, cause: Cause) -> None:
        """Interrupt a request, mostly one that is open."""
        request_id = self._any_request(pick)
        frame = self.host.send_cancel(request_id, cause)
        asked = self.host_book.asked.get(request_id)
        if asked is None or asked.state == "ended":
            assert frame == b"", "a cancel of what has ended"
            return
        first = asked.state == "open"
        if first:
            asked.state, asked.cause = "cancelling", cause
        if not first or not self.host_book.may("control"):
            assert frame == b"", "a second cancel, or one that the phase does not allow"
            return
        self.to_worker.write(frame, Said("note", method="cancel", content={"id": request_id}))

    def tell(self, pick: int) -> None:
        """The grace after a cancel is over."""
        request_id = self._any_request(pick)
        asked = self.host_book.asked.get(request_id)
        expected = []
        if asked is not None and asked.state == "cancelling":
            expected = [self.host_book.settle(request_id, "tell", None)]
        _same([_of_host(event) for event in self.host.tell(request_id)], expected)

    def credit(self, pick: int, stream: StreamName, size: int) -> None:
        """Give room for output."""
        request_id = self._any_request(pick)
        frame = self.host.send_credit(request_id, stream, size)
        asked = self.host_book.asked.get(request_id)
        if asked is None or asked.state == "ended" or not self.host_book.may("control"):
            assert frame == b"", "credit for what has ended"
            return
        asked.granted[stream] = asked.granted.get(stream, 0) + size
        note = Said("note", method="credit", content={"id": request_id, "stream": stream, "bytes": size})
        self.to_worker.write(frame, note)

    def _any_request(self, pick: int) -> int:
        """One of those that are open, newest first; behind them those that ended, and one that never was."""
        open_ids = self.host_book.open[::-1]
        others = [number for number in self.host_book.asked if number not in open_ids]
        candidates = [*open_ids, *others, 10**6]
        return candidates[pick % len(candidates)]

    # -------------------------------------------------------------- the worker's answers

    def greet(self, how: Literal["good", "refuse", "other version", "unreadable"]) -> None:
        """Answer a hello."""
        hellos = [number for number, method in self.worker_book.open.items() if method == "initialize"]
        if not hellos:
            return
        request_id = hellos[0]
        if how == "refuse":
            refusal = VersionMismatch("other versions").to_wire()
            meaning = Said("answer", request_id, happening="error", content=error_of(refusal.code))
            self._reply(self.worker.send_error(request_id, refusal), meaning, request_id)
            return
        hello = InitializeResult(
            protocol_version=2 if how == "other version" else 1,
            provider=ProviderInfo(name="pair", version="0"),
            supported_methods=METHODS,
            limits=LIMITS,
        )
        self.worker.negotiated(METHODS, agree(LIMITS, LIMITS))
        asked = self.host_book.asked.get(request_id) if isinstance(request_id, int) else None
        if how == "unreadable":
            frame = self.worker.send_result(request_id, {})
            meaning = Said("answer", request_id, happening="unreadable")
        elif how == "other version" or (asked is not None and asked.number != 1):
            frame = self.worker.send_result(request_id, hello)
            content = error_of(CODES["VersionMismatch"])
            meaning = Said("answer", request_id, happening="other version", content=content)
        else:
            frame = self.worker.send_result(request_id, hello)
            meaning = Said("answer", request_id, happening="result", content=result_of("hello"))
        self._reply(frame, meaning, request_id, kind="initialize.result")

    def answer(self, pick: int, how: str) -> None:
        """Answer a request: as `_HOW` has it, or with what does not fit in a frame."""
        calls = [number for number, method in self.worker_book.open.items() if method != "initialize"]
        if not calls:
            return
        request_id = calls[pick % len(calls)]
        of = self._numbers.get(request_id, 0)
        if how in ("result", "large"):
            value = {"of": of} | ({"padding": "x" * _TOO_MUCH} if how == "large" else {})
            frame = self.worker.send_result(request_id, value)
            content = result_of(value) if how == "result" else error_of(CODES["TooLarge"])
        else:
            error, content = _failure(how, of)
            frame = self.worker.send_error(request_id, error)
        happening = _HOW.get(how, "confirmed" if how == "large partial" else "error")
        self._reply(frame, Said("answer", request_id, happening=happening, content=content), request_id)

    def _reply(self, frame: bytes, meaning: Said, request_id: int | str, *, kind: str = "initialize.error") -> None:
        assert len(frame) - 1 <= LIMITS.frame_bytes, "more than the host reads"
        self.worker_book.answered(request_id, kind)
        self._answers.append((frame, meaning))
        self._answered.append(request_id)
        self._to_host(frame, meaning)

    def _to_host(self, frame: bytes, meaning: Said) -> None:
        whole = self.to_host.write(frame, meaning)
        asked = self.host_book.asked.get(meaning.id) if isinstance(meaning.id, int) else None
        if not whole and asked is not None and meaning.kind == "answer":
            asked.spoiled = True

    def answer_again(self, pick: int, raw: bool) -> None:
        """Answer what is answered already: the connection refuses it; a worker without one writes the line again."""
        if not self._answers:
            return
        if raw:
            frame, meaning = self._answers[pick % len(self._answers)]
            self.to_host.write(frame, meaning)
            return
        request_id = self._answered[pick % len(self._answered)] if self._answered else f"never {pick}"
        if request_id not in self.worker_book.open:
            _must_raise(NotOpen, lambda: self.worker.send_result(request_id, {}))
            _must_raise(NotOpen, lambda: self.worker.send_error(request_id, Internal("again").to_wire()))

    def output(self, pick: int, stream: StreamName, size: int) -> None:
        """Send output of a call, as far as its credit goes; without room, its end mark or nothing."""
        calls = [number for number, method in self.worker_book.open.items() if method == "execute"]
        if not calls or self.worker_book.phase not in ("serving", "draining"):
            return
        request_id = calls[pick % len(calls)]
        at = (request_id, stream)
        room = self._room.setdefault(at, LIMITS.credit_bytes)
        size = min(size, room, LIMITS.chunk_bytes)
        offset = self._sent.get(at, 0)
        data = bytes((offset + step) % 251 for step in range(size))
        params = OutputParams(id=request_id, stream=stream, offset=offset, data=data, end=None if size else "seen")
        self._room[at] = room - size
        self._sent[at] = offset + size
        self.to_host.write(self.worker.send_output(params), Said("note", method="output", content=params))

    def progress(self, pick: int) -> None:
        """Say how far a call is."""
        params = ProgressParams(id=pick, message="on the way")
        frame = self.worker.send_notification("progress", params)
        self.to_host.write(frame, Said("note", method="progress", content={"id": pick, "message": "on the way"}))

    # -------------------------------------------------------------- what neither should do

    def stray(self, what: str) -> None:
        """Something else on the worker's stdout."""
        text, meaning = STRAY[what]
        self.to_host.write(text + b"\n", meaning)

    def refuse_unread(self) -> None:
        """The worker could not read a request, and says so without an id."""
        frame = codec.write(Failure(None, Internal("?").to_wire()))
        self.to_host.write(frame, Said("answer", None, happening="error"))

    def half(self, side: Literal["worker", "host"]) -> None:
        """Half a line, which spoils the next one."""
        (self.to_host if side == "worker" else self.to_worker).write_half(b'{"jsonrpc":"2.0","id":4')

    def odd(self, what: str) -> None:
        """Something that our host does not write, or not now."""
        text, meaning = ODD[what]
        self.to_worker.write(text + b"\n", meaning)

    def foreign(self, method: str, pick: int, taken: bool) -> None:
        """A request whose id our host would not use: a text, or one that is open."""
        ids = list(self.worker_book.open) if taken else []
        request_id = ids[pick % len(ids)] if ids else f"f{pick}"
        params = {"of": -1}
        self.to_worker.write(codec.write(Request(request_id, method, params)), Said("ask", request_id, method, params))

    # -------------------------------------------------------------- the pipes

    def deliver(self, side: Literal["worker", "host"], size: int) -> None:
        """The next bytes arrive at one side."""
        if side == "worker":
            chunk, lines = self.to_worker.deliver(size)
            expected = [event for line in lines for event in self.worker_book.hear(line)]
            _same(self._worker_did(self.worker.receive(chunk)), expected)
        else:
            chunk, lines = self.to_host.deliver(size)
            expected = [event for line in lines for event in self.host_book.hear(line)]
            _same([self._host_did(event) for event in self.host.receive(chunk)], expected)

    def deliver_all(self) -> None:
        """Everything that is on its way arrives."""
        self.deliver("worker", 10**6)
        self.deliver("host", 10**6)

    def _worker_did(self, events: Sequence[WorkerEvent]) -> list[Event]:
        done: list[Event] = []
        for event in events:
            match event:
                case RequestReceived(request_id, method, params):
                    content = _decoded(params)
                    self._numbers[request_id] = content.get("of", 0)
                    done.append(("request", request_id, method, content))
                case NotificationReceived(method, params):
                    content = _decoded(params)
                    if method == "credit":
                        self._take_credit(content)
                    done.append(("note", method, content))
                case ReplyDue(frame):
                    done.append(self._reply_of_the_connection(frame))
                case ViolationFound(_, sample, fatal):
                    assert len(sample) <= 120
                    done.append(("violation", fatal))
        return done

    def _take_credit(self, content: dict[str, Any]) -> None:
        at = (content["id"], content["stream"])
        self._room[at] = self._room.get(at, LIMITS.credit_bytes) + content["bytes"]

    def _reply_of_the_connection(self, frame: bytes) -> Event:
        answer = json.loads(frame)
        request_id = answer["id"]
        if "error" in answer:
            code = answer["error"]["code"]
            assert answer["error"]["data"]["dispatched"] == "no", "nothing of a refused request was done"
            meaning = Said("answer", request_id, happening="error", content=error_of(code))
            event: Event = ("refusal", request_id, code)
        else:
            meaning = Said("answer", request_id, happening="result", content=result_of(answer["result"]))
            event = ("pong", request_id, tuple(answer["result"].get("open", ())))
        self._answers.append((frame, meaning))
        self._to_host(frame, meaning)
        return event

    def _host_did(self, event: HostEvent) -> Event:
        if isinstance(event, NotificationReceived) and isinstance(event.params, OutputParams):
            self._take_output(event.params)
        return _of_host(event)

    def _take_output(self, piece: OutputParams) -> None:
        asked = self.host_book.asked.get(piece.id) if isinstance(piece.id, int) else None
        if asked is None:
            return  # output of a call that another host made
        at = (int(piece.id), piece.stream)
        self._received[at] = self._received.get(at, 0) + len(piece.data)
        granted = LIMITS.credit_bytes + asked.granted.get(piece.stream, 0)
        assert self._received[at] <= granted, "more output than there is room for"

    # -------------------------------------------------------------- the ends

    def worker_crashes(self, keep: int) -> None:
        """The worker dies in the middle of a write, or with everything written."""
        for meaning in self.to_host.cut(keep):
            asked = self.host_book.asked.get(meaning.id) if isinstance(meaning.id, int) else None
            if asked is not None and meaning.kind == "answer":
                asked.spoiled = True
        self.to_worker.cut(0)

    def reap(self) -> None:
        """The host learns that the worker is gone, if it is."""
        if self.to_host.ended:
            self._crash()

    def host_crashes(self, keep: int) -> None:
        """The host dies: the worker reads what was written whole, and then the end of its input."""
        self.to_worker.cut(keep)
        self.deliver("worker", 10**6)
        self.worker.close()
        self.worker_book.phase = "closed"
        assert self.worker.receive(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n') == []

    def _crash(self) -> None:
        expected = self.host_book.crash()
        _same([_of_host(event) for event in self.host.crash()], expected)
        assert self.host.receive(b'{"jsonrpc":"2.0","id":1,"result":{}}\n') == []

    # -------------------------------------------------------------- what always holds

    def check(self) -> None:
        """Both connections stand where their books do."""
        host, book = self.host, self.host_book
        assert (host.phase, self.worker.phase) == (book.phase, self.worker_book.phase)
        assert host.open_requests == len(book.open)
        for number, asked in book.asked.items():
            assert host.state_of(number) == asked.state
            assert (asked.outcome is None) == (asked.state in ("open", "cancelling")), "told once, and then never again"
        assert self.worker.open_ids == tuple(self.worker_book.open)

    def finish(self) -> None:
        """Everything is answered, found lost or crashed; nothing is left in either table."""
        if len(self.host_book.asked) % 4 == 3:
            self.worker_crashes(keep=10**6)  # with calls open, some of them told
        if self.host_book.may("ping"):
            self.ping()  # if half a line stands in the pipe, this one is spoiled by it and the next is not
        self.deliver_all()
        self._answer_everything()
        for _ in range(2):
            if self.host_book.may("ping"):
                self.ping()
            self.deliver_all()
            self.check()
        if "closed" not in (self.host_book.phase, self.worker_book.phase) and not self.to_host.ended:
            left = [asked for asked in self.host_book.asked.values() if asked.state != "ended"]
            assert all(asked.method in ("initialize", "ping") and asked.spoiled for asked in left), left
        self._crash()
        self.check()
        assert all(asked.outcome in OUTCOMES for asked in self.host_book.asked.values())
        assert self.host.open_requests == 0
        assert self.worker.open_ids == ()
        assert self.host.crash() == []

    def _answer_everything(self) -> None:
        while any(method == "initialize" for method in self.worker_book.open.values()):
            self.greet(how="good")
        while self.worker_book.open:
            self.answer(pick=0, how="result")

    def close(self) -> None:
        """There is nothing to let go of."""


def _failure(how: str, of: int) -> tuple[ErrorObject, Event]:
    """An error, and what of it must arrive."""
    if how == "error":
        return Unavailable("the vendor is away").to_wire(), error_of(CODES["Unavailable"])
    if how == "cancelled":
        return Cancelled("cancelled").to_wire(), error_of(CODES["Cancelled"])
    kept = str(of) if how == "partial" else "x" * _TOO_MUCH
    data = ErrorData(condition="Cancelled", partial=Partial(stdout=Kept(total_bytes=len(kept), data=kept.encode())))
    error = ErrorObject(CODES["Cancelled"], "cancelled", data)
    # What would not fit in a frame loses what was produced, never what happened.
    return error, error_of(error.code, kept if how == "partial" else None)


def _of_host(event: HostEvent) -> Event:
    """An event of the host's connection in the books' form."""
    match event:
        case RequestEnded(request_id, method, outcome, result, error):
            return ("ended", request_id, method, outcome, _content(method, result, error))
        case LateAnswer(request_id, method, result, error):
            return ("late", request_id, method, _content(method, result, error))
        case HelloReceived(request_id, _):
            return ("hello", request_id)
        case NotificationReceived(method, params):
            return ("note", method, params if isinstance(params, OutputParams) else _decoded(params))
        case JunkReceived(line):
            return ("junk", line)
        case ViolationFound(_, sample, fatal):
            assert len(sample) <= 120
            return ("violation", fatal)


def _content(method: str, result: Raw | None, error: ErrorObject | None) -> Event | None:
    assert result is None or error is None
    if result is not None:
        return result_of("hello" if method == "initialize" else _decoded(result))
    if error is None:
        return None
    partial = error.data.partial if error.data is not None else None
    return error_of(error.code, None if partial is None else partial.stdout.data.decode())


def _decoded(raw: Any) -> Any:
    return json.loads(bytes(raw) or b"{}")


def _same(found: list[Event], expected: list[Event]) -> None:
    assert found == expected, f"{found} instead of {expected}"


def _must_raise(kind: type[Exception], action: Any) -> None:
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
