"""The list of planted bugs: what is wrong in each, where, and who must find it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from msgspec import Struct, convert

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("bugs.toml")

MACHINES = {
    "connection pair": "tests/machines/test_connection_pair.py",
    "worker client": "tests/machines/test_worker_client.py",
    "lease book": "tests/machines/test_lease_book.py",
}
"""The state machines, by the name that the list uses, which is that of their traces too."""
FINDERS = {**MACHINES, "sweep": "tests/chaos/test_crash_points.py"}
"""Everything that looks for bugs. What is no machine leaves no trace, and imports in processes that it starts."""


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """One change of one file: a text that stands there exactly once, and what stands there instead."""

    file: str
    old: str
    new: str

    def problem(self, root: Path) -> str | None:
        """Why it cannot be made, if it cannot."""
        path = root / self.file
        if not path.is_file():
            return f"there is no {self.file}"
        count = path.read_text(encoding="utf-8").count(self.old)
        return None if count == 1 else f"its old text stands {count} times in {self.file}; it must stand there once"

    def make(self, root: Path) -> None:
        """Change the file below `root`.

        Raises:
            ValueError: The source has changed since the bug was written down.
        """
        if (problem := self.problem(root)) is not None:
            raise ValueError(problem)
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


class Bug(Struct, frozen=True, forbid_unknown_fields=True):
    """One bug."""

    id: str
    says: str
    """What the code does wrong."""
    found_by: str
    """A name of `FINDERS`."""
    edit: tuple[Edit, ...]

    @property
    def test(self) -> str:
        """The test that must fail, as a path from the root."""
        return FINDERS[self.found_by]

    @property
    def has_trace(self) -> bool:
        """Whether its steps are kept, and played again in every run of the tests."""
        return self.found_by in MACHINES


class Planted(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole list, in its order."""

    bug: tuple[Bug, ...]


def read_planted() -> Planted:
    """What `bugs.toml` says."""
    return convert(tomllib.loads(LIST.read_text(encoding="utf-8")), Planted)


def read_bugs() -> tuple[Bug, ...]:
    """Those that are planted."""
    return read_planted().bug
