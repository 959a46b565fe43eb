"""Workers that lose a command which they start while its sandbox is destroyed, or say the wrong thing of it."""

from __future__ import annotations

import time

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .places import Place
from .programs import Program
from .refusals import Refusal

_STEP_S = 0.005
"""Between two steps that a sound worker does in one."""


class NotesLater(Leases):
    """Starts a program and notes that it has in two steps; has no other way to find one."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        self.check_attached(params["sandboxId"])
        program = self.start(params, name, keep_input=keep_input)
        time.sleep(_STEP_S)
        self.know(params["sandboxId"], program)
        return program

    def end_strays(self, place: Place) -> None:
        pass


@mutant("LEASE-9/starting")
class MissesWhatStarts(Healthy):
    """Destroys a sandbox and leaves the command that it was starting there."""

    leases_class = NotesLater


class LooksTwice(Leases):
    """Takes what is missing the second time for a mistake of the host's."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        self.check_attached(params["sandboxId"])
        time.sleep(_STEP_S)
        try:
            return super().launch(params, name, keep_input=keep_input)
        except Refusal as refusal:
            if refusal.condition != "NotAttached":
                raise
            raise Refusal("PathNotFound", "there is no working directory") from None


@mutant("LEASE-9/starting")
class BlamesTheDirectory(Healthy):
    """Says of a command whose sandbox was destroyed meanwhile that its directory is not there."""

    leases_class = LooksTwice


class EndsAsAShellDoes(Leases):
    """Makes an exit code of the signal with which the end of a sandbox ends a program."""

    def execute(self, call: Call) -> Json:
        try:
            return super().execute(call)
        except Refusal as refusal:
            if refusal.condition != "SandboxLost":
                raise
            nothing = {"totalBytes": 0, "end": "seen"}
            return {"ended": "exited", "exitCode": 137, "durationMs": 1, "stdout": nothing, "stderr": nothing}


@mutant("LEASE-9/starting", "LEASE-23/destroy")
class ExitsWithItsSandbox(Healthy):
    """Answers a command that ended with its sandbox as one that ended by itself, with an exit code."""

    leases_class = EndsAsAShellDoes
