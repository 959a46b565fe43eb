"""The rows of the museum: public reports of faults, and the tests that show that ours has them no more."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("rows.toml")

_SOURCE = re.compile(r"[\w-]+/[\w.-]+#\d+")

KIT_DECORATORS = {"check", "host_check"}
"""What makes a function of the kit a check."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault that others reported.

    Attributes:
        id: Its number in the museum: a letter for the room, and two digits.
        sources: Where it was reported, as `owner/repository#number`.
        symptom: What its reporters saw.
        side: Which part of ours would have to fail for it.
        tests: Tests and checks of the kit that show it, as `path::function`.
        why_not: Why it cannot happen here, where no test can show it.
    """

    id: str
    sources: tuple[str, ...]
    symptom: str
    side: Literal["host", "sdk", "kit", "protocol"]
    tests: tuple[str, ...] = ()
    why_not: str = ""


def read_rows(text: str | None = None) -> tuple[Row, ...]:
    """The rows in the text of a `rows.toml`; by default of ours.

    Raises:
        msgspec.ValidationError: A member is missing, unknown or of another type.
    """
    loaded = tomllib.loads(ROWS.read_text(encoding="utf-8") if text is None else text)
    return msgspec.convert(loaded, dict[Literal["row"], tuple[Row, ...]])["row"]


def problems_of(row: Row, root: Path = ROOT) -> list[str]:
    """What is wrong with a row, each as one line; empty where it holds.

    Args:
        row: The row.
        root: The folder that the paths of its tests start from.
    """
    found = []
    if not re.fullmatch(r"[A-Z]\d\d", row.id):
        found.append(f"{row.id}: a number is a letter and two digits")
    if not row.sources:
        found.append(f"{row.id} names no source")
    found += [
        f"{row.id}: {name!r} is no owner/repository#number" for name in row.sources if not _SOURCE.fullmatch(name)
    ]
    if not row.symptom.endswith(".") or "\n" in row.symptom:
        found.append(f"{row.id}: the symptom is one sentence on one line")
    if bool(row.tests) == bool(row.why_not):
        found.append(f"{row.id} needs tests, or why there are none, and not both")
    for node in row.tests:
        path, _, name = node.partition("::")
        text = shown_in(root / path).get(name)
        if text is None:
            found.append(f"{row.id}: {node} is no test and no check of the kit")
        elif not mentions(text, row):
            found.append(f"{row.id}: {node} names neither {row.id} nor one of its sources")
    return found


def mentions(text: str, row: Row) -> bool:
    """Whether a function's text has the row's number or one of its sources."""
    names = "|".join(re.escape(name) for name in (row.id, *row.sources))
    return re.search(rf"(?<![\w/-])(?:{names})(?!\w)", text.replace(" PR #", "#")) is not None


@cache
def shown_in(path: Path) -> dict[str, str]:
    """The text of every test and every check of the kit in a file, decorators included, by its name.

    Nothing is imported: a file that is not there has none.
    """
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (_is_test(path, node) or _is_check(node)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def _is_test(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return path.name.startswith("test_") and node.name.startswith("test_")


def _is_check(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id in KIT_DECORATORS
        for decorator in node.decorator_list
    )
