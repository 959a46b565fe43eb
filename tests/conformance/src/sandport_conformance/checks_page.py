"""CHECKS.md: every check with its clause, its reason, who failed it in public, and what it catches.

`python -m sandport_conformance.checks_page --write` (or `--check`) makes it from the checks, the broken workers, and
`protocol/SPEC.md`, `exceptions.toml` and `tests/museum` of the workspace; and before it `reports.json`, which has what
the museum says of the checks.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from .broken_examples import BrokenExample, examples_of
from .catalogue import every_check, natural
from .declaration import LEVELS, Check
from .explanation import needs_of
from .hosting.catalogue import every_host_check
from .hosting.declaration import HostCheck
from .levels import LEVEL_MEANINGS
from .outcomes import Severity
from .reports import REPORTS, reports_of, written_for
from .requirements import Requirement, requirements

_Any = TypeVar("_Any", bound=Check | HostCheck)

_KIT = Path(__file__).parents[2]
_PAGE = _KIT / "CHECKS.md"
_SPEC = _KIT.parents[1] / "protocol/SPEC.md"
_SPEC_LINK = "../../protocol/SPEC.md"
_EXCEPTIONS = _KIT / "exceptions.toml"
_MUSEUM = _KIT.parents[1] / "tests/museum"
_REPORTS = Path(__file__).with_name(REPORTS)

_HEAD = """# What the kit checks

Written by `python -m sandport_conformance.checks_page --write` from the checks themselves.

Each entry is a requirement of [SPEC.md]({spec}) with its clause, and then each check of it: what a worker does that
passes, why that matters to whoever uses it, what fails, and

- *Seen:* public reports of just this, by project and number;
- *Catches:* workers of the kit that are broken on purpose and that the check must fail. What follows is the shortest of
  them that does not stand further up: the lines in which it is not like the sound worker.

`sandport-conformance explain ID` prints the same, and how to mend it. What breaks a MUST fails the run, a SHOULD warns.

{counts}
"""


def page(spec: str) -> str:
    """The page.

    Args:
        spec: The text of SPEC.md.
    """
    return "\n".join(_Page(spec).lines()) + "\n"


class _Page:
    def __init__(self, spec: str) -> None:
        self.places = _places(spec)
        self.checks = every_check()
        self.host_checks = every_host_check()
        self.shown: set[str] = set()
        """Broken workers whose lines stand on the page already."""

    def lines(self) -> Iterator[str]:
        mutants = {example.mutant.name for check in self.checks for example in examples_of(check)}
        counts = (
            f"{len(self.checks)} checks of workers and {len(self.host_checks)} of hosts; "
            f"{len(mutants)} broken workers, each of them caught."
        )
        yield from _HEAD.format(spec=_SPEC_LINK, counts=counts).splitlines()
        yield ""
        yield from self._contents()
        for level in _levels(self.checks):
            yield from self._level(level)
        yield from self._hosts()
        yield from _unseen()

    # -------------------------------------------------------------- where to find what

    def _contents(self) -> Iterator[str]:
        yield "## Where to find what"
        yield ""
        for level in _levels(self.checks):
            yield f"**[{level}, {LEVEL_MEANINGS[level].name}](#{_slug(_level_title(level))})**"
            yield ""
            for chapter, checks in _by_chapter(check for check in self.checks if check.level == level).items():
                yield f"- {chapter}: " + _ids(checks, "")
            yield ""
        yield "**[Hosts](#hosts)**"
        yield ""
        for chapter, host_checks in _by_chapter(self.host_checks).items():
            yield f"- {chapter}: " + _ids(host_checks, "-host")
        yield ""
        yield "**[What no check shows](#what-no-check-shows)**"
        yield ""

    # -------------------------------------------------------------- workers

    def _level(self, level: str) -> Iterator[str]:
        meaning = LEVEL_MEANINGS[level]
        checks = [check for check in self.checks if check.level == level]
        yield f"## {_level_title(level)}"
        yield ""
        yield f"{meaning.judges} **Who passes:** {meaning.means[:1].lower()}{meaning.means[1:]}"
        yield f"It needs {meaning.needs}. {len(checks)} checks."
        yield ""
        for chapter, of_chapter in _by_chapter(checks).items():
            yield f"### {level} {chapter}"
            yield ""
            for requirement, together in _by_requirement(of_chapter):
                yield f"#### {requirement.id}"
                yield ""
                yield from self._clause(requirement)
                for check in together:
                    yield from self._check(check)

    def _clause(self, requirement: Requirement) -> Iterator[str]:
        yield f"> {requirement.clause} [SPEC.md]({_SPEC_LINK}#{self.places[requirement.id]})"
        yield ""

    def _check(self, check: Check) -> Iterator[str]:
        yield f"**{check.id}** {check.title}" + ("" if _is_as_its_requirement(check) else f" ({check.severity})")
        yield ""
        yield f"- *Why:* {check.why}"
        yield f"- *Fails a worker that* {check.broken}."
        if needs := needs_of(check.needs):
            yield f"- *Asked of workers with* {needs}."
        if check.also:
            yield "- *Shows too:* " + ", ".join(one.id for one in check.also)
        if reports := reports_of(check):
            yield f"- *Seen:* {_quoted(reports)}"
        examples = examples_of(check)
        for example in examples:
            yield f"- *Catches* `{example.mutant.name.partition(':')[2]}`: {example.mutant.sentence}"
        yield ""
        if telling := self._most_telling(examples):
            yield "```text"
            yield from telling.code.splitlines()
            yield "```"
            yield ""
            self.shown.add(telling.mutant.name)

    def _most_telling(self, examples: Iterable[BrokenExample]) -> BrokenExample | None:
        """The shortest that does not stand on the page yet."""
        new = [example for example in examples if example.is_short and example.mutant.name not in self.shown]
        return min(new, key=lambda example: len(example.code.splitlines()), default=None)

    # -------------------------------------------------------------- hosts

    def _hosts(self) -> Iterator[str]:
        yield "## Hosts"
        yield ""
        yield "What `sandport-conformance host -- HOST COMMAND` judges; see [HOSTS.md](HOSTS.md). Each check plays a"
        yield "worker that misbehaves, and looks at what the host makes of it. They catch one host that is"
        yield f"broken in each of these ways, `adapters/careless_host.py`. {len(self.host_checks)} checks."
        yield ""
        for chapter, of_chapter in _by_chapter(self.host_checks).items():
            yield f"### Hosts: {chapter}"
            yield ""
            for requirement, together in _by_requirement(of_chapter):
                yield f"#### {requirement.id} (host)"
                yield ""
                yield from self._clause(requirement)
                for check in together:
                    yield f"**{check.id}** {check.title}"
                    yield ""
                    yield f"- *Why:* {check.why}"
                    yield f"- *Fails a host that* {check.broken}."
                    if check.also:
                        yield "- *Shows too:* " + ", ".join(one.id for one in check.also)
                    if reports := reports_of(check):
                        yield f"- *Seen:* {_quoted(reports)}"
                    yield ""


def _unseen() -> Iterator[str]:
    yield "## What no check shows"
    yield ""
    yield "Requirements that no black box can see, with the test of this repository that shows them instead."
    yield ""
    excused = tomllib.loads(_EXCEPTIONS.read_text(encoding="utf-8"))
    yield from _table_of(excused["exception"])
    yield ""
    yield "Of those that bind hosts these are not judged on a host:"
    yield ""
    yield from _table_of(excused["on_hosts"])
    yield ""
    rest = ", ".join(one.id for one in requirements().values() if one.level == "-")
    yield f"{rest} bind those who write the protocol, and no program."


def _table_of(excused: Iterable[dict[str, str]]) -> Iterator[str]:
    yield "| requirement | why | shown by |"
    yield "|---|---|---|"
    for entry in excused:
        path, _, name = entry.get("test", "").partition("::")
        sentence = name.removeprefix("test_").partition("[")[0].replace("_", " ")
        shown = f"[{sentence}](../../{path})" if path else "nothing yet"
        yield f"| {entry['requirement']} | {entry['reason']} | {shown} |"


def _is_as_its_requirement(check: Check) -> bool:
    return check.severity is check.requirement.severity or check.severity is Severity.MUST


def _quoted(reports: Iterable[str]) -> str:
    return ", ".join(f"`{one}`" for one in reports)


def _levels(checks: Iterable[Check]) -> list[str]:
    present = {check.level for check in checks}
    return [level for level in LEVELS if level in present]


def _level_title(level: str) -> str:
    return f"{level}: {LEVEL_MEANINGS[level].name}"


def _ids(checks: Iterable[Check | HostCheck], suffix: str) -> str:
    """Links to requirements, the letters of each family once: `FRAME 1 2 3`."""
    families: dict[str, list[str]] = {}
    for requirement, _ in _by_requirement(checks):
        family, _, number = requirement.id.partition("-")
        families.setdefault(family, []).append(f"[{number}](#{requirement.id.lower()}{suffix})")
    return ", ".join(f"{family} {' '.join(links)}" for family, links in families.items())


def _by_chapter(checks: Iterable[_Any]) -> dict[str, list[_Any]]:
    found: dict[str, list[_Any]] = {}
    order = {requirement.chapter: n for n, requirement in enumerate(requirements().values())}
    for check in sorted(checks, key=lambda check: order[check.requirement.chapter]):
        found.setdefault(check.requirement.chapter, []).append(check)
    return found


def _by_requirement(checks: Iterable[_Any]) -> list[tuple[Requirement, list[_Any]]]:
    found: dict[str, list[_Any]] = {}
    for check in sorted(checks, key=lambda check: natural(check.id)):
        found.setdefault(check.requirement.id, []).append(check)
    return [(together[0].requirement, together) for together in found.values()]


def _places(spec: str) -> dict[str, str]:
    """The anchor of the heading that each requirement stands under."""
    found, anchor = {}, ""
    for line in spec.splitlines():
        if heading := re.match(r"#{2,4} +(.+)$", line):
            anchor = _slug(heading[1])
        elif requirement := re.match(r"- \*\*([A-Z]+-[0-9]+)\*\*", line):
            found[requirement[1]] = anchor
    return found


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def museum_reports() -> str:
    """The content of reports.json: by the check's id, what the museum shows with it and what it does not say itself."""
    found: dict[str, list[str]] = {}
    checks: tuple[Check | HostCheck, ...] = (*every_check(), *every_host_check())
    by_name = {f"{check.run.__module__}.{check.run.__name__}": check for check in checks}
    for page_of_rows in ("rows.toml", "peers.toml"):
        for row in tomllib.loads((_MUSEUM / page_of_rows).read_text(encoding="utf-8"))["row"]:
            for node in (*row.get("tests", ()), *(one["test"] for one in row.get("also", ()))):
                path, _, function = node.partition("::")
                module = path.removeprefix("tests/conformance/src/").removesuffix(".py").replace("/", ".")
                if check := by_name.get(f"{module}.{function}"):
                    known = (*written_for(check), *found.setdefault(check.id, []))
                    found[check.id] += [one for one in row["sources"] if "#" in one and not _is_among(one, known)]
    kept = {name: found[name] for name in sorted(found, key=natural) if found[name]}
    return json.dumps(kept, indent=1, ensure_ascii=False) + "\n"


def _is_among(report: str, known: Iterable[str]) -> bool:
    """Whether a report is known already; some are named without their owner."""
    return any(report == one or one.endswith(f"/{report}") or report.endswith(f"/{one}") for one in known)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where `--check` finds CHECKS.md old."""
    parser = argparse.ArgumentParser(
        prog="python -m sandport_conformance.checks_page", description="The page of all checks."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write CHECKS.md")
    action.add_argument("--check", action="store_true", help="compare CHECKS.md")
    chosen = parser.parse_args(arguments)
    reports = museum_reports()
    if chosen.write:
        _REPORTS.write_text(reports, encoding="utf-8")  # which the page reads
    elif _REPORTS.read_text(encoding="utf-8") != reports:
        sys.stderr.write(f"{REPORTS} is old: run python -m sandport_conformance.checks_page --write\n")
        return 1
    text = page(_SPEC.read_text(encoding="utf-8"))
    if chosen.write:
        _PAGE.write_text(text, encoding="utf-8")
    elif not _PAGE.is_file() or _PAGE.read_text(encoding="utf-8") != text:
        sys.stderr.write("CHECKS.md is old: run python -m sandport_conformance.checks_page --write\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
