"""One line from a worker, read as strictly as the wire demands, and never raising."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from .schema import Json

Kind = Literal["answer", "notification", "fault"]


@dataclass(frozen=True, slots=True)
class Message:
    """A line that a worker wrote.

    Attributes:
        at_s: When it was read, in seconds since the process was started.
        line: Its bytes, without the line feed.
        body: The JSON object; empty where the line is none.
        fault: Which rule of the wire the line breaks; None where it is a message.
        breaks: The requirement of that rule; empty where it is a message.
    """

    at_s: float
    line: bytes
    body: Json
    fault: str | None = None
    breaks: str = ""

    @property
    def kind(self) -> Kind:
        """What the members say it is."""
        if self.fault is not None:
            return "fault"
        return "notification" if "method" in self.body else "answer"

    @property
    def method(self) -> str:
        """The method of a notification."""
        return str(self.body.get("method", ""))

    @property
    def params(self) -> Json:
        """The params of a notification; empty where there are none."""
        params = self.body.get("params")
        return params if isinstance(params, dict) else {}

    def answers(self, request_id: object) -> bool:
        """Whether this is an answer to exactly this id: 1, "1", 1.0 and true are four ids."""
        return self.kind == "answer" and "id" in self.body and same_id(self.body["id"], request_id)


def same_id(one: object, other: object) -> bool:
    """Whether two ids are the same in type and value."""
    return type(one) is type(other) and one == other


class _Fault(Exception):
    def __init__(self, requirement: str, text: str) -> None:
        super().__init__(text)
        self.requirement = requirement


def _refuse(token: str) -> Any:
    raise _Fault("FRAME-7", f"{token} is no JSON number")


def read(at_s: float, line: bytes) -> Message | None:
    """The message in a line; None for a blank one, which the wire ignores."""
    if not line.strip(b" \t\r"):
        return None
    body: Json = {}
    try:
        body = _parse(line)
        _look(body)
    except _Fault as fault:
        return Message(at_s, line, body, str(fault), fault.requirement)
    return Message(at_s, line, body)


def _parse(line: bytes) -> Json:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Fault("FRAME-5", f"not UTF-8 at byte {error.start}") from None
    if text.startswith("\ufeff"):
        raise _Fault("FRAME-5", "begins with a byte order mark")
    try:
        body = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise _Fault("FRAME-1", f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _Fault("MSG-2", "a batch" if isinstance(body, list) else "JSON, but no object")
    return body


def _look(body: Json) -> None:
    if body.get("jsonrpc") != "2.0":
        raise _Fault("MSG-2", 'no "jsonrpc": "2.0"')
    if "method" in body:
        if not isinstance(body["method"], str):
            raise _Fault("MSG-2", "a method that is no string")
        if "id" in body:
            raise _Fault("MSG-16", f"a request: {body['method']}")
        return
    if "id" not in body:
        raise _Fault("MSG-2", "neither a method nor an id")
    if isinstance(body["id"], bool) or not isinstance(body["id"], int | str | None):
        raise _Fault("MSG-1", f"an id that is neither string nor integer: {body['id']!r:.80}")
    if ("result" in body) == ("error" in body):
        raise _Fault("MSG-6", "an answer has either a result or an error")
