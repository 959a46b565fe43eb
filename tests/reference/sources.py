"""Where a name is defined, and what its source says of it.

The sources are read and not run, so that a member's own docstring, which no object has at run time, is there too.
"""

import ast
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(module: str) -> ast.Module:
    """A module's source, parsed."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise LookupError(f"there is no module {module}")
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def find(module: str, name: str) -> tuple[str, ast.stmt, str]:
    """The module and the statement that define a name, wherever `module` has it from, and its docstring.

    Raises:
        LookupError: It is not defined.
    """
    body = list(_statements(tree_of(module).body))
    for place, statement in enumerate(body):
        if isinstance(statement, ast.ClassDef | Function) and statement.name == name:
            return module, statement, ast.get_docstring(statement) or ""
        if name in assigned(statement):
            return module, statement, member_text(body[place + 1]) if place + 1 < len(body) else ""
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return find(_source(module, statement), alias.name)
    raise LookupError(f"{module} does not define {name}")


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module, and those that only a type checker runs."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _statements(statement.body)


def _source(module: str, statement: ast.ImportFrom) -> str:
    if not statement.level:
        return statement.module or ""
    spec = importlib.util.find_spec(module)
    package = module if spec is not None and spec.submodule_search_locations else module.rpartition(".")[0]
    return importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)


def assigned(statement: ast.stmt) -> set[str]:
    """The names that an assignment makes."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def member_text(statement: ast.stmt) -> str:
    """The docstring that stands behind a member."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    text = value.value if isinstance(value, ast.Constant) else None
    return " ".join(text.split()) if isinstance(text, str) else ""


def public_names(module: str) -> list[str]:
    """What a module offers: its `__all__`, or the functions that it defines."""
    for statement in tree_of(module).body:
        if isinstance(statement, ast.Assign) and "__all__" in assigned(statement):
            return [str(name) for name in ast.literal_eval(statement.value)]
    return [one.name for one in tree_of(module).body if isinstance(one, ast.FunctionDef) and one.name[0] != "_"]
