"""A socket between two sides of which one lies, stalls or dies: a clear error, no deadlock, nothing left."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Iterator
from pathlib import Path

import msgspec
import pytest

from host.tests.sync.trees import Directory, File, look, make
from sandport.errors import ProtocolViolation, QuotaExceeded, SandboxLost, Unavailable, WorkerCrashed
from sandport.files import Way
from sandport.host import Host
from sandport.sandbox import Sandbox
from sandport.sync.errors import SyncError
from sandport.sync.result import SyncProgress
from sandport_protocol.limits import Limits
from tests.integration.stage import (
    PATIENCE_S,
    QUICK,
    Journal,
    Records,
    configuration,
    eventually,
    mentioning,
    worker,
)
from tests.integration.sync_stage import different, going, inside, open_ends
from tests.integration.vendor import Vendor

HOUR_S = 3600.0

TREE = Directory({b"big": File(os.urandom(3 << 20)), b"a": Directory({b"b": File(b"c")})})
"""More than any socket holds, so that who stops reading stops the other side."""

WAITS = {
    "never connects": "connect_s",
    "never connects and never answers": "connect_s",
    "never answers": "settle_s",
    "stalls": "stall_s",
    "answers and never closes": "stall_s",
}
"""Which wait of the host ends a lie; all others are noticed at once."""


class Stage:
    """A host, and a sandbox whose worker does with the socket what the first directory of a path says."""

    def __init__(self, runner: asyncio.Runner, sandbox: Sandbox, journal: Journal, folder: Path) -> None:
        self._runner = runner
        self.sandbox = sandbox
        self.journal = journal
        self.folder = folder

    def run(self, doing: Awaitable[object]) -> None:
        """Run to the end, which comes soon."""

        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE_S):
                await doing

        self._runner.run(bounded())

    async def make_impatient(self, lie: str) -> None:
        """Have the host not wait for long for what this lie is about; all else may take its time."""
        if (wait := WAITS.get(lie)) is not None:
            far = (await self.sandbox._files._reached()).side
            far.patience = msgspec.structs.replace(far.patience, **{wait: 0.4})

    async def make_patient(self) -> None:
        """Have the host wait as it does."""
        far = (await self.sandbox._files._reached()).side
        far.patience = msgspec.structs.replace(far.patience, connect_s=60, stall_s=60, settle_s=60)

    async def assert_clean(self, lie: str, *left: str) -> None:
        """Nothing of ours is in the sandbox, and it takes commands."""
        outcome = await self.sandbox.execute(["ls", "-A", lie])
        assert (outcome.exit_code, outcome.stdout.decode().split()) == (0, list(left))


@contextlib.contextmanager
def opened_stage(folder: Path) -> Iterator[Stage]:
    """A host whose temporary files go to a folder of its own."""
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / "journal")
    records = Records()
    settings = configuration(
        {"syncs": worker("syncs", "--processes", journal=journal.path)}, limits=Limits(cancel_grace_ms=500)
    )
    stack = contextlib.AsyncExitStack()

    async def begin() -> Sandbox:
        host = await stack.enter_async_context(Host.open(settings, home=folder / "home", log=records.log))
        sandbox = going(await stack.enter_async_context(host.lease("syncs")), "socket")
        make(folder / "source", TREE)
        return sandbox

    with asyncio.Runner() as runner:
        try:
            yield Stage(runner, runner.run(begin()), journal, folder)
        finally:
            runner.run(stack.aclose())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One for all lies that a worker outlives."""
    with opened_stage(tmp_path_factory.mktemp("lies")) as opened:
        yield opened


@pytest.fixture
def stage(shared: Stage) -> Iterator[Stage]:
    """As it was before, so it is afterwards."""
    shared.run(shared.make_patient())
    before = open_ends()
    yield shared
    shared.run(eventually(lambda: open_ends() <= before))


@pytest.fixture(autouse=True)
def meeting_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for temporary files of this test alone, in which nothing stays."""
    with tempfile.TemporaryDirectory(prefix="meet-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        assert os.listdir(folder) == []


IN = {
    "answers before it connects": (ProtocolViolation, "had not come"),
    "answers early": (ProtocolViolation, "before it had read everything"),
    "closes early": (ProtocolViolation, "before it had"),
    "closes early and says why": (QuotaExceeded, "disk is full"),
    "fails while it reads": (QuotaExceeded, "disk is full"),
    "wrong bytes": (ProtocolViolation, "bytes, and"),
    "refuses": (SyncError, "shut"),
    "never connects": (Unavailable, "did not come"),
    "never answers": (SyncError, "did not answer"),
    "stalls": (SyncError, "no byte moved"),
}


@pytest.mark.parametrize("lie", IN)
def test_a_lie_on_the_way_in_is_an_error(stage: Stage, lie: str) -> None:
    kind, said = IN[lie]

    async def go() -> None:
        await stage.make_impatient(lie)
        with pytest.raises(kind, match=said):
            await stage.sandbox.sync_in(stage.folder / "source", f"{lie}/target")
        await stage.assert_clean(lie)

    stage.run(go())


OUT = {
    "closes early": (SyncError, "archive"),
    "fails while it writes": (SandboxLost, "gone"),
    "answers and never closes": (SyncError, "no byte moved"),
    "wrong bytes": (ProtocolViolation, "bytes, and"),
    "refuses": (SyncError, "shut"),
    "never connects": (Unavailable, "did not come"),
    "never answers": (SyncError, "did not answer"),
    "stalls": (SyncError, "no byte moved"),
}


@pytest.mark.parametrize("lie", OUT)
def test_a_lie_on_the_way_out_is_an_error(stage: Stage, tmp_path: Path, lie: str) -> None:
    kind, said = OUT[lie]

    async def go() -> None:
        await stage.make_impatient(lie)
        os.makedirs(inside(stage.sandbox, lie), exist_ok=True)
        make(inside(stage.sandbox, f"{lie}/tree"), TREE)
        with pytest.raises(kind, match=said):
            await stage.sandbox.sync_out(f"{lie}/tree", tmp_path / "new" / "out")
        assert not (tmp_path / "new").exists()
        await stage.sandbox.execute(["rm", "-rf", f"{lie}/tree"])

    stage.run(go())


@pytest.mark.parametrize("lie", ["stalls", "never answers", "never connects"])
@pytest.mark.parametrize("way", ["in", "out"])
def test_a_cancel_ends_both_sides(stage: Stage, tmp_path: Path, lie: str, way: str) -> None:
    async def go() -> None:
        sandbox = stage.sandbox
        os.makedirs(inside(sandbox, lie), exist_ok=True)
        if way == "out":
            make(inside(sandbox, f"{lie}/tree"), TREE)
            call = sandbox.sync_out(f"{lie}/tree", tmp_path / "out")
        else:
            call = sandbox.sync_in(stage.folder / "source", f"{lie}/target")
        count = len(stage.journal.of("syncs"))
        moving = asyncio.ensure_future(call)
        last = (await stage.journal.until("syncs", count + 1))[-1]
        moving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await moving
        assert not Path(last["socket"]).parent.exists()
        assert not (tmp_path / "out").exists()
        await stage.assert_clean(lie, *(["tree"] if way == "out" else []))
        await sandbox.execute(["rm", "-rf", f"{lie}/tree"])

    stage.run(go())


def test_a_socket_out_of_reach_gives_way_to_a_command(stage: Stage, tmp_path: Path) -> None:
    async def go() -> None:
        count = len(stage.journal.of("syncs"))
        await stage.sandbox.sync_in(stage.folder / "source", "unreachable/target")
        assert different(look(stage.folder / "source"), look(inside(stage.sandbox, "unreachable/target"))) == {}
        await stage.sandbox.sync_out("unreachable/target", tmp_path / "out")
        assert different(look(stage.folder / "source"), look(tmp_path / "out")) == {}
        assert [entry["method"] for entry in stage.journal.of("syncs")[count:]] == ["syncIn", "syncOut"]
        await stage.assert_clean("unreachable", "target")

    stage.run(go())


def test_nobody_else_gets_a_connection(stage: Stage) -> None:
    async def go() -> None:
        await stage.sandbox.sync_in(stage.folder / "source", "connects twice/target")
        assert different(look(stage.folder / "source"), look(inside(stage.sandbox, "connects twice/target"))) == {}
        (second,) = stage.journal.of("second")
        assert second.get("got", "") == ""

    stage.run(go())


def test_the_socket_stands_where_nobody_else_may_enter(stage: Stage) -> None:
    async def go() -> None:
        count = len(stage.journal.of("syncs"))
        moving = asyncio.ensure_future(stage.sandbox.sync_in(stage.folder / "source", "never connects/target"))
        path = (await stage.journal.until("syncs", count + 1))[-1]["socket"]
        assert (os.stat(os.path.dirname(path)).st_mode & 0o777, len(os.fsencode(path)) < 108) == (0o700, True)
        moving.cancel()
        await asyncio.wait((moving,))

    stage.run(go())


def test_a_source_that_fails_cuts_the_stream(stage: Stage) -> None:
    """The worker must not take the beginning of an archive for the whole of it."""

    def fail(progress: object) -> None:
        raise RuntimeError("the bar broke")

    async def go() -> None:
        sandbox = stage.sandbox
        for way in (Way.SOCKET, Way.COMMAND):
            sandbox._files.way = way
            with pytest.raises(RuntimeError, match="the bar broke"):
                await sandbox.sync_in(stage.folder / "source", "honest/target", on_progress=fail)
            await stage.assert_clean("honest")

    try:
        stage.run(go())
    finally:
        stage.sandbox._files.way = Way.SOCKET


async def outlasts(moving: Awaitable[object], begun: asyncio.Event, by_s: float) -> None:
    """Have so many seconds of the loop pass at once after a transfer has begun: whatever waits for less has waited."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(moving)
    waiting = asyncio.ensure_future(begun.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    assert not task.done(), "it was over before a moment of it could be seen"
    real = loop.time
    loop.time = lambda: real() + by_s  # type: ignore[method-assign]
    await task


@pytest.mark.anyio
async def test_a_transfer_may_take_longer_than_anything_waits(vendor: Vendor, tmp_path: Path) -> None:
    """96, harbor#2656: a fixed limit ended the transfer of large trees. An hour passes in the midst of each; what alone
    is longer is the time in which not one byte moves."""
    make(tmp_path / "source", TREE)
    timing = msgspec.structs.replace(QUICK, call_s=HOUR_S / 4, acquire_s=60.0)
    limits = Limits(heartbeat_ms=100_000_000, wedge_ms=100_000_000, host_silence_ms=100_000_000)
    for point in ("sync-in.before", "sync-out.before"):
        vendor.fake.order(point, "slow-stream", bytes_per_s=4_000_000)
    async with vendor.host(timing=timing, limits=limits) as host, host.lease("env", ttl_s=100 * HOUR_S) as sandbox:
        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def tell(progress: SyncProgress) -> None:
            if progress.bytes_done:
                loop.call_soon_threadsafe(begun.set)

        await outlasts(sandbox.sync_in(tmp_path / "source", "tree", on_progress=tell), begun, HOUR_S)
        begun.clear()
        await outlasts(sandbox.sync_out("tree", tmp_path / "out", on_progress=tell), begun, HOUR_S)
    assert different(look(tmp_path / "source"), look(tmp_path / "out")) == {}


@pytest.mark.slow
def test_a_worker_that_is_lost_over_it_leaves_nothing(tmp_path: Path) -> None:
    """It dies, before it came and after; and one that does nothing at all is given up within its grace."""
    with opened_stage(tmp_path) as stage:

        async def go() -> None:
            sandbox, source = stage.sandbox, stage.folder / "source"
            for lie in ("dies first", "dies"):
                with pytest.raises(WorkerCrashed):
                    await sandbox.sync_in(source, f"{lie}/target")
                await stage.assert_clean(lie)
                make(inside(sandbox, f"{lie}/tree"), TREE)
                with pytest.raises(WorkerCrashed):
                    await sandbox.sync_out(f"{lie}/tree", tmp_path / "out")
                assert not (tmp_path / "out").exists()
            lie = "never connects and never answers"
            await stage.make_impatient(lie)
            with pytest.raises(Unavailable, match="did not come"):
                await sandbox.sync_in(source, f"{lie}/target")
            await stage.assert_clean(lie)

        stage.run(go())
    assert mentioning(str(tmp_path)) == {}
