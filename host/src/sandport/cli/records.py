"""The host's log records on stderr, plain or as one JSON object a line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from sandport.log import Log
from sandport.worker.stderr import Level

from .application import Settings
from .messages import printable, say, unicode_text, write


class Records:
    """Where the host of this command writes.

    Attributes:
        errors: The text of every record of level error and above.
        before_each: Called before a record is written, to make room for it.
    """

    def __init__(self, settings: Settings, *, usual: Level = "warning") -> None:
        threshold: Any = settings.log_level or ("debug" if settings.debug else usual)
        self.errors: list[str] = []
        self.before_each: Callable[[], object] | None = None
        self.log = Log(self._json if settings.log_format == "json" else self._plain, threshold=threshold)

    def _plain(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        self._note(level, event)
        rest = "".join(f" {name}={value}" for name, value in fields.items())
        say(printable(f"{level}: {event}{rest}"))

    def _json(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        self._note(level, event)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z"
        record = {"time": moment, "level": level, "event": event} | fields
        write(msgspec.json.encode({k: _plain_value(v) for k, v in record.items()}).decode() + "\n")

    def _note(self, level: Level, event: str) -> None:
        if self.before_each is not None:
            self.before_each()
        if level in {"error", "critical"}:
            self.errors.append(unicode_text(event))


def _plain_value(value: object) -> object:
    return value if isinstance(value, (int, float, bool, type(None))) else unicode_text(str(value))
