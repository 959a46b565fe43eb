"""The requirements of SPEC.md that have an id, and the tool that takes them over from there.

`python -m sandport_conformance.requirements --write` (or `--check`) reads `protocol/SPEC.md` of the workspace; each
line `- **ID** (LEVEL, BINDS): TEXT` is a requirement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from .outcomes import Severity

_LINE = re.compile(
    r"^- \*\*(?P<id>[A-Z]+-[0-9]+)\*\* \((?P<level>L[0-6]|-), (?P<binds>worker|host|both)\): (?P<clause>.+)$"
)
_NEAR_A_LINE = re.compile(r"\*\*[A-Z]+-[0-9]+\*\*")
_CHAPTER = re.compile(r"^## (?:[0-9]+\. )?(?P<title>.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One MUST or SHOULD of the specification.

    Attributes:
        id: Its stable id.
        level: The level of the kit that judges it, `L0` to `L6`; `-` where no black box can.
        severity: MUST where the clause has one, else SHOULD.
        binds: Whom: `worker`, `host` or `both`.
        chapter: The title of its chapter.
        clause: Its text.
    """

    id: str
    level: str
    severity: Severity
    binds: str
    chapter: str
    clause: str


@cache
def requirements() -> dict[str, Requirement]:
    """Every requirement, by its id, in the order of the specification."""
    text = files(__package__).joinpath("requirements.json").read_text(encoding="utf-8")
    found = [Requirement(**{**entry, "severity": Severity(entry["severity"])}) for entry in json.loads(text)]
    return {requirement.id: requirement for requirement in found}


def requirement(requirement_id: str) -> Requirement:
    """The requirement of an id.

    Raises:
        LookupError: SPEC.md has none of this id.
    """
    try:
        return requirements()[requirement_id]
    except KeyError:
        raise LookupError(f"SPEC.md has no requirement {requirement_id!r}") from None


def read_spec(text: str) -> list[Requirement]:
    """The requirements in the text of the specification.

    Raises:
        ValueError: A line names an id and is no requirement, an id stands twice, or a clause has neither MUST nor
            SHOULD.
    """
    found: dict[str, Requirement] = {}
    chapter = ""
    for number, line in enumerate(text.splitlines(), 1):
        if title := _CHAPTER.match(line):
            chapter = title["title"]
        match = _LINE.match(line)
        if match is None:
            if _NEAR_A_LINE.search(line):
                raise ValueError(f"line {number} is no requirement: {line[:80]!r}")
            continue
        clause = match["clause"]
        if match["id"] in found:
            raise ValueError(f"line {number}: {match['id']} stands there twice")
        if not re.search(r"\b(MUST|SHOULD)\b", clause):
            raise ValueError(f"line {number}: {match['id']} has neither MUST nor SHOULD")
        found[match["id"]] = Requirement(
            id=match["id"],
            level=match["level"],
            severity=Severity.MUST if re.search(r"\bMUST\b", clause) else Severity.SHOULD,
            binds=match["binds"],
            chapter=chapter,
            clause=clause,
        )
    return list(found.values())


def to_json(found: Sequence[Requirement]) -> str:
    """The content of requirements.json: one requirement a line."""
    lines = (json.dumps(asdict(requirement), ensure_ascii=False) for requirement in found)
    return "[\n" + ",\n".join(lines) + "\n]\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where `--check` finds requirements.json old."""
    import argparse
    import sys

    target = Path(__file__).with_name("requirements.json")
    spec = next(
        (folder / "protocol/SPEC.md" for folder in target.parents if (folder / "protocol/SPEC.md").is_file()), None
    )
    parser = argparse.ArgumentParser(
        prog="python -m sandport_conformance.requirements", description="Take the requirements over from SPEC.md."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write requirements.json")
    action.add_argument("--check", action="store_true", help="compare requirements.json")
    parser.add_argument("--spec", type=Path, default=spec, required=spec is None, help="default: %(default)s")
    chosen = parser.parse_args(arguments)
    text = to_json(read_spec(chosen.spec.read_text(encoding="utf-8")))
    if chosen.write:
        target.write_text(text, encoding="utf-8")
    elif target.read_text(encoding="utf-8") != text:
        sys.stderr.write(f"{target.name} is older than {chosen.spec.name}: run with --write\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
