"""Workers whose sandboxes are not what they were asked for, or not to be found by the next worker."""

from __future__ import annotations

import time
from pathlib import Path

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .places import Place
from .refusals import Refusal

# ------------------------------------------------------------------ what an acquire promises


class TakesAnyGrant(Leases):
    """Enforces nothing, and takes every grant."""

    def check_egress(self, egress: Json | None) -> None:
        pass


@mutant("CAP-3")
class GrantsWithoutEnforcing(Healthy):
    """Takes an egress grant that it does not declare."""

    leases_class = TakesAnyGrant


class LooksAtTheGrantLater(Leases):
    """Makes the sandbox, and then looks at the grant."""

    def check_egress(self, egress: Json | None) -> None:
        self.late = egress

    def report(self, call: Call, message: str) -> None:
        super().check_egress(call.params.get("egress"))


@mutant("CAP-3")
class CreatesBeforeItRefuses(Healthy):
    """Refuses a grant when it has made the sandbox, and leaves that."""

    leases_class = LooksAtTheGrantLater


class SaysNothingOfEgress(Leases):
    """Leaves `egress` out of its leases."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return super().lease_of(sandbox_id)


@mutant("LEASE-14")
class DoesNotSayWhatIsEnforced(Healthy):
    """Takes a grant and does not say what is enforced."""

    leases_class = SaysNothingOfEgress


class SaysLess(Leases):
    """Answers a narrower egress than was granted."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return {**super().lease_of(sandbox_id, egress), "egress": {"mode": "none"}}


@mutant("LEASE-14")
class EnforcesAnotherEgress(Healthy):
    """Says that it enforces something else than was granted."""

    leases_class = SaysLess


class WithoutAStore(Leases):
    """Makes every sandbox in one folder."""

    def __init__(self, state_dir: str, store_id: str, worker: Healthy) -> None:
        super().__init__(state_dir, store_id, worker)
        self.root = Path(state_dir, "sandboxes")


@mutant("LEASE-2")
class WritesNoStore(Healthy):
    """Does not write the store's id on its sandboxes, and lists all that are in its place."""

    leases_class = WithoutAStore


class LeavesWhatWasCancelled(Leases):
    """Takes its time, answers a cancel, and leaves what it has made."""

    def report(self, call: Call, message: str) -> None:
        if call.cancelled.wait(0.2):
            raise Refusal("Cancelled", "acquireLease was cancelled", dispatched="no")


@mutant("LEASE-5")
class LeavesACancelledAcquire(Healthy):
    """Leaves what a cancelled acquire had made, and says that nothing was done."""

    leases_class = LeavesWhatWasCancelled


# ------------------------------------------------------------------ a later worker


class Remembers(Leases):
    """Knows its own sandboxes by heart."""

    def __init__(self, state_dir: str, store_id: str, worker: Healthy) -> None:
        super().__init__(state_dir, store_id, worker)
        self.made: set[str] = set()

    def make(self, sandbox_id: str) -> Place:
        self.made.add(sandbox_id)
        return super().make(sandbox_id)


class AttachesItsOwn(Remembers):
    """Attaches what it has made, and nothing else."""

    def attach_lease(self, call: Call) -> Json:
        if call.params["sandboxId"] not in self.made:
            return {"state": "unreachable"}
        return super().attach_lease(call)


@mutant("LEASE-10/attach")
class KeepsHandlesInMemory(Healthy):
    """Has handles that mean something only to the worker that gave them."""

    leases_class = AttachesItsOwn


class ListsItsOwn(Remembers):
    """Lists what it has made, and nothing else."""

    def names(self) -> list[str]:
        return [name for name in super().names() if name in self.made]


@mutant("LEASE-10/attach")
class ListsWhatItRemembers(Healthy):
    """Lists only what this process has made."""

    leases_class = ListsItsOwn


class DestroysItsOwn(Remembers):
    """Says that it has destroyed what it did not make."""

    def destroy_lease(self, call: Call) -> Json:
        if call.params["sandboxId"] not in self.made:
            return {"state": "destroyed"}
        return super().destroy_lease(call)


@mutant("LEASE-10/destroy")
class DestroysWhatItMade(Healthy):
    """Does not destroy what another worker has made, and says that it did."""

    leases_class = DestroysItsOwn


class TrustsTheId(Leases):
    """Reads no handle."""

    def attach_lease(self, call: Call) -> Json:
        call.params = {**call.params, "handle": call.params["sandboxId"]}
        return super().attach_lease(call)


@mutant("LEASE-29")
class LooksAtTheIdOnly(Healthy):
    """Attaches a sandbox with the handle of another."""

    leases_class = TrustsTheId


class GoneToAny(Leases):
    """A handle that does not fit is one of nothing."""

    def attach_lease(self, call: Call) -> Json:
        if call.params["handle"] != call.params["sandboxId"]:
            return {"state": "gone"}
        return super().attach_lease(call)


@mutant("LEASE-29")
class SaysGoneToAWrongHandle(Healthy):
    """Answers `gone` to a handle of another sandbox."""

    leases_class = GoneToAny


class TrustsTheHandle(Leases):
    """Reads no id."""

    def attach_lease(self, call: Call) -> Json:
        call.params = {**call.params, "sandboxId": call.params["handle"]}
        return super().attach_lease(call)


@mutant("LEASE-29")
class LooksAtTheHandleOnly(Healthy):
    """Attaches what the handle names, whatever id comes with it."""

    leases_class = TrustsTheHandle


# ------------------------------------------------------------------ how long


class Lease(Leases):
    """Answers `expiresAtMs` in a way of its own."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        lease = super().lease_of(sandbox_id, egress)
        return {**lease, "expiresAtMs": self.told(lease["expiresAtMs"])}

    def told(self, expires_ms: int) -> int | None:
        """What it says of a true end."""
        raise NotImplementedError


class SaysNoEnd(Lease):
    """Says nothing of an end."""

    def told(self, expires_ms: int) -> int | None:
        return None


@mutant("LEASE-11", "LEASE-25")
class KeepsAnEndForItself(Healthy):
    """Ends its sandboxes, and does not say when."""

    leases_class = SaysNoEnd


class WithoutAnEnd(Leases):
    """Says of no sandbox that it ends."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return {**super().lease_of(sandbox_id, egress), "expiresAtMs": None}


class NeverExpires(Healthy):
    """A sound worker that declares no expiry, and says of no sandbox that it ends."""

    capabilities = {**Healthy.capabilities, "expiry": "none"}  # noqa: RUF012 - read only
    leases_class: type[Leases] = WithoutAnEnd


@mutant("LEASE-11", made_from=NeverExpires)
class PromisesAnEnd(NeverExpires):
    """Declares that nobody ends its sandboxes, and says when they end."""

    leases_class = Leases


class InSeconds(Lease):
    """Answers seconds."""

    def told(self, expires_ms: int) -> int | None:
        return expires_ms // 1000


@mutant("LEASE-25")
class AnswersSeconds(Healthy):
    """Answers `expiresAtMs` in seconds."""

    leases_class = InSeconds


class AnHour(Leases):
    """Lets every sandbox live for an hour."""

    def expiry_of(self, now_ms: int, ttl_ms: int) -> int:
        return now_ms + 3_600_000


@mutant("LEASE-25")
class HasALifetimeOfItsOwn(Healthy):
    """Gives every sandbox an hour, whatever was asked for."""

    leases_class = AnHour


class FromNowOn(Lease):
    """Counts the life of a sandbox from each answer."""

    def told(self, expires_ms: int) -> int | None:
        return int(time.time() * 1000) + 500_000


@mutant("LEASE-25")
class BeginsAnewWithEachAttach(Healthy):
    """Answers another end with each attach."""

    leases_class = FromNowOn


# ------------------------------------------------------------------ again


class OpensAnew(Leases):
    """Ends what runs in a sandbox before it attaches it."""

    def attach_lease(self, call: Call) -> Json:
        self.end_programs(call.params["sandboxId"])
        return super().attach_lease(call)


@mutant("LEASE-28/attach")
class AttachesAnew(Healthy):
    """Ends what runs in a sandbox that is attached again."""

    leases_class = OpensAnew


class MissesWhatIsNotThere(Leases):
    """Fails to destroy what is not there."""

    def destroy_lease(self, call: Call) -> Json:
        if not self.place(call.params["sandboxId"]).there:
            raise Refusal("LeaseNotFound", "there is no such sandbox")
        return super().destroy_lease(call)


@mutant("LEASE-28/destroy")
class FailsToDestroyNothing(Healthy):
    """Fails to destroy a sandbox that never was."""

    leases_class = MissesWhatIsNotThere


class TakesNoSecond(Leases):
    """Refuses a destroy while another one is at it."""

    busy = False

    def destroy_lease(self, call: Call) -> Json:
        if self.busy:
            raise Refusal("Internal", "another call is destroying it", dispatched="no")
        self.busy = True
        try:
            time.sleep(0.05)
            return super().destroy_lease(call)
        finally:
            self.busy = False


@mutant("LEASE-28/destroy")
class DestroysOneAtATime(Healthy):
    """Refuses a destroy while another one runs."""

    leases_class = TakesNoSecond


class ListsEveryId(Leases):
    """Lists each id that was ever used."""

    def names(self) -> list[str]:
        return sorted(path.name for path in self.used.glob("*"))


@mutant("LEASE-30")
class ListsWhatWasDestroyed(Healthy):
    """Lists what was destroyed, in this worker or an earlier one, for ever."""

    leases_class = ListsEveryId


# ------------------------------------------------------------------ apart


class InOneDirectory(Leases):
    """Has one directory for all."""

    def place(self, sandbox_id: str) -> Place:
        place = super().place(sandbox_id)
        place.files = self.root.parent / "files"
        place.files.mkdir(parents=True, exist_ok=True)
        return place

    def make(self, sandbox_id: str) -> Place:
        (self.root / sandbox_id / "running").mkdir(parents=True)
        place = self.place(sandbox_id)
        self.held[sandbox_id] = place.hold()
        return place


@mutant("LEASE-27/files")
class HasOneDirectory(Healthy):
    """Runs the commands of all sandboxes in one directory."""

    leases_class = InOneDirectory


class ProcessesOfAll(Leases):
    """Keeps processes by their ids."""

    def start_process(self, call: Call) -> Json:
        result = super().start_process(call)
        name = call.params["processId"]
        self.everywhere = {**getattr(self, "everywhere", {}), name: self.programs[call.params["sandboxId"], name]}
        return result

    def program_of(self, call: Call):  # type: ignore[no-untyped-def]
        found = getattr(self, "everywhere", {}).get(call.params["processId"])
        return found or super().program_of(call)


@mutant("LEASE-27/processes")
class KeepsProcessesByTheirIds(Healthy):
    """Knows a process by its id in whatever sandbox."""

    leases_class = ProcessesOfAll


class EndsAll(Leases):
    """Ends everything that it has started when a sandbox is destroyed."""

    def end_programs(self, sandbox_id: str) -> None:
        for program in list(self.programs.values()):
            program.kill()
        super().end_programs(sandbox_id)


@mutant("LEASE-27/ends")
class DestroysMoreThanOne(Healthy):
    """Ends the commands of every sandbox when one is destroyed."""

    leases_class = EndsAll
