"""A sound worker whose processes outlive it, with all of their output, and workers that break that."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .places import bounds
from .programs import options_of
from .refusals import Cancelled, Refusal

_LOOK_S = 0.02
_SCRIPT = b'"$@" >"$0/stdout" 2>"$0/stderr"; echo "$?" >"$0/new"; mv "$0/new" "$0/status"'


class Recorded(Leases):
    """Lets processes write into files, where each worker finds what they wrote and how they ended."""

    def start_process(self, call: Call) -> Json:
        params = call.params
        self.check_attached(params["sandboxId"])
        place, folder = self.place(params["sandboxId"]), self.folder_of(params)
        folder.mkdir(parents=True)
        for name in ("stdout", "stderr"):
            (folder / name).touch()
        options = options_of(params, place.files)
        subprocess.Popen(
            [b"/bin/sh", b"-c", _SCRIPT, os.fsencode(folder), *options["args"]],
            cwd=options["cwd"],
            env=options["env"],
            preexec_fn=bounds(place.bound, place.bound),  # noqa: PLW1509 - one call of the system
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return {}

    def wait_process(self, call: Call) -> Json:
        folder = self.folder_of(call.params)
        if not folder.is_dir():
            raise Refusal("ProcessNotFound", f"no process {call.params['processId']} is known")
        sent = {}
        for name in ("stdout", "stderr"):
            call.credit[name] = self.worker.limits["creditBytes"]
            sent[name] = self.begin_of(folder / name)
        begun = dict(sent)
        while not call.cancelled.is_set():
            ended = (folder / "status").exists()
            if not self.send_new(call, folder, sent, begun) and ended:
                return self.ended_as(call, int((folder / "status").read_text()), sent, begun)
            time.sleep(_LOOK_S)
        raise Cancelled

    def begin_of(self, stream: Path) -> int:
        """From which byte of a stream a worker follows it."""
        return 0

    def send_new(self, call: Call, folder: Path, sent: dict[str, int], begun: dict[str, int]) -> bool:
        """Send what was written since; whether there was anything."""
        anything = False
        for name, offset in sent.items():
            with (folder / name).open("rb") as file:
                file.seek(offset)
                data = file.read(self.worker.limits["chunkBytes"])
            anything = anything or bool(data)
            with self.worker.credit_changed:
                data = data[: call.credit[name]]
                call.credit[name] -= len(data)
            if data:
                self.send_output(call, name, offset - begun[name], data)
                sent[name] += len(data)
        return anything

    def ended_as(self, call: Call, code: int, sent: dict[str, int], begun: dict[str, int]) -> Json:
        """The result, when all was sent."""
        totals = {name: sent[name] - begun[name] for name in sent}
        for name, total in totals.items():
            self.send_end(call, name, total, "seen")
        counts = {name: {"totalBytes": total, "end": "seen"} for name, total in totals.items()}
        return {"ended": "exited", "exitCode": code, "durationMs": 0, **counts}

    def folder_of(self, params: Json) -> Path:
        """Where a process writes."""
        return Path(self.place(params["sandboxId"]).folder, "processes", params["processId"])


class Replays(Healthy):
    """A sound worker whose later workers can follow a process from its first byte."""

    capabilities = {**Healthy.capabilities, "attach": "replay"}  # noqa: RUF012 - read only
    leases_class: type[Leases] = Recorded


class FromNowOn(Recorded):
    """Follows a process of another worker from where it is."""

    def start_process(self, call: Call) -> Json:
        self.started = {*getattr(self, "started", ()), self.folder_of(call.params)}
        return super().start_process(call)

    def begin_of(self, stream: Path) -> int:
        return 0 if stream.parent in getattr(self, "started", ()) else stream.stat().st_size


@mutant("PRC-12", made_from=Replays)
class ReplaysTheRest(Replays):
    """Declares that a later worker gets all output, and gives what comes from then on."""

    leases_class = FromNowOn


class AsSuccesses(Recorded):
    """Does not read how a process ended."""

    def ended_as(self, call: Call, code: int, sent: dict[str, int], begun: dict[str, int]) -> Json:
        return super().ended_as(call, 0, sent, begun)


@mutant("PRC-12", made_from=Replays)
class ReplaysSuccess(Replays):
    """Answers exit code 0 for every process that it follows."""

    leases_class = AsSuccesses
