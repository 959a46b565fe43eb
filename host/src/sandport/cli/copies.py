"""What a person is told of a copy that was made, or rehearsed."""

from __future__ import annotations

import os

from sandport.sync.result import LACKING, SyncResult

from .status import human_bytes
from .transfer import Transfer


def lines_of(transfer: Transfer, result: SyncResult, *, into: bool, verbose: bool) -> list[str]:
    """What a person is told on stdout: for a rehearsal everything, else what was done, in one line."""
    rehearsal = transfer.manner.dry_run
    lines = []
    if rehearsal or verbose:
        lines += _listed("would delete" if rehearsal else "deleted", result.deleted_paths, result.deleted)
        lines += _listed("left out", result.excluded_paths, result.excluded)
    source, target = (transfer.local, transfer.remote) if into else (transfer.remote, transfer.local)
    parts = [_many(result.files, "file"), human_bytes(result.total_bytes)]
    if result.directories:
        parts.append(_many(result.directories, "folder"))
    if result.links:
        parts.append(_many(result.links, "link"))
    counts = [
        f"{count:,} {what}"
        for count, what in (
            (result.deleted, "to delete" if rehearsal else "deleted"),
            (result.excluded, "left out"),
            (result.skipped_count, "skipped"),
            (result.refused_count, "refused"),
            (result.changed_count, "changed while read"),
        )
        if count
    ]
    verb = "would copy" if rehearsal else "copied"
    lines.append(f"{verb} {source} to {target}: {', '.join([*parts, *counts])}")
    return lines


def _listed(what: str, paths: tuple[bytes, ...], count: int) -> list[str]:
    lines = [f"{what}  {os.fsdecode(path)}" for path in paths]
    if count > len(paths):
        lines.append(f"{what}  {count - len(paths):,} more")
    return lines


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def notices_of(result: SyncResult, *, at_most: int) -> list[str]:
    """What was not copied as it is, and why: so many lines of each kind, and how many more there are.

    What the copy lacks comes before what is no file.

    A machine gets all of them with --json.
    """
    lines = []
    for what, count, listed in (
        ("skipped", result.skipped_count, sorted(result.skipped, key=lambda notice: notice.kind not in LACKING)),
        ("refused", result.refused_count, result.refused),
        ("changed while it was read", result.changed_count, result.changed),
    ):
        shown = listed[:at_most]
        lines += [f"{what}: {os.fsdecode(notice.path)}: {notice.reason}" for notice in shown]
        if count > len(shown):
            lines.append(f"{what}: {count - len(shown):,} more")
    return lines
