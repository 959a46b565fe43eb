"""The running account of one copy, which becomes its `SyncResult`."""

from __future__ import annotations

from typing import Generic, TypeVar

from sandport.sync.result import LACKING, Changed, Refused, SkipKind, Skipped, SyncResult

__all__ = ["Ledger"]

_LISTED_NOTICES = 10_000
_LISTED_PATH_BYTES = 4 << 20

_Notice = TypeVar("_Notice", Skipped, Refused, Changed, bytes)


class _Notices(Generic[_Notice]):
    """Counts every notice, keeps as many as fit: what a hostile tree makes of them must not fill the memory."""

    def __init__(self) -> None:
        self.count = 0
        self._listed: list[_Notice] = []
        self._room_bytes = _LISTED_PATH_BYTES

    def add(self, notice: _Notice, path: bytes) -> None:
        self.count += 1
        if len(self._listed) < _LISTED_NOTICES and len(path) <= self._room_bytes:
            self._room_bytes -= len(path)
            self._listed.append(notice)

    def listed(self) -> tuple[_Notice, ...]:
        return tuple(self._listed)


class Ledger:
    """What was written, what was not and why, and what was removed."""

    def __init__(self) -> None:
        self.files = 0
        self.directories = 0
        self.links = 0
        self.total_bytes = 0
        self._skipped: _Notices[Skipped] = _Notices()
        self._refused: _Notices[Refused] = _Notices()
        self._changed: _Notices[Changed] = _Notices()
        self._deleted: _Notices[bytes] = _Notices()
        self._excluded: _Notices[bytes] = _Notices()
        self._missing = 0

    def skip(self, path: bytes, reason: str, kind: SkipKind) -> None:
        """Note what cannot be copied."""
        self._skipped.add(Skipped(path, reason, kind), path)
        self._missing += kind in LACKING

    def refuse(self, path: bytes, reason: str) -> None:
        """Note a link that is not written."""
        self._refused.add(Refused(path, reason), path)

    def change(self, path: bytes, reason: str) -> None:
        """Note what was changed while it was read."""
        self._changed.add(Changed(path, reason), path)

    def delete(self, path: bytes) -> None:
        """Note what was removed, because the source has no such name."""
        self._deleted.add(path, path)

    def exclude(self, path: bytes) -> None:
        """Note what the caller's selection leaves out."""
        self._excluded.add(path, path)

    def result(self) -> SyncResult:
        """Close the account."""
        return SyncResult(
            files=self.files,
            directories=self.directories,
            links=self.links,
            total_bytes=self.total_bytes,
            skipped=self._skipped.listed(),
            refused=self._refused.listed(),
            changed=self._changed.listed(),
            skipped_count=self._skipped.count,
            refused_count=self._refused.count,
            changed_count=self._changed.count,
            missing_count=self._missing,
            deleted=self._deleted.count,
            deleted_paths=self._deleted.listed(),
            excluded=self._excluded.count,
            excluded_paths=self._excluded.listed(),
        )
