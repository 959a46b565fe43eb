"""Workers that cut, count or write lines wrongly."""

from __future__ import annotations

import os
from typing import Any

from . import mutant
from .healthy import Healthy, Json, deeper_than, key_of
from .refusals import Refusal

_OWN_LIMIT_BYTES = 1 << 16


@mutant("FRAME-3")
class TakesTheReturnForContent(Healthy):
    """Refuses a line that ends with a carriage return."""

    def parse(self, line: bytes) -> Any:
        if line.endswith(b"\r"):
            raise ValueError("a control character")
        return super().parse(line)


@mutant("FRAME-9")
class DecodesEachPiece(Healthy):
    """Decodes what each read brings for itself, so that a character that is cut in two is lost."""

    def read(self) -> bytes:
        return super().read().decode("utf-8", "replace").encode()


@mutant("FRAME-9")
class TakesEachReadForALine(Healthy):
    """Thinks that a read brings whole lines."""

    def read(self) -> bytes:
        data = super().read()
        return data and data.rstrip(b"\n") + b"\n"


@mutant("FRAME-9")
class ServesOneLineForEachRead(Healthy):
    """Serves the first line that a read brings, and the others when more is read."""

    def split(self, data: bytes) -> list[bytes]:
        return data.split(b"\n", 1)


@mutant("FRAME-10/bytes")
class HasALimitOfItsOwn(Healthy):
    """Refuses lines of more than 64 KiB, whatever was agreed."""

    def receive(self, line: bytes) -> None:
        if len(line) > _OWN_LIMIT_BYTES:
            self.refuse(None, Refusal("ParseFailed", "the line is too long for me"))
        else:
            super().receive(line)


@mutant("FRAME-10/bytes")
class CountsTheLineFeed(Healthy):
    """Refuses a line of exactly the agreed length."""

    def fits(self, line: bytes) -> bool:
        return super().fits(line + b"\n")


@mutant("FRAME-10/depth")
class CountsBracketsInStrings(Healthy):
    """Takes brackets inside strings for nesting."""

    def too_deep(self, line: bytes) -> bool:
        return deeper_than(line.replace(b'"', b""), self.own_limits["depth"])


@mutant("FRAME-10/depth")
class RefusesTheDeepestLevel(Healthy):
    """Allows one level less than was agreed."""

    def too_deep(self, line: bytes) -> bool:
        return deeper_than(line, self.own_limits["depth"] - 1)


class GoesOn(Healthy):
    """Keeps no ceiling of its own accord; made to be narrowed."""

    def violated(self, rule: str) -> None:
        self.refuse(None, Refusal("ParseFailed", rule))


@mutant("FRAME-12", "FRAME-13")
class ServesOnAfterACeiling(GoesOn):
    """Refuses what passes a ceiling, and does not end."""


@mutant("FRAME-12", "FRAME-13")
class NamesNoCeiling(Healthy):
    """Does not say which ceiling was passed."""

    def violated(self, rule: str) -> None:
        super().violated("this is too much")


@mutant("FRAME-12", "FRAME-13")
class EndsWithoutAWord(Healthy):
    """Ends where a ceiling is passed, and says nothing."""

    def violated(self, rule: str) -> None:
        self.phase, self.exit_code = "closed", 2


@mutant("FRAME-12", "FRAME-13")
class EndsAsIfAllWereWell(Healthy):
    """Refuses what passes a ceiling, and exits with 0."""

    def violated(self, rule: str) -> None:
        super().violated(rule)
        self.exit_code = 0


@mutant("FRAME-12/endless")
class GathersUntilTheLineFeed(Healthy):
    """Gathers an endless line, and counts it only when it ends."""

    def look_at_unfinished(self, pending: bytearray) -> None:
        """Do not."""


@mutant("FRAME-12/line")
class CountsUnfinishedLinesOnly(Healthy):
    """Does not look at the length of a line that a read completes."""

    def fits(self, line: bytes) -> bool:
        return True

    def look_at_unfinished(self, pending: bytearray) -> None:
        if not super().fits(bytes(pending)):
            pending.clear()


@mutant("FRAME-13")
class TakesAnyDepth(Healthy):
    """Parses whatever depth comes."""

    def too_deep(self, line: bytes) -> bool:
        return False


@mutant("FRAME-13/stack")
class DiesOfDepth(Healthy):
    """Has a parser that recurses until its stack is used up."""

    def too_deep(self, line: bytes) -> bool:
        if deeper_than(line, 10_000):
            os.abort()
        return super().too_deep(line)


@mutant("FRAME-14")
class IgnoresTheAgreedFrame(Healthy):
    """Writes results of any length."""

    def answer(self, request_id: Any, result: Json) -> None:
        self.settle(request_id, self.encode({"jsonrpc": "2.0", "id": request_id, "result": result}))


@mutant("FRAME-14")
class DropsWhatDoesNotFit(Healthy):
    """Does not answer where the result would be too long."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        if refusal.condition != "TooLarge":
            super().refuse(request_id, refusal)


@mutant("FRAME-11")
class WritesWithoutALock(Healthy):
    """Lets each thread write for itself, so that frames meet where the pipe is full."""

    def settle(self, request_id: Any, line: bytes) -> None:
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self.wire_out, left[:4096]) :]
            except BlockingIOError:
                self.wait_room()
        with self.lock:
            self.open.pop(key_of(request_id), None)
            self.idle.notify_all()


@mutant("FRAME-11", "PROC-14")
class ForgetsTheRest(Healthy):
    """Takes a short write for a whole one."""

    def write(self, line: bytes) -> None:
        with self.lock:
            try:
                os.write(self.wire_out, line)
            except BlockingIOError:
                self.wait_room()
