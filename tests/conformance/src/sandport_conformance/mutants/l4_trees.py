"""Workers whose working directory is not what it seems, and whose commands do not carry what they are given."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .places import Place
from .programs import Program

# ------------------------------------------------------------------ the working directory


def _below(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Everything below a sandbox's files."""
    return os.walk(folder, topdown=False)


class Settling(Leases):
    """Brings the files between two commands into the form that its store has for them."""

    def execute(self, call: Call) -> Json:
        self.settle(self.place(call.params["sandboxId"]).files)
        try:
            return super().execute(call)
        finally:
            self.settle(self.place(call.params["sandboxId"]).files)

    def settle(self, files: Path) -> None:
        """Change what is there."""


class WithoutModes(Settling):
    """Has no modes."""

    def settle(self, files: Path) -> None:
        for folder, _, names in _below(files):
            for path in (os.path.join(folder, name) for name in names):
                if not os.path.islink(path):
                    with suppress(OSError):
                        os.chmod(path, 0o644)


@mutant("SYNC-29", "SYNC-30", "SYNC-33")
class KeepsNoModes(Healthy):
    """Keeps files between commands without their modes."""

    leases_class = WithoutModes


class WithoutEmptyDirectories(Settling):
    """Has no directories of their own."""

    def settle(self, files: Path) -> None:
        for folder, _, _ in _below(files):
            if Path(folder) != files:
                with suppress(OSError):
                    os.rmdir(folder)


@mutant("SYNC-33", "SYNC-30")
class KeepsNoEmptyDirectories(Healthy):
    """Keeps a directory between commands only where something is in it."""

    leases_class = WithoutEmptyDirectories


class WithoutLinks(Settling):
    """Has no links."""

    def settle(self, files: Path) -> None:
        for folder, folders, names in _below(files):
            for path in (os.path.join(folder, name) for name in [*folders, *names]):
                if os.path.islink(path):
                    with suppress(OSError):
                        os.unlink(path)


@mutant("SYNC-33", "SYNC-29")
class KeepsNoLinks(Healthy):
    """Removes links when a command has ended."""

    leases_class = WithoutLinks


class LeavesClosed(Place):
    """Stops at what is closed."""

    def remove(self) -> None:
        closed = [folder for folder, _, _ in os.walk(self.files) if not os.stat(folder).st_mode & 0o200]
        if not closed:
            super().remove()


class StopsWhereItIsClosed(Leases):
    """Removes as far as it can."""

    def place(self, sandbox_id: str) -> Place:
        return LeavesClosed(self.root / sandbox_id)


@mutant("SYNC-31")
class LeavesClosedDirectories(Healthy):
    """Leaves a sandbox with a directory that is closed to writing, and answers that it is destroyed."""

    leases_class = StopsWhereItIsClosed


class ThroughLinks(Place):
    """Follows links."""

    def remove(self) -> None:
        for folder, folders, names in os.walk(self.files):
            for path in (os.path.join(folder, name) for name in [*folders, *names]):
                if os.path.islink(path) and os.path.isabs(target := os.readlink(path)) and "kit-beside" in target:
                    for name in os.listdir(target) if os.path.isdir(target) else []:
                        os.unlink(os.path.join(target, name))
        super().remove()


class RemovesThroughLinks(Leases):
    """Removes what links lead to."""

    def place(self, sandbox_id: str) -> Place:
        return ThroughLinks(self.root / sandbox_id)


@mutant("SYNC-31")
class RemovesWhatLinksLeadTo(Healthy):
    """Empties the directories that links in a sandbox lead to, when it destroys it."""

    leases_class = RemovesThroughLinks


# ------------------------------------------------------------------ commands


class ShortReads(Leases):
    """Takes as much as one read gives."""

    def send_output(self, call: Call, name: str, offset: int, data: bytes) -> None:
        if offset > 1 << 20 and b"\r" in data:
            data = data.replace(b"\r", b"\n", 1)
        super().send_output(call, name, offset, data)


@mutant("SYNC-32/execute", "SYNC-32/process")
class ChangesLaterOutput(Healthy):
    """Changes a byte of output behind the first megabyte."""

    leases_class = ShortReads


class DropsAtTheEnd(Program):
    """Gives a program most of a write."""

    def write(self, data: bytes, end: bool, turn: object, stopped: threading.Event) -> int:
        if len(data) > 1 << 18:
            return super().write(data[:-1], end, turn, stopped) + 1
        return super().write(data, end, turn, stopped)


class LosesInput(Leases):
    """Starts such programs."""

    program_class = DropsAtTheEnd


@mutant("SYNC-32/execute", "SYNC-32/process")
class LosesTheLastByteOfInput(Healthy):
    """Loses the last byte of a large piece of input."""

    leases_class = LosesInput
