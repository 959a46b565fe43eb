"""When a host repeats what a vendor held back: RateLimited, with `dispatched` `no`, as section 4 of SPEC.md says."""

from __future__ import annotations

from . import schema
from .schema import Json

MOST_S = 120.0
"""So long one call is repeated; most vendors count by the minute."""
_FIRST_S, _LONGEST_S = 0.5, 30.0
"""Between two tries where the error does not say when to come back."""


def pause_s(answer: Json, *, tries: int) -> float | None:
    """How long a host waits before it repeats a call.

    Args:
        answer: The answer to it, whole.
        tries: How often it was asked so far.

    Returns:
        Seconds; None where the answer stands.
    """
    error = answer.get("error")
    if error is None or schema.faults_of_error(error):
        return None
    data = error.get("data") or {}
    if error["code"] != schema.error_code("RateLimited") or data.get("dispatched") != "no":
        return None
    told_ms = data.get("retryAfterMs")
    return float(told_ms) / 1000 if told_ms is not None else min(_LONGEST_S, _FIRST_S * 2 ** (tries - 1))
