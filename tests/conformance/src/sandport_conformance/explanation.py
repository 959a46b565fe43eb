"""All that is known of a check, a requirement, a level or a broken worker, for a person."""

from __future__ import annotations

import difflib
import shlex
import textwrap

from .broken_examples import BrokenExample, code_of, examples_of
from .catalogue import every_check, find, judged_by
from .declaration import Check, Needs, Uses
from .hosting.catalogue import every_host_check
from .hosting.declaration import HostCheck
from .levels import LEVEL_MEANINGS
from .mutants import HEALTHY, Mutant, every_mutant
from .outcomes import Misuse
from .reports import reports_of
from .requirements import Requirement, requirements

PROCESSES = {
    Uses.SHARED: "the shared worker, which must serve on",
    Uses.OWN: "workers of its own",
    Uses.RECORD: "the record of the whole run",
}
"""Which processes a check works with, in words."""

_CODE = "\N{NO-BREAK SPACE}"
"""Begins a line that is code, and is told as it stands."""


def explain(name: str) -> str:
    """The story of a check, or of every check of a requirement: those of workers, then those of hosts.

    Args:
        name: The id of a check, a requirement or a level, or the name of a broken worker; in any case.

    Raises:
        Misuse: There is none of this name; the message has those that are near.
    """
    wanted = name.strip().casefold()
    told = [_story(check) for check in every_check() if _is_called(check, wanted)]
    told += [_host_story(check) for check in every_host_check() if _is_called(check, wanted)]
    if not told:
        told = [_requirement_story(one) for one in requirements().values() if one.id.casefold() == wanted]
    if not told:
        told = [_level_story(level) for level in LEVEL_MEANINGS if level.casefold() == wanted]
    if not told:
        told = [_mutant_story(one) for one in every_mutant() if wanted in _names_of(one)]
    if not told:
        raise Misuse(f"there is no check, requirement, level or broken worker {name!r}{_near(wanted)}")
    return "\n".join(told)


def _is_called(check: Check | HostCheck, wanted: str) -> bool:
    return wanted in (check.id.casefold(), check.requirement.id.casefold())


def _names_of(mutant: Mutant) -> tuple[str, str]:
    name = mutant.name.casefold()
    return name, name.partition(":")[2]


def _near(wanted: str) -> str:
    ids = [*requirements(), *(check.id for check in every_check()), *(check.id for check in every_host_check())]
    names = [mutant.name.partition(":")[2] for mutant in every_mutant()]
    spelt = {name.casefold(): name for name in (*ids, *names)}
    near = [spelt[name] for name in difflib.get_close_matches(wanted, spelt, n=3, cutoff=0.6)]
    return f"; did you mean {', '.join(near)}?" if near else "; `sandport-conformance list` shows all checks"


# ------------------------------------------------------------------ the stories


def _story(check: Check) -> str:
    examples = examples_of(check)
    parts = [
        ("clause", _clause(check.requirement)),
        ("passes when", check.title),
        ("why", check.why),
        ("fails when a worker", check.broken),
        ("fix", check.fix),
        ("seen in", ", ".join(reports_of(check))),
        ("uses", PROCESSES[check.uses]),
        ("needs", needs_of(check.needs)),
        ("also shows", ", ".join(requirement.id for requirement in check.also)),
        ("known to catch", "\n".join(_caught(example) for example in examples)),
        ("run with", f"sandport-conformance run --only {check.id} -- WORKER COMMAND"),
    ]
    return _told(f"{check.id}  ({check.level}, {check.severity}{'' if check.scored else ', not scored'})", parts)


def _host_story(check: HostCheck) -> str:
    parts = [
        ("clause", _clause(check.requirement)),
        ("passes when", check.title),
        ("why", check.why),
        ("fails when a host", check.broken),
        ("seen in", ", ".join(reports_of(check))),
        ("also shows", ", ".join(requirement.id for requirement in check.also)),
        ("run with", f"sandport-conformance host --only {check.id} -- HOST COMMAND"),
    ]
    return _told(f"{check.id}  (a host, {check.severity})", parts)


def _requirement_story(requirement: Requirement) -> str:
    parts = [
        ("clause", _clause(requirement)),
        ("binds", {"both": "workers and hosts"}.get(requirement.binds, f"the {requirement.binds}")),
        ("judged by", judged_by(requirement)),
    ]
    level = "" if requirement.level == "-" else f"{requirement.level}, "
    return _told(f"{requirement.id}  ({level}{requirement.severity})", parts)


def _level_story(level: str) -> str:
    meaning = LEVEL_MEANINGS[level]
    count = sum(check.level == level for check in every_check())
    parts = [
        ("judges", meaning.judges),
        ("who passes", meaning.means),
        ("needs", meaning.needs),
        ("checks", f"{count} of its own; it includes all levels below" if count else "none yet"),
        ("run with", f"sandport-conformance run --level {level} -- WORKER COMMAND"),
    ]
    return _told(f"{level}  {meaning.name}", parts)


def _mutant_story(mutant: Mutant) -> str:
    caught_by = [check.id for name in mutant.killed_by for check in find(name)]
    parts = [
        ("what it does", mutant.sentence),
        ("caught by", ", ".join(caught_by)),
        ("made from", "" if mutant.made_from == HEALTHY else mutant.made_from),
        ("broken here", _as_code(code_of(mutant))),
        ("see it fail", _as_code(f"sandport-conformance run --only {caught_by[0]} -- {shlex.join(mutant.command)}")),
    ]
    return _told(f"{mutant.name}  (a worker that is broken on purpose)", parts)


def _clause(requirement: Requirement) -> str:
    return f"{requirement.clause}\n(SPEC.md, {requirement.chapter})"


def _caught(example: BrokenExample) -> str:
    told = f"{example.mutant.name}: {example.mutant.sentence}"
    return f"{told}\n{_as_code(example.code)}" if example.is_short else told


def _as_code(text: str) -> str:
    return "\n".join(_CODE + line for line in text.splitlines())


def _told(head: str, parts: list[tuple[str, str]]) -> str:
    lines = [head]
    for label, text in parts:
        if text:
            lines.append(f"  {label}:")
            for paragraph in text.splitlines():
                if paragraph.startswith(_CODE):
                    lines.append(f"        {paragraph[1:]}".rstrip())
                else:
                    lines += textwrap.wrap(
                        paragraph, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
                    )
    return "\n".join(lines) + "\n"


def needs_of(needs: Needs) -> str:
    """What a worker has to declare, and its author to bring, in words; empty where it is nothing."""
    parts = [f"the methods of the group {group!r}" for group in needs.groups]
    parts += [f"{name} = {' or '.join(map(str, values))}" for name, values in needs.capabilities.items()]
    parts += [f"commands.{name}" for name in needs.commands]
    return ", ".join(parts)
