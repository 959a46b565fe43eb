"""Between which numbers what a worker counts and measures lies: one table, for the structs and for the schema.

A number outside is refused where it is built and where it is read. It is never cut to fit: the system that a host's own
exit code goes to keeps eight bits of it, and 256 would become a success.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec import Struct


class Range(NamedTuple):
    """From the one to the other, both of them allowed."""

    least: int
    most: int


EXIT_CODE = Range(0, 255)
"""What a process can end with."""
SIGNAL = Range(1, 64)
"""The real-time ones too."""
COUNT = Range(0, 2**53 - 1)
"""What every language can count to in integers that are doubles."""
PLACES = Range(1, COUNT.most)
DURATION_MS = Range(0, COUNT.most)
INSTANT_MS = Range(0, 253_402_300_799_999)
"""Unix time until the end of the year 9999, where calendars end."""

RANGES: Mapping[str, Mapping[str, Range]] = {
    "CommandResult": {"exit_code": EXIT_CODE, "signal": SIGNAL, "duration_ms": DURATION_MS},
    "StreamResult": {"total_bytes": COUNT, "dropped_bytes": COUNT},
    "WriteProcessResult": {"taken_bytes": COUNT},
    "SyncInResult": {"bytes": COUNT},
    "SyncOutResult": {"bytes": COUNT},
    "LeaseResult": {"expires_at_ms": INSTANT_MS, "max_processes": PLACES},
    "ListedLease": {"created_at_ms": INSTANT_MS, "expires_at_ms": INSTANT_MS},
    "Capabilities": {"create_settle_ms": DURATION_MS},
    "ProgressParams": {"done": COUNT, "total": COUNT},
    "ErrorData": {"retry_after_ms": DURATION_MS},
    "Kept": {"total_bytes": COUNT, "dropped_bytes": COUNT},
}
"""By struct, or what it derives from, and by member. A member that may be null may always be that."""


@functools.cache
def ranges_of(cls: type[Struct]) -> Mapping[str, Range]:
    """The ranges of a struct's members, by their Python names; asked for each result that is built or read."""
    return next((RANGES[each.__name__] for each in cls.__mro__ if each.__name__ in RANGES), {})


def check_ranges(value: Struct) -> None:
    """Raise ValueError where a number lies outside of its range; the message says which one, and what it looks like."""
    for member, (least, most) in ranges_of(type(value)).items():
        number: int | None = getattr(value, member)
        if number is None or least <= number <= most:
            continue
        wire_name = dict(zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True))[member]
        guess = _GUESSES[member](number) if member in _GUESSES else ""
        shown = f"{number}" if number.bit_length() <= 128 else f"a number of {number.bit_length()} bits"
        raise ValueError(f"{wire_name} must be from {least} to {most}, not {shown}{guess and f': {guess}'}")


def _odd_code(number: int) -> str:
    if number > EXIT_CODE.most and number & 0x7F == 0 and number >> 8 <= EXIT_CODE.most:
        return f"{number} looks like a wait status, use os.waitstatus_to_exitcode"
    if -number in range(SIGNAL.least, SIGNAL.most + 1):
        return "if it is the negative number of a signal, as in Python, then ended is 'signalled'"
    return "a code that no program can have ended with is answered with an error (CMD-30)"


def _odd_signal(number: int) -> str:
    if number - 128 in range(SIGNAL.least, SIGNAL.most + 1):
        return f"a shell says so for signal {number - 128}; with the core dumped a wait status is the same"
    return ""


_GUESSES: Mapping[str, Callable[[int], str]] = {"exit_code": _odd_code, "signal": _odd_signal}
