"""What a mirror removes from its target, and what it never does."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings

from host.tests.sync.conftest import MEMORY, Sandbox
from host.tests.sync.test_faithful import trees, without_times_of_directories
from host.tests.sync.trees import Directory, File, Link, Node, Seen, look, make, names_below, scratch_below
from sandport.sync import (
    SourceMissingError,
    SyncCancelledError,
    SyncError,
    SyncResult,
    TargetBusyError,
    UnsafeTargetError,
    copy_in,
    copy_out,
)
from sandport.sync.selection import Selection


def selection(*patterns: str, gitignore: bool = False) -> Selection:
    found = Selection.build(patterns, gitignore=gitignore)
    assert found is not None
    return found


def counts(result: SyncResult) -> dict[str, object]:
    """All that a dry run must tell as the copy itself does; what was removed, in any order."""
    names = ("files", "directories", "links", "total_bytes", "skipped", "refused", "excluded", "deleted")
    return {name: getattr(result, name) for name in names} | {"deleted_paths": set(result.deleted_paths)}


OLD = Directory(
    {
        b"kept": File(b"old"),
        b"gone": File(b"old"),
        b"dangling": Link(b"nowhere"),
        b"sub": Directory({b"kept": File(b"old"), b"gone": Directory({b"f": File(b"old"), b"l": Link(b"/etc")})}),
        b"file": Directory({b"f": File(b"old"), b"d": Directory({})}),
        b"directory": File(b"old"),
        b"link": Directory({b"f": File(b"old")}),
        b"below": Link(b"sub"),
    }
)
NEW = Directory(
    {
        b"kept": File(b"new"),
        b"sub": Directory({b"kept": File(b"new")}, 0o710),
        b"file": File(b"new"),
        b"directory": Directory({b"f": File(b"new")}),
        b"link": Link(b"kept"),
        b"below": Directory({b"kept": File(b"new")}),
    }
)
REMOVED = {
    *(b"gone", b"dangling", b"sub/gone", b"sub/gone/f", b"sub/gone/l", b"file", b"file/f", b"file/d", b"directory"),
    *(b"link", b"link/f", b"below"),
}


def test_a_mirror_is_the_source_and_tells_what_it_removed(sandbox: Sandbox, tmp_path: Path) -> None:
    """openclaw#74200: deletions in the source were not applied."""
    make(tmp_path / "source", NEW)
    make(sandbox.path / "work", OLD)
    result = copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True)
    seen = look(sandbox.path / "work")
    wanted = look(tmp_path / "source")
    del seen[()], wanted[()]
    assert seen == wanted
    assert set(result.deleted_paths) == REMOVED
    assert result.deleted == len(REMOVED)
    again = copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True)
    assert again.deleted == 0


def test_without_it_nothing_is_removed(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"new": File(b"new")}))
    make(sandbox.path / "work", OLD)
    result = copy_in(tmp_path / "source", sandbox.fd, b"work")
    assert names_below(sandbox.path / "work") == {b"new"} | {b"/".join(at) for at in _paths(OLD)}
    assert result.deleted == 0


def _paths(tree: Directory) -> set[tuple[bytes, ...]]:
    found: set[tuple[bytes, ...]] = set()
    for name, node in tree.children.items():
        found.add((name,))
        if isinstance(node, Directory):
            found |= {(name, *below) for below in _paths(node)}
    return found


def test_a_mirror_comes_out_too(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", NEW)
    make(tmp_path / "mine", OLD)
    result = copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=True)
    assert set(result.deleted_paths) == REMOVED
    assert without_times_of_directories(look(tmp_path / "mine")) == without_times_of_directories(
        {**look(sandbox.path / "out"), (): look(tmp_path / "mine")[()]}
    )


@settings(max_examples=40, deadline=None)
@given(trees(2), trees(2))
def test_after_a_mirror_any_target_is_the_source(old: Directory, new: Directory) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        base = Path(place)
        (base / "sandbox").mkdir()
        make(base / "source", new)
        make(base / "sandbox/work", old)
        before = look(base / "sandbox")
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        try:
            foreseen = copy_in(base / "source", root_fd, b"work", delete=True, dry_run=True)
            assert look(base / "sandbox") == before
            done = copy_in(base / "source", root_fd, b"work", delete=True)
        finally:
            os.close(root_fd)
        assert counts(foreseen) == counts(done)
        wanted = look(base / "source")
        assert inside(look(base / "sandbox/work")) == inside(wanted)
        missing = {at for at in before if at[:1] == (b"work",)} - {(b"work", *at) for at in wanted}
        assert {(b"work", *path.split(b"/")) for path in done.deleted_paths} >= missing


def inside(seen: Seen) -> Seen:
    """All but the top, whose mode and time are its own."""
    return {at: what for at, what in seen.items() if at}


def test_what_the_selection_leaves_out_survives_a_mirror(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"a": File(b"new"), b"x.log": File(b"source's")}))
    old: dict[bytes, Node] = {
        b"x.log": File(b"old"),
        b"gone": Directory({b"deep": Directory({b"y.log": File(b"old"), b"f": File()}), b"cache": Directory({})}),
        b"cache": Directory({b"f": File(b"old"), b"d": Directory({})}),
        b"all": Directory({b"f": File(b"old")}),
    }
    make(sandbox.path / "work", Directory(old))
    rules = selection("*.log", "/cache/")
    result = copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True, selection=rules)
    kept = {b"x.log", b"gone", b"gone/deep", b"gone/deep/y.log", b"cache", b"cache/f", b"cache/d"}
    assert names_below(sandbox.path / "work") == {b"a"} | kept
    assert (sandbox.path / "work/x.log").read_bytes() == b"old"
    assert set(result.deleted_paths) == {b"gone/deep/f", b"gone/cache", b"all", b"all/f"}
    assert result.excluded == 1


def test_the_sources_ignore_files_count_for_a_mirror_and_the_targets_own_do_not(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    ignoring = Directory({b".gitignore": File(b"*.o\n"), b"f": File()})
    make(tmp_path / "source", Directory({b"sub": ignoring, b"other": Directory({})}))
    old = Directory({b"x.o": File(b"old"), b"x.c": File(b"old")})
    planted = Directory({b".gitignore": File(b"*\n"), b"x.o": File(b"old")})
    make(sandbox.path / "work", Directory({b"sub": old, b"other": planted}))
    rules = selection(gitignore=True)
    copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True, selection=rules)
    assert names_below(sandbox.path / "work") == {b"sub", b"sub/.gitignore", b"sub/f", b"sub/x.o", b"other"}


def test_what_followed_links_lead_to_is_known_to_a_mirror(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "elsewhere", Directory({b"f": File(b"new"), b"d": Directory({b"g": File(b"new")})}))
    links: dict[bytes, Node] = {b"dir": Link(b"../elsewhere"), b"file": Link(b"../elsewhere/f"), b"not": Link(b"x")}
    make(tmp_path / "source", Directory(links))
    make(sandbox.path / "work", Directory({b"dir": Directory({b"gone": File()}), b"file": Link(b"f"), b"x": File()}))
    foreseen, done, again = (
        copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True, follow_symlinks=True, dry_run=dry_run)
        for dry_run in (True, False, False)
    )
    assert names_below(sandbox.path / "work") == {b"dir", b"dir/f", b"dir/d", b"dir/d/g", b"file", b"not"}
    assert counts(foreseen) == counts(done)
    assert set(done.deleted_paths) == {b"dir/gone", b"x"}
    assert again.deleted == 0


def test_a_directory_that_holds_what_must_stay_is_not_replaced_by_a_file(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"x": File(b"new")}))
    make(sandbox.path / "work", Directory({b"x": Directory({b"keep.log": File(), b"f": File()})}))
    with pytest.raises(TargetBusyError, match="must stay") as caught:
        copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True, selection=selection("*.log"))
    assert caught.value.path == b"work/x"
    assert names_below(sandbox.path) == {b"work", b"work/x", b"work/x/keep.log"}


def test_what_the_source_has_and_cannot_be_copied_survives_a_mirror(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    """A directory that may not be read says nothing of what is in it."""

    def copy(base: Path) -> None:
        tree: dict[bytes, Node] = {b"f": File(b"secret", 0o000), b"d": Directory({b"f": File()}, 0o000)}
        make(base / "source", Directory({**tree, b"n": File(b"new")}))
        os.mkfifo(base / "source/fifo")
        old = Directory({b"x": File(), b"d": Directory({b"x": File()})})
        (base / "sandbox").mkdir()
        make(base / "sandbox/work", Directory({b"f": File(b"old"), b"d": old, b"fifo": old, b"gone": old}))
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        result = copy_in(base / "source", root_fd, b"work", delete=True)
        assert set(result.deleted_paths) == {b"gone", b"gone/x", b"gone/d", b"gone/d/x"}
        kept = {b"d", b"d/x", b"d/d", b"d/d/x", b"fifo", b"fifo/x", b"fifo/d", b"fifo/d/x", b"f"}
        assert names_below(base / "sandbox/work") == kept | {b"n"}

    as_user(copy)


def test_shut_directories_are_emptied_and_those_that_stay_are_as_before(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    def copy(base: Path) -> None:
        make(base / "source", Directory({b"d": Directory({b"f": File(b"new")}, 0o555)}))
        (base / "sandbox").mkdir()
        shut = Directory({b"x": Directory({b"f": File()}, 0o000)}, 0o500)
        make(base / "sandbox/work", Directory({b"d": Directory({b"gone": File()}, 0o500), b"shut": shut}))
        root_fd = os.open(base / "sandbox", os.O_RDONLY)
        result = copy_in(base / "source", root_fd, b"work", delete=True)
        assert set(result.deleted_paths) == {b"d/gone", b"shut", b"shut/x", b"shut/x/f"}
        assert inside(look(base / "sandbox/work")) == inside(look(base / "source"))
        # What stays inside keeps its directory, with the mode that it had.
        make(base / "sandbox/work/shut", Directory({b"keep.log": File(), b"f": File()}, 0o500))
        copy_in(base / "source", root_fd, b"work", delete=True, selection=selection("*.log"))
        assert look(base / "sandbox/work/shut")[()][1] == 0o500
        assert names_below(base / "sandbox/work/shut") == {b"keep.log"}

    as_user(copy)


def test_a_mirror_removes_a_link_and_nothing_behind_it(sandbox: Sandbox, tmp_path: Path) -> None:
    """bytedance/deer-flow#5578: a planted link led a write onto the host; a deletion must not follow one either."""
    make(tmp_path / "outside", OLD)
    before = look(tmp_path / "outside")
    make(sandbox.path / "out", Directory({b"f": File(b"new")}))
    outside = os.fsencode(tmp_path / "outside")
    make(tmp_path / "mine", Directory({b"l": Link(outside), b"d": Directory({b"l": Link(outside + b"/sub")})}))
    result = copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=True)
    assert set(result.deleted_paths) == {b"l", b"d", b"d/l"}
    assert look(tmp_path / "outside") == before


def test_other_copies_scratch_is_left_to_them(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", Directory({b"f": File()}))
    make(sandbox.path / "work", Directory({b".sandport-0": Directory({b"f": File()}), b"gone": File()}))
    copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True)
    assert names_below(sandbox.path / "work") == {b"f", b".sandport-0", b".sandport-0/f"}


def test_a_mirror_that_is_cancelled_anywhere_leaves_whole_files_and_the_modes_that_were_there(
    as_user: Callable[[Callable[[Path], None]], None],
) -> None:
    def copy(base: Path) -> None:
        gone: dict[bytes, Node] = {b"gone%d" % number: File(b"old") for number in range(4)}
        old = Directory({b"d": Directory(gone, 0o500), b"shut": Directory(gone, 0o500), **gone})
        make(base / "source", Directory({b"d": Directory({b"f": File(b"new")}, 0o555), b"f": File(b"new")}))
        sent = look(base / "source")
        half_deleted = 0
        for asked_before in range(1_000):
            place = base / f"sandbox{asked_before}"
            place.mkdir()
            make(place / "work", old)
            before = look(place / "work")
            questions = iter(range(1_000))
            root_fd = os.open(place, os.O_RDONLY)
            cancelled = lambda: next(questions) >= asked_before  # noqa: E731, B023 - it is called in this round only
            try:
                done = copy_in(base / "source", root_fd, b"work", delete=True, cancelled=cancelled).deleted
            except SyncCancelledError:
                done = 0
            os.close(root_fd)
            assert os.listdir(place) == ["work"]
            assert scratch_below(place) == set()
            after = look(place / "work")
            for at, what in after.items():
                if what[0] == "file":
                    assert what in (before.get(at), sent.get(at))
            assert after[(b"d",)][1] in (0o500, 0o555)
            assert after.get((b"shut",), ("", 0o500))[1] == 0o500
            if done:
                assert done == 13
                break
            half_deleted += bool(before.keys() - after.keys())
        assert half_deleted > 5, "no cancel came while it deleted"

    as_user(copy)


@pytest.mark.parametrize("how", ["delete", "replace"])
def test_two_thousand_levels_are_removed_with_few_descriptors(
    deep_place: Path, in_child: Callable[[Callable[[], None]], None], how: str
) -> None:
    (deep_place / "source").mkdir()
    (deep_place / "source/f").write_bytes(b"new")
    (deep_place / "work").mkdir()
    fd = os.open(deep_place / "work", os.O_RDONLY)
    for _ in range(2_000):
        os.mkdir(b"n" * 100, dir_fd=fd)
        below = os.open(b"n" * 100, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)

    def copy() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        root_fd = os.open(deep_place, os.O_RDONLY)
        result = copy_in(deep_place / "source", root_fd, b"work", delete=how == "delete", replace=how == "replace")
        assert result.deleted == (2_000 if how == "delete" else 0)

    in_child(copy)
    assert os.listdir(deep_place / "work") == ["f"]
    assert set(os.listdir(deep_place)) == {"source", "work"}


# What is never emptied


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "users/me").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "users/me"))
    return tmp_path / "users/me"


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/", "root of the file system|home directory|current directory"),
        ("users/me", "home directory"),
        ("users", "home directory"),
        ("to-home", "home directory"),
        ("project", "git work tree"),
        ("worktree", "git work tree"),
        ("inputs", "comes from there"),
        ("sandbox", "comes from there"),
        (".", "comes from there|home directory|current directory"),
        ("here", "current directory lies below"),
        ("here/below", "it is the current directory"),
        ("venv", "the Python that runs this"),
        ("venv-of/project", "the Python that runs this"),
        ("pyenv/versions", "the Python that runs this"),
        ("state", "its state"),
        ("state-of/user", "its state"),
    ],
)
def test_some_directories_are_never_emptied(
    sandbox: Sandbox, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, target: str, why: str, dry_run: bool
) -> None:
    make(sandbox.path / "out", Directory({b"f": File(b"new")}))
    for name in ("project/.git", "worktree", "inputs/source", "here/below", "venv", "state/workers"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "worktree/.git").write_text("gitdir: elsewhere\n")
    (tmp_path / "to-home").symlink_to(home)
    (tmp_path / "venv-of/project/.venv").mkdir(parents=True)
    (tmp_path / "pyenv/versions/3").mkdir(parents=True)
    (tmp_path / "state-of/user/sandport").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ("venv" if target == "venv" else "venv-of/project/.venv")))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "pyenv/versions/3"))
    state = tmp_path / ("state" if target == "state" else "state-of/user/sandport")
    monkeypatch.chdir(tmp_path / "here/below")
    before = look(tmp_path)
    with pytest.raises(UnsafeTargetError, match=why) as caught:
        copy_out(
            sandbox.fd,
            b"out",
            tmp_path / target,
            delete=True,
            protect=[tmp_path / "inputs/source", tmp_path / "missing"],
            state=state,
            dry_run=dry_run,
        )
    assert caught.value.dispatched == "no"
    assert look(tmp_path) == before


@pytest.mark.parametrize("which", ["home", "source"])
@pytest.mark.parametrize("place", ["loop", "loop/below", "x" * 300])
def test_nothing_is_emptied_where_it_cannot_be_told_what_must_not_be(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, place: str
) -> None:
    """An error of the system was read as "it is not there", so that nothing was protected."""
    make(sandbox.path / "out", Directory({b"f": File(b"new")}))
    make(tmp_path / "mine", Directory({b"old": File()}))
    (tmp_path / "loop").symlink_to("loop")
    if which == "home":
        monkeypatch.setenv("HOME", str(tmp_path / place))
    before = look(tmp_path)
    protect = [tmp_path / place] if which == "source" else []
    with pytest.raises(SyncError, match="must not be emptied"):
        copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=True, protect=protect)
    assert look(tmp_path) == before


def test_the_current_directory_is_copied_into_but_never_mirrored(
    sandbox: Sandbox, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(sandbox.path / "out", Directory({b"f": File(b"new")}))
    make(tmp_path / "here", Directory({b"mine": File()}))
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UnsafeTargetError, match="it is the current directory"):
        copy_out(sandbox.fd, b"out", ".", delete=True)
    assert names_below(tmp_path / "here") == {b"mine"}
    copy_out(sandbox.fd, b"out", ".")
    assert names_below(tmp_path / "here") == {b"f", b"mine"}


def test_a_current_directory_that_is_gone_keeps_nobody_from_a_mirror(
    sandbox: Sandbox, tmp_path: Path, in_child: Callable[[Callable[[], None]], None]
) -> None:
    make(sandbox.path / "out", Directory({b"f": File(b"new")}))
    make(tmp_path / "mine", Directory({b"gone": File()}))

    def copy() -> None:
        (tmp_path / "here").mkdir()
        os.chdir(tmp_path / "here")
        (tmp_path / "here").rmdir()
        copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=True, protect=["relative"])

    in_child(copy)
    assert names_below(tmp_path / "mine") == {b"f"}


def test_a_git_work_tree_in_a_files_place_is_never_removed(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", Directory({b"x": File(b"new")}))
    (sandbox.path / "x").write_bytes(b"new")
    make(tmp_path / "mine", Directory({b"x": Directory({b".git": Directory({}), b"f": File()})}))
    for source, target in ((b"out", "mine"), (b"x", "mine")):
        with pytest.raises(UnsafeTargetError, match="git work tree"):
            copy_out(sandbox.fd, source, tmp_path / target, delete=True)
    assert names_below(tmp_path / "mine") == {b"x", b"x/.git", b"x/f"}


@pytest.mark.parametrize("how", ["delete", "replace"])
def test_a_source_inside_its_target_is_not_removed(sandbox: Sandbox, how: str) -> None:
    make(sandbox.path / "work", Directory({b"sub": Directory({b"source": Directory({b"f": File()})})}))
    before = look(sandbox.path)
    for destination in (b"work", b"work/sub"):
        with pytest.raises(UnsafeTargetError, match="comes from there"):
            copy_in(sandbox.path / "work/sub/source", sandbox.fd, destination, **{how: True})  # type: ignore[arg-type]
    assert names_below(sandbox.path) == {b"/".join(at) for at in before if at}


def test_nothing_is_deleted_on_the_word_of_a_source_that_is_taken_away(sandbox: Sandbox, tmp_path: Path) -> None:
    """A sandbox that ends in the middle of the copy must not empty the directory that mirrors it."""
    make(sandbox.path / "out", Directory({b"f%d" % number: File(b"x" * 10) for number in range(5)}))
    make(tmp_path / "mine", OLD)

    def take_away() -> bool:
        if (tmp_path / "mine/f0").exists() or (tmp_path / "mine/f4").exists():
            shutil.rmtree(sandbox.path / "out", ignore_errors=True)
        return False

    with pytest.raises(SourceMissingError, match="nothing was deleted"):
        copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=True, cancelled=take_away)
    assert names_below(tmp_path / "mine") >= {b"/".join(at) for at in _paths(OLD)}


def test_files_that_vanish_from_the_source_during_the_copy_stay_in_the_target(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "out", Directory({b"f%d" % number: File(b"new") for number in range(5)}))
    make(tmp_path / "mine", Directory({b"f%d" % number: File(b"old") for number in range(5)}))

    def remove_once_one_is_there() -> bool:
        if any(path.read_bytes() == b"new" for path in (tmp_path / "mine").glob("f?")):
            for path in (sandbox.path / "out").iterdir():
                path.unlink()
        return False

    result = copy_out(sandbox.fd, b"out", tmp_path / "mine", delete=True, cancelled=remove_once_one_is_there)
    assert result.deleted == 0
    assert len(names_below(tmp_path / "mine")) == 5
    assert len(result.changed) == 4
