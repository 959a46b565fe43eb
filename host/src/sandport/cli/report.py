"""What `run`, `exec` and `sync` write with `--json`: one object that says how it ended, and whose fault it was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec
from msgspec import Struct, field

from sandport.outcome import Captured, Outcome
from sandport.sync.result import Changed, Refused, Skipped, SyncResult

from . import exit_codes
from .failures import Failure
from .listing import put
from .messages import unicode_text
from .transfer import Transfer

Phase = Literal["start", "acquire", "attach", "syncIn", "command", "syncOut", "release", "stop"]
"""Worker started; sandbox created, or one that is there found; files in; the command; files out; sandbox destroyed, or
let go where it is kept; workers stopped."""


class StreamCount(Struct, frozen=True, kw_only=True, rename="camel"):
    """One stream of the program."""

    bytes: int = 0
    """Everything that it wrote, as far as it was read."""
    dropped: int = 0
    """Of these, what nobody took before a time-out ended the wait."""
    end: str = "seen"
    """`heldOpen`: something that the command left behind still holds it, or its rest was dropped."""


class Ids(Struct, kw_only=True, rename="camel"):
    """Who and where."""

    provider: str | None = None
    environment: str | None = None
    lease: str | None = None
    sandbox: str | None = None
    store: str | None = None


class Notice(Struct, frozen=True, kw_only=True):
    """One thing that was not copied as it is."""

    path: str
    reason: str
    kind: str | None = None
    """What was skipped: `denied` and `reserved` are files and folders that the copy lacks."""


class Moved(Struct, frozen=True, kw_only=True, rename="camel"):
    """One copy that was done."""

    direction: Literal["in", "out"]
    local: str
    remote: str
    dry_run: bool = False
    """Nothing was written: what follows is what would have been."""
    files: int
    directories: int
    links: int
    bytes: int
    deleted: int
    excluded: int
    skipped: int
    missing: int
    """Of these, files and folders: what may not be read, or has a reserved name."""
    refused: int
    changed: int
    deleted_paths: tuple[str, ...]
    """These, and those below, at most the first 10,000."""
    excluded_paths: tuple[str, ...]
    skipped_paths: tuple[Notice, ...]
    refused_paths: tuple[Notice, ...]
    changed_paths: tuple[Notice, ...]

    @property
    def lacks(self) -> str | None:
        """What is not there, or not as it was at one moment, in a few words; a FIFO or a device lacks nobody."""
        counts = (
            (self.missing, "cannot be read or has a reserved name"),
            (self.refused, "refused"),
            (self.changed, "changed while it was read"),
        )
        return ", ".join(f"{count:,} {what}" for count, what in counts if count) or None

    @property
    def is_whole(self) -> bool:
        """Whether everything that was wanted arrived as it is."""
        return not (self.skipped or self.refused or self.changed)


class Report(Struct, kw_only=True, rename="camel"):
    """The whole object; members that do not apply are null."""

    code: int = 0
    """What the command exits with."""
    code_from: Literal["program", "sandport"] = "sandport"
    """Whose code that is: a program may well exit with 125 too."""
    ended: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool = False
    tree: str | None = None
    stdout: StreamCount | None = None
    stderr: StreamCount | None = None
    error: Failure | None = None
    """The first thing that went wrong on our side."""
    ids: Ids
    moved: list[Moved] = field(default_factory=list)
    kept: bool = False
    """The lease is there for later commands."""
    name: str | None = None
    """What the lease is called."""
    expires_at: str | None = None
    """When its sandbox ends by itself, where it is there for later commands."""
    left: list[str] = field(default_factory=list)
    """Sandboxes of this command whose end is not confirmed; clean-up goes on with them."""
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What else went wrong, such as an end of a sandbox that nobody confirmed."""
    timings_ms: dict[Phase, int] = field(default_factory=dict)
    total_ms: int = 0

    @contextmanager
    def timing(self, phase: Phase) -> Iterator[None]:
        """Count the block's time to a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.timings_ms[phase] = self.timings_ms.get(phase, 0) + _ms(time.monotonic() - started)

    def take(self, outcome: Outcome) -> None:
        """The program ended, and so."""
        self.ended = outcome.ended
        self.exit_code = outcome.exit_code
        self.signal = outcome.signal
        self.core_dumped = outcome.core_dumped
        self.tree = outcome.tree
        self.stdout = _count(outcome.stdout)
        self.stderr = _count(outcome.stderr)
        self.notes += [unicode_text(note) for note in outcome.notes]
        self.code = outcome.shell_code
        self.code_from = "sandport" if outcome.ended == "timedOut" else "program"

    def moved_files(self, direction: Literal["in", "out"], transfer: Transfer, result: SyncResult) -> Moved:
        """One copy was done."""
        moved = Moved(
            direction=direction,
            local=unicode_text(transfer.local),
            remote=unicode_text(transfer.remote),
            dry_run=transfer.manner.dry_run,
            files=result.files,
            directories=result.directories,
            links=result.links,
            bytes=result.total_bytes,
            deleted=result.deleted,
            excluded=result.excluded,
            skipped=result.skipped_count,
            missing=result.missing_count,
            refused=result.refused_count,
            changed=result.changed_count,
            deleted_paths=tuple(map(_path, result.deleted_paths)),
            excluded_paths=tuple(map(_path, result.excluded_paths)),
            skipped_paths=_noted(result.skipped),
            refused_paths=_noted(result.refused),
            changed_paths=_noted(result.changed),
        )
        self.moved.append(moved)
        return moved

    def incomplete(self) -> None:
        """Not all that was to be copied is there as it is; what is missing is listed."""
        if self.code == 0:
            self.code, self.code_from = exit_codes.INCOMPLETE, "sandport"

    def lacking(self, option: str, what: str) -> None:
        """A command's results did not come out whole; a code that the program failed with stays."""
        self.warnings.append(unicode_text(f"{option}: not all of it came out: {what}"))
        if self.code == 0:
            self.code, self.code_from = exit_codes.OURS, "sandport"

    def failed(self, failure: Failure) -> None:
        """Something of ours went wrong; a code that a program exited with stays, unless it was 0."""
        if self.error is None:
            self.error = failure
        else:
            self.warnings.append(failure.message)
        if self.code == 0:
            self.code, self.code_from = failure.code, "sandport"

    def started(self) -> None:
        """Something may be there after all: the code for wrong use, after which nothing is, would say too little."""
        if self.code_from == "sandport" and self.code == exit_codes.USAGE:
            self.code = exit_codes.OURS
            if self.error is not None:
                self.error = msgspec.structs.replace(self.error, code=exit_codes.OURS)

    def interrupted(self, code: int) -> None:
        """A signal ended it: that is what the caller has to know."""
        self.code, self.code_from = code, "sandport"

    def write(self) -> None:
        """Print the object, and nothing else, on stdout."""
        put(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def _count(captured: Captured) -> StreamCount:
    return StreamCount(bytes=captured.total_bytes, dropped=captured.untaken_bytes, end=captured.end)


def _path(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _noted(notices: Sequence[Skipped | Refused | Changed]) -> tuple[Notice, ...]:
    return tuple(
        Notice(
            path=_path(notice.path),
            reason=notice.reason,
            kind=notice.kind if isinstance(notice, Skipped) else None,
        )
        for notice in notices
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
