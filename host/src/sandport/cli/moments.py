"""Times and spans, for people and for JSON."""

from __future__ import annotations

import time

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))


def now_ms() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000


def iso(ms: int | None) -> str | None:
    """A moment as RFC 3339 has it, in UTC and whole seconds; None stays None."""
    return None if ms is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ms // 1000))


def span(ms: int) -> str:
    """How long, in the largest unit of which there is one: 90 s is 1m, 0.2 s is 0s."""
    for unit, size in _UNITS:
        if ms >= size:
            return f"{ms // size}{unit}"
    return "0s"


def until(ms: int, now: int) -> str:
    """How far off a moment is: in 3m, or now."""
    return f"in {span(ms - now)}" if ms - now >= 1000 else "now"
