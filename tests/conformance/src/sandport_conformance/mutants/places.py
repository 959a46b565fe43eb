"""The healthy worker's sandboxes on the disk: what a later worker finds of one, and what ends it when none comes.

A sandbox is a folder whose making is the create: its name is the sandbox's id, the folder above it is the store's.

```text
<stateDir>/sandboxes/<store>/<sandbox id>/
    lease.json   when it was made, until when it lives, whether it is kept; not there while it is made or ended
    files/       the working directory
    running/     one file for each program whose end its worker has not seen yet: <pid>-<start time>
    attached     each worker that has the sandbox holds a shared lock on it, which ends with the worker
```
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sandport_conformance import folders

Json = dict[str, Any]

_ENDING_S = 10.0
_LOOK_S = 0.002
_GUARD_LOOK_S = 0.05
_PIECE_BYTES = 1 << 16


def marked(mark: bytes) -> set[int]:
    """Processes that carry a mark in the variables that they were started with, wherever they have gone."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):  # it ended while we looked
                if mark in Path("/proc", name, "environ").read_bytes():
                    found.add(int(name))
    return found


def bounded(*, soft: int | None = None, hard: int | None = None) -> set[int]:
    """Processes with these limits on real-time work, which a program hands on to all that it starts.

    What clears its environment keeps them, and so does what forks twice. They prove nothing: a program can lower them.
    """
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, IndexError):  # it ended while we looked
                said = Path("/proc", name, "limits").read_bytes().partition(b"Max realtime timeout")[2].split()
                same = (soft is None or said[0] == b"%d" % soft) and (hard is None or said[1] == b"%d" % hard)
                if same and start_of(int(name)) is not None:  # one that has ended has its limits until it is reaped
                    found.add(int(name))
    return found


def bounds(soft: int, hard: int) -> Callable[[], None] | None:
    """What a new process calls to be found by `bounded`; None where the system has no such limit."""
    if not hasattr(resource, "RLIMIT_RTTIME"):
        return None
    return lambda: resource.setrlimit(resource.RLIMIT_RTTIME, (soft, hard))


def start_of(pid: int) -> bytes | None:
    """When a live process was started, in the kernel's ticks; None where it has ended."""
    with suppress(OSError):
        fields = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else fields[19]
    return None


class Place:
    """One sandbox.

    Args:
        folder: Its folder, there or not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = folder / "files"
        self.running = folder / "running"
        self._record = folder / "lease.json"
        self.mark = b"SANDPORT_SANDBOX=" + os.fsencode(folder.name)
        self.bound = 1 << 61 | int.from_bytes(hashlib.sha256(os.fsencode(folder)).digest()[:7], "big")
        """The hard limit of all that runs in it; see `bounded`."""

    @property
    def there(self) -> bool:
        """Whether anything of it is."""
        return self.folder.is_dir()

    def facts(self) -> Json | None:
        """The record; None where the sandbox is half made, half ended or gone."""
        try:
            found: Json = json.loads(self._record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return found

    def write(self, facts: Json) -> None:
        """Replace the record as a whole."""
        new = self.folder / f"lease-{os.getpid()}-{time.monotonic_ns()}"
        new.write_text(json.dumps(facts), encoding="utf-8")
        new.replace(self._record)

    def note(self, pid: int) -> Path | None:
        """Write down that a program was started; the note, to be removed by whoever sees its end."""
        started = start_of(pid)
        if started is None:
            return None
        note = self.running / f"{pid}-{started.decode()}"
        with suppress(FileNotFoundError):  # the sandbox is ending
            note.touch()
        return note

    def take_lost(self) -> bool:
        """Whether a program has ended without its worker; told once."""
        lost = False
        for note in list(self.running.iterdir()):
            pid, _, started = note.name.partition("-")
            if start_of(int(pid)) != started.encode():
                note.unlink(missing_ok=True)
                lost = True
        return lost

    def hold(self) -> int:
        """Say that this process has the sandbox; the descriptor that says so."""
        descriptor = os.open(self.folder / "attached", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def hold_alone(self) -> int | None:
        """A descriptor that keeps every worker out; None where one has the sandbox."""
        descriptor = os.open(self.folder / "attached", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def begin_end(self) -> None:
        """Let nobody attach it any more; it stays on the list."""
        with suppress(FileNotFoundError):
            self._record.rename(self.folder / "ending.json")

    def kill(self) -> None:
        """Kill everything that was started in it, whoever did, until nothing is found."""
        deadline = time.monotonic() + _ENDING_S
        while (found := self.strays()) and time.monotonic() < deadline:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_S)

    def strays(self) -> set[int]:
        """What runs in it, wherever it has gone."""
        return bounded(hard=self.bound)

    def remove(self) -> None:
        """Remove the folder, and the sandbox from the list with it; directories in it may be closed to writing."""
        folders.remove(self.folder)

    def end(self) -> None:
        """End the sandbox and all that runs in it."""
        self.begin_end()
        self.kill()
        self.remove()


class Guard:
    """A process that outlives its worker, and ends what nobody comes for.

    The commands of a worker end with it. Its sandboxes end at their expiry, or one grace after the last worker that had
    them, unless they are kept. It hears of them through a pipe, whose end is the worker's.
    """

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        self._groups: set[int] = set()
        self._grace_s = 30.0
        self._places: dict[bytes, Place] = {}
        if os.fork() == 0:
            self._watch(read_end)
        os.close(read_end)

    # -------------------------------------------------------------- in the worker

    def tell(self, line: bytes) -> None:
        """Say something to the guard; short enough for a pipe to take it as a whole."""
        os.write(self._pipe, line + b"\n")

    def add(self, group: int) -> None:
        """Watch over a group."""
        self._groups.add(group)
        self.tell(b"+%d" % group)

    def remove(self, group: int) -> None:
        """A group's program has ended and was waited for."""
        self._groups.discard(group)
        self.tell(b"-%d" % group)

    def kill_all(self) -> None:
        """Kill every group that is watched."""
        for group in list(self._groups):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    # -------------------------------------------------------------- in its own process

    def _watch(self, pipe: int) -> None:
        import select

        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.dup2(pipe, 0)
            os.closerange(1, 1024)
            pending = b""
            while True:
                if select.select([0], [], [], self._next_expiry_s())[0]:
                    data = os.read(0, _PIECE_BYTES)
                    if not data:
                        break
                    *lines, pending = (pending + data).split(b"\n")
                    for line in lines:
                        self._hear(line)
                self._look()
            self._outlive()
        finally:
            os._exit(0)

    def _hear(self, line: bytes) -> None:
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            self._groups.add(int(rest))
        elif kind == b"-":
            self._groups.discard(int(rest))
        elif kind == b"g":
            self._grace_s = int(rest) / 1000
        elif kind == b"s":
            self._places[rest] = Place(Path(os.fsdecode(rest)))

    def _next_expiry_s(self) -> float | None:
        ends = [facts["expiresAtMs"] for place in self._places.values() if (facts := place.facts())]
        return max(0.0, min(ends) / 1000 - time.time()) if ends else None

    def _look(self) -> None:
        """End what has expired, forget what is gone."""
        for name, place in list(self._places.items()):
            facts = place.facts()
            if facts is not None and facts["expiresAtMs"] <= time.time() * 1000:
                self.expire(place)
            if not place.there:
                del self._places[name]

    def _outlive(self) -> None:
        """The worker is gone."""
        self.kill_all()
        grace_over = time.monotonic() + self.grace_s()
        decided: set[bytes] = set()
        while self._places:
            self._look()
            if time.monotonic() >= grace_over:
                for name, place in list(self._places.items()):
                    if name not in decided and not self.after_grace(place):
                        del self._places[name]
                    decided.add(name)
            time.sleep(_GUARD_LOOK_S)

    def grace_s(self) -> float:
        """How long sandboxes outlive their last worker."""
        return self._grace_s

    def expire(self, place: Place) -> None:
        """A sandbox's time is over."""
        place.end()

    def after_grace(self, place: Place) -> bool:
        """The grace is over: end a sandbox that nobody has; whether its expiry is still to be waited for."""
        facts = place.facts()
        if facts is not None and facts["keep"]:
            return True
        with suppress(FileNotFoundError):
            alone = place.hold_alone()
            if alone is not None:
                place.end()
                os.close(alone)
        return False
