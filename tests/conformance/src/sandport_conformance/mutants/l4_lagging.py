"""A sound worker whose vendor's list is a little behind, as it declares, and workers that hide a fault behind that."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from . import mutant
from .healthy import Call, Healthy, Json
from .l3_config import ProbesForReal
from .leases import Leases
from .places import Place
from .refusals import Cancelled, Refusal

_LAG_MS = 400


class Behind(Leases):
    """Lists what was there a moment ago: new sandboxes late, and ended ones still."""

    lag_s = _LAG_MS / 1000

    @property
    def ended(self) -> Path:
        """Where it is noted what has ended; each worker of the store looks there."""
        return self.root.parent.parent / "ended" / self.root.name

    def names(self) -> list[str]:
        now = time.time()
        found = {name for name in super().names() if not self._is_new(self.root / name, now)}
        with suppress(FileNotFoundError):
            found |= {note.name for note in self.ended.iterdir() if self._is_new(note, now)}
        return sorted(found)

    def _is_new(self, path: Path, now: float) -> bool:
        """Whether something was made within the lag."""
        try:
            return now - float(os.readlink(path / "made" if path.is_dir() else path)) < self.lag_s
        except OSError:  # a half made one, or one that is being removed: no list is late with those
            return False

    def make(self, sandbox_id: str) -> Place:
        place = super().make(sandbox_id)
        (place.folder / "made").symlink_to(str(time.time()))
        return place

    def remove(self, sandbox_id: str) -> None:
        super().remove(sandbox_id)
        self.ended.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (self.ended / sandbox_id).symlink_to(str(time.time()))


class Lagging(Healthy):
    """A sound worker whose list is behind by the time that it declares."""

    capabilities = {**Healthy.capabilities, "createSettleMs": _LAG_MS}  # noqa: RUF012 - read only
    leases_class: type[Leases] = Behind


class FarBehind(Behind):
    """Is behind by much more."""

    lag_s = 60.0


@mutant("LEASE-8/lists", "CALL-3", "LEASE-16", "LEASE-10/attach", "LEASE-2", made_from=Lagging)
class ListsLaterThanItSays(Lagging):
    """Lists what it has made a minute later, and declares less than a second."""

    leases_class = FarBehind


class ProbesAndIsBehind(ProbesForReal, Behind):
    """Makes a sandbox to see whether it can."""


@mutant("CONF-4", made_from=Lagging)
class ProbesUnseen(Lagging):
    """Makes a sandbox at each probe, which comes to its list after the answer."""

    leases_class = ProbesAndIsBehind


class GoesOnAlone(Leases):
    """Answers a cancel at once, and goes on with the create."""

    slow_s = 0.3

    def acquire_lease(self, call: Call) -> Json:
        if not call.cancelled.wait(self.slow_s):
            return super().acquire_lease(call)
        later = Call(call.worker, call.id, call.method, call.params)
        timer = threading.Timer(self.slow_s, self._finish, (later,))
        timer.daemon = True
        timer.start()
        raise Refusal("Cancelled", "acquireLease was cancelled", dispatched="no")

    def _finish(self, call: Call) -> None:
        with suppress(Refusal, Cancelled):
            super().acquire_lease(call)

    def report(self, call: Call, message: str) -> None:
        pass


@mutant("ERR-3/create")
class CreatesBehindTheAnswer(Healthy):
    """Says of a cancelled acquire that nothing has happened, and makes the sandbox a little later."""

    leases_class = GoesOnAlone
