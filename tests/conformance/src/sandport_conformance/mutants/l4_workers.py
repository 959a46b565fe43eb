"""Workers whose sandboxes end too early or too late, or that say something else of what ran in them."""

from __future__ import annotations

import os
import time

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .places import Guard, Place
from .refusals import Refusal

# ------------------------------------------------------------------ the end of a worker


@mutant("LEASE-21/order")
class DestroysAtItsEnd(Healthy):
    """Destroys its sandboxes when it ends in order."""

    def leave(self) -> None:
        if hasattr(self, "leases"):
            for sandbox_id in list(self.leases.attached):
                self.leases.remove(sandbox_id)
        super().leave()


class EndsAtOnce(Guard):
    """Gives no grace."""

    def grace_s(self) -> float:
        return 0.0


@mutant("LEASE-21/crash")
class GivesNoGrace(Healthy):
    """Ends the sandboxes of a worker that was killed at once."""

    guard_class = EndsAtOnce


class LeavesSandboxes(Guard):
    """Ends no sandbox that nobody comes for."""

    def after_grace(self, place: Place) -> bool:
        return False


@mutant("LEASE-19/ends", "LEASE-19/let-go")
class LeavesWhatNobodyHas(Healthy):
    """Leaves a sandbox for ever when its workers are gone."""

    guard_class = LeavesSandboxes


class ForgetsKeep(Leases):
    """Does not read `keep` of an acquire."""

    def acquire_lease(self, call: Call) -> Json:
        call.params = {**call.params, "keep": False}
        return super().acquire_lease(call)


@mutant("LEASE-19/keep")
class DoesNotKeep(Healthy):
    """Takes no notice of `keep` when it acquires."""

    leases_class = ForgetsKeep


class ReadsKeepOnce(Leases):
    """Does not read `keep` of an attach."""

    def attach_lease(self, call: Call) -> Json:
        call.params = {**call.params, "keep": None}
        return super().attach_lease(call)


@mutant("LEASE-19/attach-keep", "LEASE-19/let-go")
class KeepsAsAcquired(Healthy):
    """Takes no notice of `keep` when it attaches."""

    leases_class = ReadsKeepOnce


class TakesNothingForFalse(Leases):
    """Takes a missing `keep` of an attach for false."""

    def attach_lease(self, call: Call) -> Json:
        call.params = {**call.params, "keep": call.params.get("keep") or False}
        return super().attach_lease(call)


@mutant("LEASE-19/keep")
class LetsGoUnasked(Healthy):
    """Keeps a sandbox no longer once it was attached without a word about it."""

    leases_class = TakesNothingForFalse


# ------------------------------------------------------------------ several workers


class EndsWhatRuns(Guard):
    """Ends what runs in a sandbox with any worker that had it."""

    def kill_all(self) -> None:
        super().kill_all()
        for place in self._places.values():
            place.kill()


@mutant("LEASE-20/calls")
class EndsTheCallsOfOthers(Healthy):
    """Ends every command of a sandbox when one of its workers ends."""

    guard_class = EndsWhatRuns


class CountsFromItsOwnEnd(Guard):
    """Does not look whether another worker has the sandbox."""

    def after_grace(self, place: Place) -> bool:
        facts = place.facts()
        if facts is not None and facts["keep"]:
            return True
        place.end()
        return False


@mutant("LEASE-20/stays")
class CountsFromTheMaker(Healthy):
    """Ends a sandbox one grace after a worker's end, though another has it."""

    guard_class = CountsFromItsOwnEnd


# ------------------------------------------------------------------ what was lost


class SaysNothingIsLost(Leases):
    """Never says that something was lost."""

    def has_lost(self, place: Place) -> bool:
        return False


@mutant("LEASE-18/lost")
class HidesALoss(Healthy):
    """Attaches a sandbox in which what ran is gone, and says nothing about it."""

    leases_class = SaysNothingIsLost


class SaysAllIsLost(Leases):
    """Says of what it did not know that it was lost."""

    def attach_lease(self, call: Call) -> Json:
        self.knew = call.params["sandboxId"] in self.attached
        return super().attach_lease(call)

    def has_lost(self, place: Place) -> bool:
        return not self.knew


@mutant("LEASE-18/runs")
class GivesUpWhatRuns(Healthy):
    """Says of every sandbox that is new to it that what ran was lost."""

    leases_class = SaysAllIsLost


class MakesUpResults(Leases):
    """Has a result for every process."""

    def wait_process(self, call: Call) -> Json:
        try:
            return super().wait_process(call)
        except Refusal:
            for stream in ("stdout", "stderr"):
                self.send_end(call, stream, 0, "seen")
            counts = {"totalBytes": 0, "end": "seen"}
            return {"ended": "exited", "exitCode": 0, "stdout": counts, "stderr": counts, "durationMs": 0}


@mutant("PRC-12")
class MakesUpAResult(Healthy):
    """Answers exit code 0 for a process of a worker that was killed."""

    leases_class = MakesUpResults


# ------------------------------------------------------------------ the end of a sandbox


class GroupsOnly(Leases):
    """Knows what it has started, and the groups of that."""

    def end_strays(self, place: Place) -> None:
        pass


class NoStrays(Guard):
    """Ends no sandbox, so that what is left stays to be seen."""

    def after_grace(self, place: Place) -> bool:
        return False


@mutant("LEASE-22/daemon", "LEASE-22/earlier")
class EndsGroupsOnly(Healthy):
    """Destroys a sandbox and leaves what has left its group, or was started by another worker."""

    leases_class = GroupsOnly
    guard_class = NoStrays


class AnswersAnyway(Leases):
    """Tells the end of a program whose sandbox has ended like any other."""

    def check_sandbox(self, params: Json, program) -> None:  # type: ignore[no-untyped-def]
        pass


@mutant("LEASE-23/destroy", "LEASE-23/other", "LEASE-23/expiry")
class TellsTheSandboxsEndAsTheProgramsOwn(Healthy):
    """Answers a result for a command whose sandbox has ended."""

    leases_class = AnswersAnyway


class KeepsNoTime(Guard):
    """Lets no sandbox expire."""

    def expire(self, place: Place) -> None:
        pass


@mutant("LEASE-26/ends")
class DoesNotExpire(Healthy):
    """Says when a sandbox ends, and lets it live."""

    guard_class = KeepsNoTime


class EndsEarly(Guard):
    """Has a clock that is ahead."""

    def _next_expiry_s(self) -> float | None:
        left = super()._next_expiry_s()
        return None if left is None else max(0.0, left - 1.5)

    def _look(self) -> None:
        for place in self._places.values():
            facts = place.facts()
            if facts is not None and facts["expiresAtMs"] - 1_500 <= time.time() * 1000:
                place.end()
        super()._look()


@mutant("LEASE-26/early")
class ExpiresEarly(Healthy):
    """Ends a sandbox a moment before its time."""

    guard_class = EndsEarly


class EndsWithTheWorker(Guard):
    """Keeps the time only as long as its worker lives."""

    def _outlive(self) -> None:
        self.kill_all()


@mutant("LEASE-26/alone")
class KeepsTheTimeInTheWorker(Healthy):
    """Lets a kept sandbox live on when no worker is there at its expiry."""

    guard_class = EndsWithTheWorker


class FilesExpire(Guard):
    """Removes the files of a sandbox that expires, and nothing else."""

    def expire(self, place: Place) -> None:
        place.begin_end()
        place.remove()


@mutant("LEASE-26/ends")
class ExpiresFilesOnly(Healthy):
    """Removes the files of an expired sandbox, and leaves what runs."""

    guard_class = FilesExpire


# ------------------------------------------------------------------ crashed in the middle


class NeedsARecord(Leases):
    """Makes a sandbox slowly, and cannot do with one that is half made."""

    def report(self, call: Call, message: str) -> None:
        time.sleep(0.2)

    def attach_lease(self, call: Call) -> Json:
        place = self.place(call.params["sandboxId"])
        if place.there and place.facts() is None:
            raise Refusal("Internal", "the record is not there", dispatched="no")
        return super().attach_lease(call)


@mutant("LEASE-24/acquire")
class CannotEndWhatIsHalfMade(Healthy):
    """Lists what a crash has left half made, and cannot open or end it."""

    leases_class = NeedsARecord


class FindsLater(Leases):
    """Makes a sandbox slowly, and looks for half made ones after a while only."""

    looks = 0

    def report(self, call: Call, message: str) -> None:
        time.sleep(0.2)

    def names(self) -> list[str]:
        self.looks += 1
        late = self.looks > 4
        return [name for name in super().names() if late or self.place(name).facts() is not None]


@mutant("LEASE-24/acquire")
class ListsHalfMadeOnesLate(Healthy):
    """Lists what a crash has left half made, but not at first."""

    leases_class = FindsLater


class RemovesFirst(Leases):
    """Takes a sandbox off the list, and then ends what runs."""

    def remove(self, sandbox_id: str) -> None:
        place = self.place(sandbox_id)
        with self.ending:
            place.remove()
            time.sleep(0.2)
            place.kill()
            self.end_programs(sandbox_id)
            self.forget(sandbox_id)


@mutant("LEASE-24/destroy")
class RemovesBeforeItEnds(Healthy):
    """Takes a sandbox off the list before it ends what runs there."""

    leases_class = RemovesFirst
    guard_class = NoStrays


# ------------------------------------------------------------------ commands


class TiresOfTimeOuts(Leases):
    """Takes no command after a time-out."""

    tired = False

    def execute(self, call: Call) -> Json:
        if self.tired:
            raise Refusal("Unavailable", "the sandbox does not answer", dispatched="no")
        result = super().execute(call)
        self.tired = result["ended"] == "timedOut"
        return result


@mutant("CMD-18")
class TakesNothingAfterATimeOut(Healthy):
    """Takes no command once one has timed out."""

    leases_class = TiresOfTimeOuts


class LosesWhenBusy(Leases):
    """Loses the end of what is written while other programs run."""

    def send_output(self, call: Call, name: str, offset: int, data: bytes) -> None:
        if len(self.programs) > 1 and offset > 100_000:
            data = data[:-1] + b"?"
        super().send_output(call, name, offset, data)


@mutant("CMD-25")
class SpoilsOutputWhenBusy(Healthy):
    """Spoils a byte of the output while several commands run."""

    leases_class = LosesWhenBusy


class KeepsVariables(Leases):
    """Adds the variables of each command to those of the next."""

    def execute(self, call: Call) -> Json:
        self.variables = {**getattr(self, "variables", {}), **call.params.get("env", {})}
        call.params = {**call.params, "env": self.variables}
        return super().execute(call)


@mutant("CMD-26")
class KeepsTheVariables(Healthy):
    """Gives a command the variables of the one before."""

    leases_class = KeepsVariables


class InAFreshCopy(Leases):
    """Removes what a command has written when it ends."""

    def execute(self, call: Call) -> Json:
        result = super().execute(call)
        for path in self.place(call.params["sandboxId"]).files.glob("*"):
            os.unlink(path)
        return result


@mutant("CMD-26")
class ForgetsFiles(Healthy):
    """Runs each command in a fresh directory."""

    leases_class = InAFreshCopy
