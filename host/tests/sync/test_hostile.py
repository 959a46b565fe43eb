"""A sandbox that swaps what is being copied: nothing outside is read, nothing outside is written or removed."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from host.tests.sync.conftest import MEMORY, Sandbox
from host.tests.sync.trees import Directory, File, Node, content_of, look, make, make_socket, scratch_below
from sandport.sync import SyncError, SyncResult, TreeMovedError, copy_in, copy_out

FLIPS = 10_000
COPIES = 200
SECRET = b"precious " * 100

AT_FDCWD = -100
RENAME_EXCHANGE = 2


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        yield Path(place)


def exchange(one: Path, other: Path) -> None:
    """Give each of two names what the other has, in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextmanager
def keeping_on(act: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Do something again and again in another process, which no lock of this interpreter slows down.

    Gives a function that tells whether it was done often enough.
    """
    rounds = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        try:
            while True:
                act()
                rounds[:] = (int.from_bytes(rounds[:]) + 1).to_bytes(8)
        finally:
            os._exit(1)

    def broken() -> bool:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    try:
        yield lambda: broken() or int.from_bytes(rounds[:]) >= FLIPS
        assert not broken(), "the other process failed, so it proves nothing"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rounds.close()


def flipping(real: Path, planted: Path) -> AbstractContextManager[Callable[[], bool]]:
    """Swap two names all the time."""

    def flip() -> None:
        while True:
            # A copy may have removed one of them; it counts only when there was something to swap.
            with suppress(FileNotFoundError):
                exchange(real, planted)
                return

    return keeping_on(flip)


def planting(name: Path, target: Path) -> AbstractContextManager[Callable[[], bool]]:
    """Make a name a link and a file in turn, whatever others put there."""
    spare = name.with_name("spare")

    def plant() -> None:
        spare.symlink_to(target)
        spare.replace(name)
        spare.touch()
        spare.replace(name)

    return keeping_on(plant)


def until(enough: Callable[[], bool], act: Callable[[int], None], *, copies: int = COPIES) -> None:
    for number in itertools.count():
        act(number)
        if number >= copies and enough():
            break


def everything_in(path: Path) -> bytes:
    return b"".join(content_of(what) for what in look(path).values())


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that no copy may read or change, with the names that the sandbox's has."""
    tree = {b"f%d" % number: File(SECRET) for number in range(4)}
    make(tmp_path / "outside", Directory({**tree, b"sub": Directory({b"f": File(SECRET)})}))
    return tmp_path / "outside"


def harmless() -> Directory:
    tree = {b"f%d" % number: File(b"harmless") for number in range(4)}
    return Directory({**tree, b"sub": Directory({b"f": File(b"harmless")})})


def test_a_directory_swapped_for_a_link_never_lets_the_copy_out_read_outside(
    sandbox: Sandbox, tmp_path: Path, outside: Path
) -> None:
    """A directory swapped for a link between check and use, as in upstream upload guards."""
    make(sandbox.path / "work", Directory({b"d": harmless()}))
    (sandbox.path / "link").symlink_to(outside)
    copied = []
    with flipping(sandbox.path / "work/d", sandbox.path / "link") as enough:

        def copy(number: int) -> None:
            target = tmp_path / f"back{number % 50}"
            for source in (b"work", b"work/d", b"work/d/sub", b"work/d/f1"):
                with suppress(SyncError):
                    copied.append(copy_out(sandbox.fd, source, target / source.decode().replace("/", "-")).files)

        until(enough, copy)
    assert sum(copied) > 0
    for target in tmp_path.glob("back*"):
        assert b"precious" not in everything_in(target)


def test_a_file_swapped_for_a_link_never_lets_the_copy_out_read_outside(
    sandbox: Sandbox, tmp_path: Path, outside: Path
) -> None:
    make(sandbox.path / "work", harmless())
    copied = []
    with planting(sandbox.path / "work/f1", outside / "f1") as enough:

        def copy(number: int) -> None:
            target = tmp_path / f"back{number % 50}"
            for source in (b"work", b"work/f1"):
                with suppress(SyncError):
                    copied.append(copy_out(sandbox.fd, source, target / source.decode().replace("/", "-")).files)

        until(enough, copy)
    assert sum(copied) > 0
    for target in tmp_path.glob("back*"):
        assert b"precious" not in everything_in(target)


def test_a_directory_swapped_for_a_link_never_lets_the_copy_in_write_outside(
    sandbox: Sandbox, tmp_path: Path, outside: Path
) -> None:
    """bytedance/deer-flow#5578: an upload followed a link that the sandbox had planted."""
    make(tmp_path / "source", Directory({b"d": harmless()}))
    make(sandbox.path / "work", Directory({b"d": harmless()}))
    (sandbox.path / "link").symlink_to(outside)
    before = look(outside)
    copied = []
    with flipping(sandbox.path / "work/d", sandbox.path / "link") as enough:

        def copy(_: int) -> None:
            for source, destination in (("", b"work"), ("d", b"work/d"), ("d/f1", b"work/d/f1"), ("d/f1", b"work/d/")):
                with suppress(SyncError):
                    copied.append(copy_in(tmp_path / "source" / source, sandbox.fd, destination).files)

        until(enough, copy)
    assert sum(copied) > 0
    assert look(outside) == before


def test_a_file_swapped_for_a_link_never_lets_the_copy_in_write_outside(
    sandbox: Sandbox, tmp_path: Path, outside: Path
) -> None:
    make(tmp_path / "source", harmless())
    make(sandbox.path / "work", harmless())
    before = look(outside)
    with planting(sandbox.path / "work/f1", outside / "f1") as enough:

        def copy(_: int) -> None:
            copy_in(tmp_path / "source", sandbox.fd, b"work")
            copy_in(tmp_path / "source/f1", sandbox.fd, b"work/f1")

        until(enough, copy)
    assert look(outside) == before


def special(kind: str, name: Path) -> None:
    """Make something that would hold up or surprise who opens it."""
    if kind == "FIFO":
        os.mkfifo(name)
    elif kind == "socket":
        make_socket(name)
    else:
        os.mknod(name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))


@pytest.mark.parametrize("kind", ["FIFO", "socket", *(["device"] if os.geteuid() == 0 else [])])
def test_a_file_swapped_for_something_special_holds_up_no_copy(sandbox: Sandbox, tmp_path: Path, kind: str) -> None:
    make(sandbox.path / "work", harmless())
    make(tmp_path / "source", harmless())
    special(kind, sandbox.path / "special")
    copied = []
    with flipping(sandbox.path / "work/f1", sandbox.path / "special") as enough:

        def copy(number: int) -> None:
            target = tmp_path / f"back{number % 50}"
            copied.append(copy_out(sandbox.fd, b"work", target / "work", delete=True).files)
            with suppress(SyncError):
                copy_out(sandbox.fd, b"work/f1", target / "f1")
            if number % 10 == 0:
                copy_in(tmp_path / "source", sandbox.fd, b"work", delete=True)

        until(enough, copy)
    assert min(copied) >= 4
    for target in tmp_path.glob("back*"):
        assert {what[0] for what in look(target).values()} == {"directory", "file"}


def every_copy(source: Path, sandbox: Sandbox, target: Path) -> Iterator[Callable[[], SyncResult]]:
    """Every kind of copy there is, in and out."""
    for place, destination in ((source, b"work"), (source / "d", b"work/d"), (source / "d/f1", b"work/d/f1")):
        yield partial(copy_in, place, sandbox.fd, destination)
        yield partial(copy_in, place, sandbox.fd, destination, delete=True)
        yield partial(copy_in, place, sandbox.fd, destination, replace=True)
    for name in (b"work", b"work/d"):
        yield partial(copy_out, sandbox.fd, name, target / os.fsdecode(name))
        yield partial(copy_out, sandbox.fd, name, target / os.fsdecode(name), delete=True)


@pytest.mark.parametrize("swapped", ["work", "work/d", "work/d/sub"])
@pytest.mark.parametrize("instead", ["link", "directory"])
def test_whatever_is_swapped_nothing_outside_is_read_written_or_removed(
    sandbox: Sandbox, tmp_path: Path, outside: Path, swapped: str, instead: str
) -> None:
    """The target itself, a parent of it or a directory in it changes places with a link, or is renamed away."""
    make(tmp_path / "source", Directory({b"d": harmless()}))
    more: dict[bytes, Node] = {b"more%d" % number: File(b"harmless") for number in range(20)}
    planted = sandbox.path / "planted"
    before = look(outside)
    done = removed = 0

    def plant() -> None:
        """What is swapped, and what with; some of the copies remove one of them."""
        if not os.path.lexists(planted):
            if instead == "link":
                planted.symlink_to(outside)
            else:
                make(planted, Directory({b"d": harmless(), **harmless().children, **more}))
        if not os.path.lexists(sandbox.path / swapped):
            with suppress(OSError):
                make(sandbox.path / swapped, Directory({b"d": harmless(), **harmless().children, **more}))
        with suppress(OSError):
            # Something that a mirror removes, in whichever of the two is there and is a directory.
            fd = os.open(swapped, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=sandbox.fd)
            try:
                os.close(os.open("gone", os.O_CREAT, dir_fd=fd))
            finally:
                os.close(fd)

    make(sandbox.path / "work", Directory({b"d": harmless()}))
    plant()
    with flipping(sandbox.path / swapped, planted) as enough:

        def copy(number: int) -> None:
            nonlocal done, removed
            for act in every_copy(tmp_path / "source", sandbox, tmp_path / f"back{number % 20}"):
                plant()
                with suppress(SyncError):
                    removed += act().deleted
                    done += 1

        until(enough, copy, copies=15)
    assert done > 0
    assert removed > 0
    assert look(outside) == before
    for target in tmp_path.glob("back*"):
        assert b"precious" not in everything_in(target)


def nest(path: Path, names: list[str]) -> Path:
    for name in names:
        path = path / name
        path.mkdir()
    return path


LEVELS = [f"n{level}" for level in range(60)]
"""Deeper than directories are kept open, so that the way up has to be found again."""


def test_a_directory_moved_outside_while_the_copy_is_deep_inside_does_not_lead_there(
    sandbox: Sandbox, tmp_path: Path, outside: Path
) -> None:
    """The way up must not be `..` alone: after the move that is a directory of somebody else's."""
    (nest(sandbox.path, ["work", *LEVELS]) / "reached").write_bytes(b"harmless")
    for level in (3, 8):
        (sandbox.path / "work" / "/".join(LEVELS[:level]) / "z").mkdir()
    moved = sandbox.path / "work" / "/".join(LEVELS[:10])

    def move_when_deep() -> bool:
        if moved.exists() and any(tmp_path.glob(".sandport-*/**/reached")):
            # Beside the secrets: that is where `..` leads now.
            moved.rename(outside / "moved")
        return False

    result = copy_out(sandbox.fd, b"work", tmp_path / "back", cancelled=move_when_deep)
    assert (outside / "moved").exists()
    assert (result.files, result.directories) == (1, len(LEVELS) + 2)
    assert everything_in(tmp_path / "back") == b"harmless"


@pytest.mark.parametrize("instead", ["link", "decoy"])
def test_when_the_way_from_the_top_is_gone_too_the_copy_out_ends_typed(
    sandbox: Sandbox, tmp_path: Path, outside: Path, instead: str
) -> None:
    (nest(sandbox.path, ["work", *LEVELS]) / "reached").write_bytes(b"harmless")
    upper, lower = (sandbox.path / "work" / "/".join(LEVELS[:level]) for level in (5, 10))

    def move_when_deep() -> bool:
        if lower.exists() and any(tmp_path.glob(".sandport-*/**/reached")):
            lower.rename(outside / "moved")
            upper.rename(sandbox.path / "elsewhere")
            if instead == "link":
                upper.symlink_to(outside)
            else:
                nest(upper.parent, LEVELS[4:])
        return False

    with pytest.raises(TreeMovedError, match="moved away"):
        copy_out(sandbox.fd, b"work", tmp_path / "back", cancelled=move_when_deep)
    assert everything_in(tmp_path / "back") == b"harmless"
    assert scratch_below(tmp_path / "back") == set()


def test_a_target_directory_moved_away_while_the_copy_is_deep_inside_ends_typed(
    sandbox: Sandbox, tmp_path: Path, outside: Path
) -> None:
    bottom = nest(tmp_path, ["source", *LEVELS])
    for number in range(3):
        (bottom / f"f{number}").write_bytes(b"harmless")
    nest(sandbox.path, ["work", *LEVELS])
    upper, lower = (sandbox.path / "work" / "/".join(LEVELS[:level]) for level in (5, 10))
    before = look(outside)

    def move_when_deep() -> bool:
        if lower.exists() and any(lower.glob("**/f?")):
            lower.rename(outside / "moved")
            upper.rename(sandbox.path / "elsewhere")
            upper.symlink_to(outside)
        return False

    with pytest.raises(TreeMovedError, match="moved away"):
        copy_in(tmp_path / "source", sandbox.fd, b"work", cancelled=move_when_deep)
    # The moved directory came by the sandbox's own hand; nothing beside it may be different.
    beside = {at: what for at, what in look(outside).items() if at and at[0] != b"moved"}
    assert beside == {at: what for at, what in before.items() if at}
    assert scratch_below(outside) == set()
