"""Workers that cancel too little, too late or too much."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json, is_id, key_of
from .leases import Leases
from .programs import Program
from .refusals import Refusal


@mutant("CANCEL-1")
class MarksCallsAsCancelled(Healthy):
    """Notes that a call was cancelled and lets it run."""

    def interrupt(self, call: Call) -> None:
        if not self.draining:
            call.cancelled.set()
        else:
            super().interrupt(call)


class CancelsWhatIsComplete(Leases):
    """Answers Cancelled wherever a cancel came."""

    def execute(self, call: Call) -> Json:
        result = super().execute(call)
        if call.cancelled.is_set():
            raise Refusal("Cancelled", "the command was cancelled", dispatched="unknown")
        return result


@mutant("CANCEL-2")
class PrefersTheCancel(Healthy):
    """Answers a command that ended by itself with Cancelled, because a cancel came."""

    leases_class = CancelsWhatIsComplete


class Interruptions(Healthy):
    """Answers an interrupted call in a way of its own."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        super().refuse(request_id, self.told(refusal) if refusal.condition == "Cancelled" else refusal)

    def told(self, refusal: Refusal) -> Refusal:
        """What to answer."""
        raise NotImplementedError


@mutant("CANCEL-3")
class SaysInternalWhenInterrupted(Interruptions):
    """Answers an interrupted call with Internal."""

    def told(self, refusal: Refusal) -> Refusal:
        return Refusal("Internal", "InterruptedError", dispatched="unknown")


@mutant("CANCEL-3")
class IsSureOfTheEffect(Interruptions):
    """Says of an interrupted call that its effect is certain."""

    def told(self, refusal: Refusal) -> Refusal:
        return Refusal("Cancelled", refusal.message, **{**refusal.data, "dispatched": "yes"})


@mutant("CANCEL-4")
class AnswersLateCancels(Healthy):
    """Answers a cancel for a call that is not open."""

    def take_notification(self, method: str, params: Any) -> None:
        if method == "cancel" and self.call_of(params) is None and is_id(params.get("id")):
            self.answer(params["id"], {})
        super().take_notification(method, params)


@mutant("CANCEL-4")
class EndsAtALateCancel(Healthy):
    """Ends when it is told to cancel what is not open."""

    def take_notification(self, method: str, params: Any) -> None:
        if method == "cancel" and self.call_of(params) is None:
            os._exit(1)
        super().take_notification(method, params)


@mutant("CANCEL-4")
class TakesTextForNumbers(Healthy):
    """Cancels call 7 when it is told to cancel call "7"."""

    def take_notification(self, method: str, params: Any) -> None:
        if method == "cancel" and str(params.get("id")).isdigit():
            params = {"id": int(params["id"])}
        super().take_notification(method, params)


@mutant("CANCEL-5")
class CancelsInTurn(Healthy):
    """Cancels a call when the others are over."""

    def interrupt(self, call: Call) -> None:
        def wait() -> None:
            with self.idle:
                self.idle.wait_for(lambda: len(self.open) < 2, 60)
            super(CancelsInTurn, self).interrupt(call)

        threading.Thread(target=wait, daemon=True).start()


@mutant("CANCEL-5")
class CancelsEverything(Healthy):
    """Cancels every open call with the one that was named."""

    def interrupt(self, call: Call) -> None:
        with self.lock:
            calls = [each for each in self.open.values() if each.method == "execute"]
        for each in calls:
            super().interrupt(each)


class KillsTheProgramOnly(Program):
    """Kills the program and not its group."""

    def kill(self, *, timed_out: bool = False) -> bool:
        self.killed, self.timed_out = True, timed_out
        os.kill(self._popen.pid, signal.SIGKILL)
        return True


class StartsLonePrograms(Leases):
    """Starts programs whose children nobody kills."""

    program_class = KillsTheProgramOnly


@mutant("CANCEL-6")
class LeavesTheChildren(Healthy):
    """Kills a cancelled command and leaves what it started."""

    leases_class = StartsLonePrograms


@mutant("CANCEL-6", "CALL-1/cancels")
class AnswersCancelsAtOnce(Healthy):
    """Answers a cancelled call before its handler has ended, and kills when it comes to it."""

    def interrupt(self, call: Call) -> None:
        call.cancelled.set()
        with self.lock:
            if key_of(call.id) in self.open:
                self.refuse(call.id, Refusal("Cancelled", "cancelled", dispatched="unknown"))
        threading.Timer(1.0, super().interrupt, (call,)).start()
