"""The host's log records on stderr, plain or as one JSON object a line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from sandport.log import LEASE_NOTE, Log
from sandport.worker.stderr import Level

from .application import Settings
from .messages import printable, say, unicode_text, write


class Records:
    """Where the host of this command writes.

    Attributes:
        errors: The text of every record of level error and above.
        told: Those of them that a person was, or will be, shown.
        before_each: Called before a record is written, to make room for it.
    """

    def __init__(self, settings: Settings, *, usual: Level = "warning") -> None:
        threshold: Any = settings.log_level or ("debug" if settings.debug else usual)
        self.errors: list[str] = []
        self.told: list[str] = []
        self.before_each: Callable[[], object] | None = None
        self._later: list[Callable[[], None]] | None = None
        self.log = Log(self._json if settings.log_format == "json" else self._plain, threshold=threshold)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Write nothing while the block runs, and all of it afterwards: the terminal is somebody else's."""
        later: list[Callable[[], None]] = []
        self._later = later
        try:
            yield
        finally:
            self._later = None
            for write_one in later:
                write_one()

    def _plain(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        if event == LEASE_NOTE:
            return  # the command itself says it, also where no warnings are asked for
        self._note(level, event)
        if level in {"error", "critical"}:
            self.told.append(unicode_text(event))
        # A value of several lines, such as an error with its remedy, stays one word of the record.
        rest = "".join(f" {name}={'; '.join(str(value).splitlines())}" for name, value in fields.items())
        first, *further = event.splitlines() or [""]  # a traceback is read line by line
        self._write(lambda: say("\n".join([f"{level}: {printable(first)}{printable(rest)}", *further])))

    def _json(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        if event == LEASE_NOTE:
            return
        self._note(level, event)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z"
        record = {"time": moment, "level": level, "event": event} | fields
        line = msgspec.json.encode({k: _plain_value(v) for k, v in record.items()}).decode() + "\n"
        self._write(lambda: write(line))

    def _write(self, write_one: Callable[[], None]) -> None:
        if self._later is not None:
            self._later.append(write_one)
            return
        if self.before_each is not None:
            self.before_each()
        write_one()

    def _note(self, level: Level, event: str) -> None:
        if level in {"error", "critical"}:
            self.errors.append(unicode_text(event))


def _plain_value(value: object) -> object:
    return value if isinstance(value, (int, float, bool, type(None))) else unicode_text(str(value))
