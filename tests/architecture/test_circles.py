"""No module imports one that leads back to it, whether at the top or late; for types alone it may."""

from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import grimp
import msgspec
import pytest

from tests.architecture.workspace import MEMBERS


class Allowed(msgspec.Struct, frozen=True, kw_only=True):
    """Imports that close a circle, and may."""

    importer: str
    imported: tuple[str, ...]
    reason: str


ALLOWED: tuple[Allowed, ...] = ()


def read(*packages: str) -> grimp.ImportGraph:
    return grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)


def complaints(graph: grimp.ImportGraph, allowed: Sequence[Allowed]) -> list[str]:
    """The first circle that is not allowed, and each import that is but closes none; the graph is used up."""
    edges = [(one.importer, imported) for one in allowed for imported in one.imported]
    known = {edge for edge in edges if _lines(graph, *edge)}
    for importer, imported in known:
        graph.remove_import(importer=importer, imported=imported)
    said = [
        f"{importer} imports {imported}: is allowed, and closes no circle; take it out of the list"
        for importer, imported in edges
        if (importer, imported) not in known or not graph.chain_exists(importer=imported, imported=importer)
    ]
    try:
        TopologicalSorter({one: graph.find_modules_directly_imported_by(one) for one in graph.modules}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1][:0:-1]
        first = circle.index(min(circle))
        circle = [*circle[first:], *circle[: first + 1]]
        steps = [f"{one} (line {_lines(graph, one, other)[0]})" for one, other in pairwise(circle)]
        said.append(" imports ".join([*steps, circle[-1]]))
    return said


def _lines(graph: grimp.ImportGraph, importer: str, imported: str) -> list[int]:
    return [one["line_number"] for one in graph.get_import_details(importer=importer, imported=imported)]


def test_no_module_of_the_workspace_imports_one_that_leads_back_to_it() -> None:
    assert complaints(read(*(dist.package for dist in MEMBERS)), ALLOWED) == []


Plant = Callable[[Mapping[str, str]], grimp.ImportGraph]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Makes a package `ring` of modules that say what they are given, and reads it."""

    def planted(modules: Mapping[str, str]) -> grimp.ImportGraph:
        folder = tmp_path / "ring"
        folder.mkdir()
        for name, code in {"__init__": "", "a": "", "b": "", "c": "", **modules}.items():
            (folder / f"{name}.py").write_text(code + "\n", encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        return read("ring")

    return planted


FOR_TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a"


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({"a": "import ring.b", "b": "from .a import x"}, "ring.a (line 1) imports ring.b (line 1) imports ring.a"),
        (
            {"a": "from . import b", "b": "def f():\n    from . import a"},
            "ring.a (line 1) imports ring.b (line 2) imports ring.a",
        ),
        (
            {"a": "from . import c", "c": "from . import b", "b": "from . import a"},
            "ring.a (line 1) imports ring.c (line 1) imports ring.b (line 1) imports ring.a",
        ),
        (
            {"__init__": "from .a import x", "a": "from ring import y"},
            "ring (line 1) imports ring.a (line 1) imports ring",
        ),
    ],
    ids=["two", "late", "three", "package"],
)
def test_a_circle_is_told_with_the_lines_that_make_it(plant: Plant, modules: dict[str, str], said: str) -> None:
    assert complaints(plant(modules), ()) == [said]


def test_what_is_imported_for_types_alone_closes_no_circle(plant: Plant) -> None:
    assert complaints(plant({"a": "from . import b", "b": FOR_TYPES}), ()) == []


def test_a_circle_that_is_allowed_is_not_told(plant: Plant) -> None:
    allowed = Allowed(importer="ring.b", imported=("ring.a",), reason="planted")
    assert complaints(plant({"a": "from . import b", "b": "from . import a"}), (allowed,)) == []


@pytest.mark.parametrize("imported", ["ring.b", "ring.c", "ring.gone"])
def test_what_is_allowed_and_closes_no_circle_any_more_is_told(plant: Plant, imported: str) -> None:
    allowed = Allowed(importer="ring.a", imported=(imported,), reason="planted")
    told = complaints(plant({"a": "from . import b", "b": FOR_TYPES}), (allowed,))
    assert told == [f"ring.a imports {imported}: is allowed, and closes no circle; take it out of the list"]
