"""What workers leave behind: found by their token, reported, and ended only where it is proven to be their own."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandport.errors import WorkerCrashed
from sandport.numbers import Timing
from sandport.worker.identity import Identity, boot_id, is_running, process_start_ticks, signal_exactly
from sandport.worker.launch import WorkerCommand, WorkerProcess, new_token, spawn
from sandport.worker.records import WorkerRecord, records_of
from sandport.worker.survivors import end_workers, find, left_behind
from tests.integration.conftest import OpenHost
from tests.integration.stage import PATIENCE_S, QUICK, ROOT, Journal, Records, alive, children, eventually, worker

pytestmark = pytest.mark.anyio


def new_instance() -> str:
    """An instance id that no other test has, nor another run of the tests beside this one."""
    return "in" + secrets.token_hex(13)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that no worker has anything to do with."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


UNHURRIED = Timing(close_grace_s=QUICK.close_grace_s, stop=QUICK.stop, restart=QUICK.restart, survivors_s=PATIENCE_S)
"""However busy the machine is, a report waits for what was left."""


def end_all(journal: Journal, *instances: str) -> None:
    """End whatever a test has started, also where it failed."""
    for instance in instances:
        for left in find(f"{instance}."):
            signal_exactly(Identity(left.pid, left.start_ticks, boot_id(), left.token), signal.SIGKILL)
    for entry in journal:
        for pid in (entry.get("daemon"), entry.get("child")):
            if pid is not None and alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def dead(journal: Journal) -> Iterator[str]:
    """The instance of a host that is dead."""
    instance = new_instance()
    yield instance
    end_all(journal, instance)


@pytest.fixture
def other(journal: Journal) -> Iterator[str]:
    """The instance of another host."""
    instance = new_instance()
    yield instance
    end_all(journal, instance)


@pytest.fixture
def ends(journal: Journal) -> Iterator[None]:
    """Ends what the workers of a test left on purpose."""
    yield
    end_all(journal)


def record(home: Path, identity: Identity) -> Path:
    kept = WorkerRecord.keep(home, identity, "scripted", None)
    assert kept is not None
    return kept.path


def close(process: WorkerProcess) -> None:
    for fd in (process.stdin_fd, process.stdout_fd, process.stderr_fd):
        os.close(fd)


def started(command: tuple[str, ...], home: Path, instance: str) -> WorkerProcess:
    return spawn(WorkerCommand(provider="scripted", argv=command), os.environ, instance=instance, root=home)


# ------------------------------------------------------------------ after the end of each worker


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("dies", [True, False], ids=["after a crash", "after a stop"])
async def test_a_daemon_that_left_its_workers_group_is_named_and_left_alone(
    open_host: OpenHost, journal: Journal, records: Records, dies: bool
) -> None:
    """O07, ray-project/ray#42861, PR #56476: children leaked, and nobody was told."""
    begun = time.time()
    arguments = ("--dies",) if dies else ()
    command = worker("daemonizes", *arguments, journal=journal.path)
    async with open_host(scripted=command, timing=UNHURRIED) as host, host.lease("scripted") as sandbox:
        running = await host._supervisor("scripted").worker()
        if dies:
            with pytest.raises(WorkerCrashed, match=r"it left 1 running: pid \d+ \(sleep 600\) since 2"):
                await sandbox.execute(["x"])
        else:
            assert (await sandbox.execute(["x"])).ok
    (entry,) = journal.of("daemon")
    (survivor,) = running.ended.result().survivors
    assert survivor.pid == entry["daemon"]
    assert survivor.argv == ("sleep", "600")
    assert survivor.token == running.process.identity.token
    assert begun - 1 <= survivor.since_ms / 1000 <= time.time() + 1
    assert alive(entry["daemon"])
    (said,) = [text for text in records.texts("warning") if "outside of its group" in text]
    assert f"pid {survivor.pid} (sleep 600)" in said


@pytest.mark.usefixtures("ends")
async def test_a_child_in_the_workers_group_ends_with_it_and_is_no_survivor(
    open_host: OpenHost, journal: Journal
) -> None:
    """O07, ray-project/ray#42861, PR #56476: a worker was killed, and its children lived on."""
    command = worker("daemonizes", "--child", journal=journal.path)
    async with open_host(scripted=command, timing=UNHURRIED) as host, host.lease("scripted") as sandbox:
        running = await host._supervisor("scripted").worker()
        assert (await sandbox.execute(["x"])).ok
        (child,) = [entry["child"] for entry in journal.of("child")]
        (daemon,) = [entry["daemon"] for entry in journal.of("daemon")]
        os.kill(running.process.pid, signal.SIGKILL)
        report = await running.ended
        await eventually(lambda: not alive(child))
        assert [survivor.pid for survivor in report.survivors] == [daemon]


@pytest.mark.usefixtures("ends")
async def test_a_report_does_not_wait_for_a_look_that_takes_long_and_the_log_tells_it_later(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    timing = Timing(close_grace_s=QUICK.close_grace_s, stop=QUICK.stop, restart=QUICK.restart, survivors_s=0.0)
    command = worker("daemonizes", "--dies", journal=journal.path)
    async with open_host(scripted=command, timing=timing) as host, host.lease("scripted") as sandbox:
        with pytest.raises(WorkerCrashed, match="exited with code 3"):
            await sandbox.execute(["x"])
        _, said, _ = await records.until(lambda text: "outside of its group" in text)
    (entry,) = journal.of("daemon")
    assert f"pid {entry['daemon']} (sleep 600)" in said


async def test_what_ends_because_its_worker_did_is_left_by_nobody(stranger: subprocess.Popen[bytes]) -> None:
    instance = new_instance()
    token = new_token(instance)
    worker = Identity(stranger.pid, process_start_ticks(stranger.pid), boot_id(), token)
    command = [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"]
    environment = {"SANDPORT_WORKER_TOKEN": token}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True) as watcher:  # noqa: ASYNC220
        await eventually(lambda: [one.pid for one in find(token)] == [watcher.pid])
        looking = asyncio.ensure_future(left_behind(worker))
        assert watcher.stdin is not None
        watcher.stdin.close()
        assert await looking == ()


async def test_a_worker_that_leaves_nothing_is_said_to_have_left_nothing(open_host: OpenHost) -> None:
    async with open_host(scripted=worker("well_behaved")) as host:
        running = await host._supervisor("scripted").worker()
    assert running.ended.result().survivors == ()


# ------------------------------------------------------------------ after the end of a host


@pytest.mark.usefixtures("ends")
async def test_a_stuck_worker_of_a_dead_host_is_ended_with_its_group_and_its_daemon_is_reported(
    home: Path, journal: Journal, dead: str
) -> None:
    """O01, O10: hashicorp/go-plugin#10, hashicorp/nomad#23969: it stayed, or a stranger was killed for it."""
    command = worker("daemonizes", "--stubborn", "--at-once", "--child", journal=journal.path)
    process = started(command, home, dead)
    await journal.until("started")
    (child,) = [entry["child"] for entry in journal.of("child")]
    (daemon,) = [entry["daemon"] for entry in journal.of("daemon")]
    found = {survivor.pid: survivor for survivor in find(f"{dead}.", records_of(home, dead)[0])}
    assert set(found) == {process.pid, child, daemon}
    assert {pid: (one.is_worker, one.in_group) for pid, one in found.items()} == {
        process.pid: (True, True),
        child: (False, True),
        daemon: (False, False),
    }
    left = await end_workers(home, dead, patience_s=0.05)
    assert [survivor.pid for survivor in left] == [daemon]
    assert (await process.exited).signal == signal.SIGKILL
    await eventually(lambda: not alive(child))
    assert alive(daemon)
    assert os.listdir(home / "running") == []
    close(process)


async def test_a_worker_that_ends_by_itself_is_waited_for_and_not_killed(
    home: Path, journal: Journal, dead: str
) -> None:
    process = started(worker("well_behaved", journal=journal.path), home, dead)
    await journal.until("started")
    ending = asyncio.ensure_future(end_workers(home, dead, patience_s=PATIENCE_S))
    await asyncio.sleep(0)
    os.close(process.stdin_fd)  # what the death of its host is to a worker
    assert await ending == []
    assert (await process.exited).exit_code == 0
    for fd in (process.stdout_fd, process.stderr_fd):
        os.close(fd)


@pytest.mark.usefixtures("ends")
async def test_what_no_record_proves_is_reported_and_never_ended(home: Path, journal: Journal, dead: str) -> None:
    """O10, hashicorp/nomad#23969, hashicorp/go-plugin PR #320: unsure means do not kill."""
    process = started(worker("daemonizes", "--stubborn", "--at-once", journal=journal.path), home, dead)
    await journal.until("started")
    for path in (home / "running").iterdir():
        path.unlink()
    left = await end_workers(home, dead, patience_s=0.0)
    assert process.pid in [survivor.pid for survivor in left]
    assert not any(survivor.is_worker or survivor.in_group for survivor in left)
    assert process.alive
    process.signal_group(signal.SIGKILL)
    await process.exited
    close(process)


async def test_another_instances_workers_are_not_touched(home: Path, journal: Journal, dead: str, other: str) -> None:
    process = started(worker("stubborn", journal=journal.path), home, other)
    await journal.until("started")
    assert await end_workers(home, dead, patience_s=0.0) == []
    assert process.alive
    assert [one.identity for one in records_of(home, other)[0]] == [process.identity]
    process.signal_group(signal.SIGKILL)
    await process.exited
    assert os.listdir(home / "running") == []  # the worker's own host forgets it
    close(process)


@pytest.mark.parametrize("instance", ["", "a/b"])
async def test_no_instance_is_nobodys(home: Path, instance: str) -> None:
    with pytest.raises(ValueError, match="is no instance"):
        await end_workers(home, instance, patience_s=0.0)
    with pytest.raises(ValueError, match="everybody"):
        find("")


KILLED_HOST = """
import asyncio, os, sys
from pathlib import Path
from sandport.worker.launch import WorkerCommand, spawn

async def main():
    command = WorkerCommand(provider="scripted", argv=tuple(sys.argv[3:]))
    process = spawn(command, os.environ, instance=sys.argv[2], root=Path(sys.argv[1]))
    print(process.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def host_with(home: Path, instance: str, command: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """A host with one worker, whose pid it prints."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_HOST, str(home), instance, *command], cwd=ROOT, stdout=subprocess.PIPE
    ) as program:
        try:
            yield program
        finally:
            program.kill()


async def test_the_stuck_worker_of_a_host_that_was_killed_is_ended_by_the_next_one(
    home: Path, journal: Journal, dead: str
) -> None:
    """O01, hashicorp/go-plugin#10, flanksource/mission-control#3185: host killed, plugin stayed."""
    with host_with(home, dead, worker("stubborn", journal=journal.path)) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        await journal.until("started")
    assert alive(pid)
    assert await end_workers(home, dead, patience_s=0.05) == []
    assert not alive(pid)
    assert os.listdir(home / "running") == []


# ------------------------------------------------------------------ records that are stale


async def test_a_stale_record_that_names_a_stranger_costs_the_stranger_nothing(
    home: Path, stranger: subprocess.Popen[bytes], dead: str
) -> None:
    """O10, hashicorp/nomad#23969, hashicorp/go-plugin PR #320: the pid was reused, and a stranger was killed."""
    ticks = process_start_ticks(stranger.pid)
    stale = [
        Identity(stranger.pid, 1, boot_id(), new_token(dead)),  # the number was given back and taken again
        Identity(stranger.pid, ticks, boot_id(), new_token(dead)),  # all but the token fits
        Identity(stranger.pid, ticks, "another boot", new_token(dead)),
    ]
    for identity in stale:
        record(home, identity)
        assert not is_running(identity)
        assert not signal_exactly(identity, signal.SIGKILL)
    assert await end_workers(home, dead, patience_s=0.0) == []
    assert stranger.poll() is None
    assert os.listdir(home / "running") == []


async def test_a_process_is_signalled_only_while_everything_fits(home: Path, dead: str) -> None:
    process = started(("sleep", "600"), home, dead)
    await eventually(lambda: is_running(process.identity))
    identity = process.identity
    wrong = [
        Identity(identity.pid, identity.started_ticks + 1, identity.boot_id, identity.token),
        Identity(identity.pid, identity.started_ticks, "another boot", identity.token),
        Identity(identity.pid, identity.started_ticks, identity.boot_id, new_token(dead)),
        Identity(identity.pid, identity.started_ticks, identity.boot_id, ""),
    ]
    assert not any(signal_exactly(one, signal.SIGKILL) for one in wrong)
    assert not signal_exactly(identity, signal.SIGKILL, group=os.getpgrp())
    assert process.alive
    assert signal_exactly(identity, signal.SIGKILL, group=process.pid)
    assert (await process.exited).signal == signal.SIGKILL
    assert not signal_exactly(identity, signal.SIGKILL)
    close(process)


@pytest.mark.parametrize(
    "torn",
    ["", "{", '{"pid": 1}', "[]", '{"pid": "x"}', "\0" * 100],
    ids=["empty", "half", "incomplete", "a list", "a wrong type", "zeros"],
)
async def test_a_torn_record_is_cleared_away_and_blocks_nothing(
    home: Path, journal: Journal, torn: str, dead: str, other: str
) -> None:
    """O11, hashicorp/nomad#5891, PR #7163: a stale record blocked every start."""
    (home / "running").mkdir()
    name = new_token(dead)
    (home / "running" / name).write_text(torn)
    process = started(("sleep", "600"), home, other)
    assert len(os.listdir(home / "running")) == 2
    assert await end_workers(home, dead, patience_s=0.0) == []
    assert os.listdir(home / "running") == [process.identity.token]
    process.signal_group(signal.SIGKILL)
    await process.exited
    close(process)


async def test_a_stale_record_is_replaced_by_that_of_a_fresh_start(
    home: Path, stranger: subprocess.Popen[bytes], dead: str
) -> None:
    """O11, hashicorp/nomad#5891, PR #7163: a failed reattach falls through to a fresh start."""
    stale = record(home, Identity(stranger.pid, 1, boot_id(), new_token(dead)))
    await end_workers(home, dead, patience_s=0.0)
    process = started(("sleep", "600"), home, dead)
    (fresh,) = records_of(home, dead)[0]
    assert not stale.exists()
    assert fresh.identity == process.identity
    told = json.loads(fresh.path.read_bytes())
    assert told["pid"] == process.pid
    assert told["startTicks"] == process_start_ticks(process.pid)
    assert fresh.path.stat().st_mode & 0o777 == 0o600
    process.signal_group(signal.SIGKILL)
    await process.exited
    assert stranger.poll() is None
    close(process)


async def test_a_home_that_takes_no_record_does_not_keep_a_worker_from_starting(tmp_path: Path, dead: str) -> None:
    process = started(("sleep", "600"), tmp_path / "missing", dead)
    assert process.record is None
    assert process.alive
    process.signal_group(signal.SIGKILL)
    await process.exited
    close(process)


async def test_the_token_says_whose_worker_it_is(home: Path, dead: str) -> None:
    assert new_token("in1").startswith("in1.")
    assert len(new_token()) == 32
    process = started(("sleep", "600"), home, dead)
    assert process.identity.token.startswith(f"{dead}.")
    await eventually(lambda: [one.pid for one in find(f"{dead}.")] == [process.pid])
    process.signal_group(signal.SIGKILL)
    await process.exited
    assert find(f"{dead}.") == []
    assert children() == []
    close(process)
