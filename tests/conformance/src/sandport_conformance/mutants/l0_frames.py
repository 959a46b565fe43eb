"""Workers that break the rules of lines."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import mutant
from .healthy import Healthy, Json
from .refusals import Refusal


@mutant("FRAME-1")
class PrintsBeforeEachAnswer(Healthy):
    """Prints a line for debugging on the wire before each answer."""

    def answer(self, request_id: Any, result: Json) -> None:
        self.write(b"debug: answering\n")
        super().answer(request_id, result)


@mutant("FRAME-2")
class SplitsAtUnicodeSeparators(Healthy):
    """Takes U+2028 and U+0085 for the end of a line."""

    def split(self, data: bytes) -> list[bytes]:
        lines = [line.encode() for line in data.decode("utf-8", "surrogateescape").splitlines()]
        return [*lines, b""]


@mutant("FRAME-4")
class AnswersBlankLines(Healthy):
    """Answers a blank line with an error."""

    def receive(self, line: bytes) -> None:
        if not line.strip():
            self.refuse(None, Refusal("ParseFailed", "an empty line"))
        super().receive(line)


@mutant("FRAME-6")
class DiesOfABadLine(Healthy):
    """Ends when a line cannot be read."""

    def parse(self, line: bytes) -> Any:
        try:
            return super().parse(line)
        except ValueError:
            os._exit(1)


@mutant("FRAME-6")
class TakesNan(Healthy):
    """Reads NaN, which is no JSON."""

    def parse(self, line: bytes) -> Any:
        return json.loads(line)


@mutant("MSG-1")
class TurnsIdsIntoStrings(Healthy):
    """Answers every id as a string."""

    def settle(self, request_id: Any, line: bytes) -> None:
        if self.phase == "serving":
            line = self.encode({**json.loads(line), "id": str(request_id)})
        super().settle(request_id, line)


@mutant("MSG-1")
class ReadsIdsAsDoubles(Healthy):
    """Loses the last digit of a large id."""

    def parse(self, line: bytes) -> Any:
        return json.loads(line.decode(), parse_int=lambda text: int(float(text)), parse_constant=sys.exit)
