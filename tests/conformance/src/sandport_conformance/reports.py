"""The public reports of the fault that a check catches: those that it was written for, and others that it shows too.

The latter stand in `reports.json`, which `checks_page` takes over from the museum of the workspace.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Protocol

REPORTS = "reports.json"


class Judging(Protocol):
    """A check of a worker, or of a host."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def source(self) -> str:
        """What it was written for, separated by commas."""
        ...


def written_for(check: Judging) -> tuple[str, ...]:
    """The reports that stand in the check itself, as `project#number`."""
    return tuple(check.source.split(", ")) if check.source else ()


def reports_of(check: Judging) -> tuple[str, ...]:
    """All reports of the fault, as `project#number`; those that the check was written for come first."""
    return (*written_for(check), *_shown_too().get(check.id, ()))


@cache
def _shown_too() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(files(__package__).joinpath(REPORTS).read_text(encoding="utf-8"))
    return found
