"""sdk/REFERENCE.md: what the author of a provider imports."""

import ast
from collections.abc import Iterator

from sandport_protocol.methods import METHODS, NOTIFICATIONS, Method
from tests.reference.markdown import definition, item, members, prose
from tests.reference.sources import assigned, find, public_names, tree_of

MODULES = (
    ("sandport_sdk.v1", "Everything that the author of a provider imports."),
    ("sandport_sdk.v1.machine", "Sandboxes on the worker's own machine, which outlive their worker."),
    ("sandport_sdk.v1.sync", "Moving files for the group `sync`."),
    ("sandport_sdk.worker", "Run a provider."),
    ("sandport_sdk.testing", "A host in memory, for the tests of a provider."),
)
PARTS = (("sandport_sdk.v1", "types"), ("sandport_sdk.v1", "errors"))
"""Modules that are offered as names; each has a section of its own."""

_BASES = {"Member", "Params", "Result", "Meta"}
_TYPES, _ERRORS = "sandport_protocol.v1", "sandport_protocol.errors"


def page() -> Iterator[str]:
    """The page, less its first line."""
    yield from (
        "# Reference of sandport-sdk",
        "",
        "What may be imported, and stays as it is while the wire's version is 1. How it fits together is in",
        "[README.md](README.md), the way from nothing to a provider in [GUIDE.md](GUIDE.md).",
    )
    for module, summary in MODULES:
        yield from ("", f"## `{module}`", "", summary)
        for name in public_names(module):
            if (module, name) not in PARTS:
                yield from definition(module, name)
    yield from _types()
    yield from _conditions()


def _types() -> Iterator[str]:
    """The structs of the wire, by the methods that use them."""
    yield from ("", "## `types`: the structs of the wire", "")
    yield "`from sandport_sdk.v1 import types`. In Python a member is in snake case, on the wire in camel case."
    unseen = {kind.__name__ for method in METHODS.values() if method.group == "session" for kind in _kinds(method)}
    unseen |= {notification.params.__name__ for notification in NOTIFICATIONS.values()} | _BASES | {"ProviderInfo"}
    for method in METHODS.values():
        if method.group == "session":
            continue
        names = " and ".join(f"`{kind.__name__}`" for kind in _kinds(method))
        yield from ("", *item(f"**`{method.name}`**", f"{names}. Repeat: {method.repeat}. Cancel: {method.cancel}."))
    for statement in tree_of(_TYPES).body:
        if isinstance(statement, ast.ClassDef) and statement.name not in unseen:
            bases = [base for base in map(ast.unparse, statement.bases) if base not in _BASES | {"Struct"}]
            name = f"{statement.name}({', '.join(bases)})" if bases else statement.name
            yield from ("", f"### `types.{name}`", "", *prose(ast.get_docstring(statement) or ""))
            yield from members(_TYPES, statement)


def _kinds(method: Method) -> tuple[type, type]:
    return method.params, method.result


def _conditions() -> Iterator[str]:
    yield from ("", "## `errors`: what a handler may raise", "")
    yield "`from sandport_sdk.v1 import errors`, each with a message, `dispatched=` and, where it helps, `detail=`."
    yield from definition(_ERRORS, "WireError", prefix="errors.")
    yield from ("", "| error | code | means |", "|---|---|---|")
    for statement in tree_of(_ERRORS).body:
        if isinstance(statement, ast.ClassDef) and any(ast.unparse(base) == "WireError" for base in statement.bases):
            codes = (one.value for one in statement.body if isinstance(one, ast.Assign) and "code" in assigned(one))
            means = " ".join((ast.get_docstring(statement) or "").split())
            yield f"| `{statement.name}` | {ast.unparse(next(codes))} | {means} |"
    for name in ("Detail", "Kept", "Partial"):
        _, struct, doc = find(_ERRORS, name)
        assert isinstance(struct, ast.ClassDef)
        yield from ("", f"### `errors.{name}`", "", *prose(doc), *members(_ERRORS, struct))
