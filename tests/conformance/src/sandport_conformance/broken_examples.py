"""What a check catches: the workers that are broken on purpose, each with the lines of its source that break it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .declaration import Check
from .mutants import Mutant, every_mutant

_MUTANTS = Path(__file__).with_name("mutants")
_FEW_LINES = 8


@dataclass(frozen=True, slots=True)
class BrokenExample:
    """A worker that a check must fail.

    Attributes:
        mutant: Which.
        code: The classes that make it different from the sound worker, without their docstrings; empty where what it
            does stands in its base alone.
    """

    mutant: Mutant
    code: str

    @property
    def is_short(self) -> bool:
        """Whether the code is few lines, which say more than a sentence."""
        return 0 < len(self.code.splitlines()) <= _FEW_LINES


def examples_of(check: Check) -> tuple[BrokenExample, ...]:
    """The broken workers that a check must catch, in the order of their modules."""
    ids = {check.id, check.requirement.id}
    return tuple(BrokenExample(mutant, code_of(mutant)) for mutant in _mutants() if ids & set(mutant.killed_by))


@cache
def _mutants() -> tuple[Mutant, ...]:
    return every_mutant()  # which looks for their modules each time


@cache
def code_of(mutant: Mutant) -> str:
    """The lines that break a worker, as they stand in the mutant's source.

    Where the mutant only names a class of its module (`leases_class = TakesAnyGrant`), it is that class which is shown.
    """
    module, _, name = mutant.name.partition(":")
    lines, classes = _classes(module)
    shown: list[ast.ClassDef] = []
    wanted = [name]
    while wanted:
        node = classes[wanted.pop(0)]
        body = _body(node)
        used = [found for part in body for found in _classes_that_are_set(part) if found in classes]
        if not body:  # all that it does, its base does
            bases = (base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes)
            used = [base for base in bases if not classes[base].decorator_list]
        wanted += used
        if not body or any(not set(_classes_that_are_set(part)) & set(used) for part in body):
            shown.append(node)
    return "\n\n".join(_source(node, lines) for node in shown if _body(node))


@cache
def _classes(module: str) -> tuple[list[str], dict[str, ast.ClassDef]]:
    text = (_MUTANTS / f"{module}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    return text.splitlines(), {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _body(node: ast.ClassDef) -> list[ast.stmt]:
    has_docstring = ast.get_docstring(node) is not None
    return node.body[1:] if has_docstring else node.body


def _classes_that_are_set(part: ast.stmt) -> list[str]:
    """The names on the right of `something_class = Name`, or `= with_that(Name)`; none where this is something else."""
    if not isinstance(part, ast.Assign):
        return []
    named = [part.value, *(part.value.args if isinstance(part.value, ast.Call) else ())]
    return [node.id for node in named if isinstance(node, ast.Name)]


def _source(node: ast.ClassDef, lines: list[str]) -> str:
    body = _body(node)
    begin, end = body[0].lineno, body[-1].end_lineno or body[-1].lineno
    if isinstance(body[0], ast.FunctionDef) and body[0].decorator_list:
        begin = body[0].decorator_list[0].lineno
    bases = ", ".join(map(ast.unparse, node.bases))
    kept = [line.partition("  # noqa")[0] for line in lines[begin - 1 : end]]
    return "\n".join([f"class {node.name}({bases}):", *kept])
