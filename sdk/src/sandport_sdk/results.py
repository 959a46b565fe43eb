"""Whether what a handler returned is what its method answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from sandport_protocol import codec
from sandport_protocol.errors import Internal
from sandport_protocol.v1 import ValidateConfigResult


def check(method: str, wanted: type[Any] | None, result: Any, unended: Sequence[str]) -> None:
    """Let a good result pass.

    Args:
        method: The method's name on the wire.
        wanted: The type of its result; None for an extension, which may answer any JSON.
        result: What the handler returned.
        unended: Streams of live output that lack their end mark.

    Raises:
        Internal: It is none, and what is wrong with it.
    """
    if wanted is None:
        _check_free(method, result)
    elif not isinstance(result, wanted):
        raise Internal(f"{method} returned {type(result).__name__}, not {wanted.__name__}", dispatched="yes")
    elif wanted is ValidateConfigResult:
        _check_free(f"the config that {method} returned", result.config)
    if unended:
        raise Internal(f"{method} returned before it ended the output of {' and '.join(unended)}", dispatched="yes")


def _check_free(what: str, value: Any) -> None:
    """Free-form values may hold what JSON cannot say, or raw text that is none or would not fit on a line.

    Raw text inside of another value is refused as what cannot be encoded; all else comes out of the encoder as one
    line of JSON, or not at all. So nothing is encoded here: a second time costs a large result a third of its way.
    """
    try:
        if not isinstance(value, Raw):
            codec.refuse_non_finite(value)
            return
        codec.read_as(object, value)
    except (TypeError, ValueError) as error:
        raise Internal(f"{what}: {error}", dispatched="yes") from error
    if b"\n" in bytes(value):
        raise Internal(f"{what} holds raw JSON that spans lines", dispatched="yes")
