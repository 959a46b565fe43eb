"""The end of hosts and workers: bounded, asked for once, from anywhere, in any order, and nothing left."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandport.errors import SandportError, WorkerStartFailed
from sandport.host import Host
from sandport.numbers import StopLadder, Timing
from sandport_protocol.limits import Limits
from tests.integration.conftest import OpenHost
from tests.integration.stage import (
    PATIENCE_S,
    QUICK,
    ROOT,
    Journal,
    Records,
    alive,
    children,
    configuration,
    eventually,
    hold_the_loop_while_alive,
    marked_with,
    worker,
)

pytestmark = pytest.mark.anyio


def kill_child(journal: Journal) -> None:
    """End what escaped on purpose."""
    for entry in journal.of("child"):
        if alive(entry["child"]):
            os.kill(entry["child"], signal.SIGKILL)


# ------------------------------------------------------------------ stopping a worker


async def test_a_worker_is_asked_once_and_ends_by_itself(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    """S15, pulumi/pulumi#9780, #19603: workers were only killed, and could not clean up."""
    async with open_host(scripted=worker("counts_stops", journal=journal.path)) as host:
        await host.describe("scripted")
    assert [entry["how"] for entry in journal.of("stop")] == ["shutdown", "end of input"]
    assert records.texts("warning", "error") == []


async def test_what_runs_may_finish_while_a_worker_is_stopped(open_host: OpenHost, journal: Journal) -> None:
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        call = asyncio.ensure_future(sandbox.execute(shell="read x; echo $x", stdin=b"done\n"))
        await journal.until("executes")
        running = await host._supervisor("scripted").worker()
        report = await running.stop()
        assert bytes((await call).stdout) == b"done\n"
        assert (report.exit_code, report.phase) == (0, "stopping")


async def test_a_worker_that_crashes_on_shutdown_settles_the_stop(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    """S07, microsoft/vscode-languageserver-node#715: the stop never settled."""
    async with open_host(scripted=worker("dies", "shutdown", "9", journal=journal.path)) as host:
        await host.describe("scripted")
        report = await (await host._supervisor("scripted").worker()).stop()
        assert (report.exit_code, report.phase) == (9, "stopping")
    assert len(journal.of("started")) == 1


async def test_a_worker_that_ends_at_once_on_shutdown_is_not_started_again(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    """S08, microsoft/vscode-languageserver-node#597: a fast exit was taken for a crash, and a rogue was started."""
    async with open_host(scripted=worker("dies", "shutdown", "0", journal=journal.path)) as host:
        await host.describe("scripted")
        supervisor = host._supervisor("scripted")
    assert supervisor.starts == 1
    assert len(journal.of("started")) == 1
    assert records.texts("error") == []
    assert children() == []


async def test_a_worker_that_ignores_everything_is_killed_step_by_step(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    """O08, dask/distributed#1303: SIGTERM was caught, and nothing followed."""
    timing = Timing(stop=StopLadder(drain_s=1.0, eof_s=1.0, term_s=1.0, kill_s=10))
    async with open_host(scripted=worker("stubborn", journal=journal.path), timing=timing) as host:
        await host.describe("scripted")
        pid = (await host._supervisor("scripted").worker()).process.pid
    told = [entry["event"] for entry in journal if entry["event"] in ("shutdown", "end of input", "signal")]
    assert told == ["shutdown", "end of input", "signal"]
    assert records.texts("warning") == [
        "worker does not end by itself: SIGTERM",
        "worker does not end by itself: SIGKILL",
    ]
    assert not alive(pid)


async def test_a_worker_whose_calls_are_all_stuck_is_stopped_all_the_same(open_host: OpenHost) -> None:
    timing = Timing(stop=StopLadder(drain_s=0.1, eof_s=5, term_s=1, kill_s=10), close_grace_s=0.1)
    limits = Limits(in_flight=2, cancel_grace_ms=50)
    async with open_host(scripted=worker("never_answers"), timing=timing, limits=limits) as host:
        lease = host.lease("scripted")
        sandbox = await lease.__aenter__()
        calls = [asyncio.ensure_future(sandbox.execute(["x"])) for _ in range(2)]
        running = await host._supervisor("scripted").worker()
        await eventually(lambda: running.client.open_methods == ("execute", "execute"))
        await lease.__aexit__(None, None, None)
    assert running.ended.result().exit_code == 0
    assert all(isinstance(end, SandportError) for end in await asyncio.gather(*calls, return_exceptions=True))


@pytest.mark.parametrize("escapes", [False, True], ids=["in its group", "escaped"])
async def test_a_child_that_holds_the_pipes_neither_delays_nor_forces_the_end(
    open_host: OpenHost, journal: Journal, records: Records, escapes: bool
) -> None:
    """S02, S04, S15: modelcontextprotocol/python-sdk PR #2773 (1), (3), pulumi/pulumi#9780: the close waited for the
    end of a pipe that a grandchild held, and took the prompt exit for a hang."""
    arguments = ("--escapes",) if escapes else ()
    try:
        async with open_host(scripted=worker("leaves_child", *arguments, journal=journal.path)) as host:
            await host.describe("scripted")
            (entry,) = journal.of("child")
            report = await (await host._supervisor("scripted").worker()).stop()
        assert report.exit_code == 0
        assert not any("does not end by itself" in text for text in records.texts())  # nothing was forced
        if escapes:
            assert alive(entry["child"])
            await records.until(lambda text: f"is left alone: pid {entry['child']} (sleep 600)" in text)
        else:
            await eventually(lambda: not alive(entry["child"]))
    finally:
        kill_child(journal)


async def test_a_cancel_of_the_close_with_a_held_pipe_still_closes(open_host: OpenHost, journal: Journal) -> None:
    """S02, modelcontextprotocol/python-sdk PR #2773 (1): the cancelled close was deadlocked."""

    async def run() -> None:
        async with open_host(scripted=worker("leaves_child", "--escapes", journal=journal.path)) as host:
            await host.describe("scripted")

    try:
        running = asyncio.ensure_future(run())
        await journal.until("received", method="shutdown")
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
        await asyncio.wait((running,))
        assert running.cancelled()
        assert children() == []
    finally:
        kill_child(journal)


async def test_the_last_message_before_an_exit_is_received(open_host: OpenHost) -> None:
    """S12, microsoft/vscode-js-debug#1530: the last message was lost since the stream was destroyed too early."""
    async with open_host(scripted=worker("speaks_last")) as host, host.lease("scripted") as sandbox:
        for _ in range(30):
            outcome = await sandbox.execute(["x"])
            assert bytes(outcome.stdout) == b"the last words"
            worker_now = host._supervisor("scripted").current
            if worker_now is not None:
                await worker_now.ended
        assert host._supervisor("scripted").starts == 30


async def test_messages_that_nobody_had_read_at_the_exit_are_received(open_host: OpenHost, tmp_path: Path) -> None:
    """S12, microsoft/vscode-js-debug#1530: far more than one read takes, all of it there when the exit is seen."""
    go = tmp_path / "go"
    async with open_host(scripted=worker("speaks_last")) as host, host.lease("scripted") as sandbox:
        call = asyncio.ensure_future(sandbox.execute([str(go), "600000"]))
        running = await host._supervisor("scripted").worker()
        await eventually(lambda: "execute" in running.client.open_methods)
        go.touch()
        hold_the_loop_while_alive(running.process.pid)
        assert bytes((await call).stdout) == b"x" * 600_000 + b"the last words"


# ------------------------------------------------------------------ closing hosts


async def test_a_closing_host_starts_nothing_more(open_host: OpenHost, journal: Journal) -> None:
    """S09, jupyter/notebook#5991: workers were restarted while the host stopped."""
    commands = {f"w{number}": worker("well_behaved", journal=journal.path) for number in range(20)}
    async with open_host(**commands) as host:
        await asyncio.gather(*(host.describe(name) for name in commands))
        supervisors = [host._supervisor(name) for name in commands]
        for supervisor in supervisors[::2]:  # half of them crash at the moment when the close begins
            (await supervisor.worker()).process.signal_group(signal.SIGKILL)
    assert [supervisor.starts for supervisor in supervisors] == [1] * 20
    assert children() == []


async def test_a_host_that_closes_while_a_worker_starts_tells_whoever_waits(
    open_host: OpenHost, journal: Journal
) -> None:
    async with open_host(scripted=worker("silent", journal=journal.path)) as host:
        waiting = [asyncio.ensure_future(host.describe("scripted")) for _ in range(3)]
        await journal.until("started")
    for error in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(error, WorkerStartFailed)
        assert "the host is closing" in str(error)
    assert children() == []


async def test_a_lease_that_outlives_its_host_has_ended_with_it(open_host: OpenHost, records: Records) -> None:
    async with open_host(scripted=worker("well_behaved")) as host:
        lease = host.lease("scripted")
        sandbox = await lease.__aenter__()
    with pytest.raises(SandportError):
        await sandbox.execute(["true"])
    await lease.__aexit__(None, None, None)
    assert not any("is not confirmed" in text for text in records.texts("error"))


async def test_hosts_close_from_any_task_in_any_order(tmp_path: Path) -> None:
    """S13, modelcontextprotocol/python-sdk#79, #577, #922: closing from another task raised scope errors."""
    command = worker("well_behaved")
    first, second = AsyncExitStack(), AsyncExitStack()
    hosts = [
        await stack.enter_async_context(
            Host.open(configuration({"w": command}), home=tmp_path / "h", log=Records().log)
        )
        for stack in (first, second)
    ]
    for host in hosts:
        await host.describe("w")
    await asyncio.create_task(first.aclose())
    async with hosts[1].lease("w") as sandbox:
        assert (await sandbox.execute(["true"])).ok
    await asyncio.create_task(second.aclose())
    assert children() == []


async def test_a_failure_in_the_block_is_raised_as_it_was(open_host: OpenHost) -> None:
    with pytest.raises(ValueError, match="mine"):
        async with open_host(scripted=worker("well_behaved")) as host, host.lease("scripted"):
            raise ValueError("mine")
    assert children() == []


async def test_hosts_in_a_task_group_end_with_it(tmp_path: Path) -> None:
    async def serve(number: int, started: anyio.abc.TaskStatus[None]) -> None:
        async with Host.open(configuration({"w": worker("well_behaved")}), home=tmp_path / str(number)) as host:
            await host.describe("w")
            started.started()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        for number in range(3):

            async def begin(*, task_status: anyio.abc.TaskStatus[None], number: int = number) -> None:
                await serve(number, task_status)

            await tasks.start(begin)
        tasks.cancel_scope.cancel()
    assert children() == []


# ------------------------------------------------------------------ hosts that are ended from outside


class Embedder:
    """A program with a host in it, and what it says."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def hear(self) -> dict[str, Any]:
        """The next thing that it says."""
        assert self.process.stdout is not None
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told


@contextmanager
def embedder(what: str, home: Path, command: tuple[str, ...], **env: str) -> Iterator[Embedder]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.embedder", what, str(home), *command],
        cwd=ROOT,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        try:
            yield Embedder(process)
        finally:
            if process.poll() is None:
                process.kill()


FAKE = (sys.executable, "-P", "-m", "sandport_provider_fake")
"""A worker on the SDK."""


@pytest.mark.parametrize("command", [worker("well_behaved"), FAKE], ids=["scripted", "sdk"])
async def test_a_worker_ends_when_its_host_is_killed(tmp_path: Path, command: tuple[str, ...]) -> None:
    """O01, hashicorp/go-plugin#10, flanksource/mission-control#3185: the host was killed, the plugin stayed."""
    with embedder("idle", tmp_path, command) as program:
        pid = program.hear()["worker"]
        program.process.kill()
        await eventually(lambda: not alive(pid), within_s=PATIENCE_S)


async def test_a_worker_behind_a_wrapper_ends_when_its_host_is_killed(tmp_path: Path, journal: Journal) -> None:
    """O03, verygoodplugins/mcp-automem#137: a wrapper held the pipe, and the end of input never came."""
    command = ("sh", "-c", '"$@"; exit $?', "sh", *worker("well_behaved", journal=journal.path))
    with embedder("idle", tmp_path, command) as program:
        wrapper = program.hear()["worker"]
        (started,) = journal.of("started")
        assert started["pid"] != wrapper
        program.process.kill()
        await eventually(lambda: not alive(started["pid"]) and not alive(wrapper))


HOLDS_THE_PIPE = """
place=$1; shift
mkfifo "$place/pipe"
exec 4<&0
cat <&4 >"$place/pipe" &
exec sh -c 'echo $$ >"$0/holder"; exec sleep 600' "$place" 4<&- >"$place/pipe" &
sh -c 'echo $$ >"$0/worker"; exec "$@"' "$place" "$@" <"$place/pipe" 4<&- | cat
"""


async def test_a_worker_whose_input_never_ends_takes_a_silent_host_for_dead(tmp_path: Path) -> None:
    """O03, verygoodplugins/mcp-automem#137: a worker on the SDK, whose parent lives on and whose pipes stay open."""
    place = tmp_path / "place"
    place.mkdir()
    command = ("sh", "-c", HOLDS_THE_PIPE, "sh", str(place), *FAKE)
    with embedder("idle", tmp_path / "home", command, HOST_SILENCE_MS="1000") as program:
        wrapper = program.hear()["worker"]
        await eventually((place / "holder").exists)
        pid = int((place / "worker").read_text())
        try:
            program.process.kill()
            await eventually(lambda: not alive(pid))
            assert alive(int((place / "holder").read_text()))
        finally:
            os.killpg(wrapper, signal.SIGKILL)


async def test_whoever_reads_the_output_of_a_killed_host_gets_its_end(tmp_path: Path) -> None:
    """S14, evanw/esbuild#2727: a worker had inherited the stream, and the caller waited."""
    with embedder("busy", tmp_path, worker("well_behaved")) as program:
        pid = program.hear()["worker"]
        os.kill(pid, signal.SIGSTOP)  # not even a worker that does not notice holds the stream
        try:
            program.process.kill()
            rest = await anyio.to_thread.run_sync(program.process.communicate)
            assert rest[0] == b""
        finally:
            os.kill(pid, signal.SIGCONT)
        await eventually(lambda: not alive(pid))


async def test_an_interrupt_of_the_foreground_group_stops_a_worker_once(tmp_path: Path, journal: Journal) -> None:
    """S10, docker/cli#4402, PR #4769: the terminal's signal went to both through the shared group."""
    with embedder("busy", tmp_path, worker("counts_stops", journal=journal.path)) as program:
        program.hear()
        await journal.until("executes")
        os.killpg(program.process.pid, signal.SIGINT)
        assert await anyio.to_thread.run_sync(program.hear) == {"ended": True}
        assert program.process.wait(PATIENCE_S) == 0
    await eventually(lambda: len(journal.of("stop")) == 2)
    assert [entry["how"] for entry in journal.of("stop")] == ["shutdown", "end of input"]
    assert len(journal.of("cancelled")) == 1
    assert journal.received("destroyLease") == 1


def test_a_host_that_was_started_without_standard_descriptors_serves(tmp_path: Path) -> None:
    """F07, ElementsProject/lightning#4385, #4175: a plugin's pipe got the number of stdout, and host logs."""
    read, write = os.pipe()
    command = (sys.executable, "-m", "tests.integration.embedder", "run_one", str(tmp_path), *worker("well_behaved"))
    process = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command],
        cwd=ROOT,
        env={**os.environ, "TELL": str(write)},
        pass_fds=(write,),
    )
    os.close(write)
    with open(read, "rb") as told:
        lines = [json.loads(line) for line in told]
    assert process.wait(PATIENCE_S) == 0
    assert lines == [{"exit_code": 0, "stdout": "hello\n"}, {"ended": True}]


async def test_nothing_carries_a_workers_mark_after_its_host_closed(open_host: OpenHost) -> None:
    async with open_host(scripted=worker("well_behaved")) as host, host.lease("scripted") as sandbox:
        running = await host._supervisor("scripted").worker()
        token = running.process.identity.token
        assert marked_with(token) == [running.process.pid]
        assert (await sandbox.execute(["true"])).ok
    assert marked_with(token) == []


async def test_leaving_at_once_waits_for_nothing_and_the_workers_finish_alone(tmp_path: Path, journal: Journal) -> None:
    records = Records()
    settings = configuration({"scripted": worker("well_behaved", journal=journal.path)})
    async with Host.open(settings, home=tmp_path, log=records.log) as host, host.lease("scripted") as sandbox:
        root = Path(sandbox.working_directory.decode())
        before = time.monotonic()
        host.abandon()
        assert time.monotonic() - before < QUICK.close_grace_s
        await eventually(lambda: not root.exists())
    assert journal.received("destroyLease") >= 1
