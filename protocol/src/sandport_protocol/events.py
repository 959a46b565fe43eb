"""What a connection tells its caller, in the past tense."""

from __future__ import annotations

from msgspec import Raw, Struct

from .envelope import Id
from .errors import ErrorObject
from .states import Outcome
from .v1 import InitializeResult, OutputParams


class RequestReceived(Struct, frozen=True, gc=False):
    """Worker side: a call to serve; it stays open until its result or error is sent."""

    id: Id
    method: str
    params: Raw


class NotificationReceived(Struct, frozen=True, gc=False):
    """A message that wants no answer and is allowed now."""

    method: str
    params: Raw | OutputParams
    """For `codec.read_as`; of output, most of which is read in one pass, they may be read already."""


class RequestEnded(Struct, frozen=True, gc=False):
    """Host side: the one outcome of a request, for its caller."""

    id: int
    method: str
    outcome: Outcome
    result: Raw | None = None
    error: ErrorObject | None = None


class LateAnswer(Struct, frozen=True, gc=False):
    """Host side: what came after the caller had been told; the journal settles it."""

    id: int
    method: str
    result: Raw | None = None
    error: ErrorObject | None = None


class HelloReceived(Struct, frozen=True, gc=False):
    """Host side: the worker's hello, checked."""

    id: int
    hello: InitializeResult


class ReplyDue(Struct, frozen=True, gc=False):
    """Worker side: a whole frame that the connection itself answers; write it next, after the frames made before it."""

    frame: bytes


class JunkReceived(Struct, frozen=True, gc=False):
    """Host side: a line before the hello that is no message; tolerated up to a ceiling."""

    line: bytes


class ViolationFound(Struct, frozen=True, gc=False):
    """The peer broke a rule. After a fatal one the connection is closed and reads no more."""

    rule: str
    sample: bytes
    """The first bytes of what broke it."""
    fatal: bool = False


HostEvent = RequestEnded | LateAnswer | NotificationReceived | HelloReceived | JunkReceived | ViolationFound
WorkerEvent = RequestReceived | NotificationReceived | ReplyDue | ViolationFound
