"""What a reader makes of the fields and records in an archive's headers: numbers, times, names and sparse maps.

All of it is pure and as strict as the format: a value that could be read in two ways is broken. The callers know
where in the archive they are, so what is wrong is a `ValueError` here, and an error with an offset there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from sandport.sync.tar_format import (
    BLOCK_BYTES,
    LARGEST,
    LONGEST_PATH_BYTES,
    MOST_EXTENTS,
    NANOSECONDS,
    Extents,
)

__all__ = [
    "Records",
    "read_decimal",
    "read_extents_of_block",
    "read_extents_of_data",
    "read_extents_of_record",
    "read_number",
    "read_records",
    "read_time",
]

_OCTAL: Final = re.compile(rb"\0?+ *+([0-7]*+)(?:[ \0].*)?", re.DOTALL)
"""What follows a number is nobody's business; a zero may stand before it, where the field before was too narrow."""

_PAIR: Final = re.compile(rb"([0-9]{1,19}),([0-9]{1,19})(?:,|\Z)")

_LONGEST_NUMBER: Final = 19
"""Decimal digits in `LARGEST`."""

_USUAL_TIME: Final = 20
_USUAL_POINT: Final = 10
"""The length of a time of these centuries with all its nanoseconds, and where its point is."""

_TIMES: Final = re.compile(
    rb"(?:30 [ac]time=[0-9]{10}\.[0-9]{9}\n)*+30 mtime=([0-9]{10}\.[0-9]{9})\n(?:30 [ac]time=[0-9]{10}\.[0-9]{9}\n)*+"
)
"""What most members have and no more: GNU tar's three times, or ours alone, with all their nanoseconds."""

_TEXTS: Final = frozenset({b"path", b"linkpath", b"GNU.sparse.name"})
_KEPT: Final = _TEXTS | {
    b"size",
    b"mtime",
    b"GNU.sparse.major",
    b"GNU.sparse.minor",
    b"GNU.sparse.realsize",
    b"GNU.sparse.size",
    b"GNU.sparse.map",
}

_OLD_ENTRY_BYTES: Final = 24
_OLD_NUMBER_BYTES: Final = 12


class Records(dict[bytes, bytes]):
    """The records that matter, by key; `extents` if they hold a sparse map of the oldest pax form."""

    __slots__ = ("extents",)

    def __init__(self) -> None:
        self.extents: Extents | None = None

    @property
    def may_be_sparse(self) -> bool:
        """Whether they are more than the time that most files have."""
        return len(self) > 1 or b"mtime" not in self


def read_number(field: bytes) -> int:
    """Read a number of a header: octal, or GNU's form for those that are too large for it, or negative.

    Raises:
        ValueError: It is neither, or larger than any number may be.
    """
    digits = field.rstrip(b" \0")
    if digits.isdigit():
        return int(digits, 8)
    if field[0] & 0x80:
        bits = 8 * len(field) - 1
        number = int.from_bytes(field, "big") & ((1 << bits) - 1)
        if number >> (bits - 1):
            number -= 1 << bits
        if not -LARGEST <= number <= LARGEST:
            raise ValueError("it is too large")
        return number
    match = _OCTAL.fullmatch(field)
    if match is None:
        raise ValueError("it is no octal number")
    return int(match[1] or b"0", 8)


def read_decimal(text: bytes) -> int:
    """Read a number of a record or a sparse map.

    Raises:
        ValueError: It is none, or larger than any number may be.
    """
    if not text.isdigit() or len(text) > _LONGEST_NUMBER:
        raise ValueError("it is no decimal number, or too large")
    number = int(text)
    if number > LARGEST:
        raise ValueError("it is too large")
    return number


def read_time(text: bytes) -> int:
    """Read the time of a record: seconds since 1970, maybe negative, maybe with a fraction.

    Returns:
        Nanoseconds; what is finer is cut off.

    Raises:
        ValueError: It is none.
    """
    if len(text) == _USUAL_TIME and text[_USUAL_POINT] == 0x2E:
        digits = text[:_USUAL_POINT] + text[_USUAL_POINT + 1 :]
        if digits.isdigit():
            return int(digits)
    magnitude = text.removeprefix(b"-")
    whole, point, fraction = magnitude.partition(b".")
    if point and fraction and not fraction.isdigit():
        raise ValueError("it is no time")
    time_ns = read_decimal(whole) * NANOSECONDS + int(fraction[:9].ljust(9, b"0"))
    return time_ns if magnitude is text else -time_ns


def read_records(body: bytes) -> Records:
    """Read pax records, each of the form `LENGTH KEY=VALUE` with a newline at its end.

    Raises:
        ValueError: They are not sound.
    """
    records = Records()
    if (times := _TIMES.fullmatch(body)) is not None:
        records[b"mtime"] = times[1]
        return records
    position, size_bytes = 0, len(body)
    sparse_offset: bytes | None = None
    while position < size_bytes:
        space = body.find(b" ", position, position + _LONGEST_NUMBER + 1)
        digits = body[position:space] if space >= 0 else b""
        if not digits.isdigit():
            raise ValueError("a record has no length")
        end = position + int(digits)
        if end > size_bytes or end <= space + 1 or body[end - 1] != 0x0A:
            raise ValueError("a record does not end where it should")
        equals = body.find(b"=", space + 1, end - 1)
        if equals < 0:
            raise ValueError("a record has no value")
        key = body[space + 1 : equals]
        if key in _KEPT:
            value = body[equals + 1 : end - 1]
            if key in _TEXTS and len(value) > LONGEST_PATH_BYTES:
                raise ValueError("a path is too long")
            records[key] = value
        elif key == b"GNU.sparse.offset":
            sparse_offset = body[equals + 1 : end - 1]
        elif key == b"GNU.sparse.numbytes":
            if sparse_offset is None:
                raise ValueError("a sparse map has a size without an offset")
            if records.extents is None:
                records.extents = Extents()
            _add(records.extents, read_decimal(sparse_offset), read_decimal(body[equals + 1 : end - 1]))
            sparse_offset = None
        position = end
    return records


def read_extents_of_record(text: bytes) -> Extents:
    """Read a sparse map from one record: offsets and sizes in turn, with commas.

    Raises:
        ValueError: It is not sound.
    """
    extents = Extents()
    position = 0
    while position < len(text):
        match = _PAIR.match(text, position)
        if match is None:
            raise ValueError("a sparse map is not sound")
        _add(extents, read_decimal(match[1]), read_decimal(match[2]))
        position = match.end()
    return extents


def read_extents_of_block(extents: Extents, entries: bytes) -> int:
    """Read what one header block holds of a sparse map of GNU's old form; an empty entry ends it early.

    Returns:
        How many pieces it held.

    Raises:
        ValueError: It is not sound.
    """
    before = len(extents)
    for at in range(0, len(entries), _OLD_ENTRY_BYTES):
        offset = entries[at : at + _OLD_NUMBER_BYTES]
        if not offset[0]:
            break
        size = entries[at + _OLD_NUMBER_BYTES : at + _OLD_ENTRY_BYTES]
        _add(extents, read_number(offset), read_number(size))
    return len(extents) - before


def read_extents_of_data(next_block: Callable[[], bytes]) -> Extents:
    """Read a sparse map of GNU's newest form, which stands before a file's data: numbers, each on a line.

    Args:
        next_block: Gives the next block of the file's data.

    Raises:
        ValueError: It is not sound.
    """
    extents = Extents()
    wanted: int | None = None
    offset: int | None = None
    rest = b""
    while True:
        lines = (rest + next_block()).split(b"\n")
        rest = lines.pop()
        for line in lines:
            number = read_decimal(line)
            if wanted is None:
                wanted = number
                if wanted > MOST_EXTENTS:
                    raise ValueError(f"a sparse map has more than {MOST_EXTENTS:,} pieces")
            elif offset is None:
                offset = number
            else:
                _add(extents, offset, number)
                offset = None
            if len(extents) == wanted:
                # What follows in this block fills it.
                return extents
        if len(rest) > BLOCK_BYTES:
            raise ValueError("a sparse map has no end")


def _add(extents: Extents, offset: int, size_bytes: int) -> None:
    if len(extents) == MOST_EXTENTS:
        raise ValueError(f"a sparse map has more than {MOST_EXTENTS:,} pieces")
    after = extents.offsets[-1] + extents.sizes[-1] if extents else 0
    if offset < after or size_bytes < 0 or offset + size_bytes > LARGEST:
        raise ValueError("the pieces of a sparse file are not in order")
    extents.add(offset, size_bytes)
