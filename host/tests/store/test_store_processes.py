"""Several processes on one store: races, and a process that is killed while it writes."""

import asyncio
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from host.tests.store.making import C, lease_row, sandbox_row
from sandport.store.records import Ref
from sandport.store.sqlite import SqliteStore
from sandport.store.states import SANDBOX_STATES

ROOT = Path(__file__).resolve().parents[3]
STEPS = {
    "intended": ["requested"],
    "creating": ["requested", "creating"],
    "doubtful": ["requested", "creating", "doubtful"],
    "leased": ["requested", "creating", "created"],
}
"""The receipts that a sandbox in a state has; from `ending` on it came by one of two ways."""


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process, ready and waiting for `go`; killed after the block if it is still there."""
    command = [sys.executable, "-m", "host.tests.store.process", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def go(*processes: subprocess.Popen[str]) -> None:
    for each in processes:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()


def told(each: subprocess.Popen[str]) -> list[list[str]]:
    """What it told until its end, which was a good one."""
    assert each.stdout is not None
    lines = each.stdout.read().splitlines()
    assert each.wait() == 0
    return [line.split(" ", 1) for line in lines]


def whole(path: Path) -> bool:
    with sqlite3.connect(path) as db:
        found: str = db.execute("PRAGMA integrity_check").fetchone()[0]
        broken = db.execute("PRAGMA foreign_key_check").fetchall()
    db.close()
    return found == "ok" and not broken


def test_processes_that_make_a_store_at_once_agree_on_its_id(tmp_path: Path) -> None:
    with ExitStack() as stack:
        racing = [stack.enter_context(process("open", str(tmp_path / "store.db"))) for _ in range(6)]
        go(*racing)
        ids = {line for each in racing for [line] in told(each)}
    assert len(ids) == 1
    assert whole(tmp_path / "store.db")


@pytest.mark.slow
def test_of_three_processes_that_claim_the_rows_of_a_dead_one_each_row_goes_to_one(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    count = 300

    async def make() -> None:
        store = await SqliteStore.open(path)
        rows = [(sandbox_row(f"sp{n}", owner=C), lease_row(f"le{n}", f"sp{n}", owner=C)) for n in range(count)]
        await asyncio.gather(*(store.request(*pair) for pair in rows))
        await store.aclose()

    asyncio.run(make())
    with ExitStack() as stack:
        claimers = [stack.enter_context(process("claim all", str(path), me, C)) for me in ("one", "two", "three")]
        go(*claimers)
        won = [[line[0] for line in told(each)] for each in claimers]
    assert sorted(sandbox_id for mine in won for sandbox_id in mine) == sorted(f"sp{n}" for n in range(count))

    async def look() -> None:
        store = await SqliteStore.open(path)
        for me, mine in zip(("one", "two", "three"), won, strict=True):
            assert sorted(row.id for row in await store.sandboxes(owners={me})) == sorted(mine)
        for number in range(count):
            whats = [receipt.what for receipt in await store.receipts(f"sp{number}")]
            assert whats == ["requested", "taken over"]
        await store.aclose()

    asyncio.run(look())
    assert whole(path)


@pytest.mark.slow
def test_a_sweep_never_takes_a_lease_that_another_process_just_claimed(tmp_path: Path) -> None:
    """A thousand races, half for kept leases, half for sandboxes at rest: crabbox#1144 and #1148."""
    path = tmp_path / "store.db"

    async def make() -> None:
        store = await SqliteStore.open(path)

        async def one(number: int) -> None:
            ref, lease = Ref(f"sp{number}"), f"le{number}"
            await store.request(sandbox_row(ref.sandbox_id), lease_row(lease, ref.sandbox_id, kept=True))
            await store.creating(ref, by="in-a", provider_version="1", settle_ms=0)
            await store.created(ref, lease, by="in-a", handle="h", lease_result=b"{}")
            if number % 2:
                await store.release(lease, by="in-a")
            else:
                await store.rest(ref, lease, by="in-a", reason="over")

        await asyncio.gather(*(one(number) for number in range(1000)))
        await store.aclose()

    asyncio.run(make())
    with process("sweep", str(path), "sweeper") as sweeper, process("use all", str(path), "user") as user:
        go(sweeper, user)
        swept = dict(told(sweeper))
        used = dict(told(user))
    assert len(swept) == len(used) == 1000

    async def look() -> None:
        store = await SqliteStore.open(path)
        rows = {row.id: row for row in await store.sandboxes(states=SANDBOX_STATES)}
        uses = {use.lease_id for use in await store.uses()}
        for number in range(1000):
            sandbox_id = f"sp{number}"
            row, lease = rows[sandbox_id], await store.lease(sandbox_id)
            if used[sandbox_id] == "live":
                assert swept[sandbox_id] in ("in use", "taken"), sandbox_id
                assert (row.state, lease.state, lease.id in uses) == ("leased", "active", True), sandbox_id
            else:
                assert swept[sandbox_id] == "swept", sandbox_id
                assert (row.state, lease.state, lease.id in uses) == ("ending", "ended", False), sandbox_id
        await store.aclose()

    asyncio.run(look())


@pytest.mark.slow
def test_what_was_acknowledged_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    """Killed at random moments of its writing, again and again on the same store."""
    path = tmp_path / "store.db"
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for turn in range(10):
        acknowledged: dict[str, str] = {}
        with process("write until killed", str(path), f"writer{turn}", str(draw.getrandbits(32))) as writer:
            go(writer)
            assert writer.stdout is not None
            for _ in range(draw.randrange(1, 250)):
                sandbox_id, state = writer.stdout.readline().split()
                acknowledged[sandbox_id] = state
            # Somewhere between this acknowledgement and the next ones, wherever it is then.
            for _ in range(draw.randrange(0, 20000)):
                pass
            writer.kill()
            writer.wait()
            for line in writer.stdout.read().splitlines(keepends=True):
                if line.endswith("\n"):
                    sandbox_id, state = line.split()
                    acknowledged[sandbox_id] = state
        assert whole(path)
        asyncio.run(_look(path, f"writer{turn}", acknowledged))


async def _look(path: Path, me: str, acknowledged: dict[str, str]) -> None:
    order = ["intended", "creating", "doubtful", "leased", "ending", "gone"]
    store = await SqliteStore.open(path)
    rows = {row.id: row for row in await store.sandboxes(states=SANDBOX_STATES) if row.id.startswith(f"sp{me}-")}
    assert acknowledged.keys() <= rows.keys()
    uses = {use.lease_id for use in await store.uses()}
    for sandbox_id, row in rows.items():
        if sandbox_id in acknowledged:
            assert order.index(row.state) >= order.index(acknowledged[sandbox_id])
        # Nothing is half there: sandbox, lease, use and receipts tell the same.
        lease = await store.lease(sandbox_id)
        assert lease.state == {"intended": "requested", "creating": "requested", "leased": "active"}.get(
            row.state, "ended"
        )
        assert (lease.id in uses) == (lease.state != "ended")
        assert row.owner == (None if row.state == "gone" else me)
        whats = [receipt.what for receipt in await store.receipts(sandbox_id)]
        if row.state in STEPS:
            assert whats == STEPS[row.state]
        else:
            assert whats[:3] in (STEPS["doubtful"], STEPS["leased"])
            assert whats[3:] == ["ending", "destroyed"][: 1 if row.state == "ending" else 2]
    await store.aclose()


FORKED = """
import asyncio, os, sys
from sandport.store.errors import StoreClosed
from sandport.store.sqlite import SqliteStore

async def main():
    store = await SqliteStore.open(sys.argv[1])
    child = os.fork()
    if child == 0:
        asyncio.set_event_loop(None)
        try:
            store._writer.submit(print, writes=True)
        except StoreClosed as error:
            os._exit(7 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert await store.leases() == []
    await store.aclose()
asyncio.run(main())
"""


def test_a_forked_child_is_told_that_the_store_is_its_parents(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, tmp_path / "store.db"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_the_store_costs_no_import_of_sqlite_before_it_is_opened() -> None:
    code = """
import sys
import sandport.store.errors, sandport.store.records, sandport.store.sqlite
print("sqlite3" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"
