"""What every frame on the wire must keep to, looked at from between the two sides.

It knows frames as plain JSON, and which of them have been delivered; it knows nothing of the code on either side.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from msgspec import Struct, field

from sandport_protocol.limits import Limits

from .lifecycle import KIND_OF

Message = dict[str, Any]


class Seen(Struct):
    """One request, as it went over the wire."""

    method: str
    sent_at: float
    number: int = 0
    live: bool = False
    cancelled: bool = False
    delivered: bool = False
    cancel_delivered: bool = False
    answered: bool = False
    granted: dict[str, int] = field(default_factory=dict)
    credit: dict[str, int] = field(default_factory=dict)
    """What of it has been delivered."""
    sent: dict[str, int] = field(default_factory=dict)
    arrived: dict[str, int] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


class WireMonitor:
    """Told of every frame when it is written and when it arrives; raises AssertionError where one breaks a rule.

    The requirements of the specification that it holds both sides to are named where they are checked.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.in_flight = limits.in_flight
        """What the hello agrees on."""
        self.requests: dict[int, Seen] = {}
        self.answers: list[bytes] = []
        """Every answer of the worker, as it was written."""
        self.ready = 0
        self._last_id = 0
        self._shut_down = False

    @property
    def unanswered(self) -> list[int]:
        """Requests that the worker has taken and not answered, oldest first."""
        return [number for number, seen in self.requests.items() if seen.delivered and not seen.answered]

    @property
    def numbers(self) -> set[int]:
        """The calls that were sent."""
        return {seen.number for seen in self.requests.values()}

    @property
    def _calls_open(self) -> int:
        calls = (seen for seen in self.requests.values() if KIND_OF.get(seen.method, "call") == "call")
        return sum(not seen.answered for seen in calls)

    def host_writes(self, line: bytes, now: float) -> Message:
        """A frame of the host."""
        message: Message = json.loads(line)
        method, params = message["method"], message.get("params", {})
        if "id" in message:
            number = message["id"]
            assert number > self._last_id, "MSG-14: an id is used again, or PING-6: a call is overtaken"
            self._last_id = number
            kind = KIND_OF.get(method, "call")
            assert not (self._shut_down and kind == "call"), "a call after the shutdown"
            self._shut_down = self._shut_down or method == "shutdown"
            assert kind != "call" or self._calls_open < self.in_flight, "CALL-4: more calls than were agreed"
            self.requests[number] = Seen(method, now, _number_in(method, params), live=params.get("live", False))
        elif method == "cancel":
            seen = self.requests.get(params["id"])
            assert seen is not None, "CANCEL-9: a cancel before its request"
            assert not seen.cancelled, "CANCEL-7: a second cancel"
            seen.cancelled = True
        elif method == "credit":
            seen, stream = self.requests[params["id"]], params["stream"]
            seen.granted[stream] = seen.granted.get(stream, 0) + params["bytes"]
            assert seen.granted[stream] <= seen.arrived.get(stream, 0), "more credit than the consumer can have taken"
        return message

    def worker_reads(self, message: Message) -> None:
        """A frame of the host has arrived."""
        if "id" in message:
            self.requests[message["id"]].delivered = True
        elif message["method"] == "cancel":
            self.requests[message["params"]["id"]].cancel_delivered = True
        elif message["method"] == "credit":
            params = message["params"]
            credit = self.requests[params["id"]].credit
            credit[params["stream"]] = credit.get(params["stream"], 0) + params["bytes"]

    def host_reads(self, message: Message) -> None:
        """A frame of the worker has arrived."""
        if message.get("method") == "output":
            params = message["params"]
            seen, stream = self.requests[params["id"]], params["stream"]
            seen.arrived[stream] = seen.arrived.get(stream, 0) + _size_of(params)

    def worker_writes(self, line: bytes) -> Message:
        """A frame of the worker."""
        message: Message = json.loads(line)
        method = message.get("method")
        if method is None:
            self._answered(message)
            self.answers.append(line)
        elif method == "output":
            self._output(message["params"])
        elif method in ("ready", "failed"):
            self.ready += 1
            assert self.ready == 1, "HELLO-13: ready or failed, once"
        return message

    def _answered(self, message: Message) -> None:
        number = message["id"]
        if number is None:
            return  # what the host wrote could not be read; it knows of none of its requests
        seen = self.requests[number]
        assert seen.delivered, f"an answer to {number}, which has not arrived"
        assert not seen.answered, f"CALL-1: {number} is answered twice"
        seen.answered = True
        if seen.method == "ping":
            listed = message["result"].get("open", [])
            taken = [other for other, one in self.requests.items() if one.delivered and other < number]
            still_open = {other for other in taken if not self.requests[other].answered}
            # What came in the same bytes as the ping and was answered at once may be listed all the same.
            assert still_open - self._pings() <= set(listed) <= set(taken), "PING-2: a pong lists what is open"
        elif seen.live and "result" in message:
            assert seen.ended == {"stdout", "stderr"}, "OUT-3: end marks come before the result"
            for stream, sent in seen.sent.items():
                assert message["result"].get(stream, {}).get("totalBytes", 0) == sent, "OUT-6: what was sent"

    def _pings(self) -> set[int]:
        return {number for number, seen in self.requests.items() if seen.method == "ping"}

    def _output(self, params: Message) -> None:
        seen, stream = self.requests[params["id"]], params["stream"]
        size = _size_of(params)
        assert params["id"] in self.unanswered, "OUT-4: output of what is not open"
        assert stream not in seen.ended, "OUT-3: output after the end mark"
        sent = seen.sent.setdefault(stream, 0)
        assert params["offset"] == sent, "OUT-2: offsets have no gaps"
        assert size <= self._limits.chunk_bytes, "OUT-5: too large a piece"
        seen.sent[stream] = sent + size
        assert seen.sent[stream] <= self._limits.credit_bytes + seen.credit.get(stream, 0), "CRED-1: beyond its credit"
        if params.get("end") is not None:
            seen.ended.add(stream)


def _size_of(params: Message) -> int:
    return len(base64.b64decode(params.get("data", "")))


def _number_in(method: str, params: Message) -> int:
    if method == "execute":
        return int(params["argv"][0])
    if method == "acquireLease":
        return int(params["workload"])
    return int(params["config"]["of"]) if method == "probe" else 0
