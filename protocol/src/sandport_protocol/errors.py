"""Every way a call can fail, in one table and one tree of exceptions.

Above: the SDK raises these in a provider, the host raises them to an embedder; both sides use the same classes, so
that a failure keeps its name all the way. Below: nothing.

```text
SandportError                     retry: now | later | never      dispatched: no | yes | unknown
  WireError                       has a JSON-RPC code; one class for each condition of the table
    ParseFailed, InvalidRequest, MethodNotFound, InvalidParams, Internal     (JSON-RPC's own)
    NotInitialized, NotAttached, LeaseNotFound, SandboxLost, QuotaExceeded, RateLimited, AuthenticationFailed,
    ConfigInvalid, NotSupported, CommandNotFound, CommandNotExecutable, PathNotFound, PathOutsideRoot, TooLarge,
    Overloaded, Unavailable, Cancelled, ProtocolViolation, ProcessNotFound, OutputGap, PathRefused, VersionMismatch
```

Every error answers three questions: whose fault it was (its class), whether to try again (`retry`), and whether the
effect may have happened (`dispatched`). The last one decides everything about clean-up: only `no` may be repeated.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from .octets import Octets
from .ranges import DURATION_MS, check_ranges

Retry = Literal["now", "later", "never"]
Dispatched = Literal["no", "yes", "unknown"]


class Detail(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What exactly was wrong, in members that a program can read."""

    field: str | None = None
    """Dotted path of the member or config key that is at fault, e.g. `config.network`."""
    path: Octets | None = None
    """The file, directory or program that is at fault."""
    reason: str | None = None
    """A short machine-readable cause that belongs to the condition, e.g. `notADirectory`."""
    limit: int | None = None
    """The ceiling that was passed, in the unit of the condition (bytes, levels, requests)."""
    host_versions: tuple[int, ...] = ()
    worker_versions: tuple[int, ...] = ()


class Kept(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one stream of an interrupted command had produced."""

    total_bytes: int = 0
    data: bytes = b""
    """The kept bytes: all of them, or the head."""
    tail: bytes = b""
    """The last bytes, where something in the middle was dropped."""
    dropped_bytes: int = 0

    def __post_init__(self) -> None:
        check_ranges(self)


class Partial(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The output of a command that has no result: interrupted, cut or lost."""

    stdout: Kept = Kept()
    stderr: Kept = Kept()
    pty: Kept = Kept()


class ErrorData(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The `data` member of an error object."""

    condition: str = ""
    """The name of the condition, e.g. `SandboxLost`; the code says the same to a machine."""
    retry: Retry = "never"
    retry_after_ms: int | None = None
    dispatched: Dispatched = "unknown"
    detail: Detail | None = None
    partial: Partial | None = None

    def __post_init__(self) -> None:
        check_ranges(self)


class ErrorObject(Struct, frozen=True, omit_defaults=True):
    """The `error` member of a response."""

    code: int
    message: str
    data: ErrorData | None = None


class SandportError(Exception):
    """Anything that Sandport raises on purpose.

    Attributes:
        message: One or two lines: what happened, what it means, what to do.
        retry: `now` (repeating may help at once), `later`, or `never` (something must change first).
        dispatched: Whether the effect may have happened: `no`, `yes` or `unknown`.
        partial: What an interrupted command had produced, if the error interrupted one.
    """

    retry: Retry = "never"
    dispatched: Dispatched = "no"
    partial: Partial | None = None

    def __init__(self, message: str, *, retry: Retry | None = None, dispatched: Dispatched | None = None) -> None:
        super().__init__(message)
        self.message = message
        if retry is not None:
            self.retry = retry
        if dispatched is not None:
            self.dispatched = dispatched

    def __str__(self) -> str:
        return self.message


class WireError(SandportError):
    """A failure with a code on the wire; raise one of its subclasses.

    Each is made by `WireError(message, *, retry=None, dispatched=None, retry_after_s=None, detail=None, partial=None)`.

    Attributes:
        code: The JSON-RPC error code.
        retry: Whether a repeat may help: `now`, `later` or `never`; the condition's usual one where None was given.
        dispatched: Whether the effect may have happened: `no`, `yes` or `unknown`; the usual one where None was given.
        retry_after_s: Seconds to wait before a repeat, where the vendor said so.
        detail: The member, path or limit at fault: a `Detail`.
        partial: The output of a command that has no result: a `Partial`.
    """

    code: ClassVar[int] = -32603
    summary: ClassVar[str] = ""

    def __init__(
        self,
        message: str,
        *,
        retry: Retry | None = None,
        dispatched: Dispatched | None = None,
        retry_after_s: float | None = None,
        detail: Detail | None = None,
        partial: Partial | None = None,
    ) -> None:
        super().__init__(message, retry=retry, dispatched=dispatched)
        self.retry_after_s = retry_after_s
        self.detail = detail
        self.partial = partial

    @property
    def condition(self) -> str:
        """The name of the condition, as in `ErrorData.condition`."""
        return type(self).__name__

    def to_wire(self) -> ErrorObject:
        """The error object that says this on the wire."""
        return ErrorObject(
            self.code,
            self.message,
            ErrorData(
                condition=self.condition,
                retry=self.retry,
                retry_after_ms=None if self.retry_after_s is None else _ms(self.retry_after_s),
                dispatched=self.dispatched,
                detail=self.detail,
                partial=self.partial,
            ),
        )


def _ms(seconds: float) -> int:
    """A vendor's word in a form that the wire takes: nothing may be lost that an error says beside it."""
    return round(min(max(seconds * 1000, DURATION_MS.least), DURATION_MS.most))


class ParseFailed(WireError):
    """A line was not JSON."""

    code = -32700


class InvalidRequest(WireError):
    """A message was JSON, but not one that the protocol allows here."""

    code = -32600


class MethodNotFound(WireError):
    """The worker does not advertise this method."""

    code = -32601


class InvalidParams(WireError):
    """The params do not fit the method."""

    code = -32602


class Internal(WireError):
    """A fault in the provider itself; the worker's log has the traceback."""

    code = -32603
    dispatched: Dispatched = "unknown"


class NotInitialized(WireError):
    """Something other than `initialize`, `ping` or `shutdown` came before the hello was done."""

    code = -32002


class VersionMismatch(WireError):
    """Host and worker have no protocol version in common."""

    code = -32010


class NotAttached(WireError):
    """This worker does not know the sandbox (yet); attach it and repeat."""

    code = -32011
    retry: Retry = "now"


class LeaseNotFound(WireError):
    """No such sandbox exists any more."""

    code = -32012


class SandboxLost(WireError):
    """The sandbox died, or lost what ran in it, during the call."""

    code = -32013
    dispatched: Dispatched = "unknown"


class QuotaExceeded(WireError):
    """The vendor's or the machine's quota does not allow this now."""

    code = -32014
    retry: Retry = "later"


class RateLimited(WireError):
    """Too many requests with this credential; the error says when to come back, where the vendor does."""

    code = -32015
    retry: Retry = "later"


class AuthenticationFailed(WireError):
    """The credential was refused."""

    code = -32016


class ConfigInvalid(WireError):
    """The provider's config has a fault; `detail.field` names the key."""

    code = -32017


class NotSupported(WireError):
    """The provider cannot do this, by declaration or with this config."""

    code = -32018


class CommandNotFound(WireError):
    """There is no such program in the sandbox (a shell would exit with 127)."""

    code = -32019


class CommandNotExecutable(WireError):
    """The program exists and cannot be run (a shell would exit with 126)."""

    code = -32020


class PathNotFound(WireError):
    """A path named in the call does not exist in the sandbox; `detail.path` has it."""

    code = -32021


class PathOutsideRoot(WireError):
    """A path leaves the tree that it must stay in."""

    code = -32022


class TooLarge(WireError):
    """A ceiling was passed; `detail.limit` has it."""

    code = -32023


class Overloaded(WireError):
    """More requests in flight, or more processes, than was agreed."""

    code = -32024
    retry: Retry = "later"


class Unavailable(WireError):
    """The vendor or the transport to the sandbox could not be reached."""

    code = -32025
    retry: Retry = "later"
    dispatched: Dispatched = "unknown"


class Cancelled(WireError):
    """The host cancelled the call and the handler has ended."""

    code = -32026
    dispatched: Dispatched = "unknown"


class ProtocolViolation(WireError):
    """The peer broke a rule of the wire, and with it this call."""

    code = -32027
    dispatched: Dispatched = "unknown"


class ProcessNotFound(WireError):
    """No process of this id is known in the sandbox."""

    code = -32028


class OutputGap(WireError):
    """Output before the wanted offset is no longer kept; nothing was skipped silently."""

    code = -32029


class PathRefused(WireError):
    """The sandbox does not let a path be read, written or replaced; `detail.reason` says why."""

    code = -32030
    dispatched: Dispatched = "unknown"


CONDITIONS: tuple[type[WireError], ...] = (
    ParseFailed,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    Internal,
    NotInitialized,
    VersionMismatch,
    NotAttached,
    LeaseNotFound,
    SandboxLost,
    QuotaExceeded,
    RateLimited,
    AuthenticationFailed,
    ConfigInvalid,
    NotSupported,
    CommandNotFound,
    CommandNotExecutable,
    PathNotFound,
    PathOutsideRoot,
    TooLarge,
    Overloaded,
    Unavailable,
    Cancelled,
    ProtocolViolation,
    ProcessNotFound,
    OutputGap,
    PathRefused,
)
"""Every condition, in the order of the published table."""

_BY_CODE = {condition.code: condition for condition in CONDITIONS}


def from_wire(error: ErrorObject) -> WireError:
    """The exception for an error object that a peer sent.

    An unknown code becomes `Internal` with the code in its message, so that a newer worker's condition is never lost.
    An error without `data` says nothing about the effect: `dispatched` is then `unknown`.
    """
    condition = _BY_CODE.get(error.code)
    message = error.message
    if condition is None:
        condition, message = Internal, f"{message} (unknown error code {error.code})"
    data = error.data
    if data is None:
        return condition(message, dispatched="unknown")
    return condition(
        message,
        retry=data.retry,
        dispatched=data.dispatched,
        retry_after_s=None if data.retry_after_ms is None else data.retry_after_ms / 1000,
        detail=data.detail,
        partial=data.partial,
    )
