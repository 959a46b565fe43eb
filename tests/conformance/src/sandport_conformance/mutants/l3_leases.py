"""Workers that lose, mix up or keep sandboxes."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .places import Place
from .refusals import Refusal


class AnyId(Healthy):
    """Takes ids of other forms."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        given = params.get("sandboxId") if isinstance(params, dict) else None
        if isinstance(given, str) and self.takes(given):
            params = {**params, "sandboxId": "sp" + "a" * 26}
        super().admit(request_id, method, params)

    def takes(self, sandbox_id: str) -> bool:
        """Whether it takes one."""
        raise NotImplementedError


@mutant("LEASE-1")
class LooksAtTheBeginning(AnyId):
    """Takes every id that begins with `sp`."""

    def takes(self, sandbox_id: str) -> bool:
        return sandbox_id.startswith("sp") and sandbox_id.isalnum()


@mutant("LEASE-1")
class LooksAtTheLength(AnyId):
    """Takes every id of the right length."""

    def takes(self, sandbox_id: str) -> bool:
        return len(sandbox_id) == 28 and "/" not in sandbox_id


@mutant("LEASE-1")
class TakesALineFeed(AnyId):
    """Takes an id with a line feed behind it."""

    def takes(self, sandbox_id: str) -> bool:
        return sandbox_id.endswith("\n") and len(sandbox_id) == 29


class HandlesAreEmpty(Leases):
    """Gives its sandboxes no handle."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return {**super().lease_of(sandbox_id, egress), "handle": ""}


@mutant("LEASE-3")
class GivesNoHandle(Healthy):
    """Answers an empty handle."""

    leases_class = HandlesAreEmpty


class DirectoriesAreElsewhere(Leases):
    """Names a directory that is not there."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return {**super().lease_of(sandbox_id, egress), "workingDirectory": f"/work/{sandbox_id}"}


@mutant("LEASE-3")
class NamesNoDirectory(Healthy):
    """Answers a working directory that does not exist."""

    leases_class = DirectoriesAreElsewhere


class CreatesAgain(Leases):
    """Forgets which ids are taken."""

    def acquire_lease(self, call: Call) -> Json:
        sandbox_id = call.params["sandboxId"]
        with suppress(FileNotFoundError):
            (self.used / sandbox_id).unlink()
        shutil.rmtree(self.root / sandbox_id, ignore_errors=True)
        return super().acquire_lease(call)


@mutant("LEASE-4")
class MakesItAnew(Healthy):
    """Makes a sandbox anew when its id comes again."""

    leases_class = CreatesAgain


class OtherWords(Leases):
    """An id that is taken is a quota that is full."""

    def acquire_lease(self, call: Call) -> Json:
        if self.exists(call.params["sandboxId"]):
            raise Refusal("QuotaExceeded", "this id is taken")
        return super().acquire_lease(call)


@mutant("LEASE-4")
class SaysQuotaToTakenIds(Healthy):
    """Refuses an id that is taken as if another try, later, could succeed."""

    leases_class = OtherWords


class Adopts(Leases):
    """Takes what is there for what was asked for."""

    def acquire_lease(self, call: Call) -> Json:
        if self.exists(call.params["sandboxId"]):
            return self.lease_of(call.params["sandboxId"])
        return super().acquire_lease(call)


@mutant("LEASE-4")
class AdoptsWhatIsThere(Healthy):
    """Gives a sandbox out again when its id comes again."""

    leases_class = Adopts


class ClearsUp(Leases):
    """Removes the sandbox of an acquire that fails, whoever made it."""

    def acquire_lease(self, call: Call) -> Json:
        try:
            return super().acquire_lease(call)
        except Refusal:
            self.remove(call.params["sandboxId"])
            raise


@mutant("LEASE-4")
class DestroysTheFirst(Healthy):
    """Refuses an id that is taken, and destroys the sandbox that has it."""

    leases_class = ClearsUp


class KnowsNothing(Leases):
    """Says of what is not attached that it is not there."""

    condition, dispatched = "LeaseNotFound", "no"

    def check_attached(self, sandbox_id: str) -> None:
        try:
            super().check_attached(sandbox_id)
        except Refusal as refusal:
            raise Refusal(self.condition, refusal.message, dispatched=self.dispatched) from None


@mutant("LEASE-6")
class SaysNotFound(Healthy):
    """Says of a sandbox that is not attached that there is none."""

    leases_class = KnowsNothing


class DoubtsAnything(KnowsNothing):
    """Does not know what has happened."""

    condition, dispatched = "NotAttached", "unknown"


@mutant("LEASE-6")
class DoubtsWhatIsNotAttached(Healthy):
    """Says of a command without a sandbox that it may have run."""

    leases_class = DoubtsAnything


class Attaches(Leases):
    """Attaches by itself."""

    def check_attached(self, sandbox_id: str) -> None:
        (self.root / sandbox_id / "files").mkdir(parents=True, exist_ok=True)


@mutant("LEASE-6")
class RunsAnywhere(Healthy):
    """Makes a directory for a command whose sandbox it does not know."""

    leases_class = Attaches


# ------------------------------------------------------------------ attaching


class Attaching(Leases):
    """Answers an attach in a way of its own."""

    def attach_lease(self, call: Call) -> Json:
        return self.told(super().attach_lease(call), call.params["sandboxId"])

    def told(self, result: Json, sandbox_id: str) -> Json:
        """What to answer."""
        raise NotImplementedError


class IsAlwaysThere(Attaching):
    """Never looks."""

    def told(self, result: Json, sandbox_id: str) -> Json:
        return {"state": "attached", "lease": self.lease_of(sandbox_id)}


@mutant("LEASE-7")
class AttachesWhatIsGone(Healthy):
    """Says `attached` of a sandbox that was destroyed."""

    leases_class = IsAlwaysThere


class IsNeverSure(Attaching):
    """Does not say `gone`."""

    def told(self, result: Json, sandbox_id: str) -> Json:
        return {"state": "unreachable"} if result["state"] == "gone" else result


@mutant("LEASE-7")
class NeverSaysGone(Healthy):
    """Says `unreachable` of a sandbox that was destroyed."""

    leases_class = IsNeverSure


class AttachesBarely(Attaching):
    """Leaves the lease out."""

    def told(self, result: Json, sandbox_id: str) -> Json:
        return {"state": result["state"]}


@mutant("LEASE-7")
class AttachesWithoutALease(Healthy):
    """Attaches a sandbox and does not answer its lease."""

    leases_class = AttachesBarely


# ------------------------------------------------------------------ listing


class Listing(Leases):
    """Answers a list in a way of its own."""

    def list_leases(self, call: Call) -> Json:
        result = super().list_leases(call)
        return {**result, "leases": self.told(result["leases"], call.params)}

    def told(self, leases: list[Json], params: Json) -> list[Json]:
        """What to list."""
        raise NotImplementedError


class WithoutTheLast(Listing):
    """Ends a list too early."""

    def told(self, leases: list[Json], params: Json) -> list[Json]:
        return leases if params.get("sandboxId") else leases[:-1]


@mutant("LEASE-8/lists")
class ForgetsTheLast(Healthy):
    """Leaves the last sandbox off the list."""

    leases_class = WithoutTheLast


class WithOtherHandles(Listing):
    """Lists handles of its own making."""

    def told(self, leases: list[Json], params: Json) -> list[Json]:
        return [{**lease, "handle": f"listed/{lease['handle']}"} for lease in leases]


@mutant("LEASE-8/lists")
class ListsOtherHandles(Healthy):
    """Lists handles that attach nothing."""

    leases_class = WithOtherHandles


class WithoutAFilter(Leases):
    """Knows no filter."""

    def list_leases(self, call: Call) -> Json:
        call.params = {name: value for name, value in call.params.items() if name != "sandboxId"}
        return super().list_leases(call)


@mutant("LEASE-8/lists")
class IgnoresTheFilter(Healthy):
    """Lists everything when it is asked for one sandbox."""

    leases_class = WithoutAFilter


class WithWhatIsGone(Leases):
    """Keeps the record of a sandbox."""

    def remove(self, sandbox_id: str) -> None:
        super().remove(sandbox_id)
        self.gone = [*getattr(self, "gone", []), {"sandboxId": sandbox_id, "handle": sandbox_id}]

    def list_leases(self, call: Call) -> Json:
        result = super().list_leases(call)
        wanted = call.params.get("sandboxId")
        gone = [lease for lease in getattr(self, "gone", []) if wanted in (None, lease["sandboxId"])]
        return {**result, "leases": [*result["leases"], *gone]}


@mutant("LEASE-8/lists", "LEASE-9/gone")
class ListsWhatIsGone(Healthy):
    """Goes on to list a sandbox that was destroyed."""

    leases_class = WithWhatIsGone


class OfEveryStore(Leases):
    """Keeps the sandboxes of every store in one place, and lists them all."""

    def __init__(self, state_dir: str, store_id: str, worker: Healthy) -> None:
        super().__init__(state_dir, "every", worker)
        self.root = Path(state_dir).parent / f"sandport-conformance-every-{os.getppid()}"
        self.root.mkdir(exist_ok=True)

    def remove(self, sandbox_id: str) -> None:
        super().remove(sandbox_id)
        with suppress(OSError):  # another one is in there
            self.root.rmdir()


@mutant("LEASE-8/store")
class ListsEveryStore(Healthy):
    """Lists the sandboxes of other stores."""

    leases_class = OfEveryStore


class Pages(Leases):
    """Lists one sandbox on each page."""

    def list_leases(self, call: Call) -> Json:
        after = call.params.get("cursor") or ""
        call.params = {**call.params, "cursor": None}
        leases = [lease for lease in super().list_leases(call)["leases"] if lease["sandboxId"] > after]
        return {"leases": leases[:1], "nextCursor": self.cursor(leases)}

    def cursor(self, leases: list[Json]) -> str | None:
        """Where the next page begins."""
        raise NotImplementedError


class SkipsOne(Pages):
    """Goes on behind the one after the last."""

    def cursor(self, leases: list[Json]) -> str | None:
        return leases[1]["sandboxId"] if len(leases) > 1 else None


@mutant("LEASE-16")
class LosesWhatIsBetweenPages(Healthy):
    """Loses the sandbox between two pages."""

    leases_class = SkipsOne


class NeverEnds(Pages):
    """Always has a next page."""

    def cursor(self, leases: list[Json]) -> str | None:
        return leases[0]["sandboxId"] if leases else "sp"


@mutant("LEASE-16")
class HasNoLastPage(Healthy):
    """Answers a cursor on every page."""

    leases_class = NeverEnds


class RepeatsOne(Pages):
    """Begins a page with the last of the page before."""

    def list_leases(self, call: Call) -> Json:
        result = Leases.list_leases(self, call)
        return {"leases": [*result["leases"], *result["leases"][:1]], "nextCursor": None}


@mutant("LEASE-16")
class ListsOneTwice(Healthy):
    """Lists a sandbox twice."""

    leases_class = RepeatsOne


# ------------------------------------------------------------------ ending


class LeavesProgramsRunning(Leases):
    """Removes the files of a sandbox and nothing else."""

    def end_programs(self, sandbox_id: str) -> None:
        pass

    def end_strays(self, place: Place) -> None:
        pass


@mutant("LEASE-9/gone")
class LeavesWhatRuns(Healthy):
    """Destroys a sandbox and leaves what runs in it."""

    leases_class = LeavesProgramsRunning


class LeavesFiles(Leases):
    """Forgets a sandbox and leaves its files."""

    def remove(self, sandbox_id: str) -> None:
        (self.root / sandbox_id / "lease.json").unlink()
        root, self.root = self.root, self.root / "nowhere"
        try:
            super().remove(sandbox_id)
        finally:
            self.root = root


@mutant("LEASE-9/gone")
class LeavesWhatWasWritten(Healthy):
    """Destroys a sandbox and leaves its files."""

    leases_class = LeavesFiles


class SaysDestroyed(Leases):
    """Says `destroyed` whatever it found."""

    def destroy_lease(self, call: Call) -> Json:
        super().destroy_lease(call)
        return {"state": "destroyed"}


@mutant("LEASE-9/gone")
class DestroysAgain(Healthy):
    """Says `destroyed` of what was gone already."""

    leases_class = SaysDestroyed


class OtherRoots(Leases):
    """Answers the directory above as its root on this machine."""

    def lease_of(self, sandbox_id: str, egress: Json | None = None) -> Json:
        return {**super().lease_of(sandbox_id, egress), "localRoot": str(self.root / sandbox_id)}


@mutant("LEASE-17")
class NamesAnotherRoot(Healthy):
    """Answers a `localRoot` that is not the working directory."""

    leases_class = OtherRoots


@mutant("LEASE-6")
class LooksForTheProcessFirst(Healthy):
    """Says of a sandbox that it does not know that there is no such process."""

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        super().admit(request_id, method, params)
        if method == "waitProcess" and params["sandboxId"] not in self.leases.attached:
            raise Refusal("ProcessNotFound", f"no process {params['processId']} is known")
