"""Impostors that start, or greet, wrongly."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from sandport_conformance.mutants.healthy import MANDATORY, Json

from .impostor import Impostor

LAST_WORDS = "the last words of a worker"


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
            os._exit(3)
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
    """Takes a moment for its hello."""

    def answer(self, request_id: Any, result: Json) -> None:
        if "supportedMethods" in result:
            time.sleep(0.5)
            self.record("greets")
        super().answer(request_id, result)
