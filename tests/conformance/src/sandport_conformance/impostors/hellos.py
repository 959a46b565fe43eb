"""Impostors that start, or greet, wrongly."""

from __future__ import annotations

import os
import select
import threading
from typing import Any

from sandport_conformance.mutants.healthy import MANDATORY, Json

from .impostor import Impostor

LAST_WORDS = "the last words of a worker"
BROKEN_CODE = 43
SMALL_FRAME_BYTES = 1 << 16
_MOMENT_MS = 500


class Silent(Impostor):
    """Says something in the log, and nothing on the wire."""

    def main(self) -> None:
        if self.once():
            self.say(LAST_WORDS)
            threading.Event().wait()
        super().main()


class Broken(Impostor):
    """Ends before its hello, as a program does whose import fails."""

    def main(self) -> None:
        if self.once():
            self.say(LAST_WORDS)
            os._exit(BROKEN_CODE)
        super().main()


class OtherVersion(Impostor):
    """Speaks a version that was not offered."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "protocolVersion": 99}


class OddHello(Impostor):
    """Greets with a text where a list of methods should be."""

    def hello(self, params: Json) -> Json:
        return {**super().hello(params), "supportedMethods": "all"}


class Plain(Impostor):
    """Has commands and no processes."""

    methods = MANDATORY


class HalfAGroup(Impostor):
    """Advertises one method of a group of five."""

    methods = (*MANDATORY, "startProcess")


class SlowHello(Impostor):
    """Takes a moment for its hello, and looks whether the host says more meanwhile."""

    hasty = False

    def split(self, data: bytes) -> list[bytes]:
        lines = super().split(data)
        if any(b'"initialize"' in line for line in lines):
            self.hasty = any(b'"initialized"' in line for line in lines)
        return lines

    def answer(self, request_id: Any, result: Json) -> None:
        if "supportedMethods" in result:
            poll = select.poll()
            poll.register(self.wire_in, select.POLLIN)
            said = bool(poll.poll(_MOMENT_MS))
            self.record("greets", hasty=self.hasty or said)
        super().answer(request_id, result)


class SmallFrames(Impostor):
    """Takes lines of 64 KiB at most."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self.own_limits = {**self.own_limits, "frameBytes": SMALL_FRAME_BYTES}
