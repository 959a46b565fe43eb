"""What a script's end means: its one line on stderr, the words of tar and others before it, and what to do about it."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from sandport.errors import CommandNotFound, PathNotFound, QuotaExceeded, SandportError, WireError
from sandport.outcome import Outcome
from sandport.sync.errors import (
    PathOutsideRootError,
    SourceMissingError,
    SpaceExhaustedError,
    SyncError,
    TargetBusyError,
    printable,
)
from sandport_protocol.errors import PathRefused
from sandport_protocol.octets import unpack

__all__ = ["STDERR_BYTES", "Told", "failure_of", "of_worker", "told_by"]

STDERR_BYTES: Final = 256 * 1024
"""Kept of what a script and its programs say, half of it the end."""

_SHOWN_CHARACTERS: Final = 600

_NO_SPACE: Final = re.compile(rb"No space left on device|Disk quota exceeded|File too large|No space left")
_DENIED: Final = re.compile(rb"Permission denied|Operation not permitted")
_READ_ONLY: Final = re.compile(rb"Read-only file system")


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The failure that a script named.

    Attributes:
        kind: One word of `script.py`'s.
        path: What it happened at, or a number or name, as the kind wants it.
        said: What else stands on stderr, the end of it where it is long.
    """

    kind: str
    path: bytes
    said: bytes


def told_by(outcome: Outcome, scratch: bytes) -> Told | None:
    """What a script said of its failure; None where it ended well.

    A script that was killed, or never came to say anything, failed with the kind `ended`.
    """
    stderr = outcome.stderr.data + outcome.stderr.tail
    said, mark, line = stderr.rpartition(b"\nsandport " + scratch + b" ")
    if outcome.ok:
        return None
    if not mark:
        return Told(kind="ended", path=b"", said=stderr.strip())
    kind, _, path = line.removesuffix(b"\n").partition(b" ")
    return Told(kind=kind.decode("ascii", "replace"), path=path, said=said.strip())


def failure_of(outcome: Outcome, told: Told, path: bytes) -> SyncError:
    """The error for a script that failed.

    Args:
        outcome: Its end.
        told: What it named.
        path: The path of the sandbox that the caller gave.
    """
    at = told.path or path
    shown = printable(at)
    match told.kind:
        case "missing":
            return SourceMissingError(
                f"{printable(path)} does not exist in the sandbox; check the path, which is relative to the sandbox's "
                "working directory",
                path=path,
            )
        case "outside":
            return PathOutsideRootError(
                f"{shown} is refused: it, or a symbolic link on the way, leads out of the tree or is where a directory "
                "should be, and such links are not followed; remove the link, or name the place that it leads to",
                path=at,
            )
        case "busy":
            return TargetBusyError(
                f"{shown} cannot be replaced: a directory stands where a file should go, or the other way round; "
                "remove it or choose another target",
                path=at,
            )
        case "reserved":
            return SyncError(
                f"{shown} is refused: names that begin with .sandport- are reserved; choose another name", path=at
            )
        case "special":
            return SyncError(
                f"{shown} is neither a file nor a directory, so it has no bytes to copy; name a file or a directory",
                path=at,
            )
        case "directory":
            return SyncError(f"{shown} is a directory; name a file, or use sync_out for the whole of it", path=at)
        case "loop":
            return SyncError(f"{shown} goes through too many links; name the place that it leads to", path=at)
        case "tool":
            return SyncError(
                f"the sandbox has no {shown.strip(chr(39))}, which moving files needs; install it in the sandbox's "
                "image, or use a provider that moves files itself",
                path=path,
            )
        case "cut":
            return SyncError(
                f"the copy to {printable(path)} did not arrive whole in the sandbox, so nothing was put in place; "
                "copy again",
                path=path,
            )
        case "stopped":
            return SyncError(f"a signal ended the copy of {printable(path)} in the sandbox; copy again", path=path)
    return _by_words(outcome, told, at if told.kind not in ("tar", "ended") else path)


def of_worker(error: WireError, path: bytes) -> SandportError:
    """The error for what a worker says of an archive: the same that the sandbox's own tools would have led to."""
    reason = error.detail.reason if error.detail is not None else None
    at = path
    if error.detail is not None and error.detail.path is not None:
        at = unpack(error.detail.path)
    said = f" ({error.message})"
    failure: SyncError
    if isinstance(error, QuotaExceeded) and reason == "noSpace":
        failure = SpaceExhaustedError(
            f"cannot copy {printable(path)} in the sandbox: no space left there; free space, or choose another target"
            f"{said}",
            path=path,
        )
    elif isinstance(error, PathRefused) and reason == "kind":
        failure = TargetBusyError(
            f"{printable(at)} cannot be replaced: a directory stands where a file should go, or the other way round; "
            f"remove it or choose another target{said}",
            path=at,
        )
    elif isinstance(error, PathRefused):
        failure = SyncError(f"cannot copy {printable(at)} in the sandbox{_PATH_ADVICE.get(reason, '')}{said}", path=at)
    elif isinstance(error, PathNotFound):
        failure = SourceMissingError(
            f"{printable(path)} does not exist in the sandbox; check the path{said}", path=path
        )
    elif isinstance(error, CommandNotFound):
        failure = SyncError(
            f"the sandbox has no {at.decode(errors='replace')}, which moving files needs; install it in the sandbox's "
            f"image{said}",
            path=path,
        )
    else:
        return error
    failure.dispatched = error.dispatched
    return failure


_PATH_ADVICE: Final[dict[str | None, str]] = {
    "permission": "; give the sandbox's user the right to it",
    "readOnly": "; choose a target on a file system that can be written",
    "name": "; shorten the name, or choose a file system that takes it",
}

_DOING: Final = {
    "make": "make {}",
    "enter": "enter {}",
    "move": "put what was copied in its place in {}",
    "write": "write {}",
    "read": "read {}",
    "list": "list {}",
    "remove": "delete from {}",
    "tar": "copy {}",
    "ended": "copy {}",
}


def _by_words(outcome: Outcome, told: Told, path: bytes) -> SyncError:
    doing = _DOING.get(told.kind, "copy {}").format(printable(path))
    said = _tail(told.said)
    if _NO_SPACE.search(told.said):
        return SpaceExhaustedError(
            f"cannot {doing} in the sandbox: no space left there; free space, or choose another target{said}", path=path
        )
    if _READ_ONLY.search(told.said):
        advice = "; choose a target on a file system that can be written"
    elif _DENIED.search(told.said):
        advice = "; give the sandbox's user the right to it"
    elif told.kind == "ended":
        advice = f"; the sandbox's shell ended: {_how(outcome)}"
    else:
        advice = ""
    return SyncError(f"cannot {doing} in the sandbox{advice}{said}", path=path)


def _how(outcome: Outcome) -> str:
    if outcome.ended == "signalled":
        return f"killed by signal {outcome.signal}"
    return f"exit code {outcome.exit_code}" if outcome.ended == "exited" else outcome.ended


def _tail(said: bytes) -> str:
    text = said.decode("utf-8", "backslashreplace").strip()
    if not text:
        return ""
    if len(text) > _SHOWN_CHARACTERS:
        text = "[...]" + text[-_SHOWN_CHARACTERS:]
    lines = ["".join(c if c.isprintable() else repr(c)[1:-1] for c in line) for line in text.splitlines()]
    return "; it said: " + " | ".join(lines)
