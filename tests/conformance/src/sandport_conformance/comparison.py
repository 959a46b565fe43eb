"""What changed between two reports."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .outcomes import Misuse

_RANK = {"good": 0, "none": 0, "warning": 1, "known failure": 1, "bad": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two reports, side by side.

    Attributes:
        worse: Whether a check that was there before ends worse, or is gone.
        text: The differences, for a person.
    """

    worse: bool
    text: str


def compare(before: Path, after: Path) -> Comparison:
    """Compare two JSON reports of the kit.

    Raises:
        Misuse: A file is no such report.
    """
    old, new = _load(before), _load(after)
    was = {check["id"]: check for check in old["checks"]}
    now = {check["id"]: check for check in new["checks"]}
    lines = []
    worse = False
    for name in [*was, *(name for name in now if name not in was)]:
        if name not in now:
            lines.append(f"gone       {name}: was {was[name]['outcome']}")
            worse = True
        elif name not in was:
            lines.append(f"new        {name}: {_shown(now[name])}")
        elif (was[name]["outcome"], was[name]["verdict"]) != (now[name]["outcome"], now[name]["verdict"]):
            change = _RANK[now[name]["verdict"]] - _RANK[was[name]["verdict"]]
            label = "worse" if change > 0 else "better" if change < 0 else "different"
            worse = worse or change > 0
            lines.append(f"{label:10} {name}: was {was[name]['outcome']}, now {_shown(now[name])}")
    lines.append(f"before: {old['summary']}")
    lines.append(f"after:  {new['summary']}")
    return Comparison(worse=worse, text="\n".join(lines) + "\n")


def _shown(check: dict[str, Any]) -> str:
    return f"{check['outcome']}{': ' + check['reason'] if check['reason'] else ''}"


def _load(path: Path) -> dict[str, Any]:
    from . import schema
    from .report_json import report_schema

    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise Misuse(f"{path} is no report of this kit, which `run --json` writes: it is no JSON") from error
    rule = report_schema()
    if faults := schema.faults(report, rule, rule, "report"):
        raise Misuse(f"{path} is no report of this kit: {faults[0]}")
    return report
