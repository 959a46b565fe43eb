"""What an answer claims beside its outcome; no check is in here."""

from __future__ import annotations

from sandport_conformance.outcomes import expect
from sandport_conformance.schema import Json


def dispatched(error: Json) -> str:
    """Whether the effect may have happened, by an error that fits the schema; what is not said is unknown."""
    data = error.get("data") or {}
    return str(data.get("dispatched", "unknown"))


def field_of(error: Json) -> str:
    """The member or key that an error that fits the schema names in its detail; empty where there is none."""
    detail = (error.get("data") or {}).get("detail") or {}
    return str(detail.get("field") or "")


def expect_no_effect(error: Json, what: str) -> None:
    """Fail unless an error says `dispatched` `no`.

    Args:
        error: An error that fits the schema.
        what: Names the call.

    Raises:
        Failed: It says something else.
    """
    expect(dispatched(error) == "no", f"{what}: the error says dispatched {dispatched(error)!r}, and must say 'no'")
