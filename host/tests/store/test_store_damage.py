"""A store whose disk is full, whose folder cannot be written, whose file is damaged."""

import asyncio
import os
import random
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from host.tests.store.making import A, B, request, run
from host.tests.store.moves import everything
from sandport.store.errors import LeaseUnknown, Stale, StoreUnusable
from sandport.store.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


# --- disks ---


@contextmanager
def no_room_for(path: Path) -> Iterator[None]:
    """No file of this process can grow past what the log holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max(file.stat().st_size for file in path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_limit_on_file_size_fails_what_it_hits_and_nothing_else(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        await request(store, "before")
        held = await everything(store)
        with no_room_for(path):
            asked = [request(store, number) for number in range(20)]
            refused = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(each, StoreUnusable) for each in refused)
            assert len({id(each) for each in refused}) == 20
            assert str(path) in str(refused[0])
            assert await everything(store) == held
        await asyncio.gather(*(request(store, number) for number in range(20)))
        assert len(await store.leases()) == 21

    run(path, test)


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 1 MiB in a folder, where this user may mount one; whether that is so."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", folder], capture_output=True, check=False
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)


def test_a_full_disk_says_what_to_do_and_the_store_recovers(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    with small_disk(place) as mounted:
        folder, path = place, place / "store.db"

        async def test(store: SqliteStore) -> None:
            await request(store, "before")
            held = await everything(store)
            with _filled(folder) if mounted else no_room_for(path):
                for number in range(3):
                    with pytest.raises(StoreUnusable, match=r"store\.db(?s:.*)(free space|disk)") as full:
                        await asyncio.gather(*(request(store, f"{number}-{each}") for each in range(40)))
                    assert full.value.retry == "later"
                assert await everything(store) == held
            await request(store, "after")
            assert len(await store.leases()) == 2

        run(path, test)
        run(path, lambda store: _has(store, 2))


@contextmanager
def _filled(folder: Path) -> Iterator[None]:
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    try:
        yield
    finally:
        filler.unlink()


async def _has(store: SqliteStore, count: int) -> None:
    assert len(await store.leases()) == count


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of the superuser, if the tests have them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_or_file_that_cannot_be_written_is_named(path: Path) -> None:
    run(path, lambda store: request(store, 1))  # also imports all that is needed, which nobody may not read
    with tempfile.TemporaryDirectory(prefix="sandport-test-") as name:
        folder = Path(name)
        folder.chmod(0o555)
        with as_nobody(), pytest.raises(StoreUnusable, match=r"store\.db: Permission denied(?s:.*)SANDPORT_HOME"):
            run(folder / "store.db", lambda store: _has(store, 0))
        folder.chmod(0o755)
        shutil.copy(path, folder / "store.db")
        (folder / "store.db").chmod(0o444)
        folder.chmod(0o555)
        with as_nobody(), pytest.raises(StoreUnusable, match=r"store\.db: Permission denied(?s:.*)SANDPORT_HOME"):
            run(folder / "store.db", lambda store: _has(store, 1))
        folder.chmod(0o755)


def test_a_file_in_a_folder_that_takes_no_log_is_named(path: Path) -> None:
    """The file alone can be written: SQLite needs its folder too."""
    run(path, lambda store: request(store, 1))
    with tempfile.TemporaryDirectory(prefix="sandport-test-") as name:
        folder = Path(name)
        shutil.copy(path, folder / "store.db")
        (folder / "store.db").chmod(0o666)
        folder.chmod(0o555)
        with as_nobody(), pytest.raises(StoreUnusable, match=r"store\.db(?s:.*)SANDPORT_HOME"):
            run(folder / "store.db", lambda store: _has(store, 1))
        folder.chmod(0o755)


@pytest.mark.parametrize("place", ["missing/store.db", "."])
def test_a_path_that_is_no_file_is_named(tmp_path: Path, place: str) -> None:
    with pytest.raises(StoreUnusable, match=r"SANDPORT_HOME"):
        run(tmp_path / place, lambda store: _has(store, 0))


# --- damage ---


async def _fill(store: SqliteStore) -> None:
    await asyncio.gather(*(request(store, number) for number in range(200)))


async def _read_and_write(store: SqliteStore) -> None:
    """Whatever a host does."""
    await everything(store)
    await store.work(0, by=A, dead={B})
    await store.owners()
    done = await asyncio.gather(
        *(store.forget(f"sp{number}", by=A, reason="r") for number in range(200)), return_exceptions=True
    )
    for each in done:
        if isinstance(each, BaseException) and not isinstance(each, Stale):
            raise each
    with pytest.raises(LeaseUnknown):
        await store.lease("nothing")


@pytest.mark.parametrize("content", [b"no store at all", os.urandom(20_000), b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_store_is_named_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreUnusable, match=r"store\.db: (?s:.*)damaged(?s:.*)restore it, or move it away"):
        run(path, lambda store: _has(store, 0))
    assert path.read_bytes() == content


@pytest.mark.parametrize("left", [0.02, 0.5, 0.97])
def test_a_truncated_store_is_named(path: Path, left: float) -> None:
    run(path, _fill)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * left)])
    with pytest.raises(StoreUnusable, match=r"store\.db: (?s:.*)restore it, or move it away"):
        run(path, _read_and_write)


def test_damage_anywhere_is_an_error_of_the_store_and_never_another(path: Path) -> None:
    """Bytes are overwritten at random; what is not noticed does no harm, what is noticed has one name."""
    run(path, _fill)
    whole = path.read_bytes()
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    noticed = 0
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(draw.choice([1, 4, 64])):
            start = draw.randrange(len(whole) - 16)
            damaged[start : start + 16] = draw.randbytes(16)
        path.write_bytes(damaged)
        try:
            run(path, _read_and_write)
        except StoreUnusable:
            noticed += 1
        for left in path.parent.iterdir():
            left.unlink()
    assert noticed > 0
