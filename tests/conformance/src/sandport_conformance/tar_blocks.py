"""The blocks of a tar archive, as POSIX has them: headers, records, and what fills them up.

Nothing but the language is imported: each broken worker starts with this.
"""

from __future__ import annotations

from collections.abc import Mapping

BLOCK = 512
END = bytes(2 * BLOCK)
"""The end mark."""
LONGEST_NAME_BYTES = 100
"""What fits into a header; a longer one stands in a record of its own."""
SOME_TIME_S = 1_234_567_890
"""When a member was changed, unless it says something else: long ago, so that no clock makes it by accident."""
STRANGE_OWNER = 54_321
"""Whom a header names as the owner: nobody that a machine knows."""


def header(
    name: bytes,
    *,
    type_: bytes,
    size: int = 0,
    mode: int = 0o644,
    mtime_s: int = SOME_TIME_S,
    target: bytes = b"",
    owner: int = STRANGE_OWNER,
) -> bytes:
    """A ustar header; names that do not fit are cut."""
    fields = (
        name[:LONGEST_NAME_BYTES].ljust(LONGEST_NAME_BYTES, b"\0"),
        *(b"%07o\0" % number for number in (mode, owner, owner)),
        *(b"%011o\0" % number for number in (size, mtime_s)),
        b" " * 8,
        type_,
        target[:LONGEST_NAME_BYTES].ljust(LONGEST_NAME_BYTES, b"\0"),
        b"ustar\x0000",
    )
    head = b"".join(fields).ljust(BLOCK, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def extended(records: Mapping[bytes, bytes]) -> bytes:
    """The member with records for the one that follows; nothing where there are none."""
    if not records:
        return b""
    body = b"".join(_record(name, value) for name, value in records.items())
    return header(b"PaxHeaders/records", type_=b"x", size=len(body)) + padded(body)


def _record(name: bytes, value: bytes) -> bytes:
    rest = b" " + name + b"=" + value + b"\n"
    size = len(rest)
    while len(b"%d" % size) + len(rest) != size:
        size = len(b"%d" % size) + len(rest)
    return b"%d" % size + rest


def padded(data: bytes) -> bytes:
    """Data, filled up to whole blocks."""
    return data + bytes(-len(data) % BLOCK)
