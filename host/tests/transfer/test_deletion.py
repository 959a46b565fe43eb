"""What a mirror takes away over there is what it would take away here."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.tests.sync.trees import Directory, File, Link, Node, look, make
from sandport.sync.errors import PathOutsideRootError, SyncError, TargetBusyError
from sandport.sync.local import copy_in
from sandport.sync.mirror import KnownPaths
from sandport.sync.selection import Selection
from sandport.transfer.deletion import Deletion, Listing, Obstacles

names = st.sampled_from([b"a", b"b", b"c.x"])


def trees(depth: int = 2) -> st.SearchStrategy[Directory]:
    kinds: list[st.SearchStrategy[Node]] = [st.just(File()), st.just(Link(b"nowhere"))]
    if depth:
        kinds.append(trees(depth - 1))
    return st.dictionaries(names, st.one_of(kinds), max_size=3).map(Directory)


def listed(path: Path) -> Listing:
    """A listing of a tree on this machine."""
    listing = Listing([], [], [])
    for at, what in look(path).items():
        if at:
            kinds = {"directory": listing.directories, "link": listing.links}
            kinds.get(str(what[0]), listing.others).append(b"/".join(at))
    return listing


def known_in(path: Path, selection: Selection | None) -> KnownPaths:
    """What a tree holds, less what is left out."""
    known = KnownPaths()
    for at, what in look(path).items():
        name = b"/".join(at)
        if not at or (selection is not None and selection.matches(name, what[0] == "directory")):
            continue
        if what[0] == "directory":
            known.add_directory(name)
        else:
            known.add(name)
    return known


@given(source=trees(), target=trees(), exclude=st.sampled_from([[], ["*.x"], ["a"], ["b/a"]]))
@settings(max_examples=60)
def test_a_plan_is_what_a_local_mirror_does(source: Directory, target: Directory, exclude: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder / "source", source)
        make(folder / "target", target)
        listing = listed(folder / "target")
        root_fd = os.open(folder, os.O_RDONLY)
        try:
            result = copy_in(
                folder / "source", root_fd, b"target", delete=True, dry_run=True, selection=Selection.build(exclude)
            )
            wanted: object = sorted(result.deleted_paths)
        except SyncError as error:
            wanted = type(error)
        finally:
            os.close(root_fd)
        selection = Selection.build(exclude)
        try:
            known = known_in(folder / "source", selection)
            plan = Deletion(listing, known, KnownPaths(), selection, top=b"target")
            planned: object = sorted(
                path for part in (plan.first, plan.last) for path in (*part.directories, *part.others)
            )
        except SyncError as error:
            planned = type(error)
        assert planned == wanted


def test_what_could_not_be_read_stays_with_all_below_it() -> None:
    known, spared = KnownPaths(), KnownPaths()
    known.add_directory(b"d")
    spared.add(b"d/shut")
    listing = Listing([b"d", b"d/shut", b"d/shut/in", b"e"], [], [b"d/shut/file", b"d/x", b"e/y"])
    plan = Deletion(listing, known, spared, None, top=b"to")
    assert (plan.first.directories, plan.first.others) == ([], [])
    assert (sorted(plan.last.directories), sorted(plan.last.others)) == ([b"e"], [b"d/x", b"e/y"])


def test_deeper_directories_go_first() -> None:
    plan = Deletion(Listing([b"a", b"a/b", b"a/b/c"], [], []), KnownPaths(), KnownPaths(), None, top=b"")
    assert plan.last.directories == [b"a/b/c", b"a/b", b"a"]


def test_a_rehearsal_meets_what_a_copy_would() -> None:
    obstacles = Obstacles(Listing([b"d"], [b"l"], [b"f"]), b"to")
    for path, is_directory in ((b"new", True), (b"new", False), (b"d", True), (b"l", False), (b"f", False)):
        obstacles.meet(path, is_directory=is_directory)
    with pytest.raises(TargetBusyError, match="to/d"):
        obstacles.meet(b"d", is_directory=False)
    with pytest.raises(PathOutsideRootError, match="to/l"):
        obstacles.meet(b"l", is_directory=True)
    with pytest.raises(TargetBusyError, match="to/f"):
        obstacles.meet(b"f", is_directory=True)
