"""Between two steps of a copy: may it go on, and what is there to show?"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sandport.sync.errors import SyncCancelledError
from sandport.sync.result import SyncProgress

__all__ = ["Meter"]

_REPORT_EVERY_S: Final = 0.1
"""Often enough for a bar that moves, seldom enough to cost nothing on many small files."""


class Meter:
    """Polls for cancellation and reports progress: at the start, at most ten times a second, and at the end.

    Args:
        cancelled: Answers whether the caller wants the copy to stop; called between files, and between pieces of
            big ones.
        progress: Takes the reports. What it raises stops the copy.
    """

    def __init__(self, cancelled: Callable[[], bool] | None, progress: Callable[[SyncProgress], None] | None) -> None:
        self._cancelled = cancelled
        self._progress = progress
        self._next_report_s = 0.0
        self._files_total = 0
        self._bytes_total = 0
        self.files_done = 0
        self.bytes_done = 0

    @property
    def reports(self) -> bool:
        """Whether somebody wants progress, so that the source must be counted first."""
        return self._progress is not None

    def begin(self, *, files_total: int, bytes_total: int) -> None:
        """Set the totals and report the start."""
        self._files_total = files_total
        self._bytes_total = bytes_total
        self._report()

    def poll(self) -> None:
        """Raise SyncCancelledError if the caller wants to stop."""
        if self._cancelled is not None and self._cancelled():
            raise SyncCancelledError(
                "the copy was cancelled; files that are in place are whole, so copying again completes it"
            )

    def advance(self, size_bytes: int) -> None:
        """Note that a piece of a file was copied."""
        self.bytes_done += size_bytes
        self.poll()
        self._report_if_due()

    def file_done(self, count: int = 1) -> None:
        """Note that a file is in place, or so many."""
        self.files_done += count
        self._report_if_due()

    def finish(self) -> None:
        """Report the end."""
        self._report()

    def _report_if_due(self) -> None:
        if self._progress is not None and time.monotonic() >= self._next_report_s:
            self._report()

    def _report(self) -> None:
        if self._progress is None:
            return
        self._next_report_s = time.monotonic() + _REPORT_EVERY_S
        self._progress(
            SyncProgress(
                files_done=self.files_done,
                files_total=self._files_total,
                bytes_done=self.bytes_done,
                bytes_total=self._bytes_total,
            )
        )
