"""The outer form of every message, and nothing of what is inside."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from .errors import ErrorObject
from .v1 import OutputParams

Id = int | str
"""An id of a request: echoed exactly, never reused on a connection."""


class Incoming(Struct, frozen=True, gc=False):
    """Any message that came in; what it is follows from the members that it has."""

    jsonrpc: str
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()


class IncomingOutput(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A piece of output and nothing else, read in one pass: most of what a busy worker sends."""

    jsonrpc: Literal["2.0"]
    method: Literal["output"]
    params: OutputParams


class Request(Struct, frozen=True, gc=False):
    """A call; its params are a struct or raw JSON."""

    id: Id
    method: str
    params: Any
    jsonrpc: str = "2.0"


class Notification(Struct, frozen=True, gc=False):
    """A message that is not answered."""

    method: str
    params: Any
    jsonrpc: str = "2.0"


class Success(Struct, frozen=True, gc=False):
    """A result."""

    id: Id
    result: Any
    jsonrpc: str = "2.0"


class Failure(Struct, frozen=True, gc=False):
    """An error; its id is null where the request could not be read."""

    id: Id | None
    error: ErrorObject
    jsonrpc: str = "2.0"
