"""Workers that treat processes wrongly."""

from __future__ import annotations

import threading

from . import mutant
from .healthy import Call, Healthy, Json
from .l3_commands import TellsAnother, leases_with
from .leases import Leases
from .programs import Program


class ForgetsIds(Leases):
    """An id may be used again."""

    def start_process(self, call: Call) -> Json:
        with self.lock:
            old = self.programs.pop((call.params["sandboxId"], call.params["processId"]), None)
        if old is not None:
            self.programs[call.params["sandboxId"], f"old {id(old)}"] = old
        return super().start_process(call)


@mutant("PRC-1")
class StartsTwice(Healthy):
    """Starts a second process under an id that is known."""

    leases_class = ForgetsIds


class NoTurns(Program):
    """Who comes first writes first."""

    def write(self, data: bytes, end: bool, turn: object, stopped: threading.Event) -> int:
        if turn in self.writes:
            self.writes.remove(turn)
        if end:
            return super().write(data, end, turn, stopped)
        threading.Event().wait(0.1)
        return super().write(data, end, turn, stopped)


@mutant("PRC-2/order")
class WritesInAnyOrder(Healthy):
    """Gives a process its input in another order."""

    leases_class = leases_with(NoTurns)


class WritesInMemory(Leases):
    """Takes input into memory."""

    def write_process(self, call: Call) -> Json:
        threading.Thread(target=super().write_process, args=(call,), daemon=True).start()
        return {"takenBytes": len(call.params.get("data", "")) * 3 // 4}


@mutant("PRC-2/pressure")
class AnswersWritesAtOnce(Healthy):
    """Answers a write before the process took it."""

    leases_class = WritesInMemory


class InputStaysOpen(Program):
    """The end of the input is lost."""

    def write(self, data: bytes, end: bool, turn: object, stopped: threading.Event) -> int:
        return super().write(data, False, turn, stopped)


@mutant("PRC-3")
class KeepsInputOpen(Healthy):
    """Ignores the end of a process's input."""

    leases_class = leases_with(InputStaysOpen)


class NoSignals(Program):
    """Signals nobody."""

    def signal(self, number: int) -> bool:
        return not self.finished and number > 0


@mutant("PRC-4")
class SignalsNobody(Healthy):
    """Says that a signal was delivered, and sends none."""

    leases_class = leases_with(NoSignals)


class AlwaysDelivered(Program):
    """Every signal is delivered."""

    def signal(self, number: int) -> bool:
        super().signal(number)
        return True


@mutant("PRC-4")
class DeliversToTheDead(Healthy):
    """Says that a signal was delivered to a process that has ended."""

    leases_class = leases_with(AlwaysDelivered)


class KillsGently(Program):
    """A kill is SIGTERM."""

    def kill(self, *, timed_out: bool = False) -> bool:
        self.killed, self.timed_out = True, timed_out
        return self.signal(15)


@mutant("PRC-5")
class OnlyAsksAProcess(Healthy):
    """Only sends SIGTERM where it should kill."""

    leases_class = leases_with(KillsGently)


class SilentKill(TellsAnother):
    """Does not say what a kill reached."""

    def changed(self, result: Json) -> Json:
        result.pop("tree", None)
        return result


@mutant("PRC-5")
class SaysNothingOfTheKill(Healthy):
    """Kills a process and does not say what that reached."""

    leases_class = leases_with(SilentKill)


class ForgetsTheEnded(Leases):
    """A process that was waited for is forgotten."""

    def wait_process(self, call: Call) -> Json:
        result = super().wait_process(call)
        with self.lock:
            self.programs.pop((call.params["sandboxId"], call.params["processId"]), None)
        return result


@mutant("PRC-6")
class ForgetsAProcess(Healthy):
    """Forgets a process when it has ended."""

    leases_class = ForgetsTheEnded


class IgnoresOffsets(Leases):
    """Every wait begins at 0."""

    def follow(self, call: Call, program: Program, offsets: dict[str, int]) -> Json:
        return super().follow(call, program, {})


@mutant("PRC-6")
class BeginsAtZero(Healthy):
    """Ignores the offset that a wait names."""

    leases_class = IgnoresOffsets


class NoGap(Leases):
    """Begins at what is still kept."""

    def wait_process(self, call: Call) -> Json:
        program = self.program_of(call)
        return self.follow(call, program, {name: stream.base for name, stream in program.streams.items()})

    def send_output(self, call: Call, name: str, offset: int, data: bytes) -> None:
        base = call.credit.setdefault(f"first {name}", offset)
        super().send_output(call, name, offset - base, data)

    def send_end(self, call: Call, name: str, offset: int, end: str) -> None:
        base = call.credit.get(f"first {name}", offset)
        super().send_end(call, name, offset - base, end)


@mutant("PRC-7")
class HidesTheGap(Healthy):
    """Begins at what it still has, and calls that 0."""

    leases_class = NoGap


class EndIsEnough(Leases):
    """Follows from anywhere."""

    def wait_process(self, call: Call) -> Json:
        program = self.program_of(call)
        offsets = {entry["stream"]: entry["offset"] for entry in call.params.get("fromOffset", [])}
        if any(stream.base > offsets.get(name, 0) for name, stream in program.streams.items()):
            return super().wait_process(call)
        return self.follow(call, program, offsets)


@mutant("PRC-7/beyond")
class FollowsFromNowhere(Healthy):
    """Takes an offset that was never written for the end of the stream."""

    leases_class = EndIsEnough


class CountsAnew(Leases):
    """Counts what this call sent."""

    def wait_process(self, call: Call) -> Json:
        result = super().wait_process(call)
        for entry in call.params.get("fromOffset", []):
            result[entry["stream"]]["totalBytes"] -= entry["offset"]
        return result


@mutant("PRC-6")
class CountsFromTheOffset(Healthy):
    """Counts in the result only what came after the offset."""

    leases_class = CountsAnew


class MissingIsLost(Leases):
    """An unknown process is a fault."""

    def program_of(self, call: Call) -> Program:
        self.check_attached(call.params["sandboxId"])
        return self.programs[call.params["sandboxId"], call.params["processId"]]


@mutant("PRC-8")
class FailsForUnknown(Healthy):
    """Answers Internal for a process that it does not know."""

    leases_class = MissingIsLost


class KillsWithTheWait(Leases):
    """A cancelled wait kills."""

    def wait_process(self, call: Call) -> Json:
        call.on_cancel = self.program_of(call).kill
        return super().wait_process(call)


@mutant("PRC-9")
class CancelKills(Healthy):
    """Kills the process when its wait is cancelled."""

    leases_class = KillsWithTheWait


class SizeForgotten(Program):
    """Terminals have no size."""

    def open_terminal(self, size: Json) -> tuple[int, int]:
        return super().open_terminal({"rows": 0, "columns": 0})


@mutant("PRC-10")
class TerminalsWithoutSize(Healthy):
    """Starts a program in a terminal of 0 by 0."""

    leases_class = leases_with(SizeForgotten)
