"""Impostors whose lines are wrong."""

from __future__ import annotations

import os
import threading
from typing import Any

from sandport_conformance.mutants.healthy import Call, Healthy, Json

from .impostor import Impostor

_MIB = 1 << 20
_FLOOD_MIB = 512


class EndlessLine(Impostor):
    """Writes half a gibibyte without a line feed instead of an answer."""

    def accident(self, call: Call) -> Json:
        for _ in range(_FLOOD_MIB):
            self.write(b"x" * _MIB)
        threading.Event().wait()
        return {}


class ManyBrackets(Impostor):
    """Opens 200,000 arrays in one line."""

    def accident(self, call: Call) -> Json:
        self.write(b"[" * 200_000 + b"\n")
        return Healthy.handle(self, call)


class DebugLine(Impostor):
    """Prints a line for debugging on the wire."""

    junk = b"debug: x = 1\n"

    def accident(self, call: Call) -> Json:
        self.write(self.junk)
        return Healthy.handle(self, call)


class NotText(DebugLine):
    """Writes a byte that is no UTF-8."""

    junk = b"\xff\n"


class ABatch(DebugLine):
    """Writes an array, which is JSON and no message."""

    junk = b"[1, 2, 3]\n"


class GluedLine(Impostor):
    """Prints without a line feed, so that the answer sticks to it."""

    def settle(self, request_id: Any, line: bytes) -> None:
        call = self.open.get(("int", request_id))
        if call is not None and call.method == "execute" and self.once():
            line = b"dbg" + line
        super().settle(request_id, line)


class Banner(Impostor):
    """Is started by a runtime that prints 60 KiB of warnings first."""

    def main(self) -> None:
        for number in range(60):
            os.write(1, f"warn: banner {number} ".encode().ljust(1023, b".") + b"\n")
        super().main()


class JunkFlood(Impostor):
    """Prints half a gibibyte of lines before its hello."""

    def main(self) -> None:
        if self.once():
            piece = b"junk".ljust(1023, b".") + b"\n"
            for _ in range(_FLOOD_MIB):
                os.write(1, piece * 1024)
        super().main()


class StrayAnswers(Impostor):
    """Answers twice, and answers what nobody asked."""

    def accident(self, call: Call) -> Json:
        result = Healthy.handle(self, call)
        self.answer(999_999, {})
        self.answer("nobody", {})
        self.answer(call.id, result)
        return result


class UnknownCode(Impostor):
    """Refuses a command with a code that is in no table."""

    code = -32077
    data: Any = {"condition": "OutOfFish", "retry": "never", "dispatched": "no"}  # noqa: RUF012 - read only

    def accident(self, call: Call) -> Json:
        error = {"code": self.code, "message": "out of fish", "data": self.data}
        self.settle(call.id, self.encode({"jsonrpc": "2.0", "id": call.id, "error": error}))
        raise SystemExit  # ends this thread alone


class OddData(UnknownCode):
    """Refuses a command with data that has no form."""

    code = -32603
    data = ["fish"]  # noqa: RUF012 - read only
