"""A worker's stderr: always drained, cut into lines, told apart by level, its end kept.

Nothing is lost at the default level: a line that says no level is `info`, unless it belongs to a traceback.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

Level = Literal["debug", "info", "warning", "error", "critical"]
Emit = Callable[[Level, str], None]

_WORDS: Final[dict[str, Level]] = {
    "trace": "debug",
    "debug": "debug",
    "dbg": "debug",
    "info": "info",
    "notice": "info",
    "inf": "info",
    "warn": "warning",
    "warning": "warning",
    "wrn": "warning",
    "error": "error",
    "err": "error",
    "fatal": "critical",
    "critical": "critical",
    "panic": "critical",
}
_PREFIX = re.compile(r"\s*(?:\[([A-Za-z]+)\]|([A-Za-z]+):)\s")
_TAIL_LINES = 50
_TRACEBACK_START = "Traceback (most recent call last)"
_ABORT = re.compile(
    r"\s*(?:Uncaught |Unhandled )?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b(?: \[\w+\])?(?::|$)"
    r"|Exception in thread |fatal error: |Fatal Python error: |thread '.*' panicked at |terminate called "
    r"|(?:.*: )?(?:Segmentation fault|Aborted|Bus error|Illegal instruction|Assertion .+ failed)\b"
)
"""How runtimes begin what they say when they give up, outside of a Python traceback."""


class _JsonLine(Struct):
    message: str = ""
    level: str = ""
    msg: str = ""
    event: str = ""


class _KnownLine(_JsonLine, forbid_unknown_fields=True):
    logger: str = ""
    request: int | str = ""


_json_line = Decoder(_JsonLine)
_known_line = Decoder(_KnownLine)


class LevelReader:
    """Says for each line which level it has; remembers only whether a traceback is open."""

    def __init__(self) -> None:
        self._in_traceback = False

    def read(self, line: str) -> tuple[Level, str]:
        """The level and the text of a line."""
        if line.startswith("{"):
            record = _decoded(line)
            if record is not None:
                self._in_traceback = False
                return record
        if _TRACEBACK_START in line:
            self._in_traceback = True
            return "error", line
        if self._in_traceback:
            # The indented frames, then the one line that names the exception.
            if not line.startswith((" ", "\t")) and line:
                self._in_traceback = False
            return "error", line
        match = _PREFIX.match(line)
        if match:
            level = _WORDS.get((match[1] or match[2]).lower())
            if level is not None:
                return level, line
        return "error" if _ABORT.match(line) else "info", line


def _decoded(line: str) -> tuple[Level, str] | None:
    """What a JSON line says; None where it only looks like one, and is passed on as it is."""
    try:
        record = _json_line.decode(line)
    except (DecodeError, ValueError, RecursionError):
        return None
    text = record.message or record.msg or record.event
    if not text:
        return None
    level = _WORDS.get(record.level.lower(), "info")
    try:
        _known_line.decode(line)
    except (DecodeError, ValueError):
        return level, line  # it has members that the text alone would lose
    return level, text


class StderrPump(asyncio.Protocol):
    """Takes what a worker writes on stderr, in pieces of at most one log line."""

    def __init__(self, emit: Emit, *, line_bytes: int) -> None:
        self._emit = emit
        self._line_bytes = line_bytes
        self._levels = LevelReader()
        self._rest = b""
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, as text."""
        return tuple(self._tail)

    def data_received(self, data: bytes) -> None:
        """Split; a line longer than the ceiling is passed on in pieces."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            self._line(line)
        while len(self._rest) > self._line_bytes:
            size = self._cut(self._rest)
            piece, self._rest = self._rest[:size], self._rest[size:]
            self._line(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end: what has no line feed is a line too."""
        if self._rest:
            self._line(self._rest)
            self._rest = b""
        if not self.ended.done():
            self.ended.set_result(None)

    def _line(self, line: bytes) -> None:
        while len(line) > self._line_bytes:
            size = self._cut(line)
            self._piece(line[:size])
            line = line[size:]
        self._piece(line)

    def _cut(self, line: bytes) -> int:
        """Where to cut a line that is too long: at the ceiling, or up to three bytes before it, between two letters."""
        size = self._line_bytes
        for back in range(min(4, size)):
            if line[size - back] & 0xC0 != 0x80:
                return size - back
        return size

    def _piece(self, piece: bytes) -> None:
        text = piece.decode("utf-8", "backslashreplace").rstrip("\r")
        level, message = self._levels.read(text)
        self._tail.append(text)
        self._emit(level, message)
