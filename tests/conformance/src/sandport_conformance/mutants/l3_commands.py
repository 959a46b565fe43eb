"""Workers that run commands wrongly, or say something wrong about their end."""

from __future__ import annotations

import base64
import errno
import os
import select
import shlex
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .places import Guard
from .programs import Program, Stream
from .refusals import Refusal


def leases_with(program: type[Program]) -> type[Leases]:
    """Leases whose commands are of this class."""
    return type("BrokenLeases", (Leases,), {"program_class": program})


class ArgvThroughAShell(Program):
    """Joins the words into a line for a shell."""

    def __init__(self, name: str, options: Json, guard: Guard, **rest: Any) -> None:
        line = b" ".join(options["args"])
        super().__init__(name, {**options, "args": [b"/bin/sh", b"-c", line]}, guard, **rest)


@mutant("CMD-1")
class JoinsTheWords(Healthy):
    """Gives the words of argv to a shell as one line."""

    leases_class = leases_with(ArgvThroughAShell)


class ShellAsAProgram(Leases):
    """Takes the text for the shell for words."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        if params.get("shell") is not None:
            params = {**params, "argv": shlex.split(params["shell"]), "shell": None}
        return super().launch(params, name, keep_input=keep_input)


@mutant("CMD-1/shell")
class SplitsTheShellText(Healthy):
    """Splits the text of `shell` into words and runs the first as a program."""

    leases_class = ShellAsAProgram


@mutant("CMD-2")
class TakesAnyCommand(Healthy):
    """Runs what it can make of params that mean nothing."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        if method == "execute" and not params.get("argv") and params.get("shell") is None:
            params["shell"] = "true"
        elif method == "execute" and params.get("argv") and params.get("shell") is not None:
            params.pop("shell")
        super().admit(request_id, method, params)


class TellsAnother(Program):
    """Says something else about the end."""

    def result(self) -> Json:
        return self.changed(super().result())

    def changed(self, result: Json) -> Json:
        """The result that is told."""
        return result


class AlwaysZero(TellsAnother):
    """Every exit is a success."""

    def changed(self, result: Json) -> Json:
        return {**result, "exitCode": 0} if result["ended"] == "exited" else result


@mutant("CMD-3")
class MakesUpZero(Healthy):
    """Answers exit code 0 for every program that exited."""

    leases_class = leases_with(AlwaysZero)


class SevenBits(TellsAnother):
    """Cuts exit codes to seven bits."""

    def changed(self, result: Json) -> Json:
        return {**result, "exitCode": result["exitCode"] & 127} if result["ended"] == "exited" else result


@mutant("CMD-3")
class CutsTheCode(Healthy):
    """Answers exit code 9 for a program that exited with 137."""

    leases_class = leases_with(SevenBits)


class WaitStatus(TellsAnother):
    """Has the code where `wait` has it."""

    def changed(self, result: Json) -> Json:
        return {**result, "exitCode": result["exitCode"] << 8} if result["ended"] == "exited" else result


@mutant("CMD-3", "CMD-30")
class PassesOnTheWaitStatus(Healthy):
    """Answers exit code 256 for a program that exited with 1."""

    leases_class = leases_with(WaitStatus)


class MadeUpSignal(TellsAnother):
    """Counts signals as a shell does."""

    def changed(self, result: Json) -> Json:
        return {**result, "signal": 128 + result["signal"]} if "signal" in result else result


@mutant("CMD-4", "CMD-30")
class AddsAShellsNumber(Healthy):
    """Answers signal 137 for a program that was killed."""

    leases_class = leases_with(MadeUpSignal)


class KilledIsLate(TellsAnother):
    """Knows one reason to kill."""

    def changed(self, result: Json) -> Json:
        return {**result, "ended": "timedOut", "tree": "signalled"} if result["ended"] == "signalled" else result


@mutant("CMD-31")
class CallsEveryKillATimeOut(Healthy):
    """Says of a command without a limit that it ran too long."""

    leases_class = leases_with(KilledIsLate)


class SignalsAsCodes(TellsAnother):
    """Speaks as a shell does."""

    def changed(self, result: Json) -> Json:
        if result["ended"] != "signalled":
            return result
        code = 128 + result.pop("signal")
        return {**result, "ended": "exited", "exitCode": code}


@mutant("CMD-4", "CMD-27")
class MasksSignals(Healthy):
    """Tells a death by signal as an exit with 128 + n."""

    leases_class = leases_with(SignalsAsCodes)


class RealTimeIsZero(TellsAnother):
    """Has no name for real-time signals."""

    def changed(self, result: Json) -> Json:
        if result.get("signal") not in range(34, 65):
            return result
        del result["signal"]
        return {**result, "ended": "exited", "exitCode": 0}


@mutant("CMD-4")
class TellsNamelessSignalsAsSuccess(Healthy):
    """Answers exit code 0 for a program that a real-time signal ended."""

    leases_class = leases_with(RealTimeIsZero)


class ShellForTheRest(Program):
    """Starts as `execvp` does."""

    def start(self, args: list[bytes], **options: Any) -> subprocess.Popen[bytes]:
        try:
            return super().start(args, **options)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            return super().start([b"/bin/sh", *args], **options)


@mutant("CMD-5")
class GivesFilesToAShell(Healthy):
    """Runs by a shell what is executable and no program."""

    leases_class = leases_with(ShellForTheRest)


class Sockets(Program):
    """Output comes through socket pairs."""

    def start(self, args: list[bytes], **options: Any) -> subprocess.Popen[bytes]:
        if options["stdout"] != subprocess.PIPE:
            return super().start(args, **options)
        (out, their_out), (err, their_err) = socket.socketpair(), socket.socketpair()
        with their_out, their_err:
            started = super().start(args, **{**options, "stdout": their_out.fileno(), "stderr": their_err.fileno()})
        started.stdout, started.stderr = (os.fdopen(each.detach(), "rb", 0) for each in (out, err))
        return started


@mutant("CMD-29")
class OutputThroughSockets(Healthy):
    """Gives commands sockets for their output."""

    leases_class = leases_with(Sockets)


class MissingIs127(Leases):
    """Answers as a shell does where a program cannot be started."""

    def execute(self, call: Call) -> Json:
        try:
            return super().execute(call)
        except Refusal as refusal:
            if refusal.condition not in ("CommandNotFound", "CommandNotExecutable", "PathNotFound"):
                raise
            empty = {"totalBytes": 0, "end": "seen"}
            return {"ended": "exited", "exitCode": 127, "stdout": empty, "stderr": empty, "durationMs": 0}


@mutant("CMD-5")
class MakesUp127(Healthy):
    """Answers exit code 127 for a program that is not there."""

    leases_class = MissingIs127


class InputLeftOpen(Program):
    """Gives commands an input that never ends."""

    no_input: int | None = subprocess.PIPE


@mutant("CMD-6")
class LeavesInputOpen(Healthy):
    """Leaves the input of a command open."""

    leases_class = leases_with(InputLeftOpen)


class InputCut(Program):
    """Loses a byte of the input."""

    def write(self, data: bytes, end: bool, turn: object, stopped: threading.Event) -> int:
        return super().write(data[:-1], end, turn, stopped)


@mutant("CMD-7")
class DropsTheLastByte(Healthy):
    """Drops the last byte of a command's input."""

    leases_class = leases_with(InputCut)


class InputAsText(Program):
    """Takes input for text."""

    def write(self, data: bytes, end: bool, turn: object, stopped: threading.Event) -> int:
        return super().write(data.decode(errors="replace").encode(), end, turn, stopped)


@mutant("CMD-7")
class DecodesInput(Healthy):
    """Replaces what is no UTF-8 in a command's input."""

    leases_class = leases_with(InputAsText)


class OnlyTheirVariables(Leases):
    """Replaces the sandbox's variables."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        if params.get("env"):
            params = {**params, "env": {"PATH": "/bin", **params["env"]}}
        return super().launch(params, name, keep_input=keep_input)


@mutant("CMD-8")
class ReplacesVariables(Healthy):
    """Passing one variable takes the sandbox's PATH away."""

    leases_class = OnlyTheirVariables


class AnywhereElse(Program):
    """Starts commands where the worker stands."""

    def __init__(self, name: str, options: Json, guard: Guard, **rest: Any) -> None:
        super().__init__(name, {**options, "cwd": os.fsencode(Path("/"))}, guard, **rest)


class NeverBelow(Program):
    """Looks for the directory, and starts in the sandbox's own."""

    def __init__(self, name: str, options: Json, guard: Guard, **rest: Any) -> None:
        cwd = options["cwd"]
        if b"/kit-below" in cwd or b"./" in cwd:
            cwd = cwd[: cwd.index(b"kit-below")]
        super().__init__(name, {**options, "cwd": cwd}, guard, **rest)


@mutant("CMD-9/below")
class RunsWhereItStands(Healthy):
    """Checks that `cwd` is there, and runs every command in the working directory."""

    leases_class = leases_with(NeverBelow)


@mutant("CMD-9")
class StartsAtTheRoot(Healthy):
    """Starts every command in the worker's own directory."""

    leases_class = leases_with(AnywhereElse)


class NoOutputAfterAKill(TellsAnother):
    """Throws away what a killed command had written."""

    def changed(self, result: Json) -> Json:
        if result["ended"] != "timedOut":
            return result
        nothing = {"totalBytes": 0, "end": "seen"}
        return {**result, "stdout": nothing, "stderr": nothing}


@mutant("CMD-10/output")
class LosesOutputAtATimeOut(Healthy):
    """Throws away what a command had written before its time-out."""

    leases_class = leases_with(NoOutputAfterAKill)


class OnlyAsks(Program):
    """Kills with SIGTERM only."""

    def kill(self, *, timed_out: bool = False) -> bool:
        if timed_out:
            self.timed_out = self.killed = True
            return self.signal(15)
        return super().kill()


@mutant("CMD-10/term")
class OnlyAsksToEnd(Healthy):
    """Only sends SIGTERM at a time-out."""

    leases_class = leases_with(OnlyAsks)


class NoTree(TellsAnother):
    """Does not say what a kill reached."""

    def changed(self, result: Json) -> Json:
        result.pop("tree", None)
        return result


@mutant("CMD-11")
class SaysNothingOfTheTree(Healthy):
    """Kills and does not say what that reached."""

    leases_class = leases_with(NoTree)


class LeaderOnly(TellsAnother):
    """Kills the leader alone and calls everything gone."""

    def kill(self, *, timed_out: bool = False) -> bool:
        self.killed, self.timed_out = True, timed_out
        self._popen.kill()
        return True

    def changed(self, result: Json) -> Json:
        return {**result, "tree": "gone"} if "tree" in result else result


@mutant("CMD-11", "CMD-19")
class ClaimsGone(Healthy):
    """Kills one process, declares `kill: tree` and says that everything is gone."""

    leases_class = leases_with(LeaderOnly)


class WaitsForStreams(Stream):
    """Reads each stream to its end, however long something holds it."""

    def _fill(self) -> None:
        while data := os.read(self._source.fileno(), 1 << 16):
            self._take(data)
        self._finish("seen")


class EndsWithItsStreams(Program):
    """Ends when its streams do."""

    stream_class = WaitsForStreams


@mutant("CMD-12")
class WaitsForTheStreams(Healthy):
    """Answers when nothing holds the command's streams any more."""

    leases_class = leases_with(EndsWithItsStreams)


class WaitsForSilence(Stream):
    """Reads on until nothing has come for a moment."""

    def _fill(self) -> None:
        quiet_since: float | None = None
        while not (self._program_ended.is_set() and quiet_since and time.monotonic() - quiet_since > 0.25):
            if not select.select([self._source], [], [], 0.02)[0]:
                quiet_since = quiet_since or time.monotonic()
            elif data := os.read(self._source.fileno(), 1 << 16):
                quiet_since = None
                self._take(data)
            else:
                self._finish("seen")
                return
        self._finish("heldOpen")


class EndsInSilence(Program):
    """Ends when its streams are quiet."""

    stream_class = WaitsForSilence


@mutant("CMD-12/busy")
class WaitsForASilence(Healthy):
    """Answers when what a command left behind has written nothing for a moment."""

    leases_class = leases_with(EndsInSilence)


class AlwaysSeen(TellsAnother):
    """Calls every stream complete."""

    def changed(self, result: Json) -> Json:
        return {**result, **{name: {**result[name], "end": "seen"} for name in self.streams}}


@mutant("CMD-13")
class CallsHeldStreamsComplete(Healthy):
    """Says `seen` of a stream that something still holds."""

    leases_class = leases_with(AlwaysSeen)


class AlwaysHeld(TellsAnother):
    """Calls every stream incomplete."""

    def changed(self, result: Json) -> Json:
        return {**result, **{name: {**result[name], "end": "heldOpen"} for name in self.streams}}


@mutant("CMD-13")
class CallsCompleteStreamsHeld(Healthy):
    """Says `heldOpen` of a stream whose end it read."""

    leases_class = leases_with(AlwaysHeld)


class OutputAsText(TellsAnother):
    """Takes output for text."""

    def changed(self, result: Json) -> Json:
        text = base64.b64decode(result["stdout"].get("data", "")).decode(errors="replace").encode()
        return {**result, "stdout": {**result["stdout"], "data": base64.b64encode(text).decode()}}


@mutant("CMD-14")
class DecodesOutput(Healthy):
    """Replaces what is no UTF-8 in a command's output."""

    leases_class = leases_with(OutputAsText)


class Merged(TellsAnother):
    """Puts stderr into stdout."""

    def changed(self, result: Json) -> Json:
        return {**result, "stdout": result["stderr"], "stderr": result["stdout"]}


@mutant("CMD-14")
class SwapsTheStreams(Healthy):
    """Tells stderr as stdout."""

    leases_class = leases_with(Merged)


class KeepsAll(Program):
    """Ignores the limit on output."""

    def collect(self, limit: int) -> Json:
        return super().collect(1 << 24)


@mutant("CMD-15")
class IgnoresTheLimit(Healthy):
    """Keeps all output, whatever the limit."""

    leases_class = leases_with(KeepsAll)


class DropsUncounted(TellsAnother):
    """Does not count what it drops."""

    def changed(self, result: Json) -> Json:
        stream = result["stdout"]
        kept = len(base64.b64decode(stream["data"])) + len(base64.b64decode(stream["tail"]))
        return {**result, "stdout": {**stream, "totalBytes": kept, "droppedBytes": 0}}


@mutant("CMD-15")
class DoesNotCount(Healthy):
    """Drops output beyond the limit without counting it."""

    leases_class = leases_with(DropsUncounted)


class OneAfterTheOther(Leases):
    """Runs one command at a time."""

    turn = threading.Lock()

    def execute(self, call: Call) -> Json:
        with self.turn:
            return super().execute(call)


@mutant("CMD-17")
class RunsOneAtATime(Healthy):
    """Runs the commands of a sandbox one after the other."""

    leases_class = OneAfterTheOther


class TimeOutIsAnError(Leases):
    """Answers a time-out with an error."""

    def execute(self, call: Call) -> Json:
        result = super().execute(call)
        if result["ended"] == "timedOut":
            raise Refusal("Unavailable", "the command timed out", dispatched="yes", retry="later")
        return result


@mutant("CMD-23")
class TimeOutsAreErrors(Healthy):
    """Answers a time-out with the error Unavailable."""

    leases_class = TimeOutIsAnError
