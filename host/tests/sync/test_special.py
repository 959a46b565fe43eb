"""What no copy to this machine takes the name of: devices, FIFOs, sockets, and links to them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from host.tests.sync.conftest import Sandbox
from host.tests.sync.trees import Directory, File, Link, make, make_socket, scratch_below
from sandport.sync import SyncError, copy_in, copy_out
from sandport.sync.errors import TargetBusyError


def device(place: Path) -> None:
    os.mknod(place, 0o020666, os.makedev(1, 3))


SPECIAL: dict[str, Callable[[Path], object]] = {"FIFO": os.mkfifo, "socket": make_socket}
if os.geteuid() == 0:
    SPECIAL["device"] = device

STANDING = [*SPECIAL, *(f"a link to a {kind}" for kind in SPECIAL), "an absolute link", "a link to a link", "stdout"]
"""The last as /dev/stdout is: what it leads to may well be an ordinary file."""


def stand(what: str, place: Path, aside: Path) -> None:
    """Put it there."""
    aside.mkdir()
    if what in SPECIAL:
        SPECIAL[what](place)
    elif what.startswith("a link to a ") and (kind := what.removeprefix("a link to a ")) in SPECIAL:
        SPECIAL[kind](aside / kind)
        place.symlink_to(os.path.relpath(aside / kind, place.parent))
    elif what == "stdout":
        fd = os.open(aside / "ordinary", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(fd, OPEN)
        os.close(fd)
        place.symlink_to(f"/proc/self/fd/{OPEN}")
    else:
        os.mkfifo(aside / "fifo")
        (aside / "link").symlink_to("fifo")
        place.symlink_to(aside / ("link" if what == "a link to a link" else "fifo"))


OPEN = 250
"""A descriptor that nothing else here has."""


def identity(place: Path) -> tuple[int, int, int, str]:
    status = place.lstat()
    return status.st_mode, status.st_ino, status.st_dev, os.readlink(place) if place.is_symlink() else ""


@pytest.mark.parametrize("what", STANDING)
def test_what_is_no_file_is_never_replaced_on_its_way_out(sandbox: Sandbox, tmp_path: Path, what: str) -> None:
    make(sandbox.path / "tree", Directory({b"d": Directory({b"f": File(b"new")}), b"l": Directory({b"f": Link(b"g")})}))
    try:
        for sub in ("d", "l"):
            (tmp_path / sub).mkdir()
            make(tmp_path / sub / "out", Directory({sub.encode(): Directory({})}))
            place = tmp_path / sub / "out" / sub / "f"
            stand(what, place, tmp_path / sub / "aside")
            before = identity(place)
            for dry_run in (True, False):
                with pytest.raises(TargetBusyError, match="only files and links to files are replaced"):
                    copy_out(sandbox.fd, b"tree", tmp_path / sub / "out", dry_run=dry_run)
                for delete in (False, True):
                    with pytest.raises(TargetBusyError, match="only files and links to files are replaced"):
                        copy_out(sandbox.fd, b"tree/d/f", place, dry_run=dry_run, delete=delete)
            assert identity(place) == before
        assert scratch_below(tmp_path) == set()
    finally:
        if what == "stdout":
            os.close(OPEN)


def test_links_to_files_and_to_nothing_are_replaced_as_ever(sandbox: Sandbox, tmp_path: Path) -> None:
    (sandbox.path / "f").write_bytes(b"new")
    (tmp_path / "other").write_bytes(b"other")
    for target in ("other", "nowhere", "place", tmp_path / "other"):
        place = tmp_path / "place"
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        copy_out(sandbox.fd, b"f", place)
        assert stat.S_ISREG(place.lstat().st_mode)
        assert place.read_bytes() == b"new"
    assert (tmp_path / "other").read_bytes() == b"other"


def test_a_mirror_replaces_what_is_of_another_kind(sandbox: Sandbox, tmp_path: Path) -> None:
    make(sandbox.path / "tree", Directory({b"f": File(b"new"), b"d": Directory({})}))
    make(tmp_path / "out", Directory({}))
    os.mkfifo(tmp_path / "out/f")
    os.mkfifo(tmp_path / "out/d")
    copy_out(sandbox.fd, b"tree", tmp_path / "out", delete=True)
    assert (tmp_path / "out/f").read_bytes() == b"new"
    assert (tmp_path / "out/d").is_dir()


def test_inside_the_sandbox_a_file_takes_its_name_as_ever(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"new")
    os.mkfifo(sandbox.path / "f")
    copy_in(tmp_path / "f", sandbox.fd, b"f")
    assert (sandbox.path / "f").read_bytes() == b"new"


def test_a_place_that_may_not_be_looked_at_is_an_error(as_user: Callable[[Callable[[Path], None]], None]) -> None:
    def copy(base: Path) -> None:
        (base / "sandbox").mkdir()
        (base / "sandbox/f").write_bytes(b"new")
        (base / "shut").mkdir(0o000)
        fd = os.open(base / "sandbox", os.O_RDONLY)
        with pytest.raises(SyncError, match="give this user the right"):
            copy_out(fd, b"f", base / "shut/f")

    as_user(copy)
