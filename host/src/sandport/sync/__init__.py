"""Moves files between this machine and a sandbox, faithfully and within bounds.

By itself it is the direct way, for a sandbox that is a directory on this machine; `sandport.transfer` is the way to all
others, and takes from here what this machine's side of it does. All of it is plain
blocking code without an event loop, for a worker thread. Large copies have a second thread (`pair_copy`) or a second
process (`second_process`) for as long as they last, where there is a processor for it.
"""

from sandport.sync.errors import (
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
from sandport.sync.local import DEFAULT_MAX_BYTES, DEFAULT_MAX_ENTRIES, HostPath, copy_in, copy_out
from sandport.sync.result import Changed, Refused, SkipKind, Skipped, SyncProgress, SyncResult

__all__ = [
    "DEFAULT_MAX_BYTES",
    "DEFAULT_MAX_ENTRIES",
    "Changed",
    "HostPath",
    "PathOutsideRootError",
    "Refused",
    "SkipKind",
    "Skipped",
    "SourceMissingError",
    "SpaceExhaustedError",
    "SyncCancelledError",
    "SyncError",
    "SyncProgress",
    "SyncResult",
    "TargetBusyError",
    "TooLargeError",
    "TreeMovedError",
    "UnsafeTargetError",
    "copy_in",
    "copy_out",
]
