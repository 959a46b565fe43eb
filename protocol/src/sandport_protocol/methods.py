"""The table of methods and notifications: what each takes, answers, how it fails, and whether it may be repeated."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from . import errors, v1


class Method(Struct, frozen=True, kw_only=True):
    """One method that a host calls."""

    name: str
    params: type[v1.Params]
    result: type[v1.Result]
    repeatable: bool
    """A host may send it again when it does not know what became of the first."""
    group: str
    """`session`, `config`, `lease`, `command` (all mandatory) or the name of an optional group."""
    repeat: str
    """What a second call does."""
    cancel: str
    """What a cut at any point leaves behind."""
    errors: tuple[type[errors.WireError], ...]
    """Conditions that a host must expect; a worker may answer others where none of these fits."""


class Notification(Struct, frozen=True, kw_only=True):
    """One message without an answer."""

    name: str
    params: type[v1.Params]
    sender: Literal["host", "worker"]


_KEEPS_NOTHING = "leaves nothing behind"

_ANY = (errors.InvalidRequest, errors.InvalidParams, errors.NotInitialized, errors.Internal)
_CALL = (*_ANY, errors.MethodNotFound, errors.TooLarge, errors.Overloaded, errors.Unavailable, errors.Cancelled)
_VENDOR = (*_CALL, errors.AuthenticationFailed, errors.RateLimited)
_CONFIGURED = (*_VENDOR, errors.ConfigInvalid, errors.NotSupported)
_SANDBOX = (*_VENDOR, errors.NotAttached, errors.LeaseNotFound, errors.SandboxLost, errors.NotSupported)
_COMMAND = (
    *_SANDBOX,
    errors.QuotaExceeded,
    errors.CommandNotFound,
    errors.CommandNotExecutable,
    errors.PathNotFound,
    errors.PathOutsideRoot,
)
_PROCESS = (*_SANDBOX, errors.ProcessNotFound)
_SYNC = (
    *_SANDBOX,
    errors.QuotaExceeded,
    errors.CommandNotFound,
    errors.PathNotFound,
    errors.PathRefused,
)

_METHODS = (
    Method(
        name="initialize",
        params=v1.InitializeParams,
        result=v1.InitializeResult,
        repeatable=False,
        group="session",
        repeat="is refused with InvalidRequest; the first hello holds",
        cancel="cannot be cancelled",
        errors=(
            errors.InvalidRequest,
            errors.InvalidParams,
            errors.VersionMismatch,
            errors.Unavailable,
            errors.Internal,
        ),
    ),
    Method(
        name="ping",
        params=v1.PingParams,
        result=v1.PingResult,
        repeatable=True,
        group="session",
        repeat="answers again",
        cancel="cannot be cancelled",
        errors=(errors.InvalidRequest,),
    ),
    Method(
        name="shutdown",
        params=v1.ShutdownParams,
        result=v1.ShutdownResult,
        repeatable=True,
        group="session",
        repeat="waits for the same end",
        cancel="cannot be cancelled",
        errors=(errors.InvalidRequest, errors.InvalidParams),
    ),
    Method(
        name="validateConfig",
        params=v1.ValidateConfigParams,
        result=v1.ValidateConfigResult,
        repeatable=True,
        group="config",
        repeat="answers the same",
        cancel=_KEEPS_NOTHING,
        errors=_CALL,
    ),
    Method(
        name="probe",
        params=v1.ProbeParams,
        result=v1.ProbeResult,
        repeatable=True,
        group="config",
        repeat="looks again",
        cancel=_KEEPS_NOTHING,
        errors=_CONFIGURED,
    ),
    Method(
        name="acquireLease",
        params=v1.AcquireLeaseParams,
        result=v1.LeaseResult,
        repeatable=False,
        group="lease",
        repeat="is refused: an id serves one create",
        cancel="destroys what was created, or answers Cancelled with dispatched unknown",
        errors=(*_CONFIGURED, errors.QuotaExceeded),
    ),
    Method(
        name="attachLease",
        params=v1.AttachLeaseParams,
        result=v1.AttachLeaseResult,
        repeatable=True,
        group="lease",
        repeat="answers the same sandbox",
        cancel="leaves the sandbox as it was",
        errors=_CONFIGURED,
    ),
    Method(
        name="listLeases",
        params=v1.ListLeasesParams,
        result=v1.ListLeasesResult,
        repeatable=True,
        group="lease",
        repeat="lists again",
        cancel=_KEEPS_NOTHING,
        errors=_CONFIGURED,
    ),
    Method(
        name="destroyLease",
        params=v1.DestroyLeaseParams,
        result=v1.DestroyLeaseResult,
        repeatable=True,
        group="lease",
        repeat="succeeds with `gone`",
        cancel="may leave the sandbox half ended; a repeat finishes it",
        errors=(*_VENDOR, errors.NotAttached),
    ),
    Method(
        name="execute",
        params=v1.ExecuteParams,
        result=v1.ExecuteResult,
        repeatable=False,
        group="command",
        repeat="runs the command again; a host never does that by itself",
        cancel="ends the command and what it started as far as the capability `kill` says",
        errors=_COMMAND,
    ),
    Method(
        name="startProcess",
        params=v1.StartProcessParams,
        result=v1.StartProcessResult,
        repeatable=False,
        group="process",
        repeat="is refused while the id is known",
        cancel="ends the process if it was started",
        errors=_COMMAND,
    ),
    Method(
        name="writeProcess",
        params=v1.WriteProcessParams,
        result=v1.WriteProcessResult,
        repeatable=False,
        group="process",
        repeat="writes the bytes again",
        cancel="may have written a part",
        errors=_PROCESS,
    ),
    Method(
        name="signalProcess",
        params=v1.SignalProcessParams,
        result=v1.SignalProcessResult,
        repeatable=False,
        group="process",
        repeat="signals again",
        cancel="may have signalled",
        errors=_PROCESS,
    ),
    Method(
        name="waitProcess",
        params=v1.WaitProcessParams,
        result=v1.WaitProcessResult,
        repeatable=False,
        group="process",
        repeat="follows from the offset that it names",
        cancel="stops following; the process runs on",
        errors=(*_PROCESS, errors.OutputGap),
    ),
    Method(
        name="syncIn",
        params=v1.SyncInParams,
        result=v1.SyncInResult,
        repeatable=False,
        group="sync",
        repeat="unpacks again what a new socket brings",
        cancel="stops unpacking; what is in place stays",
        errors=(*_SYNC, errors.PathOutsideRoot, errors.ProtocolViolation),
    ),
    Method(
        name="syncOut",
        params=v1.SyncOutParams,
        result=v1.SyncOutResult,
        repeatable=False,
        group="sync",
        repeat="sends again, to a new socket",
        cancel="breaks the stream off; the sandbox is as it was",
        errors=_SYNC,
    ),
)

METHODS: dict[str, Method] = {method.name: method for method in _METHODS}
"""By name, in the order of the specification."""

NOTIFICATIONS: dict[str, Notification] = {
    note.name: note
    for note in (
        Notification(name="initialized", params=v1.InitializedParams, sender="host"),
        Notification(name="cancel", params=v1.CancelParams, sender="host"),
        Notification(name="credit", params=v1.CreditParams, sender="host"),
        Notification(name="ready", params=v1.ReadyParams, sender="worker"),
        Notification(name="failed", params=v1.FailedParams, sender="worker"),
        Notification(name="output", params=v1.OutputParams, sender="worker"),
        Notification(name="progress", params=v1.ProgressParams, sender="worker"),
        Notification(name="span", params=v1.SpanParams, sender="worker"),
    )
}

RESERVED: tuple[str, ...] = ("submitTask", "getTask", "connectTask", "completeTask", "stopTask")
"""Names that version 1 does not use and nobody else may."""
