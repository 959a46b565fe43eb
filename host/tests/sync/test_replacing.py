"""A tree in another one's place, what a dry run tells of every kind of copy, and whose it is what arrives."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from host.tests.sync.conftest import Sandbox
from host.tests.sync.test_mirroring import NEW, OLD, counts, inside, selection
from host.tests.sync.trees import Directory, File, Link, Node, look, make, names_below
from sandport.sync import SyncCancelledError, SyncResult, TargetBusyError, copy_in, copy_out, swap


@pytest.fixture(params=["exchange", "two renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "two renames":
        # Where the kernel refuses the exchange of two names, which is how it answers on some file systems.
        monkeypatch.setattr(swap, "_RENAME_EXCHANGE", 1 << 30)
    return str(request.param)


@pytest.mark.parametrize("old", [OLD, File(b"old"), Link(b"elsewhere"), None])
def test_a_replaced_tree_is_the_new_one_and_nothing_else(
    sandbox: Sandbox, tmp_path: Path, way: str, old: Node | None
) -> None:
    make(tmp_path / "source", NEW)
    make(tmp_path / "elsewhere", OLD)
    place(sandbox.path / "work", old)
    inode = os.lstat(sandbox.path / "work").st_ino if old is not None else 0
    result = copy_in(tmp_path / "source", sandbox.fd, b"work", replace=True)
    assert look(sandbox.path / "work") == look(tmp_path / "source")
    assert (sandbox.path / "work").stat().st_ino != inode
    assert names_below(sandbox.path) == {b"work"} | {b"work/" + name for name in names_below(tmp_path / "source")}
    assert result.deleted == 0


def place(path: Path, node: Node | None) -> None:
    if isinstance(node, Directory):
        make(path, node)
    elif isinstance(node, Link):
        path.symlink_to(os.fsdecode(node.target))
    elif node is not None:
        path.write_bytes(node.content)


@pytest.mark.parametrize("old", [OLD, File(b"old"), Link(b"elsewhere"), None])
def test_a_replaced_file_is_the_new_one(sandbox: Sandbox, tmp_path: Path, way: str, old: Node | None) -> None:
    (tmp_path / "f").write_bytes(b"new")
    (sandbox.path / "in").mkdir()
    place(sandbox.path / "in/f", old)
    copy_in(tmp_path / "f", sandbox.fd, b"in", replace=True)
    assert (sandbox.path / "in/f").read_bytes() == b"new"
    assert names_below(sandbox.path) == {b"in", b"in/f"}


def test_the_working_directory_is_replaced_by_being_emptied(sandbox: Sandbox, tmp_path: Path) -> None:
    make(tmp_path / "source", NEW)
    old = sandbox.path / "old"
    make(old, OLD)
    for name in os.listdir(old):
        (old / name).rename(sandbox.path / name)
    old.rmdir()
    inode = sandbox.path.stat().st_ino
    result = copy_in(tmp_path / "source", sandbox.fd, b".", replace=True, selection=selection("gone"))
    assert inside(look(sandbox.path)) == inside(look(tmp_path / "source"))
    assert sandbox.path.stat().st_ino == inode
    assert (result.deleted, result.excluded) == (0, 0)


def test_the_old_tree_is_whole_until_the_new_one_is(sandbox: Sandbox, tmp_path: Path, way: str) -> None:
    make(tmp_path / "source", NEW)
    make(sandbox.path / "work", OLD)
    before = look(sandbox.path / "work")
    seen = []

    def look_at_it() -> bool:
        seen.append(look(sandbox.path / "work") == before)
        return False

    copy_in(tmp_path / "source", sandbox.fd, b"work", replace=True, cancelled=look_at_it)
    assert len(seen) > 5
    assert all(seen)


@pytest.mark.parametrize("asked_before", [0, 2, 5, 9])
def test_a_cancelled_replacement_leaves_the_old_tree_and_nothing_beside_it(
    sandbox: Sandbox, tmp_path: Path, asked_before: int
) -> None:
    make(tmp_path / "source", NEW)
    make(sandbox.path / "work", OLD)
    before = look(sandbox.path / "work")
    questions = iter(range(1_000))
    with pytest.raises(SyncCancelledError) as caught:
        copy_in(
            tmp_path / "source", sandbox.fd, b"work", replace=True, cancelled=lambda: next(questions) >= asked_before
        )
    assert not hasattr(caught.value, "__notes__")
    assert look(sandbox.path / "work") == before
    assert os.listdir(sandbox.path) == ["work"]


def test_a_directory_that_somebody_fills_while_it_is_removed_goes_all_the_same(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the sandbox whose current directory is the replaced one can still write there for a while."""
    make(tmp_path / "source", NEW)
    make(sandbox.path / "work", Directory({b"d": Directory({b"f": File()})}))
    inside = os.open(sandbox.path / "work", os.O_RDONLY)
    rmdir = os.rmdir
    writes = iter(range(5))

    def refill(name: bytes, *, dir_fd: int) -> None:
        if next(writes, None) is not None:
            os.close(os.open(b"more", os.O_CREAT | os.O_WRONLY, dir_fd=inside))
        rmdir(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", refill)
    copy_in(tmp_path / "source", sandbox.fd, b"work", replace=True)
    monkeypatch.undo()
    os.close(inside)
    assert os.listdir(sandbox.path) == ["work"]
    assert next(writes, None) is None


def test_replace_and_delete_exclude_each_other(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one of them"):
        copy_in(tmp_path, sandbox.fd, b"work", replace=True, delete=True)


# Dry runs


@pytest.mark.parametrize("options", [{}, {"delete": True}, {"replace": True}])
@pytest.mark.parametrize("destination", [b"work", b"missing/work", b"."])
def test_a_dry_run_tells_what_the_copy_does_and_writes_nothing(
    sandbox: Sandbox, tmp_path: Path, options: dict[str, bool], destination: bytes
) -> None:
    new = Directory({**NEW.children, b"x.log": File(), b"fresh": Directory({b"d": Directory({}), b"f": File(b"12")})})
    make(tmp_path / "source", new)
    os.mkfifo(tmp_path / "source/fresh/fifo")
    clash = ("file", "directory", "link", "below")
    make(sandbox.path / "work", OLD)
    if not options:
        for name in clash:
            path = sandbox.path / "work" / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    rules = selection("*.log")
    before = look(tmp_path)

    def run(*, dry_run: bool) -> SyncResult:
        return copy_in(
            tmp_path / "source",
            sandbox.fd,
            destination,
            delete=options.get("delete", False),
            replace=options.get("replace", False),
            selection=rules,
            dry_run=dry_run,
        )

    foreseen = run(dry_run=True)
    assert look(tmp_path) == before
    assert counts(foreseen) == counts(run(dry_run=False))
    assert foreseen.files > 3
    assert foreseen.excluded == 1


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("target", ["mine", "missing/below", "mine/fresh"])
def test_a_dry_run_outward_tells_what_the_copy_does_and_writes_nothing(
    sandbox: Sandbox, tmp_path: Path, delete: bool, target: str
) -> None:
    make(sandbox.path / "out", Directory({**NEW.children, b"up": Link(b"../..")}))
    make(tmp_path / "mine", OLD if delete else Directory({b"gone": File()}))
    before = look(tmp_path)
    foreseen = copy_out(sandbox.fd, b"out", tmp_path / target, delete=delete, dry_run=True)
    single = copy_out(sandbox.fd, b"out/kept", tmp_path / target / "x", delete=delete, dry_run=True)
    assert look(tmp_path) == before
    assert counts(foreseen) == counts(copy_out(sandbox.fd, b"out", tmp_path / target, delete=delete))
    assert counts(single) == counts(copy_out(sandbox.fd, b"out/kept", tmp_path / target / "x", delete=delete))


@pytest.mark.parametrize("node", [File(b"text"), Link(b"text"), Directory({})])
def test_a_dry_run_foresees_what_is_in_the_way(sandbox: Sandbox, tmp_path: Path, node: Node) -> None:
    make(tmp_path / "source", Directory({b"x": node}))
    other: Node = File(b"kept") if isinstance(node, Directory) else Directory({b"kept": File()})
    make(sandbox.path / "work", Directory({b"x": other}))
    before = look(sandbox.path)
    for dry_run in (True, False):
        with pytest.raises(TargetBusyError) as caught:
            copy_in(tmp_path / "source", sandbox.fd, b"work", dry_run=dry_run)
        assert caught.value.path == b"work/x"
        assert inside(look(sandbox.path)).keys() == inside(before).keys()
    foreseen = copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True, dry_run=True)
    assert look(sandbox.path).keys() == before.keys()
    assert counts(foreseen) == counts(copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True))


# Whose it is


@pytest.mark.parametrize("destination", [b"fresh/deep/work", b"there", b"."])
def test_what_root_brings_into_a_sandbox_belongs_to_the_sandbox(
    sandbox: Sandbox, tmp_path: Path, destination: bytes
) -> None:
    """As an ordinary user, there is only one to whom it can belong."""
    make(tmp_path / "source", NEW)
    (tmp_path / "single").write_bytes(b"x")
    os.chmod(tmp_path / "single", 0o4755)
    make(sandbox.path / "there", Directory({b"kept": File(b"old"), b"sub": Directory({}), b"link": File(b"old")}))
    owner = (os.geteuid(), os.getegid())
    if os.geteuid() == 0:
        owner = (65_533, 65_532)
        os.chown(sandbox.path, *owner)
    existing = {sandbox.path / name for name in ("there", "there/sub")}
    copy_in(tmp_path / "source", sandbox.fd, destination)
    copy_in(tmp_path / "single", sandbox.fd, destination + b"/into/")
    made = [path for path in sandbox.path.rglob("*") if path not in existing]
    assert len(made) >= 10
    for path in made:
        status = path.lstat()
        if destination == b"there" or not path.is_relative_to(sandbox.path / "there"):
            assert (path, status.st_uid, status.st_gid) == (path, *owner)
    into = sandbox.path / os.fsdecode(destination)
    assert (into / "into/single").stat().st_mode & 0o7777 == 0o755
    seen = inside(look(into))
    for at, what in inside(look(tmp_path / "source")).items():
        assert seen[at] == what
