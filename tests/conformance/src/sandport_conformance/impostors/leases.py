"""Impostors whose sandboxes are hard to be rid of."""

from __future__ import annotations

import os
import time

from sandport_conformance.mutants.healthy import Call, Healthy, Json
from sandport_conformance.mutants.leases import Leases
from sandport_conformance.mutants.places import Guard
from sandport_conformance.mutants.refusals import Refusal

from .hellos import LAST_WORDS
from .impostor import Impostor

SETTLE_S = 3.0
_UNLISTED_S = SETTLE_S / 2


class NoGuard(Guard):
    """Ends no sandbox, and so is no process that is seen when the worker is gone."""

    def __init__(self) -> None:
        self._groups = set()

    def tell(self, line: bytes) -> None:
        pass


class CannotDestroy(Impostor):
    """Cannot destroy a sandbox now."""

    guard_class = NoGuard

    def handle(self, call: Call) -> Json:
        if call.method == "destroyLease" and self.once():
            raise Refusal("Unavailable", "the vendor does not answer", retry="later", dispatched="unknown")
        return super().handle(call)


class ListedLater(Leases):
    """Has a vendor who lists what was made some time later."""

    def names(self) -> list[str]:
        now_ms = time.time() * 1000
        made_ms = {name: (self.place(name).facts() or {}).get("createdAtMs", 0) for name in super().names()}
        return [name for name, at_ms in made_ms.items() if now_ms - at_ms > 1000 * _UNLISTED_S]


class ListsLater(Impostor):
    """Does not list at once what it has made, and says so."""

    guard_class = NoGuard
    capabilities = {**Healthy.capabilities, "createSettleMs": int(SETTLE_S * 1000)}  # noqa: RUF012 - read only
    leases_class = ListedLater


class CrashesInAcquire(ListsLater):
    """Ends when it has made a sandbox and before it answers."""

    def handle(self, call: Call) -> Json:
        result = super().handle(call)
        if call.method == "acquireLease" and self.once():
            self.say(LAST_WORDS)
            os._exit(7)
        return result
