"""The worker's log: the `logging` module as JSON lines on stderr, each with the request that it belongs to.

`{"level": "ERROR", "message": "...", "logger": "...", "request": 7}`; `request` is absent outside of a call. What is
printed reaches the host too, since stdout leads to stderr while a worker serves; only its level is then unknown.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextvars import ContextVar

from msgspec import Struct

from sandport_protocol import codec
from sandport_protocol.envelope import Id

current_request: ContextVar[Id | None] = ContextVar("sandport_request", default=None)
"""The id of the call that the running code belongs to; follows tasks and the threads that handlers run in."""

_PIECE = 40_000
"""Characters in one line; a host takes lines of up to 64 KiB whole (`limits.logLineBytes`)."""


class _Line(Struct, frozen=True, omit_defaults=True):
    level: str
    message: str
    logger: str
    request: Id | None = None


class JsonLines(logging.Handler):
    """Writes each record to a descriptor as one JSON line, or as several where its text is very long."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a record that cannot be written is reported as `logging` reports it."""
        try:
            for line in _lines(record.levelname, self.format(record), record.name):
                _write_all(self._descriptor, line)
        except Exception:  # noqa: BLE001 - a broken record or a closed stderr must not end the code that logs
            self.handleError(record)


def configure(*, descriptor: int = 2, level: int = logging.INFO) -> None:
    """Send everything that is logged to a descriptor, stderr by default."""
    root = logging.getLogger()
    root.addHandler(JsonLines(descriptor))
    root.setLevel(level)


def _lines(level: str, text: str, logger: str) -> Iterator[bytes]:
    request = current_request.get()
    text = text.encode("utf-8", "backslashreplace").decode()
    for start in range(0, max(len(text), 1), _PIECE):
        yield codec.write(_Line(level, text[start : start + _PIECE], logger, request))


def _write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]
