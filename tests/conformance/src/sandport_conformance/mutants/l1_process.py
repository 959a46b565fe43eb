"""Workers whose process misbehaves."""

from __future__ import annotations

import threading

from . import mutant
from .healthy import Call, Healthy, Json
from .places import Guard


@mutant("PROC-3")
class SurvivesTheEndOfInput(Healthy):
    """Takes the end of its stdin for a pause."""

    def end(self) -> None:
        threading.Event().wait()


@mutant("PROC-8")
class ServesOnAfterShutdown(Healthy):
    """Answers shutdown, then waits for ever."""

    def leave(self) -> None:
        threading.Event().wait()


@mutant("PROC-8")
class FailsAtTheEnd(Healthy):
    """Ends with exit code 1 after a proper shutdown."""

    def shutdown(self, call: Call) -> Json:
        self.exit_code = 1
        return super().shutdown(call)


class NoGuard(Guard):
    """Watches over nothing."""

    def __init__(self) -> None:
        pass

    def tell(self, line: bytes) -> None:
        """Nobody hears it."""

    def add(self, group: int) -> None:
        """Forget it."""

    def remove(self, group: int) -> None:
        """There is nothing to remove."""

    def kill_all(self) -> None:
        """Kill nothing."""


@mutant("PROC-12")
class LeavesCommandsRunning(Healthy):
    """Runs commands that nobody ends when the worker is killed."""

    guard_class = NoGuard
