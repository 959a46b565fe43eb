"""The host's log: one function that every part is given, structlog behind it.

structlog costs 25 to 100 ms to import; a run that has nothing to say must not pay that, so it is imported with the
first record that is let through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .worker.stderr import Level

Write = Callable[[Level, str, dict[str, Any]], None]

ORDER: Final[dict[Level, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""Levels by severity, as in the standard library."""


def to_structlog(level: Level, event: str, fields: dict[str, Any]) -> None:
    """Hand a record to structlog as the embedder has configured it, else to the standard library's logging.

    structlog's own default prints on stdout, which belongs to the program that embeds the host.
    """
    import structlog

    if structlog.is_configured():
        structlog.get_logger("sandport").log(ORDER[level], event, **fields)
        return
    import logging

    said = " ".join(f"{name}={value!r}" for name, value in fields.items())
    logging.getLogger("sandport").log(ORDER[level], "%s", f"{event} {said}" if said else event)


class Log:
    """Where the parts of a host write; bound values go with every record.

    Args:
        write: Takes each record that passes.
        threshold: The lowest level that passes.
        fields: Values that go with every record.
        also: Takes the same records too, each with a threshold of its own.
    """

    def __init__(
        self,
        write: Write = to_structlog,
        *,
        threshold: Level = "info",
        fields: dict[str, Any] | None = None,
        also: tuple[tuple[Level, Write], ...] = (),
    ) -> None:
        self._write = write
        self._threshold = threshold
        self._fields = fields or {}
        self._also = also

    def bind(self, **fields: Any) -> Log:
        """The same log with more values on every record."""
        return Log(self._write, threshold=self._threshold, fields=self._fields | fields, also=self._also)

    def and_to(self, write: Write, *, threshold: Level = "info") -> Log:
        """The same log, written to one place more."""
        also = (*self._also, (threshold, write))
        return Log(self._write, threshold=self._threshold, fields=self._fields, also=also)

    def __call__(self, level: Level, event: str, **fields: Any) -> None:
        """Write one record."""
        order = ORDER[level]
        if order >= ORDER[self._threshold]:
            self._write(level, event, self._fields | fields)
        for threshold, write in self._also:
            if order >= ORDER[threshold]:
                write(level, event, self._fields | fields)
