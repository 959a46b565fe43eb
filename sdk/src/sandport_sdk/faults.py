"""What a handler raised, as the error that its caller gets; and in the log where it was no error on purpose."""

from __future__ import annotations

import logging
from asyncio import CancelledError

from msgspec import Struct

from sandport_protocol.errors import Cancelled, Dispatched, Internal, WireError

_log = logging.getLogger("sandport_sdk")
_TEXT = 2_000
"""Characters of a foreign exception's text that go into a message; the log has all of it."""


class Circumstances(Struct, frozen=True):
    """What is known of the call when it fails."""

    method: str
    cancelled: bool
    """The host, or the end of the worker, asked it to stop."""
    dispatched: Dispatched


def from_exception(error: BaseException, call: Circumstances) -> WireError:
    """The error to answer.

    A `WireError` is itself, also out of a task group. What a cancelled handler raises is Cancelled. All else is a
    fault of the provider: Internal, with a traceback in the log.
    """
    answer = _from_exception(error, call)
    if isinstance(answer, Cancelled) and answer.dispatched == "yes":
        # A call whose effect is certain has a result; the wire lets one that was cancelled say `no` or `unknown`.
        answer.dispatched = "unknown"
    return answer


def _from_exception(error: BaseException, call: Circumstances) -> WireError:
    if isinstance(error, WireError):
        if isinstance(error, Internal):
            _report(error, f"{call.method} failed")
        return error
    if isinstance(error, CancelledError):
        if call.cancelled:
            return Cancelled(f"{call.method} was cancelled", dispatched=call.dispatched)
        _report(error, f"{call.method} ended with CancelledError, though nobody cancelled it")
        return Internal(f"{call.method} was interrupted by its own provider", dispatched=call.dispatched)
    if isinstance(error, BaseExceptionGroup) and (known := _first_known(error)) is not None:
        _report(error, f"{call.method} failed in more than one place; the first {known.condition} is answered")
        return known
    _report(error, f"{call.method} failed")
    if call.cancelled and isinstance(error, Exception):
        # Many clients turn the interruption into an error of their own.
        return Cancelled(f"{call.method} was cancelled ({describe(error)})", dispatched=call.dispatched)
    return Internal(f"{call.method} failed: {describe(error)}", dispatched=call.dispatched)


def describe(error: BaseException) -> str:
    """An exception in one piece of text."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception whose text cannot be made still has a name
        text = "(its text cannot be shown)"
    text = text.encode("utf-8", "backslashreplace").decode()
    name = type(error).__name__
    return f"{name}: {text[:_TEXT]}" if text else name


def _report(error: BaseException, message: str) -> None:
    _log.error("%s", message, exc_info=error)


def _first_known(group: BaseExceptionGroup[BaseException]) -> WireError | None:
    for error in group.exceptions:
        if isinstance(error, WireError):
            return error
        if isinstance(error, BaseExceptionGroup) and (known := _first_known(error)) is not None:
            return known
    return None
