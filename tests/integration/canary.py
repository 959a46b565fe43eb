"""A secret that must stay where it is, and one search for every place in which it could turn up."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

NAME = "SANDPORT_TEST_CANARY"
"""A variable of the host's, as a vendor's key would be one."""


class Found(Struct, frozen=True):
    """A place in which the canary was seen."""

    kind: str
    """`argv` or `environment` of a process, `row` of the journal, `log`, `report`, or another `file` of the state."""
    where: str


class Canary(Struct, frozen=True):
    """A text that occurs nowhere else, in the variable and in a file of the home directory."""

    text: str
    home: Path

    @classmethod
    def placed(cls, home: Path) -> "Canary":
        """One in a home directory; the variable is the caller's to set."""
        canary = cls(secrets.token_hex(16), home)
        (home / ".credentials").write_text(f"key = {canary.text}\n")
        return canary

    def is_in(self, data: bytes) -> bool:
        """Whether the text occurs in some bytes."""
        return self.text.encode() in data

    def in_report(self, **reports: bytes) -> list[Found]:
        """Which of these reports tell it."""
        return [Found("report", name) for name, data in reports.items() if self.is_in(data)]

    def in_processes(self, pid: int) -> list[Found]:
        """Processes below `pid` that have it in their arguments or their environment; `pid` itself may have it."""
        found = []
        for child in descendants(pid):
            for kind, name in (("argv", "cmdline"), ("environment", "environ")):
                try:
                    data = Path(f"/proc/{child}/{name}").read_bytes()
                except OSError:
                    continue  # it ended meanwhile
                if self.is_in(data):
                    found.append(Found(kind, f"process {child}"))
        return found

    def in_state(self, state: Path) -> list[Found]:
        """Files below the host's state that hold it."""
        found = []
        for path in state.rglob("*"):
            if path.is_file() and not path.is_symlink() and self.is_in(path.read_bytes()):
                inside = path.relative_to(state)
                kind = "row" if inside.name.startswith("journal.db") else "log" if inside.parts[0] == "logs" else "file"
                found.append(Found(kind, str(inside)))
        return found


def descendants(pid: int) -> Iterator[int]:
    """Every process below another one, whatever namespace it is in."""
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            parents[int(entry.name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    for child in parents:
        above = child
        while above and above != pid:
            above = parents.get(above, 0)
        if above == pid and child != pid:
            yield child
