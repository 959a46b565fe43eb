"""Sandboxes on this machine: what the conformance kit cannot see of a keeper, above all what happens without one.

Sources: what is started must end with its owner (`ray-project/ray#42861`), whoever starts again must find it
(`NVIDIA-NeMo/Gym#1572`), and what was recorded as gone must be gone.
"""

import asyncio
import json
import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandport_sdk.testing import new_id
from sandport_sdk.v1 import errors, machine, types
from sdk.tests.sandboxes import (
    Worker,
    ended,
    eventually,
    keeper_of,
    kill_keeper,
    run,
    running_worker,
    running_workers,
    start,
)


def left_to_itself(sandbox: machine.Sandbox) -> int:
    """Start what outlives its command and leaves its session; its number."""
    assert run(sandbox, "sh", "-c", "setsid sh -c 'echo $$ >pid.new; mv pid.new pid; exec sleep 600' & ") == 0
    eventually((sandbox.files / "pid").exists)
    return int((sandbox.files / "pid").read_text())


def test_a_sandbox_whose_keeper_was_killed_comes_back_with_its_files_and_without_what_ran(worker: Worker) -> None:
    sandbox = worker.create()
    daemon, keeper = left_to_itself(sandbox), keeper_of(sandbox)
    kill_keeper(keeper)
    assert not ended(daemon)
    with pytest.raises(errors.NotAttached):
        run(sandbox, "true")
    again = worker.attach(sandbox)
    assert again is not None
    assert again.processes_lost
    assert again.expires_at_ms == sandbox.expires_at_ms
    assert ended(daemon)
    assert run(again, "test", "-e", "pid") == 0
    same = worker.attach(sandbox)
    assert same is not None
    assert not same.processes_lost  # what was lost was told, and something was started since


def test_a_destroy_ends_what_a_keeper_that_was_killed_has_left(worker: Worker) -> None:
    sandbox = worker.create()
    daemon = left_to_itself(sandbox)
    kill_keeper(keeper_of(sandbox))
    assert worker.destroy(sandbox.sandbox_id) == "destroyed"
    assert ended(daemon)
    assert worker.destroy(sandbox.sandbox_id) == "gone"


def test_a_command_ends_with_its_keeper_and_is_told_as_lost(worker: Worker) -> None:
    sandbox = worker.create()
    keeper = keeper_of(sandbox)

    async def story() -> None:
        process = await start(sandbox, "sleep", "600")
        os.kill(keeper, signal.SIGKILL)
        with pytest.raises(errors.SandboxLost):
            await process.wait()
        await asyncio.to_thread(eventually, lambda: ended(process.pid))

    asyncio.run(story())


def test_what_expired_without_a_keeper_is_ended_by_the_list(worker: Worker) -> None:
    sandbox = worker.create()
    kill_keeper(keeper_of(sandbox))
    record = sandbox.folder / "record.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"expiresAtMs": 1}))
    assert worker.listed() == []
    assert not sandbox.folder.exists()
    assert worker.attach(sandbox) is None


def test_a_sandbox_that_was_never_finished_is_listed_and_only_a_destroy_ends_it(worker: Worker) -> None:
    sandbox_id = new_id()
    worker.folder(sandbox_id).path.mkdir()  # as a worker leaves it that is killed at this moment
    assert worker.listed() == [sandbox_id]
    with pytest.raises(errors.Unavailable, match="never finished"):
        worker.sandboxes.attach(types.AttachLeaseParams(sandbox_id=sandbox_id, handle=f"test/1/{sandbox_id}"))
    with pytest.raises(errors.InvalidParams):
        worker.sandboxes.create(types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=1000))
    assert worker.destroy(sandbox_id) == "destroyed"


def test_workers_that_come_back_at_once_start_one_keeper(worker: Worker) -> None:
    sandbox = worker.create()
    kill_keeper(keeper_of(sandbox))
    with running_workers(worker.state_dir, 6) as others, ThreadPoolExecutor(6) as pool:
        attached = list(pool.map(lambda other: other.attach(sandbox), others))
        keepers = {keeper_of(one) for one in attached if one is not None}
    assert (len(attached), len(keepers)) == (6, 1)


def test_destroys_and_attaches_at_once_leave_nothing(worker: Worker) -> None:
    for _ in range(5):
        sandbox = worker.create()
        with running_workers(worker.state_dir, 4) as others, ThreadPoolExecutor(8) as pool:
            attaches = [pool.submit(other.attach, sandbox) for other in others]
            destroys = [pool.submit(other.destroy, sandbox.sandbox_id) for other in others]
            assert "destroyed" in [done.result() for done in destroys]
            for attach in attaches:
                attach.result()  # attached just before, or None
        assert not sandbox.folder.exists()


def test_a_keeper_that_is_told_to_stop_leaves_a_kept_sandbox_and_removes_another(worker: Worker) -> None:
    kept, plain = worker.create(keep=True), worker.create()
    for sandbox in (kept, plain):
        os.kill(keeper_of(sandbox), signal.SIGTERM)
    eventually(lambda: not plain.folder.exists())
    eventually(lambda: refused(worker, kept))
    assert (kept.files / "keeper").exists()
    assert worker.attach(kept, keep=False) is not None
    assert not (kept.folder / "kept").exists()


def refused(worker: Worker, sandbox: machine.Sandbox) -> bool:
    try:
        worker.folder(sandbox.sandbox_id).connect().close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_worker_that_lets_go_of_a_command_has_lost_nothing_and_one_that_vanishes_has(worker: Worker) -> None:
    async def story() -> None:
        sandbox = worker.create()
        process = await start(sandbox, "sleep", "600")
        process.close()
        await asyncio.to_thread(eventually, lambda: ended(process.pid))
        again = worker.attach(sandbox)
        assert again is not None
        assert not again.processes_lost
        process = await start(sandbox, "sleep", "600")
        process._connection.shutdown(2)
        await asyncio.to_thread(eventually, lambda: ended(process.pid))
        again = worker.attach(sandbox)
        assert again is not None
        assert again.processes_lost

    asyncio.run(story())


def test_a_destroy_removes_what_is_deep_closed_or_hostile(worker: Worker) -> None:
    outside = worker.state_dir.parent / "outside"
    outside.mkdir(mode=0o700)
    (outside / "file").touch()
    sandbox = worker.create()
    text = """
        mkdir closed && touch closed/file && chmod 0 closed && ln -s "$0" link && mkfifo fifo
        touch "$(printf '\\377')"
        i=0; while [ $i -lt 30 ]; do mkdir $1 && cd $1; i=$((i + 1)); done
    """
    assert run(sandbox, "sh", "-c", text, str(outside), "deep" * 50) == 0
    assert worker.destroy(sandbox.sandbox_id) == "destroyed"
    assert (outside / "file").exists()
    (outside / "file").unlink()
    outside.rmdir()


def test_a_state_directory_with_a_long_path_will_do(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 40) / ("long" * 40)
    deep.mkdir(parents=True)
    with running_worker(deep) as worker:
        assert run(worker.create(), "true") == 0
        assert [worker.destroy(sandbox_id) for sandbox_id in worker.listed()] == ["destroyed"]


def test_what_cannot_be_started_says_why(worker: Worker) -> None:
    sandbox = worker.create()
    (sandbox.files / "plain").touch(mode=0o644)
    expected: dict[tuple[str, ...], type[errors.WireError]] = {
        ("no-such-program",): errors.CommandNotFound,
        ("./plain",): errors.CommandNotExecutable,
        (".",): errors.CommandNotExecutable,
        ("true", "x" * 5_000_000): errors.TooLarge,
    }
    for argv, error in expected.items():
        with pytest.raises(error) as raised:
            run(sandbox, *argv)
        assert raised.value.dispatched == "no"
    worker.destroy(sandbox.sandbox_id)
    with pytest.raises(errors.LeaseNotFound):
        run(sandbox, "true")


def test_a_start_that_is_cancelled_leaves_nothing_running(worker: Worker) -> None:
    sandbox = worker.create()

    async def story() -> None:
        for turns in range(6):
            starting = asyncio.ensure_future(start(sandbox, "sh", "-c", f"echo $$ >pid{turns}; exec sleep 600"))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait((starting,))
        # A command that begins behind them is seen behind them: the keeper takes one message after the other.
        assert await (await start(sandbox, "true")).wait() == 0

    asyncio.run(story())
    for path in sandbox.files.glob("pid*"):
        text = path.read_text()
        eventually(lambda text=text: not text or ended(int(text)))  # type: ignore[misc]


def test_many_commands_at_once_each_have_their_end_and_the_limits_of_the_worker(worker: Worker) -> None:
    sandbox = worker.create()

    async def story() -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        text = f'test "$(ulimit -n)" = {soft} || exit 99; exit $0'
        started = [await start(sandbox, "sh", "-c", text, str(code)) for code in range(60)]
        assert [await process.wait() for process in started] == list(range(60))

    asyncio.run(story())


def test_what_is_no_message_ends_its_connection_and_nothing_else(worker: Worker) -> None:
    sandbox = worker.create()
    keeper = keeper_of(sandbox)
    for noise in (
        b"\xff",
        b"[]",
        b"{}",
        b'{"signal": "x"}',
        b'{"attend": null}',
        b'{"start": null}',
        b'{"signal": 99}',
    ):
        with worker.folder(sandbox.sandbox_id).connect() as connection:
            connection.send(noise)
    assert keeper_of(sandbox) == keeper


def test_stores_in_one_directory_do_not_see_each_other(worker: Worker) -> None:
    sandbox = worker.create()
    with running_worker(worker.state_dir, "../st 2") as other:
        assert other.listed() == []
        assert other.destroy(sandbox.sandbox_id) == "gone"
        assert other.attach(sandbox) is None
    assert worker.listed() == [sandbox.sandbox_id]
