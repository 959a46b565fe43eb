"""Lines to envelopes and structs to lines.

Reading never raises anything but `Unreadable`; writing refuses what is not JSON (NaN and the infinities).
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError, to_builtins
from msgspec.json import Decoder, Encoder

from .envelope import Incoming
from .errors import ErrorData, ErrorObject, Internal, TooLarge

_T = TypeVar("_T")

_encoder = Encoder()
_incoming = Decoder(Incoming)
_error = Decoder(ErrorObject)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_ONE_KIND_OF_BRACKET = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")


class _LooseError(Struct, frozen=True):
    code: int
    message: str = ""


_loose_error = Decoder(_LooseError)


class Unreadable(Exception):
    """A line that is no message; `rule` says which rule it breaks, `condition` which error answers it."""

    def __init__(self, rule: str, *, parse: bool, fatal: bool = False) -> None:
        super().__init__(rule)
        self.rule = rule
        self.parse = parse
        """True: not JSON at all. False: JSON, but no message."""
        self.fatal = fatal


def deeper_than(line: bytes, depth: int) -> bool:
    """Whether arrays and objects nest deeper than `depth`; exact for valid JSON, bounded work for anything else.

    Brackets inside strings do not count. Each pass over what is left takes away the innermost level, at the speed of
    `bytes.replace`.
    """
    if line.count(b"[") + line.count(b"{") <= depth:
        return False
    left = _STRING.sub(b"", line).translate(_ONE_KIND_OF_BRACKET, _NO_BRACKET)
    for _ in range(depth):
        if not left:
            return False
        left = left.replace(b"[]", b"")
    return bool(left)


def read(line: bytes, *, depth: int) -> Incoming:
    """The envelope in a line.

    Raises:
        Unreadable: It breaks a rule of the wire, which the exception names.
    """
    if line.count(b"[") + line.count(b"{") > depth and deeper_than(line, depth):
        raise Unreadable(f"nested deeper than {depth} levels", parse=True, fatal=True)
    try:
        message = _incoming.decode(line)
    except ValidationError as error:
        if line.lstrip()[:1] == b"[":
            raise Unreadable("a batch; send one message a line", parse=False) from None
        raise Unreadable(f"not a JSON-RPC 2.0 message: {error}", parse=False) from None
    except (DecodeError, ValueError) as error:
        raise Unreadable(f"not JSON: {error}", parse=True) from None
    except RecursionError:
        raise Unreadable(f"nested deeper than {depth} levels", parse=True, fatal=True) from None
    if message.jsonrpc != "2.0":
        raise Unreadable('not a JSON-RPC 2.0 message: "jsonrpc" must be "2.0"', parse=False)
    return message


def read_error(raw: Raw) -> ErrorObject | None:
    """An error object; without its `data` where that is not of our form; None where it is no error object."""
    try:
        return _error.decode(raw)
    except (DecodeError, ValueError, RecursionError):
        pass  # a foreign or newer `data`: code and message still say what happened
    try:
        loose = _loose_error.decode(raw)
    except (DecodeError, ValueError, RecursionError):
        return None
    return ErrorObject(loose.code, loose.message)


def read_as(type_: type[_T], raw: bytes | Raw) -> _T:
    """Params or a result as their struct.

    Raises:
        ValueError: They do not fit; the message names the member by its path.
    """
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = Decoder(type_)
    try:
        value: _T = decoder.decode(raw if len(raw) else b"{}")
    except (DecodeError, ValueError) as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


# A cache, not state: a decoder depends on nothing but its type, and costs 20 to 200 us to build.
_decoders: dict[type, Decoder[Any]] = {}


def write(message: Struct) -> bytes:
    """One whole frame, line feed included."""
    return _encoder.encode_lines((message,))


def encode(value: Any) -> bytes:
    """A value as JSON, without a line feed."""
    return _encoder.encode(value)


def refuse_non_finite(value: Any) -> None:
    """Raise ValueError where a free-form value holds a number that JSON cannot say.

    Only needed for values that no struct of the protocol types (config, probes, extensions): the protocol itself has
    no floats, and the encoder would turn NaN into null without a word.
    """
    pending = [to_builtins(value)]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                raise ValueError(f"{item} is not a JSON number")
        elif isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)


def too_large(limit: int, what: str) -> ErrorObject:
    """The error for an answer that the peer could not read."""
    return TooLarge(f"{what} is larger than the {limit} bytes of a frame", dispatched="yes").to_wire()


def internal(message: str) -> ErrorObject:
    """The error for a fault of the answering side."""
    return ErrorObject(Internal.code, message, ErrorData(condition="Internal", dispatched="unknown"))
