"""A store of an earlier version is brought to this one, step by step; a newer one is refused."""

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from host.tests.store.making import lease_row, request, run, sandbox_row
from sandport.store import file
from sandport.store.errors import StoreTooNew
from sandport.store.schema import MIGRATIONS, Migration
from sandport.store.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def test_the_state_of_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    run(path, lambda store: request(store, 1))
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    content = path.read_bytes()
    with pytest.raises(StoreTooNew, match=r"newer Sandport \(store version 99, this one knows \d+\)\nupgrade"):
        run(path, lambda store: request(store, 2))
    assert path.read_bytes() == content


@pytest.mark.parametrize("taken", range(len(MIGRATIONS)))
def test_a_store_of_every_earlier_version_is_brought_to_this_one(path: Path, taken: int) -> None:
    fresh = path.with_name("fresh.db")
    run(fresh, lambda store: request(store, 1))
    db = sqlite3.connect(path, isolation_level=None)
    file.migrate(db, path, MIGRATIONS[:taken])
    assert file.version(db) == taken
    db.close()
    run(path, lambda store: request(store, 1))
    assert _schema(path) == _schema(fresh)


def test_a_store_of_before_loses_the_variables_of_what_has_ended_and_no_others(path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        for number in ("1", "2"):
            row = replace(lease_row(f"le{number}", f"sp{number}"), env={"LONG": f"canary-{number} " * 5000})
            await store.request(sandbox_row(f"sp{number}"), row)

    run(path, fill)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("UPDATE lease SET state = 'ended' WHERE id = 'le1'")
    db.execute("PRAGMA user_version = 2")
    db.close()

    async def look(store: SqliteStore) -> None:
        assert (await store.lease("le1")).env == {}
        assert list((await store.lease("le2")).env) == ["LONG"]

    assert b"canary-1" in path.read_bytes()
    run(path, look)
    assert b"canary-1" not in path.read_bytes()
    assert b"canary-2" in path.read_bytes()


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
from host.tests.store.test_store_versions import STEPS
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
