"""Which level a line of a worker's log has; it needs no event loop, so that errors may ask without importing one.

Nothing is lost at the default level: a line that says no level is `info`, unless it belongs to a traceback.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

Level = Literal["debug", "info", "warning", "error", "critical"]

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
