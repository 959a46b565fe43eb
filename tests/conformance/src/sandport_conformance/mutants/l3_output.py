"""Workers that send live output wrongly, or beyond their credit."""

from __future__ import annotations

import base64
import threading

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .programs import Program


class OutputTwice(Leases):
    """Live output is in the result too."""

    def follow(self, call: Call, program: Program, offsets: dict[str, int]) -> Json:
        result = super().follow(call, program, offsets)
        result["stdout"]["data"] = base64.b64encode(b"live").decode()
        return result


@mutant("OUT-1")
class TellsOutputTwice(Healthy):
    """Puts live output into the result as well."""

    leases_class = OutputTwice


class OffsetsInPieces(Leases):
    """Counts pieces."""

    def send_output(self, call: Call, name: str, offset: int, data: bytes) -> None:
        super().send_output(call, name, offset // 65_536, data)


@mutant("OUT-2")
class CountsPieces(Healthy):
    """Gives the number of the piece where the number of bytes belongs."""

    leases_class = OffsetsInPieces


class LosesAPiece(Leases):
    """A piece in the middle is lost."""

    def send_output(self, call: Call, name: str, offset: int, data: bytes) -> None:
        middle = len(data) // 2
        super().send_output(call, name, offset, data[:middle])
        if offset or not middle:
            super().send_output(call, name, offset + middle, data[middle:])


@mutant("OUT-2")
class DropsAPiece(Healthy):
    """Loses a piece in the middle of a long output."""

    leases_class = LosesAPiece


class NoEndMarks(Leases):
    """Streams just stop."""

    def send_end(self, call: Call, name: str, offset: int, end: str) -> None:
        pass


@mutant("OUT-3")
class SendsNoEndMarks(Healthy):
    """Sends the result without end marks."""

    leases_class = NoEndMarks


class SilentStreamsHaveNone(Leases):
    """A stream without output has no end mark."""

    def send_end(self, call: Call, name: str, offset: int, end: str) -> None:
        if offset:
            super().send_end(call, name, offset, end)


@mutant("OUT-3")
class ForgetsSilentStreams(Healthy):
    """Sends no end mark for a stream that had no output."""

    leases_class = SilentStreamsHaveNone


class OutputAfterTheAnswer(Leases):
    """The last piece comes after the answer."""

    def send_output(self, call: Call, name: str, offset: int, data: bytes) -> None:
        threading.Timer(0.15, super().send_output, (call, name, offset, data)).start()

    def send_end(self, call: Call, name: str, offset: int, end: str) -> None:
        pass


@mutant("OUT-4")
class AnswersTooEarly(Healthy):
    """Sends output after the answer."""

    leases_class = OutputAfterTheAnswer

    def pong(self) -> Json:
        threading.Event().wait(0.3)
        return super().pong()


class OnePiece(Leases):
    """Sends what it has read."""

    def send_stream(self, call: Call, program: Program, name: str, offset: int, sent: Json) -> None:
        self.worker.limits = {**self.worker.limits, "chunkBytes": 1 << 20}
        super().send_stream(call, program, name, offset, sent)


@mutant("OUT-5")
class IgnoresChunks(Healthy):
    """Sends pieces of any size."""

    leases_class = OnePiece


class CountsTooFew(Leases):
    """The total is off by one."""

    def follow(self, call: Call, program: Program, offsets: dict[str, int]) -> Json:
        result = super().follow(call, program, offsets)
        result["stdout"]["totalBytes"] = max(0, result["stdout"]["totalBytes"] - 1)
        return result


@mutant("OUT-6")
class Miscounts(Healthy):
    """Says one byte less than it sent."""

    leases_class = CountsTooFew


class AllAtTheEnd(Leases):
    """Waits for the program before it sends anything."""

    def follow(self, call: Call, program: Program, offsets: dict[str, int]) -> Json:
        while not program.finished and not call.cancelled.wait(0.02):
            pass
        return super().follow(call, program, offsets)


@mutant("OUT-7")
class GathersOutput(Healthy):
    """Sends live output when the command has ended."""

    leases_class = AllAtTheEnd


class NoCredit(Leases):
    """Sends whatever there is."""

    def wait_credit(self, call: Call, program: Program, name: str) -> int:
        return 1 << 20


@mutant("CRED-1")
class IgnoresCredit(Healthy):
    """Sends output without looking at credit."""

    leases_class = NoCredit


class CreditOfTheLast(Leases):
    """What one request used up is missing for the next."""

    first: dict[str, int] = {}  # noqa: RUF012 - of one worker, whose life is one test

    def wait_credit(self, call: Call, program: Program, name: str) -> int:
        room = super().wait_credit(call, program, name)
        whole = self.worker.limits["creditBytes"]
        first = self.first.setdefault(name, call.id)
        return room if call.id == first else max(0, room - whole // 2)


@mutant("CRED-1")
class KeepsTheAccount(Healthy):
    """Does not start each request with the whole credit."""

    leases_class = CreditOfTheLast


@mutant("CRED-2")
class DeafToCredit(Healthy):
    """Never takes credit that comes later."""

    def take_credit(self, params: Json) -> None:
        pass


class WaitsWithTheLock(Leases):
    """All wait behind who waits for credit."""

    gate = threading.Lock()

    def send_stream(self, call: Call, program: Program, name: str, offset: int, sent: Json) -> None:
        if name != "stdout":
            super().send_stream(call, program, name, offset, sent)
            return
        with self.gate:
            super().send_stream(call, program, name, offset, sent)


@mutant("CRED-3")
class HoldsUpTheOthers(Healthy):
    """A stream without credit holds up the output of every other command."""

    leases_class = WaitsWithTheLock


class ClockStops(Leases):
    """The time-out waits for the consumer."""

    def launch(self, params: Json, name: str, *, keep_input: bool) -> Program:
        if params.get("live"):
            params = {**params, "timeoutMs": None}
        return super().launch(params, name, keep_input=keep_input)


@mutant("CRED-4")
class StopsTheClock(Healthy):
    """Forgets the time-out of a command with live output."""

    leases_class = ClockStops


@mutant("CRED-5")
class DiesOfLateCredit(Healthy):
    """Ends when credit comes for a request that is not open."""

    def take_credit(self, params: Json) -> None:
        if self.call_of(params) is None:
            self.violated("credit for a request that is not open")
            return
        super().take_credit(params)


class EndMarksNeedCredit(Leases):
    """An end mark waits for room."""

    def send_end(self, call: Call, name: str, offset: int, end: str) -> None:
        with self.worker.credit_changed:
            self.worker.credit_changed.wait_for(lambda: call.credit[name] > 0 or call.cancelled.is_set())
        super().send_end(call, name, offset, end)


@mutant("CRED-9")
class WaitsWithTheEndMark(Healthy):
    """Waits for credit before it sends an end mark."""

    leases_class = EndMarksNeedCredit
