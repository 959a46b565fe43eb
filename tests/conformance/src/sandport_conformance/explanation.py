"""All that is known of a check, for a person."""

from __future__ import annotations

import textwrap

from .catalogue import find
from .declaration import Check, Needs, Uses
from .hosting.declaration import HostCheck, every_host_check
from .outcomes import Misuse

_PROCESSES = {
    Uses.SHARED: "the shared worker, which must serve on",
    Uses.OWN: "workers of its own",
    Uses.RECORD: "the record of the whole run",
}


def explain(name: str) -> str:
    """The story of a check, or of every check of a requirement: those of workers, then those of hosts.

    Raises:
        Misuse: There is none of this name.
    """
    of_hosts = [check for check in every_host_check() if name in (check.id, check.requirement.id)]
    try:
        stories = [_story(check) for check in find(name)]
    except Misuse:
        if not of_hosts:
            raise
        stories = []
    return "\n".join([*stories, *map(_host_story, of_hosts)])


def _story(check: Check) -> str:
    from .mutants import every_mutant

    caught = [
        f"{mutant.name}: {mutant.sentence}"
        for mutant in every_mutant()
        if {check.id, check.requirement.id} & set(mutant.killed_by)
    ]
    parts = [
        ("clause", check.requirement.clause),
        ("passes when", check.title),
        ("why", check.why),
        ("fails when a worker", check.broken),
        ("fix", check.fix),
        ("seen in", check.source),
        ("uses", _PROCESSES[check.uses]),
        ("needs", _needs(check.needs)),
        ("also shows", ", ".join(requirement.id for requirement in check.also)),
        ("known to catch", "\n".join(caught)),
    ]
    return _told(f"{check.id}  ({check.level}, {check.severity}{'' if check.scored else ', not scored'})", parts)


def _host_story(check: HostCheck) -> str:
    parts = [
        ("clause", check.requirement.clause),
        ("passes when", check.title),
        ("fails when a host", check.broken),
        ("seen in", check.source),
        ("also shows", ", ".join(requirement.id for requirement in check.also)),
        ("run with", f"sandport-conformance host --only {check.id} -- HOST COMMAND"),
    ]
    return _told(f"{check.id}  (a host, {check.severity})", parts)


def _told(head: str, parts: list[tuple[str, str]]) -> str:
    lines = [head]
    for label, text in parts:
        if text:
            lines.append(f"  {label}:")
            for paragraph in text.splitlines():
                lines += textwrap.wrap(paragraph, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _needs(needs: Needs) -> str:
    parts = [f"the methods of the group {group!r}" for group in needs.groups]
    parts += [f"{name} = {' or '.join(map(str, values))}" for name, values in needs.capabilities.items()]
    parts += [f"commands.{name}" for name in needs.commands]
    return ", ".join(parts)
