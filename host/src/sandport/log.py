"""The host's log: one function that every part is given, structlog behind it.

structlog costs 25 to 100 ms to import; a run that has nothing to say must not pay that, so it is imported with the
first record that is let through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .worker.stderr import Level

Write = Callable[[Level, str, dict[str, Any]], None]
Redact = Callable[[str], str]
"""The text as it may be written; never raises."""

LEASE_NOTE: Final = "the provider has a note on this lease"
"""The event of a note, whose text is in the field `note`: it is the provider's."""
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
        redact: Every text is given to it, once, before any of them gets it.
    """

    def __init__(
        self,
        write: Write = to_structlog,
        *,
        threshold: Level = "info",
        fields: dict[str, Any] | None = None,
        also: tuple[tuple[Level, Write], ...] = (),
        redact: Redact | None = None,
    ) -> None:
        self._write = write
        self._threshold = threshold
        self._fields = fields or {}
        self._also = also
        self._redact = redact

    def bind(self, **fields: Any) -> Log:
        """The same log with more values on every record."""
        return self._but(fields=self._fields | fields)

    def and_to(self, write: Write, *, threshold: Level = "info") -> Log:
        """The same log, written to one place more."""
        return self._but(also=(*self._also, (threshold, write)))

    def redacted_by(self, redact: Redact) -> Log:
        """The same log, whose texts are redacted before they are written to any place."""
        return self._but(redact=redact)

    def _but(self, **changed: Any) -> Log:
        made: dict[str, Any] = {
            "threshold": self._threshold,
            "fields": self._fields,
            "also": self._also,
            "redact": self._redact,
        }
        return Log(self._write, **(made | changed))

    def redacted(self, text: str) -> str:
        """A text as this log would write it: for what is written elsewhere."""
        return text if self._redact is None else self._redact(text)

    def __call__(self, level: Level, event: str, **fields: Any) -> None:
        """Write one record."""
        order = ORDER[level]
        places = [write for threshold, write in self._also if order >= ORDER[threshold]]
        if order >= ORDER[self._threshold]:
            places.insert(0, self._write)
        if not places:
            return
        values = self._fields | fields
        if self._redact is not None:
            event, values = self._redact(event), {name: self._value(value) for name, value in values.items()}
        for write in places:
            write(level, event, dict(values))

    def _value(self, value: Any) -> Any:
        # What is neither text nor a number is written as its text, which may have anything in it.
        return value if value is None or isinstance(value, int | float) else self.redacted(str(value))
