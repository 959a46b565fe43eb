"""The prose of the schema: docstrings of classes and of their attributes, read from the source.

An attribute's docstring is the string that stands below it. Python throws it away, so the source is parsed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys

_PACKAGE = "sandport_protocol."


def text_of(docstring: str | None) -> str:
    """A docstring with each paragraph on one line, and in JSON's words."""
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    joined = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r"\bNone\b", "null", joined)


def attributes_of(cls: type) -> dict[str, str]:
    """What stands below each attribute of a class, by the attribute's Python name; a subclass's text wins."""
    found: dict[str, str] = {}
    for parent in reversed(cls.__mro__):
        if parent.__module__.startswith(_PACKAGE):
            found.update(_classes_in(parent.__module__)[parent.__name__])
    return found


@functools.cache
def _classes_in(module: str) -> dict[str, dict[str, str]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: _below_attributes(node.body) for node in tree.body if isinstance(node, ast.ClassDef)}


def _below_attributes(body: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text_of(text)
            case _:
                pass  # not an attribute, or one without a text
    return found
