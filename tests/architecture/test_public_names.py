"""What a package promises in `__all__` is there, and says what it is."""

import ast
import importlib
import inspect
from itertools import pairwise
from pathlib import Path

import pytest

from tests.architecture.workspace import MEMBERS

PUBLIC = ["sandport", "sandport.blocking", "sandport.errors", "sandport.hooks", "sandport_sdk.v1", "sandport_protocol"]


def documented_assignments(source: Path) -> set[str]:
    """Names that a module-level assignment makes, with a string below it or a comment above or beside it."""
    text = source.read_text(encoding="utf-8")
    lines = text.splitlines()
    body = ast.parse(text).body
    found: set[str] = set()
    for statement, following in pairwise([*body, None]):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                pass
            case _:
                continue
        below = (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        )
        above = statement.lineno > 1 and lines[statement.lineno - 2].startswith("#")
        last = lines[(statement.end_lineno or statement.lineno) - 1]
        beside = "  # " in last[statement.end_col_offset or 0 :]
        if below or above or beside:
            found.add(name)
    return found


@pytest.fixture(scope="module")
def documented_constants() -> set[str]:
    sources = [path for dist in MEMBERS for path in dist.source.rglob("*.py")]
    return set().union(*(documented_assignments(path) for path in sources))


def has_own_docstring(value: object) -> bool:
    """Whether somebody wrote a docstring for it; a base class's, or one that a decorator made, does not count."""
    if inspect.isclass(value):
        text = value.__dict__.get("__doc__") or ""
        return bool(text) and not text.startswith(f"{value.__name__}(")
    return bool(getattr(value, "__doc__", None))


@pytest.mark.parametrize("module_name", PUBLIC)
def test_every_public_name_exists_and_is_documented(module_name: str, documented_constants: set[str]) -> None:
    module = importlib.import_module(module_name)
    names = module.__all__
    assert names
    assert len(names) == len(set(names))
    silent = []
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
            documented = has_own_docstring(value)
        else:
            documented = name in documented_constants
        if not documented:
            silent.append(name)
    assert silent == []


@pytest.mark.parametrize("module_name", PUBLIC)
def test_a_public_module_says_what_it_is(module_name: str) -> None:
    assert inspect.getdoc(importlib.import_module(module_name))
