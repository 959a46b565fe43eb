"""Impostors that do not answer as they should."""

from __future__ import annotations

import os
import signal
import threading
import time

from sandport_conformance.mutants.healthy import Call, Healthy, Json

from .hellos import LAST_WORDS
from .impostor import Impostor

CRASH_WITH = 4


class CrashesWithOpenCalls(Impostor):
    """Ends when four commands are open."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self.commands = 0

    def handle(self, call: Call) -> Json:
        if call.method != "execute" or os.path.exists(self.path + ".accident"):
            return super().handle(call)
        with self.lock:
            self.commands += 1
            last = self.commands == CRASH_WITH
        if last and self.once():
            self.say(LAST_WORDS)
            os._exit(7)
        threading.Event().wait()
        return {}


class CrashesInAcquire(Impostor):
    """Ends in the middle of a create."""

    def handle(self, call: Call) -> Json:
        if call.method == "acquireLease" and self.once():
            self.say(LAST_WORDS)
            os._exit(7)
        return super().handle(call)


class LosesAnAnswer(Impostor):
    """Forgets a command."""

    def accident(self, call: Call) -> Json:
        with self.lock:
            self.open.pop(("int", call.id), None)
        raise SystemExit  # ends this thread alone


class StopsItself(Impostor):
    """Stops with SIGSTOP, as under a debugger."""

    def accident(self, call: Call) -> Json:
        os.kill(os.getpid(), signal.SIGSTOP)
        return Healthy.handle(self, call)


class BusyForAWhile(Impostor):
    """Reads nothing for half of the time after which it counts as wedged."""

    def receive(self, line: bytes) -> None:
        super().receive(line)
        if b'"execute"' in line and self.once():
            time.sleep(self.limits["wedgeMs"] / 2000)


class ResultAfterTheCancel(Impostor):
    """Knows no time-out; completes a command when it is cancelled."""

    def accident(self, call: Call) -> Json:
        call.cancelled.wait()
        call.cancelled.clear()
        call.on_cancel = lambda: None
        call.params.pop("timeoutMs", None)
        return Healthy.handle(self, call)


class KnowsNoCancel(Impostor):
    """Never ends a command, cancelled or not."""

    def accident(self, call: Call) -> Json:
        threading.Event().wait()
        return {}


class LateCreate(Impostor):
    """Completes a create long after it was cancelled."""

    def handle(self, call: Call) -> Json:
        if call.method == "acquireLease" and self.once():
            call.cancelled.wait()
            threading.Event().wait(2 * self.limits["cancelGraceMs"] / 1000)
            call.cancelled.clear()
            result = Healthy.handle(self, call)
            self.record("late", sandboxId=call.params["sandboxId"])
            return result
        return super().handle(call)
