"""Workers that do not come up: every one is told to its caller, in time, and leaves nothing."""

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec
import pytest

from sandport.errors import NotSupported, WorkerCrashed, WorkerError, WorkerStartFailed
from sandport.host import ProviderFacts
from sandport.numbers import Restart, StopLadder, Timing
from sandport.worker.launch import WorkerCommand
from sandport.worker.supervisor import Supervisor
from sandport_protocol.v1 import InitializeParams, PeerInfo
from tests.integration.conftest import OpenHost
from tests.integration.stage import QUICK, Journal, Records, alive, children, open_descriptors, worker

pytestmark = pytest.mark.anyio

OFTEN = Restart(start_failures_at_most=1000, first_delay_s=0.001, longest_delay_s=0.001)
"""A provider is never given up."""
IMPATIENT = Timing(
    start_s=0.5, ready_s=0.2, stop=StopLadder(drain_s=0.05, eof_s=0.05, term_s=0.05, kill_s=10.0), restart=OFTEN
)
TIRELESS = Timing(stop=QUICK.stop, restart=OFTEN)


async def start_failure(open_host: OpenHost, command: tuple[str, ...], timing: Timing = QUICK) -> WorkerStartFailed:
    """How the start of a worker fails."""
    async with open_host(scripted=command, timing=timing) as host:
        with pytest.raises(WorkerStartFailed) as raised:
            await host.describe("scripted")
    return raised.value


async def test_a_script_that_is_missing_fails_the_start_with_its_code_and_its_words(open_host: OpenHost) -> None:
    """N01, modelcontextprotocol/python-sdk#401: the start waited for ever."""
    error = await start_failure(open_host, (sys.executable, "missing.py"))
    assert "exited with code 2" in str(error)
    assert "can't open file '//missing.py'" in str(error)
    assert error.report is not None
    assert error.report.exit_code == 2


async def test_each_way_of_not_being_a_program_has_its_own_words(open_host: OpenHost, tmp_path: Path) -> None:
    """N02, evanw/esbuild#2129: a wrong path was an error that nobody handled, and the caller hung."""
    plain = tmp_path / "plain"
    plain.write_text("x")
    for command, said in (
        (("",), "the command of provider 'scripted' is empty"),
        ((str(tmp_path / "missing"),), "there is no such program"),
        ((str(tmp_path),), "it is a directory"),
        ((str(plain),), "it is not executable"),
        ((str(plain / "below"),), "a part of its path is not a directory"),
        (("a\0b",), "null byte"),
    ):
        error = await start_failure(open_host, command)
        assert said in str(error)
        assert error.dispatched == "no"
        assert error.__cause__ is not None or said.startswith("the command")


@pytest.mark.slow
async def test_a_hundred_workers_that_end_at_once_are_a_hundred_errors(open_host: OpenHost) -> None:
    """N03, anomalyco/opencode#43258: the broken pipe of one that died before reading killed the host."""
    commands = {f"w{number}": ("sh", "-c", "exit 1") for number in range(100)}
    async with open_host(**commands, good=worker("well_behaved")) as host:
        results = await asyncio.gather(*(host.describe(name) for name in commands), return_exceptions=True)
        assert {type(result) for result in results} == {WorkerStartFailed}
        assert all("exited with code 1" in str(result) for result in results)
        await host.describe("good")
    assert children() == []


async def test_two_sides_without_a_common_version_are_both_named_and_who_should_upgrade(tmp_path: Path) -> None:
    """N06, hashicorp/terraform#12580: the text said "ours" without saying who that was."""
    records = Records()
    for way in ("another version", "refuses the versions"):
        supervisor = Supervisor(
            WorkerCommand(provider="scripted", argv=worker("greets_wrongly", way)),
            InitializeParams(
                protocol_versions=(2, 3),
                host=PeerInfo(name="test", version="0"),
                store_id="st",
                state_dir=str(tmp_path),
            ),
            environ={"PATH": "/usr/bin:/bin"},
            timing=QUICK,
            log=records.log,
            on_late=lambda method, params, result: None,
        )
        running = asyncio.ensure_future(supervisor.run())
        with pytest.raises(WorkerStartFailed) as raised:
            await supervisor.worker()
        running.cancel()
        await asyncio.wait((running,))
        for words in ("stranger", "[1]", "[2, 3]", "upgrade stranger"):
            assert words in str(raised.value)


async def test_a_worker_that_stays_silent_is_given_up_and_the_others_serve(
    open_host: OpenHost, journal: Journal
) -> None:
    """N09, ElementsProject/lightning#4189, #2835: one that never answered its manifest crashed the host."""
    silent = worker("silent", "--stubborn", journal=journal.path)
    async with open_host(silent=silent, good=worker("well_behaved"), timing=IMPATIENT) as host:

        async def serve() -> ProviderFacts:
            while True:  # a busy machine may need longer for a good start than a silent worker is given
                with contextlib.suppress(WorkerStartFailed):
                    return await host.describe("good")

        async with asyncio.TaskGroup() as tasks:
            described = tasks.create_task(serve())
            with pytest.raises(WorkerStartFailed, match=r"did not say hello in 0\.5 s"):
                await host.describe("silent")
        assert described.result().name == "good"
    for started in journal.of("started"):
        assert not alive(started["pid"])


async def test_a_worker_that_does_not_get_ready_is_given_up(open_host: OpenHost) -> None:
    timing = msgspec.structs.replace(IMPATIENT, start_s=QUICK.start_s)
    error = await start_failure(open_host, worker("never_ready"), timing)
    assert "did not get ready in 0.2 s" in str(error)


@pytest.mark.parametrize("when", ["initialize", "initialized"])
async def test_a_worker_that_ends_on_its_hello_fails_the_start_with_its_code(open_host: OpenHost, when: str) -> None:
    error = await start_failure(open_host, worker("dies", when, "7"))
    assert "exited with code 7 before it was ready" in str(error)
    assert "the last words" in str(error)


async def test_a_failed_import_is_in_the_error_and_in_the_log_as_one(open_host: OpenHost, records: Records) -> None:
    """L02, hashicorp/go-plugin PR #292, lyraproj/lyra#110, jaegertracing/jaeger#3376: visible only at debug."""
    error = await start_failure(open_host, worker("dies", "import", "1"))
    assert "ImportError: no module named 'vendor'" in str(error)
    errors = records.texts("error")
    assert errors[0].startswith("Traceback")
    assert "ImportError: no module named 'vendor'" in errors


async def test_what_was_withheld_is_named_with_the_line_that_grants_it(open_host: OpenHost) -> None:
    """L08, griptape-ai/griptape-nodes-engine#4791: the allow-list was too small, and the error said "closed"."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/", "X_TOKEN": "secret"}
    command = worker("greets_wrongly", "cannot serve")
    async with open_host(scripted=command, environ=environ) as host:
        with pytest.raises(WorkerStartFailed) as raised:
            await host.describe("scripted")
    assert "X_TOKEN is not set" in str(raised.value)
    assert 'withheld from it: X_TOKEN (grant with env = ["X_TOKEN"] in [providers.scripted])' in str(raised.value)
    assert "secret" not in str(raised.value)
    async with open_host(scripted=command, environ=environ, env=("X_TOKEN",)) as host:
        with pytest.raises(WorkerStartFailed) as raised:
            await host.describe("scripted")
    assert "withheld from" not in str(raised.value)


async def test_a_method_that_is_missing_is_named_at_the_start(open_host: OpenHost) -> None:
    error = await start_failure(open_host, worker("greets_wrongly", "lacks a method"))
    assert "the scripted worker does not serve listLeases" in str(error)


async def test_a_group_that_is_served_in_part_is_named_and_done_without(open_host: OpenHost, records: Records) -> None:
    async with open_host(scripted=worker("greets_wrongly", "lacks half a group")) as host:
        facts = await host.describe("scripted")
        assert "startProcess" in facts.hello.supported_methods
        current = host._supervisor("scripted").current
        assert current is not None
        assert current.groups == frozenset()
    (said,) = records.texts("warning")
    assert said.endswith("a part of it and lacks writeProcess, signalProcess")


async def test_a_worker_without_the_optional_methods_serves_and_nothing_is_said_of_it(
    open_host: OpenHost, journal: Journal, records: Records
) -> None:
    """N11, hashicorp/go-plugin PR #139: an older plugin lacked a newer service, and the host failed."""
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        assert (await sandbox.execute(["cat"], stdin=b"fed all the same")).stdout.decode() == "fed all the same"
        with pytest.raises(NotSupported, match="has no processes") as raised:
            async with sandbox.start(["cat"]):
                pytest.fail("it was started")
        assert raised.value.dispatched == "no"
        assert (await sandbox.execute(["true"])).ok
        assert host._supervisor("scripted").starts == 1
    assert journal.received("startProcess") == 0
    assert records.texts("warning", "error") == []


@pytest.mark.slow
async def test_a_hundred_failed_starts_leave_no_process_no_zombie_and_no_descriptor(open_host: OpenHost) -> None:
    """O13, mozilla-ai/mcpd#299: a failure between spawn and ready leaked the process."""
    hellos = ('{"jsonrpc":"2.0","id":1,"result":{}}', '{"jsonrpc":"2.0","id":1,"result":' + "[" * 100)
    commands = {
        f"w{number}": ("sh", "-c", f"read line; echo '{hello}'; exec sleep 600") for number, hello in enumerate(hellos)
    }
    async with open_host(**commands, timing=TIRELESS) as host:
        before = 0
        for attempt in range(51):
            for name in commands:
                with pytest.raises(WorkerError):
                    await host.describe(name)
            before = before or open_descriptors()
            assert children() == [], attempt
        assert open_descriptors() <= before


@pytest.mark.parametrize("way", ["nothing", "no json"])
async def test_a_hello_that_is_none_fails_the_start(open_host: OpenHost, way: str) -> None:
    error = await start_failure(open_host, worker("greets_wrongly", way))
    assert {"nothing": "the hello is unreadable", "no json": "nested deeper than 64"}[way] in str(error)


async def test_a_failed_start_is_told_to_everybody_who_waits_and_is_not_repeated(
    open_host: OpenHost, journal: Journal
) -> None:
    """R04, dask/distributed#6426: a worker that could not start was started again and again."""
    async with open_host(scripted=worker("dies", "initialize", "1", journal=journal.path)) as host:
        results = await asyncio.gather(*(host.describe("scripted") for _ in range(5)), return_exceptions=True)
        assert {type(result) for result in results} == {WorkerStartFailed}
        assert not any(isinstance(result, WorkerCrashed) for result in results)
        assert host._supervisor("scripted").starts == 1
    assert len(journal.of("started")) == 1
    assert children() == []
