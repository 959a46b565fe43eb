"""A type has one definition, which those who need it import."""

import ast
from collections import defaultdict
from pathlib import Path

import sandport

SOURCES = Path(sandport.__file__).parent


def named_types(path: Path) -> list[tuple[str, str]]:
    """The names that a module gives to types that are made of others, each with what it stands for."""
    found = []
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() as value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Subscript() | ast.BinOp() as value)
            ) if name[0].isupper() and not name.isupper():
                found.append((name, ast.unparse(value)))
    return found


def test_no_module_spells_the_type_of_another_one_again() -> None:
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for named in named_types(path):
            places[named].append(path.relative_to(SOURCES).as_posix())
    assert "OnOutput" in {name for name, _ in places}
    assert {name: found for (name, _), found in places.items() if len(found) > 1} == {}
