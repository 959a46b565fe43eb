"""Workers that end too early, too late, or without the last word."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .refusals import Refusal

_LINGER_S = 5.0


@mutant("PROC-3/phases")
class WaitsForItsHello(Healthy):
    """Does not take an end of input seriously before it was greeted."""

    def end(self) -> None:
        while self.phase != "serving":
            time.sleep(_LINGER_S)
        super().end()


class SlowToValidate(Healthy):
    """Takes a moment for a config, as any worker would that looks at something."""

    def handle(self, call: Call) -> Json:
        if call.method == "validateConfig":
            time.sleep(0.1)
        return super().handle(call)


@mutant("PROC-4/quick")
class ExitsWithItsInput(SlowToValidate):
    """Exits the moment its input ends."""

    def end(self) -> None:
        self.leave()


@mutant("PROC-4/quick")
class CancelsAtOnce(SlowToValidate):
    """Answers nothing any more once its input has ended."""

    ended = False

    def end(self) -> None:
        self.ended = True
        super().end()

    def write(self, line: bytes) -> None:
        if not self.ended:
            super().write(line)


@mutant("PROC-4/rest")
class DropsWhatRuns(Healthy):
    """Kills what runs at the end of its input, and exits without a word about it."""

    def cancel_all(self) -> None:
        self.leave()


@mutant("PROC-5/busy")
class WaitsForWhatRuns(Healthy):
    """Waits for its calls at the end of its input, however long they take."""

    def end(self) -> None:
        while not self.wait_idle(_LINGER_S):
            pass
        super().end()


@mutant("PROC-5/full")
class WaitsForAReader(Healthy):
    """Sits in a write to its full stdout, and sees nothing else."""

    def take_descriptors(self) -> None:
        super().take_descriptors()
        os.set_blocking(self.wire_out, True)


@mutant("PROC-6/finish", "PROC-6/cut")
class AnswersShutdownAtOnce(Healthy):
    """Answers shutdown first, and lets its calls end afterwards."""

    def shutdown(self, call: Call) -> Json:
        self.answer(call.id, {})
        return super().shutdown(call)


@mutant("PROC-6/finish")
class CutsShort(Healthy):
    """Cancels what runs as soon as a shutdown comes."""

    def shutdown(self, call: Call) -> Json:
        self.draining = True
        self.cancel_all()
        return super().shutdown(call)


@mutant("PROC-6/cut")
class IgnoresTheDrainTime(Healthy):
    """Waits with shutdown for what runs, however long that takes."""

    def shutdown(self, call: Call) -> Json:
        call.params["drainMs"] = 600_000
        return super().shutdown(call)


@mutant("PROC-7")
class ServesWhileItDrains(Healthy):
    """Takes new calls while it waits for the old ones."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        draining, self.draining = self.draining, False
        super().admit(request_id, method, params)
        self.draining = draining


@mutant("PROC-7")
class FallsSilentWhileItDrains(Healthy):
    """Reads on while it drains, and answers nothing."""

    def take_request(self, message: Json) -> None:
        if not self.draining:
            super().take_request(message)


@mutant("PROC-7")
class IsUnsureWhileItDrains(Healthy):
    """Does not say that a refused call was not begun."""

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        if refusal.condition == "Unavailable":
            refusal.data["dispatched"] = "unknown"
        super().refuse(request_id, refusal)


@mutant("PROC-8/prompt")
class Lingers(Healthy):
    """Does what is slow after it said that it was done."""

    def leave(self) -> None:
        time.sleep(_LINGER_S)
        super().leave()


@mutant("PROC-9")
class RefusesToEndBeforeItBegan(Healthy):
    """Takes shutdown for a call like any other."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "shutdown" and self.phase != "serving":
            raise Refusal("NotInitialized", "shutdown before the hello was done")
        super().admit(request_id, method, params)


@mutant("PROC-10")
class IgnoresSigterm(Healthy):
    """Does not listen to SIGTERM."""

    def prepare_signals(self) -> None:
        super().prepare_signals()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


@mutant("PROC-10")
class DiesOfSigterm(Healthy):
    """Leaves SIGTERM to the system, which kills."""

    def prepare_signals(self) -> None:
        super().prepare_signals()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@mutant("PROC-10/repeated")
class GivesTheSignalBack(Healthy):
    """Leaves SIGTERM to the system once it is on its way out."""

    def leave(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(0.05)
        super().leave()


@mutant("PROC-10/busy")
class ExitsWhereItStands(Healthy):
    """Exits at once on SIGTERM, whatever runs."""

    def prepare_signals(self) -> None:
        super().prepare_signals()
        signal.signal(signal.SIGTERM, lambda *_: self.leave())


@mutant("PROC-10/busy")
class FallsOverTheSecondSignal(Healthy):
    """Takes the second SIGTERM for an order to die."""

    def prepare_signals(self) -> None:
        super().prepare_signals()

        def first(*_: object) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.write(self.wake, b"t")

        signal.signal(signal.SIGTERM, first)


@mutant("PROC-11")
class DiesOfCtrlC(Healthy):
    """Takes the terminal's Ctrl-C for its own."""

    def prepare_signals(self) -> None:
        super().prepare_signals()
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@mutant("PROC-11")
class DiesOfCtrlCInAMoment(Healthy):
    """Answers what is open, and ends a moment after the terminal's Ctrl-C."""

    def prepare_signals(self) -> None:
        super().prepare_signals()
        timer = threading.Timer(0.05, os._exit, (1,))
        timer.daemon = True

        def soon(*_: object) -> None:
            if not timer.is_alive():
                timer.start()

        signal.signal(signal.SIGINT, soon)


@mutant("PROC-13/silence")
class TrustsTheEndOfInput(Healthy):
    """Waits for an end of input that may never come."""

    def is_silence(self, heard: float) -> bool:
        del heard
        return False


@mutant("PROC-13/heard")
class CountsFromTheHello(Healthy):
    """Gives its host so long in all, and not from one message to the next."""

    def greet(self, request_id: Any, params: Json) -> None:
        super().greet(request_id, params)
        limit_s = self.limits["hostSilenceMs"] / 1000
        threading.Timer(limit_s, lambda: os.write(self.wake, b"t")).start()
