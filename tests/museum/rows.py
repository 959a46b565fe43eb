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
PEERS = Path(__file__).with_name("peers.toml")

_SOURCE = re.compile(r"[\w-]+/[\w.-]+#\d+")
_PEER_SOURCE = re.compile(r"(?:[\w-]+[/ ])?[\w.-]+#\d+|[^#]+")
"""What peers' reports are called: with an owner where that is known; some stand in documents, without a number."""

FEATURES = {
    "callback": "calls from a sandbox to its host",
    "capture": "the capture of a sandbox",
    "clock": "a look at the vendor's clock",
    "cluster": "a provider for clusters",
    "docker": "a provider for Docker",
    "idle": "limits for idleness",
    "merge": "a merge on a common base",
    "names": "rules of the network by names of hosts",
    "pause": "pause and resume",
    "pool": "a pool of warm sandboxes",
    "ports": "ports of a sandbox",
    "redaction": "secrets masked in logs",
    "replace": "another sandbox in the place of a lost one",
    "sessions": "shells that stay",
    "ssh": "a provider over SSH",
    "templates": "builds of templates",
    "vendor": "a provider for a vendor's cloud",
}
"""What is not built yet and a row can wait for, in the words of the page."""

KIT_DECORATORS = {"check", "host_check"}
"""What makes a function of the kit a check."""


class Also(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A test that was written for something else, and shows a row too.

    Attributes:
        test: Test or check of the kit, as `path::function`.
        fails: What makes it fail, if the fault came back: the rest of "fails where ...".
    """

    test: str
    fails: str


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault that others reported.

    Attributes:
        id: Its number in the museum: a letter for the room, and two digits. `P` and three digits where it comes from
            another system of sandboxes; the digits are the row of the survey that it was found in.
        sources: Where it was reported, as `owner/repository#number`; of peers as the survey calls it.
        symptom: What its reporters saw.
        side: Which part of ours would have to fail for it.
        tests: Tests and checks of the kit that show it and carry its number or a source, as `path::function`.
        also: Tests that show it and do not carry its name.
        why_not: Why it cannot happen here, where no test can show it.
        waits_for: Which of `FEATURES` have to be built before all of it can be shown, or can happen at all.
        rest: What of it no test shows, for that reason or for the one that it says.
    """

    id: str
    sources: tuple[str, ...]
    symptom: str
    side: Literal["host", "sdk", "kit", "protocol", "provider"]
    tests: tuple[str, ...] = ()
    also: tuple[Also, ...] = ()
    why_not: str = ""
    waits_for: tuple[str, ...] = ()
    rest: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every test and check that shows it."""
        return (*self.tests, *(one.test for one in self.also))

    @property
    def is_peers(self) -> bool:
        """Whether it comes from another system of sandboxes."""
        return self.id.startswith("P")


def read_rows(text: str | None = None) -> tuple[Row, ...]:
    """The rows in the text of a `rows.toml`; by default of both files of ours.

    Raises:
        msgspec.ValidationError: A member is missing, unknown or of another type.
    """
    texts = [path.read_text(encoding="utf-8") for path in (ROWS, PEERS)] if text is None else [text]
    loaded = [msgspec.convert(tomllib.loads(one), dict[Literal["row"], tuple[Row, ...]]) for one in texts]
    return tuple(row for file in loaded for row in file["row"])


def problems_of(row: Row, root: Path = ROOT) -> list[str]:
    """What is wrong with a row, each as one line; empty where it holds.

    Args:
        row: The row.
        root: The folder that the paths of its tests start from.
    """
    return [*_of_words(row), *_of_completeness(row), *_of_tests(row, root)]


def _of_words(row: Row) -> list[str]:
    """What is wrong with its number, its sources and its symptom."""
    found = []
    if not re.fullmatch(r"P\d{3}" if row.is_peers else r"[A-Z]\d\d", row.id):
        found.append(f"{row.id}: a number is a letter and two digits, or P and three")
    if not row.sources:
        found.append(f"{row.id} names no source")
    form = _PEER_SOURCE if row.is_peers else _SOURCE
    found += [f"{row.id}: {name!r} is no owner/repository#number" for name in row.sources if not form.fullmatch(name)]
    if not row.symptom.endswith(".") or "\n" in row.symptom:
        found.append(f"{row.id}: the symptom is one sentence on one line")
    return found


def _of_completeness(row: Row) -> list[str]:
    """What it says too little of, or too much."""
    found = [f"{row.id}: {name!r} is nothing that is to be built" for name in row.waits_for if name not in FEATURES]
    if bool(row.nodes or row.waits_for) == bool(row.why_not):
        found.append(f"{row.id} needs tests, or why there are none, and not both")
    if row.waits_for and not row.rest:
        found.append(f"{row.id} waits for something, and its rest says not with what")
    if row.rest and not (row.waits_for or row.nodes):
        found.append(f"{row.id} has a rest, and nothing that it is the rest of")
    if len(set(row.nodes)) != len(row.nodes):
        found.append(f"{row.id} names a test twice")
    return found


def _of_tests(row: Row, root: Path) -> list[str]:
    """What is wrong with the tests that it names."""
    found = []
    reasons = {one.test: one.fails for one in row.also}
    for node in row.nodes:
        path, _, name = node.partition("::")
        text = shown_in(root / path).get(name)
        if text is None:
            found.append(f"{row.id}: {node} is no test and no check of the kit")
        elif node not in reasons and not mentions(text, row):
            found.append(f"{row.id}: {node} names neither {row.id} nor one of its sources")
        elif node in reasons and mentions(text, row):
            found.append(f"{row.id}: {node} carries its name, and belongs among the tests")
        elif not reasons.get(node, "said by its name").strip():
            found.append(f"{row.id}: {node} says not what makes it fail")
    return found


def mentions(text: str, row: Row) -> bool:
    """Whether a function's text has the row's number or one of its sources; an owner may stand before one without."""
    whole = [re.escape(name) for name in (row.id, *row.sources) if "/" in name or not row.is_peers]
    short = [re.escape(name) for name in (row.id, *row.sources) if "/" not in name and row.is_peers]
    short = [name.replace(r"\ ", "[/ ]") for name in short]
    names = rf"(?<![\w/-])(?:{'|'.join(whole) or '(?!)'})|(?<![\w-])(?:{'|'.join(short) or '(?!)'})"
    return re.search(rf"(?:{names})(?!\w)", text.replace(" PR #", "#")) is not None


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
