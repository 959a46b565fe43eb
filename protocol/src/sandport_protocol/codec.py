"""Lines to envelopes and structs to lines.

Reading never raises anything but `Unreadable`. The encoder turns NaN and the infinities into null without a word: where
a value is free-form, `refuse_non_finite` finds them before.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError, to_builtins
from msgspec.json import Decoder, Encoder
from msgspec.json import decode as decode_json

from .envelope import Incoming, IncomingOutput
from .errors import Detail, ErrorData, ErrorObject, Internal, TooLarge
from .v1 import OutputParams

_T = TypeVar("_T")

_encoder = Encoder()
_incoming = Decoder(Incoming)
_output = Decoder(IncomingOutput)
_OUTPUT = b'{"method":"output","params":{'
"""How output begins where our own encoder wrote it; other forms of it are as good, and read in two passes."""
_error = Decoder(ErrorObject)
_ONE_KIND_OF_BRACKET = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")
_WHITE_SPACE = b" \t\r"
"""What JSON counts as white space, less the line feed that ends a frame."""


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
    """Whether more than `depth` arrays and objects are open at once anywhere; bounded work for any bytes at all.

    Brackets inside strings do not count. Each pass over what is left takes away the innermost level, at the speed of
    `bytes.replace`.
    """
    if not _opens_more_than(line, depth):
        return False
    # Without its escapes a line has quotes only where strings begin and end: every other piece is outside of them.
    # One pass each, also for a string that never ends; a pattern with a start at each quote would be quadratic there.
    outside = line.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    left = b"".join(outside).translate(_ONE_KIND_OF_BRACKET, _NO_BRACKET)
    if b"[" * (depth + 1) in left:
        return True
    # What is never closed counts as nested too, and a closing bracket too many counts as nothing.
    left += b"]" * left.count(b"[")
    for _ in range(depth):
        if b"[" not in left:
            return False
        left = left.replace(b"[]", b"")
    return b"[" in left


def _opens_more_than(line: bytes, depth: int) -> bool:
    """Whether a line has more than `depth` opening brackets, those in strings included.

    By find, which looks at many bytes at once; count looks at each one, and costs a large frame a tenth of its time.
    """
    left = depth
    for bracket in (b"{", b"["):
        at = line.find(bracket)
        while at >= 0:
            if not left:
                return True
            left -= 1
            at = line.find(bracket, at + 1)
    return False


def read(line: bytes, *, depth: int) -> Incoming:
    """The envelope in a line.

    Raises:
        Unreadable: It breaks a rule of the wire, which the exception names.
    """
    if deeper_than(line, depth):
        raise Unreadable(f"nested deeper than {depth} levels (limits.depth)", parse=True, fatal=True)
    if not line.isascii():
        # The decoder looks only at the strings that it makes; params and results it passes over as they are.
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise Unreadable(f"not UTF-8 (byte {error.start})", parse=True) from None
    try:
        message = _incoming.decode(line)
    except ValidationError as error:
        # It may not be JSON at all further on: the decoder stops at the first member of a wrong type.
        if (broken := _not_json(line)) is not None:
            raise broken from None
        if line.lstrip(_WHITE_SPACE)[:1] == b"[":
            raise Unreadable("a batch; send one message a line", parse=False) from None
        raise Unreadable(f"not a JSON-RPC 2.0 message: {error}", parse=False) from None
    except (DecodeError, ValueError) as error:
        raise Unreadable(f"not JSON: {error}", parse=True) from None
    except RecursionError:
        raise Unreadable(f"nested deeper than {depth} levels (limits.depth)", parse=True, fatal=True) from None
    if message.jsonrpc != "2.0":
        raise Unreadable('not a JSON-RPC 2.0 message: "jsonrpc" must be "2.0"', parse=False)
    return message


def _not_json(line: bytes) -> Unreadable | None:
    try:
        decode_json(line)
    except (ValidationError, RecursionError):
        pass  # JSON, with a number that Python does not take
    except DecodeError as error:
        return Unreadable(f"not JSON: {error}", parse=True)
    return None


def read_output(line: bytes, *, depth: int) -> OutputParams | None:
    """The piece of output in a line, in one pass; None where it is not that or not as it should be: `read` it then."""
    if not line.startswith(_OUTPUT) or not line.isascii() or deeper_than(line, depth):
        return None
    try:
        return _output.decode(line).params
    except (DecodeError, ValueError, RecursionError):
        return None  # what is wrong with it is said by whoever reads it as any other message


def is_blank(line: bytes) -> bool:
    """Whether there is nothing in a line but white space."""
    return not line.strip(_WHITE_SPACE)


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


def read_as(type_: type[_T], raw: bytes | Raw | Struct) -> _T:
    """Params or a result as their struct, which they may be already.

    Raises:
        ValueError: They do not fit; the message names the member by its path.
    """
    if isinstance(raw, Struct):
        return _as_it_is(type_, raw)
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


def _as_it_is(type_: type[_T], value: Struct) -> _T:
    if isinstance(value, type_):
        return value
    raise ValueError(f"{type(value).__name__} is not {type_.__name__}")


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
    return TooLarge(
        f"{what} is larger than the {limit} bytes of a frame",
        dispatched="yes",
        detail=Detail(field="limits.frameBytes", limit=limit),
    ).to_wire()


def internal(message: str) -> ErrorObject:
    """The error for a fault of the answering side."""
    return ErrorObject(Internal.code, message, ErrorData(condition="Internal", dispatched="unknown"))
