"""How a check of a host is declared: which requirement it judges, and what a reader of its failure must know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandport_conformance.outcomes import Severity
from sandport_conformance.requirements import Requirement, requirement

if TYPE_CHECKING:
    from .stage import Stage

Run = Callable[["Stage"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """One check.

    Attributes:
        id: The requirement's id, with `/part` where one requirement has several checks.
        requirement: What it judges.
        also: Further requirements that cannot hold where this check fails.
        run: The check itself; returning is passing.
        title: One sentence: what a host does that passes.
        why: Why the requirement exists.
        broken: What a host does that fails.
        source: The public report of this fault, as `project#number`; empty where there is none.
        record: Whether it reads the journals of all the others, and so runs last.
    """

    id: str
    requirement: Requirement
    also: tuple[Requirement, ...]
    run: Run
    title: str
    why: str
    broken: str
    source: str
    record: bool

    @property
    def severity(self) -> Severity:
        """What its failure means."""
        return self.requirement.severity


HOST_CHECKS: dict[str, HostCheck] = {}
"""Every check of a host that was declared, by its id."""


def host_check(
    requirement_id: str,
    *,
    why: str,
    broken: str,
    part: str = "",
    source: str = "",
    also: tuple[str, ...] = (),
    record: bool = False,
) -> Callable[[Run], Run]:
    """Declare the function below as a check of a host; the first line of its docstring is the title.

    Args:
        requirement_id: The requirement of SPEC.md that it judges; it must bind hosts.
        why: Why the requirement exists.
        broken: What a host does that fails.
        part: Tells several checks of one requirement apart.
        source: A public report of this fault, as `project#number`; several are separated by commas.
        also: Further requirements that it shows.
        record: It starts nothing and reads what passed in all other checks.

    Raises:
        LookupError: The requirement does not exist or does not bind hosts, or the id is taken.
    """

    def declare(run: Run) -> Run:
        check_id = f"{requirement_id}/{part}" if part else requirement_id
        binding = [requirement(name) for name in (requirement_id, *also)]
        if check_id in HOST_CHECKS or any(found.binds == "worker" for found in binding):
            raise LookupError(f"{check_id} is declared twice, or binds no host")
        title = (run.__doc__ or "").strip().partition("\n")[0]
        if not title:
            raise LookupError(f"the check {check_id} has no docstring; its first line is the title")
        HOST_CHECKS[check_id] = HostCheck(
            id=check_id,
            requirement=binding[0],
            also=tuple(binding[1:]),
            run=run,
            title=title,
            why=why,
            broken=broken,
            source=source,
            record=record,
        )
        return run

    return declare
