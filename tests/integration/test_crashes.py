"""Workers that end while they are used: one report, every call told, the next one served by a new worker."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from sandport.errors import WorkerCrashed, WorkerError, WorkerStartFailed
from sandport.numbers import Restart, StopLadder, Timing
from sandport.outcome import Outcome
from sandport.worker.lifetime import Worker
from sandport.worker.memory import kernel_kills, memory_facts
from sandport_protocol.capabilities import MANDATORY
from tests.integration.conftest import OpenHost
from tests.integration.stage import (
    QUICK,
    Journal,
    Records,
    alive,
    children,
    eventually,
    hold_the_loop_while_alive,
    marked_with,
    worker,
)

pytestmark = pytest.mark.anyio

ABRUPT = Timing(stop=StopLadder(drain_s=0.1, eof_s=0.1, term_s=0.1, kill_s=10), restart=QUICK.restart)


async def failures(*calls: asyncio.Task[Outcome]) -> list[WorkerCrashed]:
    """The crash that each of these calls ended with."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(result) for result in results} == {WorkerCrashed}
    return [result for result in results if isinstance(result, WorkerCrashed)]


async def kill(running: Worker) -> None:
    """End a worker from outside, as the kernel would for want of memory."""
    os.kill(running.process.pid, signal.SIGKILL)
    await running.ended


@pytest.mark.parametrize("count", [20, 50])
async def test_all_open_calls_end_at_once_with_one_report(open_host: OpenHost, records: Records, count: int) -> None:
    """N04, L11: modelcontextprotocol/python-sdk#332, microsoft/vscode-languageserver-node#65,
    hashicorp/terraform#34657, hashicorp/terraform-provider-aws#28327: calls never settled, or one crash was dozens of
    errors that did not say so."""
    async with (
        open_host(scripted=worker("dies", "execute", "3", str(count))) as host,
        host.lease("scripted") as sandbox,
    ):
        calls = [asyncio.ensure_future(sandbox.execute(["x"])) for _ in range(count)]
        errors = await failures(*calls)
        reports = {id(error.report) for error in errors}
        assert len(reports) == 1
        report = errors[0].report
        assert report is not None
        assert report.exit_code == 3
        assert report.open_methods == ("execute",) * count
        for error in errors:
            assert f"[crash {report.id}]" in str(error)
            assert "exited with code 3" in str(error)
            assert "the last words" in str(error)  # L09: the error has the end of the log
            assert error.dispatched == "unknown"
            assert error.partial is not None
            assert error.partial.stdout.data == b"partial"
    assert len([text for text in records.texts("error") if "exited with code 3" in text]) == 1


async def test_a_kill_from_outside_is_named_and_not_blamed_on_memory_without_a_reason(open_host: OpenHost) -> None:
    """R08, bazelbuild/bazel#5767, evanw/esbuild#4260: a kill for memory was reported as a print on stdout."""
    async with open_host(scripted=worker("never_answers")) as host, host.lease("scripted") as sandbox:
        call = asyncio.ensure_future(sandbox.execute(["x"]))
        running = await host._supervisor("scripted").worker()
        await eventually(lambda: "execute" in running.client.open_methods)
        await kill(running)
        (error,) = await failures(call)
        assert "was killed by SIGKILL" in str(error)
        if error.report is not None and not error.report.memory.kernel_kills:
            assert "was killed by SIGKILL, and not by this host" in str(error)
        assert error.report is not None
        assert (error.report.signal, error.report.kind) == (9, "exit")
        assert error.report.peak_memory_bytes
        assert error.report.memory.limit_bytes


async def test_a_kill_that_the_kernel_counts_is_one_for_want_of_memory(
    open_host: OpenHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R08, bazelbuild/bazel#5767, evanw/esbuild#4260: nothing said that a service was ended for want of memory."""
    vmstat = tmp_path / "system/proc/vmstat"
    vmstat.parent.mkdir(parents=True)
    for reads in (kernel_kills, memory_facts):
        assert reads.__kwdefaults__ is not None
        monkeypatch.setitem(reads.__kwdefaults__, "system", tmp_path / "system")
    async with open_host(scripted=worker("never_answers")) as host:
        for more in (1, 0):
            vmstat.write_text("nr_free_pages 1\noom_kill 7\n")
            async with host.lease("scripted") as sandbox:
                call = asyncio.ensure_future(sandbox.execute(["x"]))
                running = await host._supervisor("scripted").worker()
                await eventually(lambda running=running: "execute" in running.client.open_methods)  # type: ignore[misc]
                vmstat.write_text(f"nr_free_pages 1\noom_kill {7 + more}\n")
                await kill(running)
                (error,) = await failures(call)
            assert error.report is not None
            assert error.report.memory.kernel_kills == more
            assert ("out of memory" in str(error)) == bool(more)


async def test_a_crash_costs_the_open_command_and_the_next_one_runs_in_the_same_sandbox(
    open_host: OpenHost, journal: Journal
) -> None:
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        assert (await sandbox.execute(shell="echo kept >file")).ok
        first = await host._supervisor("scripted").worker()
        call = asyncio.ensure_future(sandbox.execute(shell="echo begun; exec sleep 600"))
        await journal.until("executes", 2)
        await eventually(lambda: len(journal.of("executes")) == 2)
        await kill(first)
        (error,) = await failures(call)
        assert error.dispatched == "unknown"
        outcome = await sandbox.execute(["cat", "file"])
        assert outcome.stdout.decode() == "kept\n"
        assert host._supervisor("scripted").starts == 2
        assert marked_with(first.process.identity.token) == []
    assert len(journal.of("executes")) == 3
    assert journal.received("attachLease") == 1


async def test_a_thousand_calls_after_the_end_fail_fast_and_log_once(open_host: OpenHost, records: Records) -> None:
    """R10, autozimu/LanguageClient-neovim#320, sublimelsp/LSP#236: each keystroke logged a broken pipe."""
    async with open_host(scripted=worker("never_answers")) as host, host.lease("scripted"):
        running = await host._supervisor("scripted").worker()
        await kill(running)
        for _ in range(1000):
            with pytest.raises(WorkerCrashed) as raised:
                await running.client.ping(deadline_s=30)
            assert raised.value.report is running.client.report
            assert raised.value.dispatched == "no"
        assert len([text for text in records.texts() if "was killed by SIGKILL" in text]) == 1


@pytest.mark.parametrize("which", ["stdin", "stdout"])
async def test_a_worker_that_closes_a_pipe_and_lives_on_is_ended(open_host: OpenHost, which: str) -> None:
    """C10, modelcontextprotocol/python-sdk#1401: the reader had ended, and those who waited hung."""
    async with open_host(scripted=worker("closes", which)) as host, host.lease("scripted") as sandbox:
        with pytest.raises(WorkerCrashed, match=f"it closed its {which} and did not end") as raised:
            await sandbox.execute(["x"])
        assert raised.value.report is not None
        assert raised.value.report.kind == "violation"


# ------------------------------------------------------------------ what is left


@pytest.mark.parametrize("killed", [False, True], ids=["exits", "is killed"])
async def test_what_a_worker_leaves_in_its_group_ends_with_it(
    open_host: OpenHost, journal: Journal, killed: bool
) -> None:
    """S03, O07: modelcontextprotocol/python-sdk PR #2773 (2), ray-project/ray#42861, PR #56476: the group was asked for
    after its leader was reaped, and the children lived on."""
    async with (
        open_host(scripted=worker("leaves_child", "--dies", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        child = journal.of("child")[0]["child"]
        assert alive(child)
        if killed:
            await kill(await host._supervisor("scripted").worker())
        else:
            with pytest.raises(WorkerCrashed, match="exited with code 3"):
                await sandbox.execute(["x"])
        await eventually(lambda: not alive(child))


async def test_a_child_that_escaped_with_the_pipes_delays_the_report_by_a_bounded_time(
    open_host: OpenHost, journal: Journal
) -> None:
    """S04, L04, modelcontextprotocol/python-sdk PR #2773 (3), hashicorp/go-plugin PR #118, PR #299: a child that kept
    the pipe made a prompt exit look like a hang."""
    async with (
        open_host(scripted=worker("leaves_child", "--dies", "--escapes", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with pytest.raises(WorkerCrashed, match="exited with code 3"):
            await sandbox.execute(["x"])
    try:
        for entry in journal.of("child"):
            assert alive(entry["child"])
    finally:
        for entry in journal.of("child"):
            os.kill(entry["child"], signal.SIGKILL)


async def test_the_last_lines_before_the_exit_are_in_the_report(open_host: OpenHost, records: Records) -> None:
    """L04, hashicorp/go-plugin PR #118, PR #299: waiting for the exit closed the pipes before they were read."""
    async with open_host(scripted=worker("noisy")) as host, host.lease("scripted") as sandbox:
        with pytest.raises(WorkerCrashed) as raised:
            await sandbox.execute(["many lines and the end"])
        assert raised.value.report is not None
        assert raised.value.report.log_tail[-1] == "line 4999"
        assert "line 4999" in str(raised.value)
    assert [text for text in records.texts("info") if text.startswith("line ")] == [f"line {n}" for n in range(5000)]


async def test_lines_that_nobody_had_read_at_the_exit_are_read_after_it(
    open_host: OpenHost, records: Records, tmp_path: Path
) -> None:
    """L04, hashicorp/go-plugin PR #118, PR #299; 152, activepieces#14015: what a runtime wrote when it crashed."""
    go = tmp_path / "go"
    async with open_host(scripted=worker("noisy")) as host, host.lease("scripted") as sandbox:
        call = asyncio.ensure_future(sandbox.execute(["long lines and the end", str(go)]))
        running = await host._supervisor("scripted").worker()
        await eventually(lambda: "execute" in running.client.open_methods)
        go.touch()
        hold_the_loop_while_alive(running.process.pid)
        (error,) = await failures(call)
        assert error.report is not None
        assert error.report.log_tail[-1] == "the last words"
    assert len([text for text in records.texts("info") if text.startswith("long ")]) == 9


# ------------------------------------------------------------------ restarts


async def test_a_worker_is_started_again_after_every_crash(open_host: OpenHost) -> None:
    """R03, jupyter/jupyter_client#689: a flag that stayed set let it restart once and never again."""
    async with open_host(scripted=worker("well_behaved")) as host, host.lease("scripted") as sandbox:
        supervisor = host._supervisor("scripted")
        for crashes in range(1, 4):
            await kill(await supervisor.worker())
            assert (await sandbox.execute(["true"])).ok
            assert supervisor.starts == crashes + 1


async def test_a_worker_that_always_crashes_is_given_up_with_one_final_error(open_host: OpenHost) -> None:
    """R02, mattermost/mattermost#14088: the counter lived in what the restart replaced, and it never ended."""
    restart = Restart(at_most=3, window_s=3600, first_delay_s=0.001, longest_delay_s=0.001)
    timing = Timing(restart=restart, stop=QUICK.stop, close_grace_s=5)
    async with open_host(scripted=worker("dies", "execute", "3"), timing=timing) as host:
        supervisor = host._supervisor("scripted")

        async def crash_until_given_up() -> None:
            while True:
                async with host.lease("scripted") as sandbox:
                    with pytest.raises(WorkerCrashed):
                        await sandbox.execute(["x"])

        said = r"crashed 4 times in 3600 s; it is not started again for 3\d\d\d s"
        with pytest.raises(WorkerStartFailed, match=said):
            await crash_until_given_up()
        assert supervisor.starts == 4
        for _ in range(10):
            with pytest.raises(WorkerStartFailed, match=said):
                await host.describe("scripted")
        assert supervisor.starts == 4


async def test_a_restart_is_the_same_start_again(open_host: OpenHost, journal: Journal) -> None:
    """R05, microsoft/vscode-languageserver-node#1722: a start changed its caller's options; variables were lost; L06,
    hashicorp/vault#5177, PR #25128: what was set for a plugin never reached it."""
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "GRANTED": "g", "OTHER": "o"}
    command = worker("dies", "execute", "3", journal=journal.path)
    async with open_host(scripted=command, environ=environ, env=("GRANTED",)) as host:
        for _ in range(2):
            async with host.lease("scripted") as sandbox:
                with pytest.raises(WorkerCrashed):
                    await sandbox.execute(["x"])
                environ["GRANTED"] = "changed meanwhile"
    first, second, *_ = journal.of("started")
    for entry in (first, second):
        entry["environ"].pop("SANDPORT_WORKER_TOKEN")
        assert entry.pop("pid")
    assert first == second
    assert first["environ"]["GRANTED"] == "g"
    assert "OTHER" not in first["environ"]
    assert first["cwd"] == "/"


@pytest.mark.slow
async def test_a_hundred_replacements_leave_one_worker(open_host: OpenHost) -> None:
    """O12, NousResearch/hermes-agent#58219: each reconnect leaked the child before it."""
    methods = json.dumps(MANDATORY)
    hello = f'{{"protocolVersion":1,"provider":{{"name":"sh","version":"0"}},"supportedMethods":{methods}}}'
    script = (
        f"""read line; echo '{{"jsonrpc":"2.0","id":1,"result":{hello}}}'; """
        """read line; echo '{"jsonrpc":"2.0","method":"ready","params":{}}'; exec sleep 600"""
    )
    async with open_host(scripted=("sh", "-c", script), timing=ABRUPT) as host:
        supervisor = host._supervisor("scripted")
        for _ in range(100):
            await kill(await supervisor.worker())
        for _ in range(20):  # those that the host itself gives up, which would live on
            (await supervisor.worker()).condemn("the test says so", kind="wedge")
        await supervisor.worker()
        assert supervisor.starts == 121
        assert len(children()) == 1
    assert children() == []


async def test_there_are_never_two_generations(open_host: OpenHost, journal: Journal) -> None:
    """O08, dask/distributed#1303: SIGTERM was caught, and a new worker was started beside the old one."""
    async with open_host(scripted=worker("stubborn", journal=journal.path), timing=ABRUPT) as host:
        supervisor = host._supervisor("scripted")
        first = await supervisor.worker()
        first.condemn("the test says so", kind="wedge")
        second = await supervisor.worker()
        assert first.ended.done()
        assert not alive(first.process.pid)
        assert second is not first
    assert children() == []


async def test_other_providers_are_not_touched_by_a_crash(open_host: OpenHost) -> None:
    async with (
        open_host(one=worker("dies", "execute", "3"), other=worker("well_behaved")) as host,
        host.lease("one") as bad,
        host.lease("other") as good,
    ):
        call = asyncio.ensure_future(good.execute(shell="read x; exit 0", stdin=b"x\n"))
        with pytest.raises(WorkerError):
            await bad.execute(["x"])
        assert (await call).ok
