"""A sound worker whose vendor takes a few calls at a time, and workers of the same kind that hide a fault behind it."""

from __future__ import annotations

import threading
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .l3_lost import Denied
from .l4_workers import EndsAtOnce, KeepsNoTime
from .refusals import Refusal

_VENDORS = ("acquireLease", "attachLease", "listLeases", "destroyLease")
_RETRY_MS = 40


class Throttled(Healthy):
    """A sound worker whose vendor refuses every second call about leases, and says when to come back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turn = threading.Lock()
        self._calls = 0

    def handle(self, call: Call) -> Json:
        if call.method in _VENDORS:
            with self._turn:
                self._calls += 1
                held_back = self._calls % 2 == 1
            if held_back:
                raise self.refusal()
        return super().handle(call)

    def refusal(self) -> Refusal:
        """What is said of a call that the vendor did not take."""
        when = {"retry": "later", "retryAfterMs": _RETRY_MS}
        return Refusal("RateLimited", "the vendor counts too many requests", dispatched="no", **when)


@mutant("LEASE-21/crash", made_from=Throttled)
class ThrottledWithoutGrace(Throttled):
    """Is throttled, and ends its sandboxes with itself."""

    guard_class = EndsAtOnce


@mutant("LEASE-26/ends", "LEASE-26/alone", made_from=Throttled)
class ThrottledWithoutEnd(Throttled):
    """Is throttled, and lets no sandbox expire."""

    guard_class = KeepsNoTime


@mutant("LEASE-23/destroy", "LEASE-23/other", made_from=Throttled)
class ThrottledAndDenies(Throttled):
    """Is throttled, and says of a command that ran when its sandbox ended that it was never started."""

    leases_class = Denied
