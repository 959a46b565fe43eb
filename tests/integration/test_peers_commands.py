"""What users of other sandboxes reported of their commands, done with the providers of this machine.

A number is the row of the museum's `P` rooms that a test belongs to (see tests/museum).
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandport.configuration import Configuration, HostSettings, ProviderSettings
from sandport.errors import WorkerStartFailed
from sandport.host import Host
from sandport.numbers import Timing
from sandport.sandbox import Sandbox
from sandport_protocol.limits import Limits
from tests.integration.conftest import OpenHost
from tests.integration.stage import QUICK, Records, children, worker
from tests.integration.vendor import Vendor

pytestmark = pytest.mark.anyio

SECRET = "sKrt-7c1e" * 3
NEEDED = {"start_s", "ready_s", "call_s", "acquire_s", "destroy_s", "exit_drain_s", "close_grace_s"}
"""Waits for what must come, however busy the machine is."""
NEEDED_MS = {"wedge_ms", "host_silence_ms", "drain_ms", "orphan_grace_ms"}
BRIEF_S, BRIEF_MS = 0.2, 20


def impatient(kind: type[Timing] | type[Limits], needed: set[str], brief: float) -> dict[str, Any]:
    """Every other wait of a kind, also one that will be added later, as short as that."""
    fields = zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True)
    waits = {name for name, value in fields if isinstance(value, int | float) and name.endswith(("_s", "_ms"))}
    assert needed <= waits
    return dict.fromkeys(waits - needed, brief)


@pytest.fixture
async def boxes(tmp_path: Path, records: Records) -> AsyncIterator[list[Sandbox]]:
    """A sandbox of each provider; that of this machine with whatever isolation is to be had."""
    settings = Configuration(host=HostSettings(timing=QUICK))
    async with (
        Host.open(settings, home=tmp_path / "home", log=records.log) as host,
        host.lease("local") as near,
        host.lease("fake") as far,
    ):
        yield [near, far]
    assert records.texts("error", "critical") == []
    assert children() == []


async def test_a_command_may_be_silent_for_longer_than_any_patience_of_the_host(
    tmp_path: Path, records: Records
) -> None:
    """1, SWE-agent/SWE-ReX#9; 16, vercel/sandbox#172: a command that printed nothing for long was taken for hung, or
    ran into a limit of whatever carried its answer."""
    timing = msgspec.structs.replace(QUICK, **impatient(Timing, NEEDED, BRIEF_S))
    limits = msgspec.structs.replace(Limits(), **impatient(Limits, NEEDED_MS, BRIEF_MS))
    providers = {name: ProviderSettings(limits=limits) for name in ("local", "fake")}
    settings = Configuration(host=HostSettings(timing=timing), providers=providers)
    quiet = ["sleep", str(5 * BRIEF_S)]
    async with (
        Host.open(settings, home=tmp_path / "home", log=records.log) as host,
        host.lease("local", config={"isolation": "none"}) as near,
        host.lease("fake") as far,
    ):
        calls = [sandbox.execute(quiet, timeout_s=limit_s) for sandbox in (near, far) for limit_s in (None, 60)]
        for outcome in await asyncio.gather(*calls):
            assert (outcome.ended, outcome.exit_code) == ("exited", 0)
            assert outcome.duration_s > 4 * BRIEF_S
        assert [host._supervisor(name).starts for name in providers] == [1, 1]


async def test_a_command_has_the_limit_that_it_was_given_and_no_other(vendor: Vendor) -> None:
    """17, rivet-dev/sandbox-agent#152: the 60 s that a command in the foreground had by default ended one in the
    background; 18, agent-governance-toolkit#3122: the limit that was given reached nobody."""
    async with vendor.host() as host, host.lease("env") as sandbox:
        for timeout_s in (None, 77.5):
            assert (await sandbox.execute(["true"], timeout_s=timeout_s)).ok
            async with sandbox.start(["true"], timeout_s=timeout_s) as process:
                assert (await process.wait()).ok
    given = [entry.get("timeoutMs") for what in ("execute", "start") for entry in vendor.fake.journal(what)]
    assert given == [None, 77_500, None, 77_500]


async def test_a_time_out_that_a_provider_does_not_keep_is_told(open_host: OpenHost) -> None:
    """18, Arize phoenix#13378, agent-governance-toolkit#1552: a limit was taken and ignored, and nobody knew; 23,
    docker/docker-py#2651: what runs in a container has none. The host does not end it: the result says what became."""
    async with (
        open_host(scripted=worker("well_behaved", "--no-time-outs")) as host,
        host.lease("scripted") as sandbox,
    ):
        over, within = await asyncio.gather(
            sandbox.execute(["sleep", "1.5"], timeout_s=0.1), sandbox.execute(["true"], timeout_s=60)
        )
    assert (over.ended, over.exit_code, within.notes) == ("exited", 0, ())
    assert [note for note in over.notes if "does not keep the time-out of 0.1 s" in note]


async def test_the_code_is_that_of_the_end_and_not_of_the_first_output(boxes: list[Sandbox]) -> None:
    """51, kata-containers#13640: without input the first output was taken for a success."""
    for sandbox in boxes:
        begun = asyncio.Event()
        script = "echo a; while ! [ -e go ]; do sleep 0.02; done; exit 7"
        running = asyncio.ensure_future(sandbox.execute(shell=script, on_output=told(begun)))
        await begun.wait()
        assert (await sandbox.execute(shell="sleep 0.1; touch go")).ok
        outcome = await running
        assert (outcome.ended, outcome.exit_code) == ("exited", 7)
        kept = await sandbox.execute(shell="echo a; sleep 0.2; exit 7")
        assert (bytes(kept.stdout), kept.exit_code) == (b"a\n", 7)


async def test_a_character_that_comes_byte_by_byte_is_one_character(boxes: list[Sandbox]) -> None:
    """58, langsmith-sdk#3553: a character of several bytes was broken where the output was cut."""
    text = "\U0001f600é"
    octal = " ".join(f"{byte:03o}" for byte in text.encode())
    script = f'for byte in {octal}; do printf "\\\\$byte"; sleep 0.02; done'
    for sandbox in boxes:
        pieces: list[bytes] = []
        await sandbox.execute(shell=script, on_output=kept_in(pieces))
        assert b"".join(pieces).decode() == text
        assert (await sandbox.execute(shell=script)).stdout.decode() == text


async def test_no_process_shows_a_commands_secrets_in_its_arguments(boxes: list[Sandbox]) -> None:
    """68, yc qm#917: credentials were to be seen in the list of processes."""
    script = 'read word; [ "$word" = "$KEY" ] && echo up; while ! [ -e go ]; do sleep 0.02; done'
    for sandbox in boxes:
        begun = asyncio.Event()
        running = asyncio.ensure_future(
            sandbox.execute(
                shell=script,
                env={"KEY": SECRET},
                stdin=f"{SECRET}\n".encode(),
                on_output=told(begun),
            )
        )
        await begun.wait()
        seen = arguments_of_all()
        assert (await sandbox.execute(["touch", "go"])).ok
        assert (await running).ok
        assert any(b"while ! [ -e go ]" in words for words in seen), "the command itself was not seen"
        assert [words for words in seen if SECRET.encode() in words] == []


def told(event: asyncio.Event) -> Callable[[str, bytes], None]:
    """Sets an event at the first output."""
    return lambda stream, data: event.set()


def kept_in(pieces: list[bytes]) -> Callable[[str, bytes], None]:
    """Keeps output as it came."""
    return lambda stream, data: pieces.append(data)


def arguments_of_all() -> list[bytes]:
    """The arguments of every process of this machine."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it went away meanwhile
            found.append((entry / "cmdline").read_bytes())
    return found


async def test_the_last_words_of_a_native_crash_are_in_the_error(open_host: OpenHost) -> None:
    """152, activepieces#14015: what a runtime wrote when it aborted was lost."""
    code = "import faulthandler, os; faulthandler.enable(); os.abort()"
    async with open_host(scripted=(sys.executable, "-S", "-c", code)) as host:
        with pytest.raises(WorkerStartFailed, match="was killed by SIGABRT") as raised:
            await host.describe("scripted")
    assert raised.value.report is not None
    assert "Fatal Python error: Aborted" in raised.value.report.log_tail
