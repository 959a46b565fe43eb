"""One line on the terminal that says what takes long; nothing where there is no terminal, or no wait."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator

from .messages import printable, write

_PATIENCE_S = 1.0
"""What is done sooner is not worth a line."""
_EVERY_S = 0.2
_USUAL_COLUMNS = 80
_CLEAR = "\r\x1b[K"


class Status:
    """The line; one thing at a time.

    Args:
        quiet: Never show it.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._shown = not quiet and os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb"
        self.more = ""

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show this, and for how long, while the block runs; call it inside the event loop."""
        if not self._shown:
            yield
            return
        self.more = ""
        line = _Line(what, self)
        try:
            yield
        finally:
            line.clear()

    def detail(self, text: str) -> None:
        """More on what is being done, shown with the next drawing; may be called from any thread."""
        self.more = f": {text}"


class _Line:
    """One drawing of the line after the other, until it is cleared."""

    def __init__(self, what: str, status: Status) -> None:
        self._what = what
        self._status = status
        self._started = time.monotonic()
        self._drawn = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_PATIENCE_S, self._draw)

    def _draw(self) -> None:
        self._drawn = True
        text = printable(f"{self._what}{self._status.more} ... {time.monotonic() - self._started:.0f} s")
        write(_CLEAR + text[: max(_columns() - 1, 10)])
        self._timer = self._loop.call_later(_EVERY_S, self._draw)

    def clear(self) -> None:
        self._timer.cancel()
        if self._drawn:
            write(_CLEAR)


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
