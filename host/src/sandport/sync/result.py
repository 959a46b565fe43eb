"""What a copy tells its caller: the result at the end, progress on the way."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["LACKING", "Changed", "Refused", "SkipKind", "Skipped", "SyncProgress", "SyncResult"]

SkipKind: TypeAlias = Literal["special", "denied", "reserved", "scratch", "link", "loop", "patterns"]
"""What was skipped: a FIFO, a socket or a device; a file or folder that may not be read; one whose name begins with
`.sandport-`; what a copy that was killed had staged; a link to nothing, which is copied as a link; a folder that the
copy itself writes into, or that is above the link to it; an ignore file's patterns, while the file itself is copied."""

LACKING: Final[frozenset[SkipKind]] = frozenset({"denied", "reserved"})
"""Files and folders that the copy should have and has not."""


class Skipped(msgspec.Struct, frozen=True):
    """Something in the source that cannot be copied as asked: a FIFO, a socket, a device, an unreadable file.

    A link to nothing that should have been followed is listed here too, and copied as a link; so is an ignore file
    whose patterns do not count.

    `path`, here and below, is relative to the tree that was copied; of a single file it is the path that the caller
    gave.
    """

    path: bytes
    reason: str
    kind: SkipKind = "special"
    """A copy lacks what is `denied` or `reserved`; of the rest it has all that can be copied."""


class Refused(msgspec.Struct, frozen=True):
    """A symbolic link that was not written, because it would lead out of the copied tree."""

    path: bytes
    reason: str


class Changed(msgspec.Struct, frozen=True):
    """Something that was not the same before and after it was read; its copy may mix old and new."""

    path: bytes
    reason: str


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy did.

    Attributes:
        files: Regular files written.
        directories: Directories made or updated below the copied one, which itself is not counted.
        links: Symbolic links written.
        total_bytes: The sizes of the files that were written, holes included.
        skipped: What was left out. The three lists hold at most the first 10,000 notices and 4 MiB of paths
            each, because a sandbox can make more of them than fit in memory; the counts are always whole. What is in
            one directory comes in no particular order.
        refused: Links that were left out.
        changed: What was changed by somebody else while it was read.
        skipped_count: How many notices of its kind there were, listed or not; likewise the two below.
        missing_count: How many of these are files and folders that the copy lacks: what may not be read, and what has
            a reserved name. A folder counts once.
        deleted: How many names the target had and the source had not, which were removed because the caller asked
            for a mirror; a directory that went with all that was in it counts with each of its names.
        deleted_paths: Their paths, relative to the target, within the same bounds as the lists above.
        excluded: How many names were left out because the caller's selection says so; a directory that was left out
            counts once.
        excluded_paths: Their paths, relative to the source, within the same bounds.
    """

    files: int
    directories: int
    links: int
    total_bytes: int
    skipped: tuple[Skipped, ...] = ()
    refused: tuple[Refused, ...] = ()
    changed: tuple[Changed, ...] = ()
    skipped_count: int = 0
    refused_count: int = 0
    changed_count: int = 0
    missing_count: int = 0
    deleted: int = 0
    deleted_paths: tuple[bytes, ...] = ()
    excluded: int = 0
    excluded_paths: tuple[bytes, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every file, folder and link that was wanted is there, and as it was at one moment.

        What is skipped and no file, such as a FIFO, takes nothing from it.
        """
        return not (self.missing_count or self.refused_count or self.changed_count)


class SyncProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a copy is. The totals were counted before the first byte; a source that grows can pass them."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
