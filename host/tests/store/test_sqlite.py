"""The store in a SQLite file: group commit, cancels, full disks, damaged files, other versions."""

import asyncio
import os
import random
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from host.tests.store.contract import everything
from host.tests.store.making import A, B, Books, lease_row, sandbox_row
from sandport.clock import VirtualClock
from sandport.store import file
from sandport.store.errors import LeaseUnknown, Stale, StoreClosed, StoreTooNew, StoreUnusable
from sandport.store.records import Ref
from sandport.store.schema import MIGRATIONS, Migration
from sandport.store.sqlite import KEPT_GONE_MS, SqliteStore
from sandport.store.writer import Writer

ROOT = Path(__file__).resolve().parents[3]


def run(path: Path, test: Callable[[SqliteStore], Awaitable[None]], *, patience_s: float = 20.0) -> None:
    """A test on a store that is open for its time."""

    async def main() -> None:
        store = await SqliteStore.open(path, clock=VirtualClock(), patience_s=patience_s)
        try:
            await test(store)
        finally:
            await store.aclose()

    asyncio.run(main())


async def request(store: SqliteStore, number: int | str) -> None:
    await store.request(sandbox_row(f"sp{number}"), lease_row(f"le{number}", f"sp{number}"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


# --- the file ---


def test_the_files_are_the_users_alone(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        await request(store, 1)
        files = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert files == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}

    before = os.umask(0)
    try:
        run(path, test)
    finally:
        os.umask(before)
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]


def test_the_store_has_the_id_of_its_folder_or_is_refused(path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(path, store_id="st-mine")
        await store.aclose()
        store = await SqliteStore.open(path)
        assert store.store_id == "st-mine"
        await store.aclose()
        with pytest.raises(StoreUnusable, match=r"store\.db.*st-mine.*st-other(?s:.*)SANDPORT_HOME"):
            await SqliteStore.open(path, store_id="st-other")

    asyncio.run(main())


def test_every_change_is_flushed_before_it_is_acknowledged(path: Path) -> None:
    """What a caller was told is on disk: in the log, flushed, with SQLite's promise for exactly that (FULL)."""

    async def main() -> None:
        modes: list[object] = []

        def connect() -> sqlite3.Connection:
            db = file.connect(path, store_id=None, now_ms=0)
            modes.extend(db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))
            return db

        writer = Writer(connect, lambda error, maybe_done: file.explain(path, error, maybe_done=maybe_done))
        await writer.submit(lambda db: None, writes=False)
        await writer.aclose()
        assert modes == ["wal", 2]

    asyncio.run(main())


def test_what_is_gone_for_a_month_is_dropped_at_the_next_start(path: Path) -> None:
    async def main() -> None:
        clock = VirtualClock()

        async def open_it(_: VirtualClock) -> SqliteStore:
            return await SqliteStore.open(path, clock=clock)

        async with Books(open_it) as books:
            gone = await books.in_state("gone")
            live = await books.leased()
        clock.advance(KEPT_GONE_MS / 1000 + 1)
        forever = await SqliteStore.open(path, clock=clock, keep_gone_ms=None)
        assert (await forever.leased(gone.lease.id)) == gone
        await forever.aclose()
        store = await SqliteStore.open(path, clock=clock)
        assert await store.sandbox(gone.sandbox.id) is None
        assert (await store.leased(live.lease.id)) == live
        await store.aclose()

    asyncio.run(main())


def test_a_store_with_much_that_is_gone_is_cleared_of_all_of_it(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        await asyncio.gather(*(request(store, number) for number in range(1201)))
        await asyncio.gather(*(store.refused(Ref(f"sp{n}"), f"le{n}", by=A, reason="r") for n in range(1201)))
        assert (await store.counts())["gone"] == 1201
        assert await store.prune(1 << 50) == 1201
        assert await store.leases(ended=True) == []

    run(path, test)


# --- the thread ---


def test_all_callers_of_one_turn_pay_for_one_commit(path: Path) -> None:
    async def main() -> None:
        said: list[str] = []

        def connect() -> sqlite3.Connection:
            db = file.connect(path, store_id=None, now_ms=0)
            db.execute("CREATE TABLE number (n)")
            db.set_trace_callback(said.append)
            return db

        writer = Writer(connect, lambda error, maybe_done: file.explain(path, error, maybe_done=maybe_done))

        async def insert(number: int) -> int:
            inserted: sqlite3.Cursor = await writer.submit(
                lambda db: db.execute("INSERT INTO number VALUES (?)", (number,)), writes=True
            )
            return inserted.rowcount

        assert await asyncio.gather(*(insert(number) for number in range(64))) == [1] * 64
        assert [line for line in said if line in ("BEGIN IMMEDIATE", "COMMIT")] == ["BEGIN IMMEDIATE", "COMMIT"]
        said.clear()
        await writer.submit(lambda db: db.execute("SELECT 1").fetchone(), writes=False)
        assert said == ["SELECT 1"], "a read takes no lock that a writer could miss"
        await writer.aclose()

    asyncio.run(main())


def test_an_operation_that_fails_after_a_change_leaves_nothing_and_the_others_all(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        def half(db: sqlite3.Connection) -> None:
            db.execute("UPDATE sandbox SET last_error = 'half'")
            raise KeyError("half way")

        done = await asyncio.gather(
            request(store, 1),
            store._writer.submit(half, writes=True),
            request(store, 2),
            return_exceptions=True,
        )
        assert [type(each) for each in done] == [type(None), KeyError, type(None)]
        assert [(row.id, row.last_error) for row in await store.sandboxes()] == [("sp1", ""), ("sp2", "")]

    run(path, test)


def test_a_cancelled_caller_goes_at_once_and_wedges_nothing(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        draw = random.Random(1)
        for turn in range(20):
            tasks = [asyncio.ensure_future(request(store, f"{turn}-{number}")) for number in range(20)]
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            cancelled = [task for task in tasks if draw.random() < 0.5 and task.cancel()]
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(done[tasks.index(task)], asyncio.CancelledError) for task in cancelled)
            for number, result in enumerate(done):
                # One that was cancelled may be there, whole; one that was acknowledged is.
                there = await store.sandbox(f"sp{turn}-{number}")
                if result is None:
                    assert there is not None
                if there is not None:
                    assert (await store.leased(f"le{turn}-{number}")).sandbox == there
                    assert len(await store.uses(f"le{turn}-{number}")) == 1

    run(path, test)


def test_closing_writes_down_what_was_asked_for(path: Path) -> None:
    async def main() -> None:
        store = await SqliteStore.open(path)
        asked = [asyncio.ensure_future(request(store, number)) for number in range(100)]
        await asyncio.sleep(0)
        await asyncio.gather(store.aclose(), store.aclose())
        assert await asyncio.gather(*asked) == [None] * 100
        await store.aclose()
        with pytest.raises(StoreClosed):
            await store.leases()
        again = await SqliteStore.open(path)
        assert len(await again.leases()) == 100
        await again.aclose()

    asyncio.run(main())


def test_a_loop_that_ended_leaves_a_thread_that_can_still_end(path: Path) -> None:
    async def abandon() -> SqliteStore:
        store = await SqliteStore.open(path)
        store._writer.submit(lambda db: db.execute("UPDATE store SET made_at_ms = 1"), writes=True)
        await asyncio.sleep(0)
        return store

    store = asyncio.run(abandon())
    thread = store._writer._thread
    assert thread.daemon
    store._writer._queue.put(None)
    thread.join(30)
    assert not thread.is_alive()


def test_a_cancelled_open_leaves_no_thread(path: Path) -> None:
    async def main() -> None:
        before = threading.active_count()
        for turns in range(6):
            opening = asyncio.ensure_future(SqliteStore.open(path))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        assert threading.active_count() == before

    asyncio.run(main())


def test_a_store_that_others_write_to_is_waited_for(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        asked = asyncio.ensure_future(request(store, 1))
        await asyncio.sleep(0)
        # Reading waits for nobody, and the writer that waits does not hold the loop.
        reader = await SqliteStore.open(path, keep_gone_ms=None)
        assert await reader.leases() == []
        assert not asked.done()
        other.execute("COMMIT")
        await asked
        assert len(await reader.leases()) == 1
        await reader.aclose()
        other.close()

    run(path, test)


def test_a_store_that_is_locked_for_ever_is_an_error_and_not_a_wait(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        await request(store, 1)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnusable, match=r"store\.db: database is locked(?s:.*)another process") as locked:
            await request(store, 2)
        assert (locked.value.dispatched, locked.value.retry) == ("no", "later")
        other.execute("COMMIT")
        other.close()
        await request(store, 2)

    run(path, test, patience_s=0.2)


# --- what people and programs write ---


def test_reasons_are_kept_whatever_characters_they_hold(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        await request(store, 1)
        ref = Ref("sp1")
        await store.creating(ref, by=A, provider_version="1", settle_ms=0)
        await store.doubtful(ref, by=A, reason="cannot read 'caf\udce9'\0" + "x" * 1_000_000)
        row = await store.sandbox("sp1")
        assert row is not None
        assert row.last_error.startswith("cannot read 'caf\\udce9'\0xxx")
        assert len(row.last_error) < 5000
        await store.failed(ref, by=A, error="\udcff", due_at_ms=0)
        await store.forget("sp1", by=B, reason="\udcff")
        assert [receipt.detail for receipt in await store.receipts("sp1")][-2:] == ["\\udcff"] * 2

    run(path, test)


def test_what_cannot_be_kept_is_the_callers_error_alone(path: Path) -> None:
    async def test(store: SqliteStore) -> None:
        wrong = lease_row("le1", "sp1", name="caf\udce9")
        done = await asyncio.gather(store.request(sandbox_row("sp1"), wrong), request(store, 2), return_exceptions=True)
        assert isinstance(done[0], ValueError)
        assert done[1] is None
        assert await store.sandbox("sp1") is None

    run(path, test)


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


# --- versions ---


def test_the_state_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    run(path, lambda store: request(store, 1))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    content = path.read_bytes()
    with pytest.raises(StoreTooNew, match=r"newer Sandport \(store version 99, this one knows \d+\)\nupgrade"):
        run(path, lambda store: _has(store, 1))
    assert path.read_bytes() == content


@pytest.mark.parametrize("taken", range(len(MIGRATIONS)))
def test_a_store_of_every_earlier_version_is_brought_to_this_one(path: Path, taken: int) -> None:
    fresh = path.with_name("fresh.db")
    run(fresh, lambda store: _has(store, 0))
    db = sqlite3.connect(path, isolation_level=None)
    file.migrate(db, path, MIGRATIONS[:taken])
    assert file.version(db) == taken
    db.close()
    run(path, lambda store: request(store, 1))
    assert _schema(path) == _schema(fresh)


def _schema(path: Path) -> list[tuple[object, ...]]:
    with sqlite3.connect(path) as db:
        found = db.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    db.close()
    return found


STEPS = (
    Migration("a table", ("CREATE TABLE one (x)", "INSERT INTO one VALUES (1)")),
    Migration("another, filled from it", ("CREATE TABLE two (x, y)", "INSERT INTO two SELECT x, die() FROM one")),
    Migration("a column", ("ALTER TABLE one ADD COLUMN y",)),
)


def test_a_migration_that_fails_leaves_the_version_before_it(path: Path) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError, match="die"):
        file.migrate(db, path, STEPS)
    assert file.version(db) == 1
    assert [row[1] for row in _schema(path)] == ["one"]
    db.create_function("die", 0, lambda: 7)
    file.migrate(db, path, STEPS)
    assert file.version(db) == 3
    assert db.execute("SELECT * FROM two").fetchall() == [(1, 7)]
    file.migrate(db, path, STEPS)
    db.close()


KILLED = """
import os, signal, sqlite3, sys
from pathlib import Path
from host.tests.store.test_sqlite import STEPS
from sandport.store import file
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.create_function("die", 0, lambda: os.kill(os.getpid(), signal.SIGKILL))
file.migrate(db, Path(sys.argv[1]), STEPS)
"""


def test_a_kill_in_the_middle_of_a_migration_leaves_the_version_before_it(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, path], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    db = sqlite3.connect(path, isolation_level=None)
    assert file.version(db) == 1
    assert [row[1] for row in _schema(path)] == ["one"]
    db.create_function("die", 0, lambda: 7)
    file.migrate(db, path, STEPS)
    assert file.version(db) == 3
    db.close()
