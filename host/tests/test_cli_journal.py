"""A journal that is damaged, newer or on a full disk: two lines for every command, and no traceback."""

import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sandport.lease.info import leases_of
from sandport.store import file
from sandport.store.errors import StoreUnusable
from sandport.store.schema import MIGRATIONS
from tests.integration.command import Command

COMMANDS = [
    ["run", "--", "true"],
    ["run", "--json", "--", "true"],
    ["exec", "box", "--", "true"],
    ["leases"],
    ["leases", "show", "box"],
    ["leases", "end", "box"],
    ["reap"],
    ["reap", "--unknown"],
    ["reap", "--forget", "box", "--reason", "x"],
    ["providers", "--probe"],
]
KEPT = ["run", "-q", "--keep", "--name", "box", "--", "true"]


def nonsense(journal: Path) -> None:
    journal.write_bytes(b"nonsense" * 5000)


def torn(journal: Path) -> None:
    """Its header is whole, what follows is not."""
    data = bytearray(journal.read_bytes())
    data[100:] = bytes(len(data) - 100)
    journal.write_bytes(data)


def newer(journal: Path) -> None:
    db = sqlite3.connect(journal)
    db.execute("PRAGMA user_version = 99")
    db.close()


def elsewhere(journal: Path) -> None:
    """The disk's folder has something else under its name."""
    journal.unlink()
    journal.mkdir()


FAULTS: list[tuple[Callable[[Path], None], str]] = [
    (nonsense, "file is not a database"),
    (torn, "journal.db: "),
    (newer, "was written by a newer Sandport (store version 99"),
    (elsewhere, "journal.db: "),
]


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A home with a journal."""
    sandport = Command(tmp_path_factory.mktemp("used"))
    assert sandport("run", "-q", "--", "true").code == 0
    return sandport


@pytest.fixture
def spoiled(used: Command) -> Command:
    """The same, whose journal the test may spoil."""
    journal = used.home / "journal.db"
    if journal.is_dir():
        journal.rmdir()
    for path in used.home.glob("journal.db*"):
        path.unlink()
    assert used("providers", "--probe").code == 0
    return used


@pytest.mark.parametrize(("fault", "complaint"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_journal_that_cannot_be_used_is_two_lines_for_every_command(
    spoiled: Command, fault: Callable[[Path], None], complaint: str
) -> None:
    fault(spoiled.home / "journal.db")
    for words in COMMANDS:
        done = spoiled(*words)
        assert done.code == 2, (words, done)
        assert complaint in done.err, (words, done)
        assert "Traceback" not in done.err, (words, done)
        assert len(done.lines) <= 2, (words, done)
        assert done.err.startswith("sandport: "), (words, done)
    found = spoiled("doctor", "--json")
    checks = {check["name"]: check for check in found.object["checks"]}
    assert (found.code, found.object["journal"], checks["journal"]["state"]) == (1, None, "wrong")
    assert checks["provider local"]["state"] == "warning"
    assert complaint in checks["journal"]["detail"]


@pytest.mark.parametrize("ceiling", [0, 64 * 1024])
def test_a_full_disk_is_two_lines_for_every_command(spoiled: Command, ceiling: int) -> None:
    """A ceiling on the size of files stands for the disk; the answer comes through a pipe, which has none."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (ceiling, ceiling))

    assert spoiled("leases").code == 0
    failed = 0
    for words in COMMANDS:
        done = spoiled(*words, preexec_fn=full)
        assert "Traceback" not in done.err, (words, done)
        assert "fault in sandport itself" not in done.err, (words, done)
        if done.code:
            # 125: the disk was full when the sandbox was there already, which the log tells too.
            assert done.code == (125 if "not confirmed gone" in done.err else 2), (words, done)
            assert len(done.lines) <= 2 or ceiling, (words, done)
            failed += 1
    assert failed or ceiling
    # Nothing of that is kept: with room again all is as it was.
    assert spoiled("run", "-q", "--", "true").code == 0
    assert spoiled("leases").code == 0


def test_a_completion_is_not_disturbed(spoiled: Command) -> None:
    nonsense(spoiled.home / "journal.db")
    env = {"_SANDPORT_COMPLETE": "bash_complete", "COMP_WORDS": "sandport exec le", "COMP_CWORD": "2"}
    done = spoiled(env=env)
    assert (done.out.strip(), done.err) == (b"", "")


@pytest.mark.parametrize("taken", range(1, len(MIGRATIONS)))
def test_a_journal_that_another_process_is_just_making_is_empty_and_none_of_an_older_version(
    tmp_path: Path, taken: int
) -> None:
    path = tmp_path / "journal.db"
    db = sqlite3.connect(path, isolation_level=None)
    file.migrate(db, path, MIGRATIONS[:taken])
    assert leases_of(tmp_path, now_ms=1) == ()
    db.execute("INSERT INTO store VALUES (?, 1)", (file.new_id("st"),))
    with pytest.raises(StoreUnusable, match=r"was written by an older Sandport\n.*sandport reap"):
        leases_of(tmp_path, now_ms=1)
    db.close()
