"""How a check is declared: which requirement it judges, what it needs, and what a reader of its failure must know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from .outcomes import Severity
from .requirements import Requirement, requirement

if TYPE_CHECKING:
    from .lab import Lab

LEVELS = ("L0", "L1", "L2", "L3", "L4", "L5", "L6")
"""Wire, process, negotiation, calls, sandboxes; endurance and security are asked for by name."""


class Uses(StrEnum):
    """Which process a check works with."""

    SHARED = "shared"
    """`lab.worker`: one that serves many checks, and must serve on after this one."""
    OWN = "own"
    """`lab.spawn()`: processes of its own, because it ends, floods or confuses them."""
    RECORD = "record"
    """`lab.sessions`: nothing is started; it reads what passed in the sessions of the whole run, and so runs last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be there before a check says anything.

    Attributes:
        groups: Optional groups of methods that the worker must advertise; else the check is not applicable.
        capabilities: Capabilities and the values of them for which the check holds; else it is not applicable.
        commands: Names of command snippets of the author's file; without one the check is untestable.
    """

    groups: tuple[str, ...] = ()
    capabilities: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        id: The requirement's id, the same for pass and fail; with `/part` where one requirement has several checks.
        requirement: What it judges.
        also: Further requirements that cannot hold where this check fails.
        run: The check itself; returning is passing.
        title: One sentence: what a worker does that passes.
        why: Why the requirement exists.
        broken: What a worker does that fails, in one sentence.
        fix: What its author should do.
        source: The public report of this fault, as `project#number`; empty where there is none.
        severity: What its failure means.
        scored: Whether it counts: one that was added after its requirement set was frozen only warns.
    """

    id: str
    requirement: Requirement
    also: tuple[Requirement, ...]
    uses: Uses
    needs: Needs
    run: Callable[[Lab], None]
    title: str
    why: str
    broken: str
    fix: str
    source: str
    severity: Severity
    scored: bool

    @property
    def level(self) -> str:
        """The level, `L0` to `L6`."""
        return self.requirement.level


CHECKS: dict[str, Check] = {}
"""Every check that was declared, by its id, in the order of declaration."""


def check(
    requirement_id: str,
    *,
    why: str,
    broken: str,
    fix: str,
    source: str = "",
    also: tuple[str, ...] = (),
    part: str = "",
    uses: Uses = Uses.SHARED,
    needs: Needs | None = None,
    severity: Severity | None = None,
    scored: bool = True,
) -> Callable[[Callable[[Lab], None]], Callable[[Lab], None]]:
    """Declare the function below as a check; the first line of its docstring is the title.

    Args:
        requirement_id: The requirement of SPEC.md that it judges; level and severity come from there.
        why: Why the requirement exists.
        broken: What a worker does that fails.
        fix: What its author should do.
        source: A public report of this fault, as `project#number`; several are separated by commas.
        also: Further requirements that it shows.
        part: Tells several checks of one requirement apart.
        uses: Which process it works with.
        needs: What must be declared or configured for it.
        severity: SHOULD for the part of a clause that is one beside a MUST; the requirement's own where None.
        scored: False for a check that was added after the requirement set of this protocol version was frozen: its
            failure warns.

    Raises:
        LookupError: The requirement does not exist, or the id is taken.
    """

    def declare(run: Callable[[Lab], None]) -> Callable[[Lab], None]:
        check_id = f"{requirement_id}/{part}" if part else requirement_id
        if check_id in CHECKS:
            raise LookupError(f"two checks are called {check_id}")
        title = (run.__doc__ or "").strip().partition("\n")[0]
        if not title:
            raise LookupError(f"the check {check_id} has no docstring; its first line is the title")
        CHECKS[check_id] = Check(
            id=check_id,
            requirement=requirement(requirement_id),
            also=tuple(requirement(other) for other in also),
            uses=uses,
            needs=needs or Needs(),
            run=run,
            title=title,
            why=why,
            broken=broken,
            fix=fix,
            source=source,
            severity=severity or requirement(requirement_id).severity,
            scored=scored,
        )
        return run

    return declare
