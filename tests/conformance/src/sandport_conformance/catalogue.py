"""All checks, in the order in which they run."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from . import checks
from .declaration import CHECKS, LEVELS, Check, Uses
from .outcomes import Misuse, Severity
from .requirements import Requirement, requirements

DEFAULT_LEVEL = "L3"


def every_check() -> tuple[Check, ...]:
    """Every check of the kit.

    By level; within one the checks of the shared process come first, so that one start serves as many as possible.
    Those that only read what passed come at the very end. The rest of the order is that of the ids.
    """
    for module in pkgutil.iter_modules(checks.__path__, checks.__name__ + "."):
        importlib.import_module(module.name)
    order = {Uses.SHARED: 0, Uses.OWN: 1, Uses.RECORD: 2}
    return tuple(
        sorted(CHECKS.values(), key=lambda c: (c.uses is Uses.RECORD, c.level, order[c.uses], natural(c.id))),
    )


def select(*, level: str = DEFAULT_LEVEL, only: Iterable[str] = ()) -> tuple[Check, ...]:
    """The checks of a run.

    Args:
        level: The highest level; every one below is included.
        only: Ids of checks, or of requirements with all their checks, in any case; then `level` does not matter.

    Raises:
        Misuse: There is no such level or check.
    """
    if level not in LEVELS:
        raise Misuse(f"there is no level {level!r}; the levels are {', '.join(LEVELS)}")
    wanted = tuple(only)
    everything = every_check()
    if not wanted:
        return tuple(check for check in everything if check.level <= level)
    found = {check.id for name in wanted for check in find(name)}
    return tuple(check for check in everything if check.id in found)


def expect_checks(level: str) -> None:
    """Refuse to judge up to a level that nothing judges: it would look as if it had been.

    Raises:
        Misuse: There is no such level, or it has no checks yet.
    """
    highest = max(check.level for check in select(level=level))
    if level != highest:
        raise Misuse(f"{level} has no checks yet; the highest level that has some is {highest}")


def find(name: str) -> tuple[Check, ...]:
    """The checks of an id, which may also be a requirement's, in any case.

    Raises:
        Misuse: There is none; the message names the nearest.
    """
    wanted = name.casefold()
    found = tuple(check for check in every_check() if wanted in (check.id.casefold(), check.requirement.id.casefold()))
    if not found:
        import difflib

        clause = next((one for one in requirements().values() if one.id.casefold() == wanted), None)
        if clause is not None:
            raise Misuse(f"{clause.id} has {judged_by(clause)}")
        near = difflib.get_close_matches(name.upper(), [check.id for check in every_check()], n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else "; `sandport-conformance list` shows them all"
        raise Misuse(f"there is no check {name!r}{hint}")
    return found


def judged_by(requirement: Requirement) -> str:
    """What judges a requirement that no check is named after, in words."""
    from .hosting.catalogue import every_host_check

    hosts = every_host_check()
    also = [check.id for check in every_check() if requirement in check.also]
    also += [check.id for check in hosts if requirement in check.also]
    if also:
        return f"no check of its own; it cannot hold where these fail: {', '.join(also)}"
    if any(check.requirement == requirement for check in hosts):
        return "no check of workers; `sandport-conformance host` judges hosts by it"
    return "no check of the kit"


def unjudged(level: str) -> tuple[str, ...]:
    """The MUSTs up to a level that bind workers and that no check shows."""
    shown = {one.id for check in every_check() for one in (check.requirement, *check.also)}
    return tuple(
        one.id
        for one in requirements().values()
        if one.severity is Severity.MUST and one.binds != "host" and one.level != "-" and one.level <= level
        if one.id not in shown
    )


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key that sorts FRAME-10 after FRAME-9."""
    import re

    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part)
