"""Everything that Sandport raises at an embedder, as one tree.

```text
SandportError                        .retry: now | later | never      .dispatched: no | yes | unknown
  UsageError                         nothing was started: the call or the configuration is wrong
    ConfigurationInvalid               sandport.toml, an option, or a provider's config
    ProviderUnknown                    no such provider is installed or configured
    ProviderConflict                   two distributions install a provider of this name
    EnvironmentUnknown                 no such environment
    NameTaken                          another lease that has not ended has this name
    LeaseUnknown                       no lease has this id or name
    HomeUnusable                       the folder for state cannot be used
    StoreUnusable                      the journal cannot be read or written
      StoreTooNew                        a newer Sandport wrote it
      StoreClosed                        its host is closed, or belongs to another process
  WorkerError                        the provider's process
    WorkerStartFailed                  it did not come up; carries its exit and the end of its log
    WorkerCrashed                      it ended while in use; one report shared by all calls that were open
    WorkerWedged                       it lives and does not answer
  DeadlineExceeded                   the host's own limit for this call passed
  CallCancelled                      the caller cancelled, and the worker said what became of it
  LeaseLost                          this lease cannot be used any more
  NotAuthorised                      the embedder's authoriser refuses; nothing was written down, nothing was sent
  InUse                              another process uses the lease; it was left alone
  Stale                              a row of the journal is not what it was taken for; nothing was changed
  SyncError                          files: a copy did not do all that was asked
    PathOutsideRootError, SourceMissingError, SpaceExhaustedError, SyncCancelledError, TargetBusyError, TooLargeError,
    TreeMovedError, UnsafeTargetError
  WireError                          what a provider answered: one class for each condition
    ... SandboxLost, CommandNotFound, QuotaExceeded, ConfigInvalid, NotSupported, Unavailable, ...
```

`host/REFERENCE.md` has all of them, with what to do on each.

A result is never an error in disguise and an error never a result: exit codes belong to programs only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandport_protocol.errors import (
    AuthenticationFailed,
    Cancelled,
    CommandNotExecutable,
    CommandNotFound,
    ConfigInvalid,
    Dispatched,
    Internal,
    InvalidParams,
    InvalidRequest,
    LeaseNotFound,
    MethodNotFound,
    NotAttached,
    NotInitialized,
    NotSupported,
    OutputGap,
    Overloaded,
    ParseFailed,
    PathNotFound,
    PathOutsideRoot,
    PathRefused,
    ProcessNotFound,
    ProtocolViolation,
    QuotaExceeded,
    RateLimited,
    Retry,
    SandboxLost,
    SandportError,
    TooLarge,
    Unavailable,
    VersionMismatch,
    WireError,
)

from .worker.report import CrashReport

if TYPE_CHECKING:
    from .discovery import ProviderConflict
    from .home import HomeUnusable
    from .store.errors import InUse, LeaseUnknown, NameTaken, Stale, StoreClosed, StoreTooNew, StoreUnusable
    from .sync.errors import (
        PathOutsideRootError,
        SourceMissingError,
        SpaceExhaustedError,
        SyncCancelledError,
        SyncError,
        TargetBusyError,
        TooLargeError,
        TreeMovedError,
        UnsafeTargetError,
    )

__all__ = [
    "AuthenticationFailed",
    "CallCancelled",
    "Cancelled",
    "CommandNotExecutable",
    "CommandNotFound",
    "ConfigInvalid",
    "ConfigurationInvalid",
    "DeadlineExceeded",
    "EnvironmentUnknown",
    "HomeUnusable",
    "Internal",
    "InUse",
    "InvalidParams",
    "InvalidRequest",
    "LeaseLost",
    "LeaseNotFound",
    "LeaseUnknown",
    "MethodNotFound",
    "NameTaken",
    "NotAttached",
    "NotAuthorised",
    "NotInitialized",
    "NotSupported",
    "OutputGap",
    "Overloaded",
    "ParseFailed",
    "PathNotFound",
    "PathOutsideRoot",
    "PathOutsideRootError",
    "PathRefused",
    "ProcessNotFound",
    "ProtocolViolation",
    "ProviderConflict",
    "ProviderUnknown",
    "QuotaExceeded",
    "RateLimited",
    "SandboxLost",
    "SandportError",
    "SourceMissingError",
    "SpaceExhaustedError",
    "Stale",
    "StoreClosed",
    "StoreTooNew",
    "StoreUnusable",
    "SyncCancelledError",
    "SyncError",
    "TargetBusyError",
    "TooLarge",
    "TooLargeError",
    "TreeMovedError",
    "Unavailable",
    "UnsafeTargetError",
    "UsageError",
    "VersionMismatch",
    "WireError",
    "WorkerCrashed",
    "WorkerError",
    "WorkerStartFailed",
    "WorkerWedged",
]


class UsageError(SandportError):
    """The call or the configuration is wrong; nothing was started."""


class ConfigurationInvalid(UsageError):
    """A configuration file, an option or a value in them is wrong; the message names it and the fix."""


class ProviderUnknown(UsageError):
    """No provider of this name is installed or configured."""


class EnvironmentUnknown(UsageError):
    """No environment of this name exists."""


class WorkerError(SandportError):
    """The provider's process failed, whatever it was asked.

    Attributes:
        report: How the process ended and the end of its log; None while it still runs.
    """

    retry: Retry = "later"

    def __init__(self, message: str, *, report: CrashReport | None = None, dispatched: Dispatched = "no") -> None:
        super().__init__(message, dispatched=dispatched)
        self.report = report


class WorkerStartFailed(WorkerError):
    """The worker did not reach its hello, or could not get ready."""


class WorkerCrashed(WorkerError):
    """The worker ended while calls were open; each of them gets this error with the same report."""


class WorkerWedged(WorkerError):
    """The worker lives and has not answered a ping for the wedge limit; it was killed."""


class DeadlineExceeded(SandportError):
    """The host's limit for this call passed; a cancel was sent."""

    retry: Retry = "later"
    dispatched: Dispatched = "unknown"


class CallCancelled(SandportError):
    """The call was cancelled from another task; what the worker said of the effect is in `dispatched`."""


class LeaseLost(SandportError):
    """The lease ended: released, expired, or its sandbox is gone."""


class NotAuthorised(SandportError):
    """The embedder's authoriser refuses this, or could not be asked: `sandport_authorise` of a plugin.

    Nothing was written down, and nothing was sent.
    """


_HOMES = {
    "sandport.discovery": frozenset({"ProviderConflict"}),
    "sandport.home": frozenset({"HomeUnusable"}),
    "sandport.store.errors": frozenset(
        {"InUse", "LeaseUnknown", "NameTaken", "Stale", "StoreClosed", "StoreTooNew", "StoreUnusable"}
    ),
    "sandport.sync.errors": frozenset(
        {
            "PathOutsideRootError",
            "SourceMissingError",
            "SpaceExhaustedError",
            "SyncCancelledError",
            "SyncError",
            "TargetBusyError",
            "TooLargeError",
            "TreeMovedError",
            "UnsafeTargetError",
        }
    ),
}


def __getattr__(name: str) -> Any:
    # Their modules build on this one, and carry what few programs need.
    import importlib

    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
