"""What passed between the kit and one worker, for the report of a check that fails."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from .masking import Masker

Direction = Literal["sent", "received", "note"]

_KEPT_BYTES = 2048
_FIRST, _LAST = 100, 400


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece of a transcript.

    Attributes:
        at_s: Seconds since the process was started.
        text: The bytes as text, secrets masked; what is no UTF-8 as `\\xNN`.
        size_bytes: How many bytes it was; more than `text` has where that was cut.
    """

    at_s: float
    direction: Direction
    text: str
    size_bytes: int


class Transcript:
    """Keeps the first and the last entries of a connection, masked as they come in.

    Args:
        masker: Takes secrets out before anything is kept.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._began = time.monotonic()
        self._first: list[Entry] = []
        self._last: deque[Entry] = deque(maxlen=_LAST)
        self._dropped = 0

    @property
    def now_s(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self._began

    def add(self, direction: Direction, data: bytes) -> None:
        """Write down what was sent or received."""
        kept = self._masker.octets(data[: _KEPT_BYTES + self._masker.longest])[:_KEPT_BYTES]
        entry = Entry(round(self.now_s, 4), direction, kept.decode("utf-8", "backslashreplace"), len(data))
        if len(self._first) < _FIRST:
            self._first.append(entry)
            return
        self._dropped += len(self._last) == _LAST
        self._last.append(entry)

    def note(self, text: str) -> None:
        """Write down something that happened beside the pipes: a signal, an exit."""
        self.add("note", text.encode("utf-8", "backslashreplace"))

    def entries(self) -> tuple[Entry, ...]:
        """What was kept, in order; a note says how much is missing in the middle."""
        if not self._dropped:
            return (*self._first, *self._last)
        gap = Entry(self._first[-1].at_s, "note", f"{self._dropped} entries are left out here", 0)
        return (*self._first, gap, *self._last)
