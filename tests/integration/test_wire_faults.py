"""What a worker may do to the wire, and what a host makes of it."""

import asyncio
import json
import random
from pathlib import Path

import msgspec
import pytest
from msgspec import Raw

from sandport.errors import NotSupported, ProtocolViolation, WorkerCrashed, WorkerStartFailed
from sandport.host import Host
from sandport.worker.client import WorkerClient
from sandport_protocol.codec import encode
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ProbeParams, ProbeResult, ValidateConfigParams, ValidateConfigResult
from tests.integration.conftest import OpenHost
from tests.integration.stage import Journal, Records, eventually, worker

pytestmark = pytest.mark.anyio


async def client_of(host: Host, provider: str = "scripted") -> WorkerClient:
    """The connection to a provider's worker."""
    return (await host._supervisor(provider).worker()).client


async def echo(client: WorkerClient, value: object) -> Raw:
    """What comes back of a config; the workers here answer it as it is."""
    params = ValidateConfigParams(config=Raw(encode({"value": value})))
    result = await client.call(METHODS["validateConfig"], params, ValidateConfigResult, deadline_s=30)
    return result.config


# ------------------------------------------------------------------ before the hello


async def test_what_a_library_prints_at_import_is_tolerated_and_logged(open_host: OpenHost, records: Records) -> None:
    """F01, hashicorp/go-plugin#164, #199: the plugin never started."""
    async with open_host(scripted=worker("says_first", "hi\\n")) as host, host.lease("scripted") as sandbox:
        assert (await sandbox.execute(["x"])).ok
    (warning,) = [line for line in records.lines if "'hi'" in line[1]]
    assert warning[0] == "warning"
    assert warning[2]["provider"] == "scripted"


async def test_a_warning_of_the_runtime_around_the_worker_is_tolerated(open_host: OpenHost) -> None:
    """F03, bazelbuild/rules_java#158: the language's own runtime warns on stdout before any code of the user."""
    command = ("sh", "-c", 'echo "[warn] using an old runtime"; exec "$@"', "sh", *worker("well_behaved"))
    async with open_host(scripted=command) as host, host.lease("scripted") as sandbox:
        assert (await sandbox.execute(["true"])).ok


async def test_junk_before_the_hello_is_bounded(open_host: OpenHost, records: Records) -> None:
    async with open_host(scripted=worker("says_first", "x\\n" * 40_000)) as host:
        with pytest.raises(WorkerStartFailed, match=r"limits\.junkBytes"):
            await host.describe("scripted")
    assert len(records.texts("warning")) == 21


async def test_a_line_on_stderr_right_before_the_hello_is_a_log_line(open_host: OpenHost, records: Records) -> None:
    """F23, kata-containers/runtime#1035, containerd/containerd#5034: a log line became the address."""
    async with open_host(scripted=worker("says_first", "--stderr", "starting {\\n")) as host:
        await host.describe("scripted")
        level, _, fields = await records.until(lambda text: text == "starting {")
    assert (level, fields["source"]) == ("info", "stderr")


@pytest.mark.slow
async def test_a_flood_without_a_line_feed_ends_at_the_ceiling_which_is_named(open_host: OpenHost) -> None:
    """F17, modelcontextprotocol/typescript-sdk#2245, #88: memory grew without bound. See also test_memory.py."""
    async with open_host(first=worker("floods", "first"), later=worker("floods", "execute")) as host:
        with pytest.raises(WorkerStartFailed, match=r"16777216 bytes \(limits\.frameBytes\)"):
            await host.describe("first")
        async with host.lease("later") as sandbox:
            with pytest.raises(WorkerCrashed, match=r"limits\.frameBytes") as raised:
                await sandbox.execute(["x"])
        assert raised.value.report is not None
        assert raised.value.report.kind == "violation"


# ------------------------------------------------------------------ in the middle


@pytest.mark.parametrize("way", ["a line", "not utf-8", "nan", "twice"])
async def test_what_is_no_message_is_one_violation_and_nothing_else(
    open_host: OpenHost, records: Records, way: str
) -> None:
    """F13, F14, C02: modelcontextprotocol/python-sdk#2454, conbench/conbench#1163, apify/apify-client-python#87,
    microsoft/vs-streamjsonrpc#489, PR #492: an odd line, or a reply to nobody, killed the whole connection."""
    async with open_host(scripted=worker("babbles", way)) as host, host.lease("scripted") as sandbox:
        assert (await sandbox.execute(["x"])).ok
        assert (await sandbox.execute(["x"])).ok
        assert host._supervisor("scripted").starts == 1
    violations = [text for text in records.texts("warning") if text.startswith("protocol violation")]
    assert len(violations) == (2 if way == "twice" else 1)


async def test_a_print_that_swallows_an_answer_costs_that_call_and_says_what_was_printed(open_host: OpenHost) -> None:
    """F02, F04, bazelbuild/bazel#4897, openlawlibrary/pygls#240, #133: the stream never recovered, and the author took
    it for a crash of the host since nobody said that stdout is reserved."""
    async with open_host(scripted=worker("babbles", "glued")) as host, host.lease("scripted") as sandbox:
        with pytest.raises(ProtocolViolation) as raised:
            await sandbox.execute(["x"])
        assert "dbg{" in str(raised.value)
        assert "stdout is reserved" in str(raised.value)
        assert raised.value.dispatched == "unknown"
        assert (await sandbox.execute(["x"])).ok


async def test_only_a_line_feed_ends_a_frame(open_host: OpenHost) -> None:
    """F12, earendil-works/pi#1910, anthropics/claude-agent-sdk-typescript#137: U+2028 split a frame."""
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\x1dh\x1ei\rj\r\nk"
    async with open_host(scripted=worker("well_behaved")) as host:
        config = await echo(await client_of(host), text)
        assert "\u2028".encode() in bytes(config)  # not as an escape
        assert json.loads(bytes(config)) == {"value": text}
        async with host.lease("scripted") as sandbox:
            outcome = await sandbox.execute(["printf", "%s", text], env={"T": text})
            assert outcome.stdout.decode() == text


@pytest.mark.parametrize("size", [4095, 4097, 65535, 65537, 5 * 1024 * 1024])
async def test_answers_of_any_size_below_the_ceiling_arrive(open_host: OpenHost, size: int) -> None:
    """F16, TokenRhythm/opensquilla#953, lilhammerfun/clumsies#100: a reader's limit of 4 or 64 KiB broke the link."""
    async with open_host(scripted=worker("answers_large")) as host:
        client = await client_of(host)
        params = ProbeParams(config=Raw(encode({"bytes": size})))
        result = await client.call(METHODS["probe"], params, ProbeResult, deadline_s=30)
        assert len(result.checks[0].detail) == size


# ------------------------------------------------------------------ what the host writes


@pytest.mark.slow
async def test_a_cancel_never_leaves_half_a_frame(open_host: OpenHost, journal: Journal) -> None:
    """F19, microsoft/vs-streamjsonrpc#55: a cancel between header and body. A line that does not parse ends this
    worker, so one start means that every line was whole."""
    chance = random.Random(19)
    async with open_host(scripted=worker("reads_slowly", "0", journal=journal.path)) as host:
        client = await client_of(host)
        text = "x" * 256 * 1024
        calls = [asyncio.ensure_future(echo(client, text)) for _ in range(200)]
        for call in calls:
            if chance.random() < 0.5:
                call.cancel()
            if chance.random() < 0.2:
                await asyncio.sleep(0)
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(end) for end in ends} == {Raw, asyncio.CancelledError}
        await echo(client, "still here")
        assert host._supervisor("scripted").starts == 1
    assert journal.received("cancel") <= journal.received("validateConfig")


@pytest.mark.slow
async def test_frames_stay_whole_for_a_reader_that_takes_a_byte_at_a_time(
    open_host: OpenHost, journal: Journal
) -> None:
    """F21, MongLong0214/logic-pro-mcp#232: a second send slipped into the middle of a frame."""
    async with open_host(scripted=worker("reads_slowly", "300", journal=journal.path)) as host:
        client = await client_of(host)
        await echo(client, "begin")
        calls = [asyncio.ensure_future(echo(client, "x" * 1024 * 1024)) for _ in range(16)]
        pings = [asyncio.ensure_future(client.ping(deadline_s=30)) for _ in range(16)]
        await asyncio.gather(*calls, *pings)
        assert host._supervisor("scripted").starts == 1
    assert journal.received("validateConfig") == 17


async def test_a_declared_worker_is_sent_nothing_that_it_did_not_declare(
    open_host: OpenHost, journal: Journal, tmp_path: Path
) -> None:
    """N12, kubernetes-csi/csi-test#564: methods were called that the driver had never declared."""
    (tmp_path / "file").write_bytes(b"x")
    async with open_host(scripted=worker("well_behaved", journal=journal.path)) as host:
        facts = await host.describe("scripted")
        async with host.lease("scripted") as sandbox:
            await sandbox.execute(["true"])
            for starting in (sandbox.start(["true"]), sandbox.shell()):
                with pytest.raises(NotSupported, match="has no"):
                    async with starting:
                        pytest.fail("it was started")
            sandbox.lease = msgspec.structs.replace(sandbox.lease, local_root=None)
            await sandbox.sync_in(tmp_path / "file", "file")
            assert await sandbox.read_bytes("file") == b"x"
    await eventually(lambda: journal.received("shutdown") == 1)
    methods = {entry["method"] for entry in journal.of("received")}
    assert methods - {"initialized", "cancel", "credit"} <= set(facts.hello.supported_methods)
