"""The store in a SQLite file: what is on disk when, group commit, cancels, other writers, closing."""

import asyncio
import os
import random
import selectors
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from host.tests.store.making import A, B, Books, lease_row, request, run, sandbox_row
from sandport.clock import VirtualClock
from sandport.store import file
from sandport.store.errors import StoreClosed, StoreUnusable
from sandport.store.records import Ref
from sandport.store.sqlite import KEPT_GONE_MS, SqliteStore
from sandport.store.writer import Writer

HASTE = 100


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


SECRETS = {"SHORT": "canary-short", "BYTES": b"canary-\xff", "LONG": "canary-long " * 5000}
"""The last is spread over pages of its own."""


def test_variables_are_in_no_file_once_their_leases_have_ended(path: Path) -> None:
    """They may be credentials, and rows of what is gone are kept for a month."""

    def holds() -> bool:
        return any(b"canary" in place.read_bytes() for place in path.parent.iterdir())

    async def test(store: SqliteStore) -> None:
        async def active(number: int) -> Ref:
            await store.request(
                sandbox_row(f"sp{number}"), replace(lease_row(f"le{number}", f"sp{number}"), env=SECRETS)
            )
            await store.creating(Ref(f"sp{number}"), by=A, provider_version="1", settle_ms=0)
            return Ref(f"sp{number}")

        one, two, three, four = [await active(number) for number in range(1, 5)]
        for ref, lease_id in ((three, "le3"), (four, "le4")):
            await store.created(ref, lease_id, by=A, handle="h", lease_result=b"{}", expires_at_ms=None)
        assert (await store.lease("le3")).env == SECRETS
        assert holds()
        await store.refused(one, "le1", by=A, reason="quota")
        await store.doubtful(two, by=A, reason="no answer")
        await store.rest(three, "le3", by=A, reason="over")
        await store.ending(four, by=A, reason="over")
        assert [(lease.state, lease.env) for lease in await store.leases(ended=True)] == [("ended", {})] * 4
        # Where the host lives on, a checkpoint does it.
        other = sqlite3.connect(path)
        assert other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        other.close()
        assert not holds()

    run(path, test)
    assert not holds()
    db = file.connect(path, store_id=None, now_ms=0)
    assert db.execute("PRAGMA secure_delete").fetchone() == (1,)
    db.close()


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
        cancelled = []
        for turns in range(6):
            opening = asyncio.ensure_future(SqliteStore.open(path))
            for _ in range(turns):
                await asyncio.sleep(0)
            opening.cancel()
            # After a few turns the thread may have been faster; after none and after one it cannot have been.
            try:
                await (await opening).aclose()
            except asyncio.CancelledError:
                cancelled.append(turns)
        assert cancelled[:2] == [0, 1]
        assert threading.active_count() == before

    asyncio.run(main())


class HastySelector(selectors.DefaultSelector):
    """Waits by the clock of `HastyLoop`."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / HASTE)


class HastyLoop(asyncio.SelectorEventLoop):
    """Its clock goes too fast, so that whatever it waits for with a bound does not come in time."""

    def __init__(self) -> None:
        super().__init__(HastySelector())

    def time(self) -> float:
        return super().time() * HASTE


def test_a_cancelled_open_is_cancelled_also_where_its_thread_does_not_end_in_time(path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    async def main() -> None:
        opening = asyncio.ensure_future(SqliteStore.open(path))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await opening
        assert "did not finish" in cancelled.value.__notes__[0]

    before = threading.enumerate()
    with asyncio.Runner(loop_factory=HastyLoop) as runner:
        runner.run(main())
    other.close()
    for thread in set(threading.enumerate()).difference(before):
        thread.join(60)
        assert not thread.is_alive()


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
