"""Workers that know better than anybody how a command ended that nobody saw end."""

from __future__ import annotations

from typing import Any

from . import mutant
from .healthy import Call, Healthy
from .l3_commands import TellsAnother, leases_with
from .leases import Json, Leases
from .places import Guard
from .refusals import Refusal

_SUPERVISOR = b'"$@"; exit "$?"'


class Supervised(TellsAnother):
    """Has a process between the worker and each command, and takes its end without a word for a success."""

    def __init__(self, name: str, options: Json, guard: Guard, **rest: Any) -> None:
        words = [b"/bin/sh", b"-c", _SUPERVISOR, b"sh", *options["args"]]
        super().__init__(name, {**options, "args": words}, guard, **rest)

    def changed(self, result: Json) -> Json:
        if result["ended"] == "signalled" and not self.killed:
            return {**result, "ended": "exited", "exitCode": 0, "signal": None}
        return result


@mutant("CMD-16")
class MakesUpALostStatus(Healthy):
    """Answers exit code 0 where what supervised the command was killed."""

    leases_class = leases_with(Supervised)


class Lost(Leases):
    """Says something else of what was lost with its sandbox."""

    def execute(self, call: Call) -> Json:
        try:
            return super().execute(call)
        except Refusal as refusal:
            if refusal.condition != "SandboxLost":
                raise
            return self.told(refusal)

    def told(self, refusal: Refusal) -> Json:
        """Raise, or answer, something else."""
        raise NotImplementedError


class Denied(Lost):
    """Denies it."""

    def told(self, refusal: Refusal) -> Json:
        raise Refusal("SandboxLost", refusal.message, **{**refusal.data, "dispatched": "no"})


@mutant("CMD-24", "LEASE-23/destroy", "LEASE-23/other", "LEASE-23/expiry")
class DeniesWhatRan(Healthy):
    """Says of a command that ran when its sandbox ended that it was never started."""

    leases_class = Denied


class WithoutOutput(Lost):
    """Throws away what was written."""

    def told(self, refusal: Refusal) -> Json:
        raise Refusal("SandboxLost", refusal.message, dispatched="yes")


@mutant("CMD-24")
class LosesOutputWithTheSandbox(Healthy):
    """Throws away what a command had written when its sandbox ended."""

    leases_class = WithoutOutput


class Succeeded(Lost):
    """Takes the end of the stream for the end of the command."""

    def told(self, refusal: Refusal) -> Json:
        nothing = {"totalBytes": 0, "end": "seen"}
        return {"ended": "exited", "exitCode": 0, "durationMs": 1, "stdout": nothing, "stderr": nothing}


@mutant("CMD-24")
class SucceedsWithTheSandboxsEnd(Healthy):
    """Answers exit code 0 for a command whose sandbox was destroyed."""

    leases_class = Succeeded
