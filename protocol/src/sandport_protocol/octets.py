"""Values that may be any bytes, in a format that only has text.

Where a value may be any bytes (argv, variables, paths) the wire takes a string, or `{"b64": "..."}` where the bytes
are not UTF-8. File names inside archives never pass through here.
"""

from __future__ import annotations

from msgspec import Struct


class B64(Struct, frozen=True):
    """Bytes that are not text."""

    b64: bytes


Octets = str | B64
"""A string, or bytes that no string can hold."""


def pack(value: str | bytes) -> Octets:
    """The wire form of bytes; of a string, with what `os.fsdecode` had to escape turned back into bytes."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return B64(value.encode("utf-8", "surrogateescape"))
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return B64(value)


def unpack(value: Octets) -> bytes:
    """The bytes that a wire value stands for."""
    return value.encode() if isinstance(value, str) else value.b64
