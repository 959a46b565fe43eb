"""What is on disk: records, and the removal of whatever a sandbox's owner left in them."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandport_provider_local.places import Place, scan
from sandport_provider_local.removal import remove_tree
from sandport_sdk.testing import new_id

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of an ordinary user, who is who runs the test: for root no mode is an obstacle."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="sandport-removal-", dir=memory))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield path
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        path.rmdir()


def remove(folder: Path, name: str = "tree") -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        remove_tree(fd, name, last="init.json")
    finally:
        os.close(fd)


def test_directories_that_are_closed_to_their_owner_are_removed(folder: Path) -> None:
    inner = folder / "tree" / "closed" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    (folder / "tree" / "empty").mkdir()
    for closed in (inner, inner.parent, folder / "tree" / "empty", folder / "tree"):
        closed.chmod(0)
    remove(folder)
    assert os.listdir(folder) == []


def test_links_are_removed_and_never_followed(folder: Path) -> None:
    outside = folder / "outside"
    outside.mkdir(0o500)
    (folder / "tree").mkdir()
    for number, target in enumerate((str(outside), "/", "..", "nowhere")):
        (folder / "tree" / f"link{number}").symlink_to(target)
    remove(folder)
    assert (os.listdir(folder), stat.S_IMODE(outside.stat().st_mode)) == (["outside"], 0o500)
    outside.rmdir()


def test_a_link_in_the_place_of_the_tree_is_refused(folder: Path) -> None:
    (folder / "outside").mkdir()
    (folder / "outside" / "kept").touch()
    (folder / "tree").symlink_to("outside")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        remove(folder)
    assert (folder / "outside" / "kept").exists()
    (folder / "outside" / "kept").unlink()
    (folder / "outside").rmdir()
    (folder / "tree").unlink()


def test_a_tree_deeper_than_descriptors_stack_and_paths_go_is_removed(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    name = "tree"
    for _ in range(3000):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd, name = below, "d" * 20
    os.close(fd)
    remove(folder)
    assert os.listdir(folder) == []


def test_names_that_the_removal_itself_would_use_are_no_obstacle(folder: Path) -> None:
    for parent in ("tree", "tree/a"):
        for number in range(4):
            (folder / parent / f".removed-{number}" / "x").mkdir(parents=True)
    (folder / "tree" / ".removed-5").touch()
    for name in ("init.json", "record.json"):
        (folder / "tree" / name / "x").mkdir(parents=True)
    remove(folder)
    assert os.listdir(folder) == []


def test_names_of_any_bytes_are_removed(folder: Path) -> None:
    (folder / "tree").mkdir()
    for name in (b"\xff\xfe", b"a\nb", b"-rf", b" ", b"\xf0\x9f\x92\xa3"):
        os.mkdir(os.fsencode(folder / "tree") + b"/" + name)
        os.mkdir(os.fsencode(folder / "tree") + b"/" + name + b"/" + name)
    remove(folder)
    assert os.listdir(folder) == []


def test_a_wide_tree_is_removed(folder: Path) -> None:
    for number in range(300):
        (folder / "tree" / "wide" / str(number) / "x").mkdir(parents=True)
    remove(folder)
    assert os.listdir(folder) == []


def test_what_is_not_there_is_removed_already(folder: Path) -> None:
    remove(folder, "nothing")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"sandbox_id": 1}', b"\xff"])
def test_a_damaged_record_is_no_record(tmp_path: Path, content: bytes) -> None:
    place = Place(tmp_path, new_id())
    place.create(store_id="s", ttl_ms=1000)
    (place.path / "record.json").write_bytes(content)
    (place.path / "init.json").write_bytes(content)
    assert (place.read_record(), place.read_identity()) == (None, None)
    place.remove()


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    place = Place(tmp_path, new_id())
    record = place.create(store_id="s", ttl_ms=1000)
    assert place.read_record() == record
    assert record.expires_at_ms == record.created_at_ms + 1000
    assert stat.S_IMODE((place.path / "record.json").stat().st_mode) == 0o600
    assert scan(tmp_path) == [place.sandbox_id]
    with pytest.raises(FileExistsError):
        place.create(store_id="s", ttl_ms=1000)
    assert place.read_record() == record
    place.remove()
    assert scan(tmp_path) == []


def test_a_place_is_locked_for_one_at_a_time(tmp_path: Path) -> None:
    place = Place(tmp_path, new_id())
    place.create(store_id="s", ttl_ms=1000)
    first = place.lock()
    assert first is not None
    assert place.lock() is None
    os.close(first)
    second = place.lock()
    assert second is not None
    os.close(second)
    place.remove()
