"""Workers that read or write texts that are no JSON."""

from __future__ import annotations

import json
from typing import Any

from . import mutant
from .healthy import Healthy, Json


@mutant("FRAME-8")
class TakesInfinity(Healthy):
    """Refuses NaN, and reads infinities."""

    def parse(self, line: bytes) -> Any:
        def constant(token: str) -> float:
            if token == "NaN":
                raise ValueError(token)
            return float(token)

        return json.loads(line, parse_constant=constant)


@mutant("FRAME-18", "FRAME-19")
class TakesHalfPairs(Healthy):
    """Reads half a surrogate pair, and gives it back."""

    def parse(self, line: bytes) -> Any:
        return json.loads(line.decode(), parse_constant=_refused)


@mutant("FRAME-5")
class WritesInItsLocale(Healthy):
    """Writes Latin-1."""

    def encode(self, message: Json) -> bytes:
        return json.dumps(message, ensure_ascii=False).encode("latin-1", "backslashreplace") + b"\n"


@mutant("FRAME-5")
class WritesAByteOrderMark(Healthy):
    """Begins each error with a byte order mark."""

    def encode(self, message: Json) -> bytes:
        return (b"\xef\xbb\xbf" if "error" in message else b"") + super().encode(message)


@mutant("FRAME-7")
class WritesInfinity(Healthy):
    """Writes what its JSON library writes by default."""

    def pong(self) -> Json:
        return {**super().pong(), "load": float("inf")}

    def encode(self, message: Json) -> bytes:
        return json.dumps(message).encode() + b"\n"


def _refused(token: str) -> None:
    raise ValueError(token)
