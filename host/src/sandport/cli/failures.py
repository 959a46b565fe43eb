"""What an exception means to whoever called the command: its name, its words, its exit code."""

from __future__ import annotations

from msgspec import Struct

from sandport.configuration import types_in_words
from sandport.errors import (
    CommandNotExecutable,
    CommandNotFound,
    ConfigInvalid,
    NotSupported,
    SandportError,
    UsageError,
)
from sandport_protocol.errors import Dispatched, Retry

from . import exit_codes
from .messages import words_of


class Failure(Struct, frozen=True, kw_only=True, rename="camel"):
    """One error, as `--json` shows it."""

    condition: str
    """The name of the error's class; `Bug` for one that is not of Sandport's making."""
    message: str
    retry: Retry = "never"
    dispatched: Dispatched = "unknown"
    code: int
    """What the command exits with because of it."""


class OutputFailed(Exception):
    """Our output could not be handed on.

    Attributes:
        closed: Nobody reads it any more.
    """

    def __init__(self, stream: str, error: OSError) -> None:
        super().__init__(f"{stream} cannot be written: {error.strerror}")
        self.closed = isinstance(error, BrokenPipeError)


def misuse(message: str) -> Failure:
    """What was wrong with the words of the command."""
    return Failure(condition=UsageError.__name__, message=words_of(message), dispatched="no", code=exit_codes.USAGE)


def failure_of(error: BaseException, *, started: bool = False) -> Failure:
    """Name, words and exit code of an exception.

    Args:
        error: What was raised.
        started: Something had been started by then, so that the code for wrong use would say too little.
    """
    error = _single(error)
    code = _code(error)
    words = types_in_words(str(error)) if isinstance(error, ConfigInvalid) else str(error)
    # Its class is in the store, which is not imported for a message.
    is_unknown = type(error).__name__ == "LeaseUnknown" and words.startswith("there is no lease")
    if is_unknown and "ever leased" not in words and "did you mean" not in words:
        words += "\n'sandport leases' lists those that there are"
    return Failure(
        condition=type(error).__name__ if _ours(error) else "Bug",
        message=words_of(words if _ours(error) else f"{type(error).__name__}: {error}"),
        retry=getattr(error, "retry", "never"),
        dispatched=getattr(error, "dispatched", "unknown"),
        code=exit_codes.OURS if started and code == exit_codes.USAGE else code,
    )


def _single(error: BaseException) -> BaseException:
    """The one that is told: of several that failed together the first, as long as none is a fault of our own."""
    while isinstance(error, BaseExceptionGroup):
        _, faults = error.split(lambda one: not isinstance(one, BaseExceptionGroup) and _ours(one))
        if faults is not None and len(error.exceptions) > 1:
            return error
        error = error.exceptions[0]
    return error


def _ours(error: BaseException) -> bool:
    return isinstance(error, (SandportError, OutputFailed))


def _code(error: BaseException) -> int:
    match error:
        case CommandNotFound():
            return exit_codes.NOT_FOUND
        case CommandNotExecutable():
            return exit_codes.NOT_EXECUTABLE
        case UsageError():
            return exit_codes.USAGE
        case ConfigInvalid() | NotSupported() if error.dispatched == "no":
            # The provider refused before it created anything.
            return exit_codes.USAGE
        case OutputFailed(closed=True):
            return exit_codes.CLOSED_PIPE
        case _:
            return exit_codes.OURS
