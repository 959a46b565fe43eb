"""Two connections talk over a lossy, re-chunking pipe while requests are made, cancelled, answered, lost and crashed.

The machine keeps its own simple books of what must have become of every request, and holds the host's connection to
them: one outcome of the five for each request, never two; what comes late is told only where the caller had been told
before; a ping finds every answer that was lost and never a call that lives.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw, Struct

from protocol.tests.peers import NOTHING, serving_pair
from sandport_protocol import codec
from sandport_protocol.envelope import Success
from sandport_protocol.errors import Cancelled, ProtocolViolation, Unavailable
from sandport_protocol.events import (
    HostEvent,
    LateAnswer,
    NotificationReceived,
    ReplyDue,
    RequestEnded,
    RequestReceived,
    ViolationFound,
)
from sandport_protocol.host_connection import ForbiddenNow
from sandport_protocol.states import OUTCOMES
from sandport_protocol.v1 import CancelParams, PingParams, PingResult, ShutdownParams

CANCELLED = Cancelled("cancelled").to_wire()
FAILED = Unavailable("the vendor is away").to_wire()
rarely = st.integers(0, 19).map(lambda drawn: drawn == 19)
METHODS = ["acquireLease", "execute", "probe", "destroyLease"]


class Book(Struct):
    """What the machine knows of one request, by what it did itself."""

    method: str
    cause: str | None = None
    told: bool = False
    outcome: str | None = None
    late: bool = False


class Conversation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.host, self.worker = serving_pair()
        self.books: dict[int, Book] = {}
        self.to_worker = b""
        self.to_host = b""
        self.serving: list[int] = []
        self.answers: dict[bytes, tuple[int, str]] = {}
        """Frames on their way, by what they say of which request."""
        self.lost: set[int] = set()
        """Requests whose answer the pipe swallowed."""
        self.part = b""
        """What was delivered of a line that is not whole."""
        self.crashed = False

    # -------------------------------------------------------------- the host's commands

    def alive(self) -> bool:
        return not self.crashed

    def calls_allowed(self) -> bool:
        return self.host.phase == "serving"

    @precondition(calls_allowed)
    @rule(methods=st.lists(st.sampled_from(METHODS), min_size=1, max_size=3), arrive=st.booleans())
    def call(self, methods: list[str], arrive: bool) -> None:
        for method in methods:
            request_id, frame = self.host.send_request(method, NOTHING)
            assert request_id not in self.books
            self.books[request_id] = Book(method)
            self.to_worker += frame
        if arrive:
            self.deliver_to_worker(10**6)

    @precondition(alive)
    @rule()
    def ping(self) -> None:
        request_id, frame = self.host.send_request("ping", PingParams())
        self.books[request_id] = Book("ping")
        self.to_worker += frame

    @precondition(calls_allowed)
    @rule(really=rarely)
    def shut_down(self, really: bool) -> None:
        if not really:
            return
        request_id, frame = self.host.send_request("shutdown", ShutdownParams())
        self.books[request_id] = Book("shutdown")
        self.to_worker += frame

    def some_request(self, data: st.DataObject) -> int:
        """Mostly one that is open, sometimes any."""
        wanted = self.unsettled() if data.draw(st.integers(0, 4)) else []
        return data.draw(st.sampled_from(wanted or sorted(self.books)))

    @precondition(lambda self: self.alive() and self.books)
    @rule(data=st.data(), cause=st.sampled_from(["cancelled", "deadline"]), over=st.booleans())
    def cancel(self, data: st.DataObject, cause: Any, over: bool) -> None:
        request_id = self.some_request(data)
        book = self.books[request_id]
        self.to_worker += self.host.send_cancel(request_id, cause)
        if book.outcome is None and book.cause is None:
            book.cause = cause
        if over:
            self.tell_of(request_id)

    @precondition(lambda self: self.alive() and self.books)
    @rule(data=st.data())
    def tell(self, data: st.DataObject) -> None:
        self.tell_of(self.some_request(data))

    def tell_of(self, request_id: int) -> None:
        book = self.books[request_id]
        may = book.outcome is None and book.cause is not None
        events = self.host.tell(request_id)
        assert len(events) == may
        if may:
            book.told = True
            self.expect(events, request_id, str(book.cause), late=False)

    @precondition(alive)
    @rule(really=rarely)
    def crash_now_and_then(self, really: bool) -> None:
        if really:
            self.crash()

    def crash(self) -> None:
        self.crashed = True
        unsettled = self.unsettled()
        events = self.host.crash()
        for event in events:
            assert isinstance(event, RequestEnded | LateAnswer)
            unsettled.remove(event.id)
            self.expect([event], event.id, "crashed", late=self.books[event.id].told)
        assert unsettled == []

    @precondition(lambda self: self.crashed)
    @rule(late=st.booleans())
    def try_after_the_crash(self, late: bool) -> None:
        assert self.host.receive(self.to_host if late else b'{"jsonrpc":"2.0"}\n') == []
        with pytest.raises(ForbiddenNow):
            self.host.send_request("probe", NOTHING)
        assert all(self.host.send_cancel(n, "cancelled") == b"" for n in self.books)
        assert all(self.host.tell(n) == [] for n in self.books)

    # -------------------------------------------------------------- the worker's answers

    @precondition(lambda self: self.serving)
    @rule(
        data=st.data(),
        how=st.sampled_from(["result", "error", "confirmed", "as told"]),
        way=st.sampled_from(["later", "now", "now", "lost"]),
    )
    def answer(self, data: st.DataObject, how: str, way: str) -> None:
        request_id = self.serving.pop(data.draw(st.integers(0, len(self.serving) - 1)))
        if how == "as told":
            how = "confirmed" if self.books[request_id].cause else "result"
        if how == "result":
            frame = self.worker.send_result(request_id, {"of": request_id})
        else:
            frame = self.worker.send_error(request_id, CANCELLED if how == "confirmed" else FAILED)
        if way == "lost":
            self.lost.add(request_id)
            return
        self.reply(frame, request_id, how)
        if way == "now" and not self.crashed:
            self.deliver_to_host(10**6)

    def reply(self, frame: bytes, request_id: int, how: str) -> None:
        self.answers[frame] = (request_id, how)
        self.to_host += frame

    @precondition(lambda self: self.alive() and self.answers)
    @rule(data=st.data())
    def answer_again(self, data: st.DataObject) -> None:
        """microsoft/vs-streamjsonrpc#489: an answer to an id that nobody waits for closed the link."""
        frame = data.draw(st.sampled_from(sorted(self.answers)))
        self.to_host += frame

    @precondition(alive)
    @rule(request_id=st.sampled_from([0, 999_999, "1", -1]))
    def answer_what_nobody_asked(self, request_id: int | str) -> None:
        """microsoft/vs-streamjsonrpc#489."""
        self.to_host += codec.write(Success(request_id, NOTHING))

    @precondition(alive)
    @rule(line=st.sampled_from([b"dbg", b'{"jsonrpc":"2.0"', b"[]", b"\xff"]))
    def print_by_mistake(self, line: bytes) -> None:
        self.to_host += line + b"\n"

    # -------------------------------------------------------------- the pipes

    @precondition(lambda self: self.to_worker)
    @rule(size=st.one_of(st.integers(1, 200), st.just(10**6)))
    def deliver_to_worker(self, size: int) -> None:
        chunk, self.to_worker = self.to_worker[:size], self.to_worker[size:]
        for event in self.worker.receive(chunk):
            match event:
                case RequestReceived(id=int(request_id)):
                    self.serving.append(request_id)
                case ReplyDue(frame=frame):
                    answer = codec.read(frame[:-1], depth=64)
                    assert isinstance(answer.id, int)
                    self.reply(frame, answer.id, "error" if len(answer.error) else "result")
                case NotificationReceived(method="cancel", params=params):
                    assert codec.read_as(CancelParams, params).id in self.books
                case _:
                    raise AssertionError(event)

    @precondition(lambda self: self.alive() and self.to_host)
    @rule(size=st.one_of(st.integers(1, 200), st.just(10**6)))
    def deliver_to_host(self, size: int) -> None:
        # Whole lines, one at a time, so that each event is known to come from its line.
        chunk, self.to_host = self.to_host[:size], self.to_host[size:]
        for piece in re.findall(rb"[^\n]*\n|[^\n]+", chunk):
            self.part += piece
            events = self.host.receive(piece)
            if not piece.endswith(b"\n"):
                assert events == []
                continue
            line, self.part = self.part, b""
            self.heard(line, events)

    def heard(self, line: bytes, events: list[HostEvent]) -> None:
        known = self.answers.get(line)
        open_now = known is not None and known[0] in self.unsettled()
        if known is None or not open_now:
            (event,) = events
            assert isinstance(event, ViolationFound), "what answers nothing is reported"
            assert not event.fatal
            return
        request_id, how = known
        book = self.books[request_id]
        first, *found = events
        outcome = str(book.cause) if how == "confirmed" and book.cause else "error" if how == "confirmed" else how
        self.expect([first], request_id, outcome, late=book.told)
        assert book.method == "ping" or not found
        taken: set[int] = set()
        if book.method == "ping" and isinstance(first, RequestEnded | LateAnswer) and first.result is not None:
            taken = set(self.open_in_pong(first.result))
        for event in found:
            assert isinstance(event, RequestEnded | LateAnswer)
            lost = self.books[event.id]
            assert event.id in self.lost, "a call that lives was taken for lost"
            assert event.error is not None
            assert event.error.code == ProtocolViolation.code
            self.expect([event], event.id, str(lost.cause or "error"), late=lost.told)
        if book.method == "ping":
            remaining = self.unsettled()
            assert not {n for n in remaining if n < request_id and n in self.lost and n not in taken}, "not found"

    @staticmethod
    def open_in_pong(result: Raw) -> tuple[int, ...]:
        return tuple(n for n in codec.read_as(PingResult, result).open if isinstance(n, int))

    @precondition(lambda self: self.alive() and (self.to_worker or self.to_host))
    @rule()
    def deliver_everything(self) -> None:
        if self.to_worker:
            self.deliver_to_worker(10**6)
        if self.to_host:
            self.deliver_to_host(10**6)

    @precondition(alive)
    @rule()
    def ping_to_and_fro(self) -> None:
        self.ping()
        self.deliver_everything()

    # -------------------------------------------------------------- the books

    def unsettled(self) -> list[int]:
        """Ids that are open: without an outcome, or told and not answered since."""
        return sorted(n for n, book in self.books.items() if book.outcome is None or (book.told and not book.late))

    def expect(self, events: list[Any], request_id: int, outcome: str, *, late: bool) -> None:
        (event,) = events
        book = self.books[request_id]
        assert event.id == request_id
        assert event.method == book.method
        if late:
            assert isinstance(event, LateAnswer)
            assert book.told
            assert not book.late
            book.late = True
        else:
            assert isinstance(event, RequestEnded)
            assert event.outcome == outcome
            assert outcome in OUTCOMES
            assert book.outcome is None, "a second outcome"
            assert (event.result is not None) == (outcome == "result")
            book.outcome = outcome

    @invariant()
    def the_connection_agrees_with_the_books(self) -> None:
        assert self.host.open_requests == (0 if self.crashed else len(self.unsettled()))
        for request_id, book in self.books.items():
            state = self.host.state_of(request_id)
            if book.outcome is None:
                assert state == ("cancelling" if book.cause else "open")
            elif book.told and not book.late and not self.crashed:
                assert state == "told"
            else:
                assert state == "ended"

    def teardown(self) -> None:
        if not self.crashed:
            self.crash()
        assert all(book.outcome in OUTCOMES for book in self.books.values())
        assert self.host.crash() == []


TestConversation = Conversation.TestCase
TestConversation.settings = settings(stateful_step_count=60)
