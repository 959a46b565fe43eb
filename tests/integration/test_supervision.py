"""What the host's supervisor does with workers that fail: counted apart, told apart, started again within bounds."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from sandport.errors import WorkerCrashed, WorkerStartFailed, WorkerWedged
from sandport.numbers import Restart, StopLadder, Timing
from sandport.worker.launch import WorkerCommand
from sandport.worker.lifetime import Worker
from sandport.worker.supervisor import Supervisor, worker_key
from sandport_protocol.limits import Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ExecuteParams, ExecuteResult, InitializeParams, PeerInfo
from tests.integration.conftest import OpenHost
from tests.integration.stage import QUICK, Journal, Records, alive, children, eventually, worker

pytestmark = pytest.mark.anyio

Supervise = Callable[..., AbstractAsyncContextManager[Supervisor]]
ABRUPT = StopLadder(drain_s=0.05, eof_s=0.05, term_s=0.05, kill_s=10)
SANDBOX = "sp" + "a" * 26


@pytest.fixture
def supervise(tmp_path: Path, records: Records) -> Supervise:
    """Runs the supervisor of one provider, with a home of its own."""

    @contextlib.asynccontextmanager
    async def supervised(
        command: tuple[str, ...],
        *,
        timing: Timing = QUICK,
        limits: Limits | None = None,
        tenant: str | None = None,
        home: bool = True,
    ) -> AsyncIterator[Supervisor]:
        (tmp_path / "home").mkdir(exist_ok=True)
        supervisor = Supervisor(
            WorkerCommand(provider="scripted", tenant=tenant, argv=command),
            InitializeParams(
                protocol_versions=(1,),
                host=PeerInfo(name="test", version="0"),
                store_id="st" + "a" * 26,
                state_dir=str(tmp_path),
                limits=limits or Limits(),
            ),
            environ=os.environ,
            timing=timing,
            log=records.log,
            on_late=lambda method, params, result: None,
            instance="in" + "a" * 26,
            root=tmp_path / "home" if home else None,
        )
        running = asyncio.ensure_future(supervisor.run())
        try:
            yield supervisor
        finally:
            running.cancel()
            await asyncio.wait((running,))

    return supervised


async def execute(running: Worker, *argv: str) -> ExecuteResult:
    params = ExecuteParams(sandbox_id=SANDBOX, argv=argv or ("x",))
    return await running.client.call(METHODS["execute"], params, ExecuteResult, deadline_s=60)


async def crash(supervisor: Supervisor) -> None:
    running = await supervisor.worker()
    os.kill(running.process.pid, signal.SIGKILL)
    await running.ended


# ------------------------------------------------------------------ failures, each kind by itself


async def test_starts_that_fail_too_often_are_refused_with_the_reason_and_nothing_is_spawned(
    supervise: Supervise, journal: Journal, records: Records
) -> None:
    """R04, dask/distributed#6426: a worker that could not start was started again and again."""
    restart = Restart(start_failures_at_most=2, window_s=3600, first_delay_s=0.001, longest_delay_s=0.001)
    command = worker("dies", "initialize", "1", journal=journal.path)
    async with supervise(command, timing=Timing(stop=QUICK.stop, restart=restart)) as supervisor:
        for _ in range(3):
            with pytest.raises(WorkerStartFailed, match="exited with code 1 before it was ready"):
                await supervisor.worker()
        for _ in range(5):
            with pytest.raises(WorkerStartFailed, match="failed to start 3 times in 3600 s"):
                await supervisor.worker()
        with pytest.raises(WorkerStartFailed) as raised:
            await supervisor.worker()
        assert "it is not started again for 3" in str(raised.value)
        assert "the last time: the scripted worker exited with code 1" in str(raised.value)
        assert raised.value.report is not None
        assert supervisor.starts == 3
        status = supervisor.status()
        assert (status.state, status.counts["start failure"].in_window) == ("given up", 3)
        assert status.again_in_s is not None
        assert status.counts["crash"].in_window == status.counts["wedge"].in_window == 0
    assert len(journal.of("started")) == 3
    assert len([text for text in records.texts("error") if text.startswith("given up: ")]) == 1


async def test_a_start_that_fails_once_blocks_nothing(supervise: Supervise, tmp_path: Path) -> None:
    """150: paperclip#10429: a failed start left a handle that blocked what came after."""
    flag = tmp_path / "flag"
    script = f'[ -e {flag} ] || {{ touch {flag}; exit 1; }}; exec "$@"'
    async with supervise(("sh", "-c", script, "sh", *worker("well_behaved"))) as supervisor:
        with pytest.raises(WorkerStartFailed):
            await supervisor.worker()
        assert (await supervisor.worker()).usable
        assert supervisor.status().counts["start failure"].in_window == 1


async def test_crashes_and_failed_starts_do_not_count_for_each_other(supervise: Supervise, tmp_path: Path) -> None:
    """R04, dask/distributed#6426: two different failures, two policies."""
    flag = tmp_path / "flag"
    flag.touch()
    script = f'[ -e {flag} ] || exit 1; exec "$@"'
    restart = Restart(at_most=2, start_failures_at_most=2, window_s=3600, first_delay_s=0.001, longest_delay_s=0.001)
    timing = Timing(stop=QUICK.stop, restart=restart)
    async with supervise(("sh", "-c", script, "sh", *worker("well_behaved")), timing=timing) as supervisor:
        for _ in range(2):
            await crash(supervisor)
            flag.unlink()
            with pytest.raises(WorkerStartFailed, match="exited with code 1"):
                await supervisor.worker()
            flag.touch()
        assert (await supervisor.worker()).usable
        await crash(supervisor)
        with pytest.raises(WorkerStartFailed, match="crashed 3 times in 3600 s"):
            await supervisor.worker()


async def test_wedges_have_a_count_and_a_window_of_their_own(supervise: Supervise) -> None:
    """R07, dask/distributed#8537: a missed heartbeat was given up at once."""
    restart = Restart(wedges_at_most=1, wedge_window_s=3600, first_delay_s=0.001, longest_delay_s=0.001)
    limits = Limits(heartbeat_ms=20, wedge_ms=1000)
    command = worker("never_answers", "--deaf")
    async with supervise(command, timing=Timing(stop=QUICK.stop, restart=restart), limits=limits) as supervisor:
        for _ in range(2):
            with pytest.raises(WorkerWedged):
                await execute(await supervisor.worker())
        with pytest.raises(WorkerStartFailed, match="was wedged 2 times in 3600 s") as raised:
            await supervisor.worker()
        assert "it answered no ping for 1 s" in str(raised.value)
        assert supervisor.status().counts["crash"].in_window == 0


async def test_a_worker_that_stays_up_clears_the_counts(supervise: Supervise) -> None:
    """R02, R03: mattermost/mattermost#14088, jupyter/jupyter_client#689: what was counted was kept in what restarts."""
    restart = Restart(at_most=2, window_s=3600, first_delay_s=0.001, longest_delay_s=0.001, stable_s=0.05)
    limits = Limits(heartbeat_ms=20)
    timing = Timing(stop=QUICK.stop, restart=restart)
    async with supervise(worker("well_behaved"), timing=timing, limits=limits) as supervisor:
        for _ in range(6):
            await supervisor.worker()
            await eventually(lambda: supervisor.status().counts["crash"].in_window == 0)
            await crash(supervisor)
            assert supervisor.status().counts["crash"].in_window == 1


async def test_a_host_that_stops_in_the_delay_before_a_restart_starts_nothing(
    supervise: Supervise, journal: Journal
) -> None:
    """S09, jupyter/notebook#5991: workers were restarted while the host stopped."""
    restart = Restart(first_delay_s=3600, longest_delay_s=3600)
    command = worker("well_behaved", journal=journal.path)
    async with supervise(command, timing=Timing(stop=QUICK.stop, restart=restart)) as supervisor:
        await crash(supervisor)
        waiting = asyncio.ensure_future(supervisor.worker())
        await eventually(lambda: supervisor.status().state == "waiting")
        again_in_s = supervisor.status().again_in_s
        assert again_in_s is not None
        assert again_in_s > 3000
    with pytest.raises(WorkerStartFailed, match="the host is closing"):
        await waiting
    with pytest.raises(WorkerStartFailed, match="the host is closing"):
        await supervisor.worker()
    assert len(journal.of("started")) == 1


# ------------------------------------------------------------------ hello, importing, busy, wedged, dead


async def test_each_phase_of_a_worker_is_told(supervise: Supervise, journal: Journal) -> None:
    async with supervise(worker("silent", journal=journal.path)) as supervisor:
        assert supervisor.status().state == "none"
        waiting = asyncio.ensure_future(supervisor.worker())
        await journal.until("started")
        assert supervisor.status().state == "starting"
        waiting.cancel()
    async with supervise(worker("well_behaved")) as supervisor:
        running = await supervisor.worker()
        status = supervisor.status()
        assert (status.state, status.pid) == ("serving", running.process.pid)
        await crash(supervisor)
        assert running.state == "dead"
        await eventually(lambda: supervisor.status().state == "none")
        assert supervisor.status().last is running.ended.result()
    async with supervise(worker("closes", "stdout")) as supervisor:
        running = await supervisor.worker()
        with pytest.raises(WorkerCrashed):
            await execute(running)
        assert running.ended.result().phase == "broken"


async def test_a_worker_that_is_busy_is_said_to_be_and_is_left_alone(
    supervise: Supervise, journal: Journal, records: Records
) -> None:
    """R07, dask/distributed#8537: a handler held the interpreter, and its worker was taken for dead."""
    limits = Limits(heartbeat_ms=20, wedge_ms=60_000)
    timing = Timing(stop=QUICK.stop, restart=QUICK.restart, busy_s=0.05)
    command = worker("holds", journal=journal.path)
    async with supervise(command, timing=timing, limits=limits) as supervisor:
        running = await supervisor.worker()
        call = asyncio.ensure_future(execute(running, "hold", "1000"))
        _, said, _ = await records.until(lambda text: text.startswith("the worker is busy"))
        assert said.endswith("a handler may hold it up; it is ended after 60 s of silence")
        assert supervisor.current is running
        assert (await call).exit_code == 0
        await records.until(lambda text: text == "the worker answers again")
        assert await supervisor.worker() is running
    assert len(journal.of("started")) == 1
    assert records.texts("error") == []


async def test_a_worker_that_is_busy_past_the_wedge_limit_is_ended_and_started_again(supervise: Supervise) -> None:
    """R07, dask/distributed#8537: a missed heartbeat was given up instead of a restart."""
    limits = Limits(heartbeat_ms=20, wedge_ms=1500)
    timing = Timing(stop=QUICK.stop, restart=QUICK.restart, busy_s=0.05)
    async with supervise(worker("holds"), timing=timing, limits=limits) as supervisor:
        first = await supervisor.worker()
        with pytest.raises(WorkerWedged, match=r"answered no ping for 1\.5 s") as raised:
            await execute(first, "hold", "600000")
        report = raised.value.report
        assert report is not None
        assert (report.kind, report.phase) == ("wedge", "wedged")
        second = await supervisor.worker()
        assert second is not first
        assert (await execute(second, "hold", "0")).exit_code == 0
        assert supervisor.status().counts["wedge"].in_window == 1


# ------------------------------------------------------------------ one after the other


@pytest.mark.parametrize("mode", ["--dies", "--never-ready"])
async def test_no_worker_ever_sees_the_one_before_it_alive(supervise: Supervise, journal: Journal, mode: str) -> None:
    """O08, dask/distributed#1303: SIGTERM was caught, and a new worker was started beside the old one."""
    timing = Timing(ready_s=0.1, stop=ABRUPT, restart=Restart(first_delay_s=0.001, longest_delay_s=0.001))
    async with supervise(worker("heir", mode, journal=journal.path), timing=timing) as supervisor:
        for _ in range(4):
            with pytest.raises((WorkerCrashed, WorkerStartFailed)):
                await execute(await supervisor.worker())
    starts = journal.of("inherits")
    assert len(starts) == 4
    assert [start["alive"] for start in starts] == [[]] * 4
    assert len({start["pid"] for start in starts}) == 4
    assert children() == []


# ------------------------------------------------------------------ one report


async def test_fifty_open_calls_end_with_one_crash_that_has_one_record(supervise: Supervise, records: Records) -> None:
    """L11, hashicorp/terraform#34657, hashicorp/terraform-provider-aws#28327: one crash, dozens of errors."""
    async with supervise(worker("dies", "execute", "3", "50")) as supervisor:
        running = await supervisor.worker()
        results = await asyncio.gather(*(execute(running) for _ in range(50)), return_exceptions=True)
        errors = [result for result in results if isinstance(result, WorkerCrashed)]
        assert len(errors) == 50
        (report,) = {id(error.report): error.report for error in errors}.values()
        assert report is not None
        assert all(f"[crash {report.id}]" in str(error) for error in errors)
        said = [fields for _, _, fields in records.lines if "crash" in fields]
        assert [fields["crash"] for fields in said] == [report.id]


async def test_a_thousand_calls_after_a_crash_are_a_thousand_errors_and_one_record(
    supervise: Supervise, records: Records
) -> None:
    """R10, autozimu/LanguageClient-neovim#320, sublimelsp/LSP#236: every call logged a broken pipe."""
    async with supervise(worker("dies", "execute", "3")) as supervisor:
        running = await supervisor.worker()
        with pytest.raises(WorkerCrashed):
            await execute(running)
        before = len(records.lines)
        for _ in range(1000):
            with pytest.raises(WorkerCrashed) as raised:
                await execute(running)
            assert raised.value.report is running.ended.result()
            assert raised.value.dispatched == "no"
        assert len(records.lines) == before
        assert len([fields for _, _, fields in records.lines if "crash" in fields]) == 1


# ------------------------------------------------------------------ the log file


async def test_a_crash_says_where_all_of_the_log_is(supervise: Supervise, tmp_path: Path, records: Records) -> None:
    """L09, bazelbuild/bazel#1082, #11948: the error did not say where the worker's log was, or was empty."""
    file = tmp_path / "home/logs/scripted.log"
    async with supervise(worker("noisy")) as supervisor:
        with pytest.raises(WorkerCrashed) as raised:
            await execute(await supervisor.worker(), "many lines and the end")
        assert f"its log ends: line 4997 | line 4998 | line 4999; all of its log is in {file}" in str(raised.value)
        assert supervisor.status().log_path == str(file)
    lines = file.read_text().splitlines()
    assert [line.split(": ", 1)[1] for line in lines if " stderr: line " in line] == [f"line {n}" for n in range(5000)]
    assert "exited with code 1" in lines[-1]
    assert file.stat().st_mode & 0o777 == 0o600
    (said,) = [text for text in records.texts("error") if "exited with code 1" in text]
    assert str(file) in said


async def test_a_failed_start_says_where_all_of_the_log_is(supervise: Supervise, tmp_path: Path) -> None:
    """L09, bazelbuild/bazel#1082, #11948; L02, jaegertracing/jaeger#3376."""
    async with supervise(worker("dies", "import", "1")) as supervisor:
        with pytest.raises(WorkerStartFailed) as raised:
            await supervisor.worker()
    file = tmp_path / "home/logs/scripted.log"
    assert str(raised.value).endswith(f"; all of its log is in {file}")
    text = file.read_text()
    assert "error" in text
    assert "ImportError: no module named 'vendor'" in text
    assert "exited with code 1 before it was ready" in text.splitlines()[-1]


async def test_a_silent_crash_has_a_log_all_the_same_and_a_quiet_worker_has_none(
    supervise: Supervise, tmp_path: Path
) -> None:
    file = tmp_path / "home/logs/scripted.log"
    async with supervise(worker("well_behaved")) as supervisor:
        await supervisor.worker()
    assert not file.exists()
    async with supervise(worker("well_behaved")) as supervisor:
        running = await supervisor.worker()
        await crash(supervisor)
        assert running.ended.result().log_path == str(file)
    assert "was killed by SIGKILL" in file.read_text()


async def test_without_a_home_no_file_is_written_and_none_is_promised(supervise: Supervise) -> None:
    async with supervise(worker("dies", "execute", "3"), home=False) as supervisor:
        with pytest.raises(WorkerCrashed) as raised:
            await execute(await supervisor.worker())
    assert "all of its log" not in str(raised.value)


# ------------------------------------------------------------------ tenants


async def test_a_tenants_worker_is_named_in_errors_records_and_files(
    supervise: Supervise, tmp_path: Path, records: Records
) -> None:
    async with supervise(worker("dies", "execute", "3"), tenant="acme") as supervisor:
        assert supervisor.key == ("scripted", "acme")
        with pytest.raises(WorkerCrashed, match=r"the scripted \(tenant acme\) worker \(pid") as raised:
            await execute(await supervisor.worker())
        assert raised.value.report is not None
        assert raised.value.report.tenant == supervisor.status().tenant == "acme"
    assert (tmp_path / "home/logs/scripted@acme.log").exists()
    assert {fields.get("tenant") for _, _, fields in records.lines} == {"acme"}


def test_tenants_have_workers_of_their_own_unless_they_share() -> None:
    assert worker_key("local", "a") != worker_key("local", "b")
    assert worker_key("local", "a", "shared") == worker_key("local", "b", "shared") == ("local", None)


# ------------------------------------------------------------------ through the host


async def test_ten_kills_leave_no_zombie_and_every_restart_works(open_host: OpenHost) -> None:
    """147: agent-of-empires#2090, emdash#426: a dead worker was not waited for."""
    async with open_host(scripted=worker("well_behaved")) as host, host.lease("scripted") as sandbox:
        supervisor = host._supervisor("scripted")
        for _ in range(10):
            await crash(supervisor)
            assert (await sandbox.execute(["true"])).ok
            assert len([pid for pid in children() if not alive(pid)]) == 0
        assert supervisor.starts == 11
