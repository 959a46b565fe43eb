"""A connection with one worker, in messages: what a check says and waits for.

Every wait has a bound. What the worker owes and does not bring raises `Failed`, so that a check reads as the story of
a worker that behaves. A line that is no message is kept in `faults` and passed over: one check judges it, the others
go on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import schema
from .messages import Message, read, same_id
from .outcomes import Failed, NoAnswer, TimedOut, WorkerGone
from .patience import Patience
from .schema import Json
from .throttling import MOST_S, pause_s
from .times import Times
from .worker import WorkerProcess

Id = int | str
PROTOCOL_VERSION = 1
_HEARTBEAT = "kit's heartbeat "
"""Begins the ids of pings that no check asked for."""
_BEATS_IN_A_SILENCE = 4


class Session:
    """One worker process and everything that it said.

    Attributes:
        process: The bytes, the exit and the log beneath.
        messages: Every line that was read, faulty ones included, in order.
        hello: The result of `initialize`; empty before it.
    """

    def __init__(
        self, process: WorkerProcess, *, times: Times, hello_params: Json, patience: Patience | None = None
    ) -> None:
        self.process = process
        self.times = times
        self.messages: list[Message] = []
        self.hello: Json = {}
        self.whole = True
        """Whether `messages` has everything."""
        self.greeted = False
        """Whether `initialized` was sent."""
        self.offered = hello_params
        """The params of the hello that `greet` sends."""
        self.requests: list[tuple[Id, str, Json]] = []
        """Every request that was sent with `request`: id, method, params."""
        self.beats = True
        """Whether a worker that was greeted is pinged while nothing else is said to it, as a host does."""
        self._cancelled: set[Id] = set()
        self._patience = patience or Patience(times)
        self._sent_by_hand: list[object] = []
        self._last_id = 0
        self._heartbeat_s = _heartbeat_s(hello_params)
        self._heartbeats = 0

    # -------------------------------------------------------------- sending

    def send_bytes(self, data: bytes, *, pieces: Sequence[int] = ()) -> None:
        """Send bytes as they are, cut into writes of these sizes; what is left goes in one."""
        self.process.write(data, timeout_s=self.times.answer_s, pieces=pieces)

    def send_line(self, line: bytes | str) -> None:
        """Send one line; its line feed is added."""
        self.send_bytes((line.encode() if isinstance(line, str) else line) + b"\n")

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one object as it is."""
        self._sent_by_hand.append(message.get("id"))
        self.send_line(encode(message))

    def next_id(self) -> int:
        """An id that was not used on this connection."""
        self._last_id += 1
        return self._last_id

    def request(self, method: str, params: Json | None = None, *, request_id: Id | None = None) -> Id:
        """Send a request and come back at once with its id."""
        chosen = self.next_id() if request_id is None else request_id
        body = {} if params is None else params
        self.requests.append((chosen, method, body))
        self.send_line(encode({"jsonrpc": "2.0", "id": chosen, "method": method, "params": body}))
        return chosen

    def request_at_last(self, method: str, params: Json, *, timeout_s: float) -> Id:
        """Send a request though whatever was being sent may have been cut off in the middle; see `request`."""
        chosen = self.next_id()
        self.requests.append((chosen, method, params))
        line = encode({"jsonrpc": "2.0", "id": chosen, "method": method, "params": params}) + b"\n"
        self.process.write_at_last(line, timeout_s=timeout_s)
        return chosen

    def notify(self, method: str, params: Json | None = None) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": {} if params is None else params})

    def cancel(self, request_id: Id) -> None:
        """Ask for the end of a request."""
        self._cancelled.add(request_id)
        self.notify("cancel", {"id": request_id})

    def beat(self) -> None:
        """Ping the worker where nothing was said to it for a heartbeat; from whatever thread, and waits for nothing.

        A worker takes a host that is silent for `hostSilenceMs` for dead, and ends. These pings are in the transcript
        and their answers in `messages`, but they are no requests of a check.
        """
        if self.greeted and self.beats:
            line = encode({"jsonrpc": "2.0", "id": f"{_HEARTBEAT}{self._heartbeats + 1}", "method": "ping"}) + b"\n"
            self._heartbeats += self.process.slip_in(line, silence_s=self._heartbeat_s)

    # -------------------------------------------------------------- receiving

    def pump(self, until: Callable[[], object], timeout_s: float) -> bool:
        """Read until a condition holds; False when the time is over or nothing can come any more."""

        def look() -> object:
            # A condition that sends something reads while it does; what came in then will not wake the pump again.
            while True:
                self._take()
                if (holds := until()) or not self.process.lines:
                    return holds

        return self.process.pump(look, timeout_s=timeout_s)

    def first(self, wanted: Callable[[Message], object], *, after: int = 0) -> Message | None:
        """The first message that was read, from number `after` on, and fits; None where there is none yet."""
        self._take()
        return next((message for message in self.messages[after:] if wanted(message)), None)

    def wait(
        self,
        wanted: Callable[[Message], object],
        what: str,
        *,
        timeout_s: float,
        after: int = 0,
        waited_s: float = 0.0,
    ) -> Message:
        """The first message that fits, waited for.

        Args:
            wanted: Whether a message is the one.
            what: Names it in the failure.
            timeout_s: The longest wait.
            after: The number of messages to pass over.
            waited_s: How long it was waited for already.

        Raises:
            WorkerGone: The worker ended its stdout first.
            TimedOut: It did not come in time.
        """
        looked_at = after

        def new() -> Message | None:
            nonlocal looked_at
            while looked_at < len(self.messages):
                message = self.messages[looked_at]
                if wanted(message):
                    return message
                looked_at += 1
            return None

        self.pump(new, timeout_s)
        if (found := new()) is not None:
            return found
        if self.process.out_ended:
            cause = self.process.wait_exit(self.times.moment_s)
            tail = self.process.stderr_text().strip()[-500:]
            ended = f"ended with {cause}" if cause else "closed its stdout"
            raise WorkerGone(f"the worker {ended} instead of sending {what}{': ' + tail if tail else ''}")
        strange = [m for m in self.messages[after:] if m.kind == "answer" and not self._asked(m.body.get("id"))]
        hint = f'; an answer came whose "id" is {encode(strange[-1].body.get("id")).decode():.60}' if strange else ""
        raise TimedOut(f"no {what} within {waited_s + timeout_s:.1f} s{hint}")

    def _asked(self, request_id: object) -> bool:
        sent = (*(sent for sent, _, _ in self.requests), *self._sent_by_hand)
        return is_heartbeat(request_id) or any(same_id(one, request_id) for one in sent)

    def answer(self, request_id: Id, *, timeout_s: float | None = None, waited_s: float = 0.0) -> Message:
        """The answer to a request, whatever it says.

        Args:
            request_id: The request.
            timeout_s: The longest wait; as long as its method may take where None.
            waited_s: How long it was waited for already, and in vain.
        """
        method = self._method_of(request_id)
        what = f"answer to {method} (id {request_id!r:.60})"
        short = self._patience.is_short(method)
        limit_s = timeout_s or self._patience.of(method)
        try:
            found = self.wait(lambda m: m.answers(request_id), what, timeout_s=limit_s, waited_s=waited_s)
        except TimedOut as silence:
            if timeout_s is None or waited_s:
                self._patience.missed(method)
                hint = ", as none came before to this method" if short else ""
                raise NoAnswer(f"{silence}{hint}", method, request_id) from silence
            raise NoAnswer(str(silence), method, request_id) from silence
        self._patience.answered(method)
        return found

    def _method_of(self, request_id: Id) -> str:
        return next((method for sent, method, _ in self.requests if same_id(sent, request_id)), "a request")

    def unthrottled(self, request_id: Id, *, timeout_s: float | None = None) -> Id:
        """Wait for the answer to a request, and repeat it as a host does while the vendor is asked too much.

        Returns:
            The id under which the last answer came: the request's own, where it was not RateLimited, or cancelled.
        """
        deadline, tries = time.monotonic() + MOST_S, 0
        while True:
            tries += 1
            wait_s = pause_s(self.answer(request_id, timeout_s=timeout_s).body, tries=tries)
            if wait_s is None or request_id in self._cancelled or time.monotonic() + wait_s > deadline:
                return request_id
            self.pump(lambda: False, wait_s)
            method, params = next((method, params) for sent, method, params in self.requests if sent == request_id)
            request_id = self.request(method, params)

    def answers(self, request_id: Id) -> list[Message]:
        """Every answer to an id that was read so far."""
        self._take()
        return [message for message in self.messages if message.answers(request_id)]

    def result_of(self, request_id: Id, *, timeout_s: float | None = None) -> Json:
        """The result of a request that was sent; it must be one, and fit the schema.

        Raises:
            Failed: It is an error, does not fit, or did not come.
        """
        request_id = self.unthrottled(request_id, timeout_s=timeout_s)
        body = self.answer(request_id, timeout_s=timeout_s).body
        method = next((method for sent, method, _ in self.requests if same_id(sent, request_id)), "")
        if "result" not in body:
            raise Failed(f"{method or 'the request'} should succeed, but was answered with {show_error(body['error'])}")
        if faults := schema.faults_of_result(method, body["result"]):
            raise Failed(f"the result of {method} does not fit the schema: {'; '.join(faults[:3])}")
        result: Json = body["result"]
        return result

    def error_of(self, request_id: Id | None, *conditions: str, timeout_s: float | None = None, after: int = 0) -> Json:
        """The error of a request that was sent, of one of these conditions (any, where none is named).

        Args:
            request_id: The request; None for an answer to something that could not be read.
            *conditions: Names such as `MethodNotFound`.
            timeout_s: The longest wait.
            after: The number of messages to pass over; for answers without an id.

        Raises:
            Failed: It is a result, another error, does not fit the schema, or did not come.
        """
        if request_id is None:
            limit = timeout_s or self.times.answer_s
            body = self.wait(lambda m: m.answers(None), "error with id null", timeout_s=limit, after=after).body
        else:
            if "RateLimited" not in conditions:
                request_id = self.unthrottled(request_id, timeout_s=timeout_s)
            body = self.answer(request_id, timeout_s=timeout_s).body
        wanted = " or ".join(conditions) or "an error"
        if "error" not in body:
            raise Failed(f"expected {wanted}, but the answer is a result: {json.dumps(body['result'])[:200]}")
        if faults := schema.faults_of_error(body["error"]):
            raise Failed(f"the error does not fit the schema: {'; '.join(faults[:3])}")
        error: Json = body["error"]
        if conditions and error["code"] not in map(schema.error_code, conditions):
            raise Failed(f"expected {wanted}, but the answer is {show_error(error)}")
        return error

    def call(self, method: str, params: Json | None = None, *, timeout_s: float | None = None) -> Json:
        """Send a request and wait for its result; see `result_of`."""
        return self.result_of(self.request(method, params), timeout_s=timeout_s)

    def refused(
        self, method: str, params: Json | None = None, *conditions: str, timeout_s: float | None = None
    ) -> Json:
        """Send a request and wait for its error; see `error_of`."""
        return self.error_of(self.request(method, params), *conditions, timeout_s=timeout_s)

    def ping(self, *, timeout_s: float | None = None) -> list[Id]:
        """The ids that the worker says it has open; what it wrote before the pong has been read then."""
        opened: list[Id] = self.call("ping", timeout_s=timeout_s).get("open", [])
        return [one for one in opened if not is_heartbeat(one)]

    def look(self, *, timeout_s: float) -> list[Id] | None:
        """As `ping`, but beside the check: no request of its, and no failure; None where no answer comes."""
        self._heartbeats += 1
        request_id = f"{_HEARTBEAT}look {self._heartbeats}"
        line = encode({"jsonrpc": "2.0", "id": request_id, "method": "ping"}) + b"\n"
        try:
            self.process.write_at_last(line, timeout_s=timeout_s)
        except Failed:
            return None
        self.pump(lambda: self.answers(request_id), timeout_s)
        opened = [answer.body["result"].get("open", []) for answer in self.answers(request_id) if _is_pong(answer)]
        return [one for one in opened[0] if not is_heartbeat(one)] if opened else None

    def notifications(self, method: str, *, after: int = 0) -> list[Message]:
        """The notifications of a method that were read so far."""
        self._take()
        return [m for m in self.messages[after:] if m.kind == "notification" and m.method == method]

    def faults(self, *requirements: str, after: int = 0) -> list[Message]:
        """Lines that are no message: those that break one of these requirements, or any where none is named."""
        self._take()
        found = [message for message in self.messages[after:] if message.kind == "fault"]
        return [message for message in found if not requirements or message.breaks in requirements]

    @property
    def begins(self) -> int:
        """Which of the lines is the worker's first message; those before are a banner, which the wire tolerates."""
        self._take()
        kinds = [message.kind for message in self.messages]
        return next((n for n, kind in enumerate(kinds) if kind != "fault"), len(kinds))

    def forget(self) -> None:
        """Keep no message that was read so far; for who moves more through here than is worth keeping.

        The session is no part of the run's record then.
        """
        self.messages.clear()
        self.whole = False

    def patience(self, method: str) -> float:
        """How long an answer to a method may take."""
        return self._patience.of(method)

    def patience_for(self, request_id: Id) -> float:
        """How long the answer to a request that was sent may take."""
        return self._patience.of(self._method_of(request_id))

    def _take(self) -> None:
        while self.process.lines:
            message = read(*self.process.lines.popleft())
            if message is not None:
                self.messages.append(message)

    # -------------------------------------------------------------- life

    def greet(self, *, initialized: bool = True, **changes: Any) -> Json:
        """Say the hello.

        Args:
            initialized: Whether to end it; else the connection stays where only `ping` and `shutdown` are served.
            **changes: Members of the hello's params that differ from `offered`.

        Raises:
            Failed: The worker refuses it, or its answer does not fit the schema.
        """
        said = {**self.offered, **changes}
        self._heartbeat_s = _heartbeat_s(said)
        request_id = self.request("initialize", said)
        self.hello = self.result_of(request_id, timeout_s=self.times.start_s)
        if initialized:
            self.initialized()
        return self.hello

    def initialized(self) -> None:
        """End the hello."""
        self.notify("initialized")
        self.greeted = True

    def exit(self, timeout_s: float | None = None) -> str:
        """How the worker ends, which must happen without any help.

        Returns:
            The cause, as in `exit code 0`; see `process.exit_cause` for its parts.

        Raises:
            TimedOut: It still lives.
        """
        limit = timeout_s or self.times.exit_s
        cause = self.process.wait_exit(limit)
        self._take()
        if cause is None:
            raise TimedOut(f"the worker still lives {limit:.1f} s after {self._stimuli() or 'the last message to it'}")
        return str(cause)

    def _stimuli(self) -> str:
        """What should have ended the worker, in words."""
        answered = [
            f"the answer to shutdown (id {sent!r:.60})"
            for sent, method, _ in self.requests
            if method == "shutdown" and self.answers(sent)
        ]
        return " and ".join((*answered[-1:], *dict.fromkeys(self.process.stimuli)))

    def alive(self) -> bool:
        """Whether the process lives."""
        return self.process.exit_cause is None


def _is_pong(answer: Message) -> bool:
    result = answer.body.get("result")
    return isinstance(result, dict) and isinstance(result.get("open", []), list)


def is_heartbeat(request_id: object) -> bool:
    """Whether an id is that of a ping which no check asked for; see `Session.beat`."""
    return isinstance(request_id, str) and request_id.startswith(_HEARTBEAT)


def _heartbeat_s(hello_params: Json) -> float:
    """How long a host of this hello says nothing at most."""
    limits = {**schema.default_limits(), **(hello_params.get("limits") or {})}
    return float(min(limits["heartbeatMs"], limits["hostSilenceMs"] / _BEATS_IN_A_SILENCE)) / 1000


def encode(message: object) -> bytes:
    """An object as the kit writes it: compact, UTF-8."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def show_error(error: object) -> str:
    """An error in one line, for a failure message."""
    if not isinstance(error, dict) or not isinstance(error.get("code"), int):
        return f"no error object: {error!r:.200}"
    return f"{schema.condition_of(error['code'])} ({error['code']}): {error.get('message', '')!r:.200}"
