"""One line on the terminal: what takes long, and how far it is; nothing where there is no terminal, or no wait.

A library for this would cost more to import than most of what the command does. Each drawing is one write that goes
over the last one and wipes only what that had more, so that nothing flickers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .messages import printable, write

if TYPE_CHECKING:
    from sandport.sync.result import SyncProgress

_PATIENCE_S = 1.0
"""What is done sooner is not worth a line."""
_EVERY_S = 0.2
_USUAL_COLUMNS = 80
_BAR_CELLS = 20
_LEAST_CELLS = 5
"""Where there is room for less, the bar gives way to the numbers."""
_WIPE = "\x1b[K"
_CLEAR = "\r" + _WIPE


class Status:
    """The line; one thing at a time.

    Args:
        quiet: Never show it.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._shown = not quiet and os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"
        self._fills = _fills()
        self._progress: SyncProgress | None = None
        self._line: _Line | None = None

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show this, and for how long, while the block runs; call it inside the event loop."""
        if not self._shown:
            yield
            return
        self._progress = None
        self._line = line = _Line(what, self)
        try:
            yield
        finally:
            self._line = None
            line.end()

    def progress(self, progress: SyncProgress) -> None:
        """How far a copy is, shown with the next drawing; may be called from any thread."""
        self._progress = progress

    def clear(self) -> None:
        """Wipe the line away until its next drawing: something else is about to be written there."""
        if self._line is not None:
            self._line.clear()

    def text(self, what: str, elapsed_s: float, columns: int) -> str:
        """What the line says.

        Args:
            what: Is being done.
            elapsed_s: For so long.
            columns: How much room there is.
        """
        progress = self._progress
        if progress is None:
            return f"{what} ... {elapsed_s:.0f} s"
        files, size = f"{progress.files_done:,}", human_bytes(progress.bytes_done)
        if progress.files_total:
            files += f" of {progress.files_total:,}"
        if progress.bytes_total:
            size += f" of {human_bytes(progress.bytes_total)}"
        rate = human_bytes(progress.bytes_done / elapsed_s) if elapsed_s else "0 B"
        numbers = f"{files} files, {size}, {rate}/s, {elapsed_s:.0f} s"
        share = _share(progress)
        if share is None:
            return f"{what} ... {numbers}"
        rest = f"{share:4.0%}  {numbers}"
        cells = min(_BAR_CELLS, columns - len(what) - len(rest) - 2)
        if cells < _LEAST_CELLS:
            return f"{what} {rest}"
        full, empty = self._fills
        done = int(share * cells)
        return f"{what} {full * done}{empty * (cells - done)} {rest}"


def _share(progress: SyncProgress) -> float | None:
    """How much of it is done; None where nobody knows how much there is. A source that grows ends at the whole."""
    if progress.bytes_total:
        return min(progress.bytes_done / progress.bytes_total, 1.0)
    if progress.files_total:
        return min(progress.files_done / progress.files_total, 1.0)
    return None


def _fills() -> tuple[str, str]:
    """What a bar is drawn with, done and to do."""
    encoding = getattr(sys.stderr, "encoding", None) or "ascii"
    try:
        "█░".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        # A terminal without them would show other characters, and more of them.
        return "#", "."
    return "█", "░"


class _Line:
    """One drawing of the line after the other, until it ends."""

    def __init__(self, what: str, status: Status) -> None:
        self._what = printable(what)
        self._status = status
        self._started = time.monotonic()
        self._drawn = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_PATIENCE_S, self._draw)

    def _draw(self) -> None:
        self._drawn = True
        columns = max(_columns() - 1, 10)
        text = self._status.text(self._what, time.monotonic() - self._started, columns)
        write(f"\r{text[:columns]}{_WIPE}")
        self._timer = self._loop.call_later(_EVERY_S, self._draw)

    def clear(self) -> None:
        if self._drawn:
            self._drawn = False
            write(_CLEAR)

    def end(self) -> None:
        self._timer.cancel()
        self.clear()


def _columns() -> int:
    try:
        # A terminal that nobody told its size has none.
        return os.get_terminal_size(2).columns or _USUAL_COLUMNS
    except OSError:
        # It went away meanwhile; any width will do.
        return _USUAL_COLUMNS


def human_bytes(size: float) -> str:
    """A size for a person: 512 B, 3.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
