"""What all impostors have: a journal of what their host did, and an accident that happens once."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

from sandport_conformance.members import faults_of_host
from sandport_conformance.mutants.healthy import Call, Healthy, Json

CANARY = "canary-of-the-kit"
"""Part of a variable's value in the host's environment; no worker may have it."""


class Impostor(Healthy):
    """A healthy worker that keeps a journal.

    Args:
        journal: The file; the host's next worker, after this one, goes on with it.
    """

    name = "impostor"

    def __init__(self, journal: str) -> None:
        surroundings = _surroundings()
        super().__init__()
        self.path = journal
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.record("started", **surroundings)

    def record(self, event: str, **facts: Any) -> None:
        """One line in the journal."""
        line = {"event": event, "pid": os.getpid(), "at": time.monotonic(), **facts}
        os.write(self._journal, json.dumps(line).encode() + b"\n")

    def once(self) -> bool:
        """True for the first one of all workers of this journal that asks."""
        try:
            os.close(os.open(self.path + ".accident", os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        self.record("accident")
        return True

    def say(self, text: str) -> None:
        """A line of the log."""
        os.write(2, text.encode() + b"\n")

    def receive(self, line: bytes) -> None:
        """Write down what came, and what is wrong with it, then serve it."""
        for requirement, fault in faults_of_host(line):
            self.record("fault", requirement=requirement, fault=fault, line=repr(line[:200]))
        with suppress(ValueError, AttributeError):  # what is no message is served, and refused, all the same
            message = json.loads(line)
            params = message.get("params", {})
            facts = {name: params[name] for name in ("sandboxId", "limits", "stream", "socket") if name in params}
            if "id" in params:
                facts["target"] = params["id"]
            self.record("received", method=message["method"], id=message.get("id"), members=sorted(params), **facts)
        super().receive(line)

    def handle(self, call: Call) -> Json:
        """Serve a call; the first command is the accident."""
        if call.method == "execute" and self.accident_is_due() and self.once():
            return self.accident(call)
        return super().handle(call)

    def accident_is_due(self) -> bool:
        """Whether commands are what goes wrong."""
        return type(self).accident is not Impostor.accident

    def accident(self, call: Call) -> Json:
        """What goes wrong with a command; nothing here."""
        return super().handle(call)

    def end(self) -> None:
        """Write down that the host ended its side."""
        self.record("end")
        super().end()


def _surroundings() -> Json:
    descriptors = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that this list was read from
            descriptors.append([int(number), os.readlink(f"/proc/self/fd/{number}")])
    with open("/proc/self/stat", "rb") as stat:
        ticks = int(stat.read().rpartition(b")")[2].split()[19])
    return {
        "session": os.getsid(0),
        "token": os.environ.get("SANDPORT_WORKER_TOKEN", ""),
        "ticks": ticks,
        "canary": sorted(name for name, value in os.environ.items() if CANARY in value),
        "descriptors": sorted(descriptors),
        "command": sys.argv[1],
    }
