"""The host with its real local provider: what a command did is what its outcome says, and nothing is left of it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sandport.configuration import Configuration, HostSettings, ProviderSettings
from sandport.errors import (
    CommandNotExecutable,
    CommandNotFound,
    LeaseLost,
    NotSupported,
    PathNotFound,
    UsageError,
    WorkerCrashed,
)
from sandport.host import Host
from sandport.sandbox import Sandbox
from sandport_protocol.limits import Limits
from sandport_protocol.v1 import Egress
from tests.integration.stage import PATIENCE_S, QUICK, Records, alive, children, eventually, marked_with, mentioning

pytestmark = pytest.mark.anyio


@pytest.fixture
async def host(tmp_path: Path, records: Records) -> AsyncIterator[Host]:
    settings = Configuration(host=HostSettings(timing=QUICK))
    async with Host.open(settings, home=tmp_path / "home", log=records.log) as opened:
        yield opened
    assert records.texts("error", "critical") == []
    assert children() == []


@pytest.fixture
async def sandbox(host: Host) -> AsyncIterator[Sandbox]:
    async with host.lease("local") as leased:
        yield leased
    assert mentioning(leased.id) == {}
    assert not exists(leased.working_directory)


NOT_ISOLATED = {"isolation": "none"}
"""For commands that say what they do in files of this machine, which they could not see from inside."""


@pytest.fixture
async def bare(host: Host) -> AsyncIterator[Sandbox]:
    async with host.lease("local", config=NOT_ISOLATED) as leased:
        yield leased
    assert mentioning(leased.id) == {}
    assert not exists(leased.working_directory)


def exists(path: bytes) -> bool:
    return os.path.exists(path)


def content(path: str | None) -> bytes:
    return Path(path or "").read_bytes()


def pid_in(path: Path) -> int | None:
    """The number in a file, once it is whole."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


async def begun(path: Path) -> int:
    """The pid that a command wrote down when it began."""
    await eventually(lambda: pid_in(path) is not None)
    pid = pid_in(path)
    assert pid is not None
    return pid


# ------------------------------------------------------------------ the truth


async def test_what_a_command_did_is_what_its_outcome_says(sandbox: Sandbox) -> None:
    outcome = await sandbox.execute(shell="printf out; printf err >&2; exit 3")
    assert (outcome.ended, outcome.exit_code, outcome.signal, outcome.ok) == ("exited", 3, None, False)
    assert (bytes(outcome.stdout), bytes(outcome.stderr)) == (b"out", b"err")
    assert (outcome.stdout.end, outcome.stderr.end, outcome.tree) == ("seen", "seen", None)
    assert 0 <= outcome.duration_s < 30


async def test_a_signal_and_an_exit_code_of_the_same_number_are_told_apart(sandbox: Sandbox) -> None:
    """47, 48, 49: earendil-works/pi#8992, nearai/ironclaw#7764, e2b infra#90: a signal was 0, 247 or -1."""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        outcome = await sandbox.execute(shell=f"kill -{number} $$")
        assert (outcome.ended, outcome.exit_code, outcome.signal) == ("signalled", None, number)
        assert outcome.shell_code == 128 + number
    outcome = await sandbox.execute(shell="exit 137")
    assert (outcome.ended, outcome.exit_code, outcome.signal) == ("exited", 137, None)


async def test_bytes_that_are_no_text_arrive_as_they_are(sandbox: Sandbox) -> None:
    """57, inspect_k8s_sandbox#206, mini-swe-agent#154, kubernetes-client/python#717: output that is not UTF-8."""
    outcome = await sandbox.execute(["printf", r"\377\200 \360\237\230\200"])
    assert bytes(outcome.stdout) == b"\xff\x80 \xf0\x9f\x98\x80"
    outcome = await sandbox.execute(["printf", "%s", b"\xfe"], env={"A": b"\xfd"})
    assert bytes(outcome.stdout) == b"\xfe"


async def test_values_reach_the_command_untouched(sandbox: Sandbox) -> None:
    """66, OpenSandbox#1893, #1837, sandcat#101: values with newlines, spaces or dollars were corrupted."""
    value = "a\nb $HOME \"x\" 'y' `z` ünï \\"
    outcome = await sandbox.execute(["sh", "-c", 'printf %s "$V"; printf %s "$1"', "sh", value], env={"V": value})
    assert outcome.stdout.decode() == value * 2


async def test_what_cannot_be_run_is_an_error_and_never_a_code(sandbox: Sandbox) -> None:
    """53, 54: docker/sbx-releases#504, daytona#2283: no such command was -1, or a code like any other."""
    with pytest.raises(CommandNotFound) as raised:
        await sandbox.execute(["no-such-program"])
    assert raised.value.dispatched == "no"
    with pytest.raises(CommandNotExecutable):
        await sandbox.execute(["/etc/passwd"])
    with pytest.raises(PathNotFound):
        await sandbox.execute(["true"], cwd="missing")
    assert (await sandbox.execute(shell="no-such-program")).exit_code == 127


async def test_a_child_that_holds_the_output_does_not_hold_the_command(sandbox: Sandbox) -> None:
    """27, earendil-works/pi#7636, bytedance/deer-flow#3864, lxd#12229: a daemon kept stdout; exec never returned."""
    outcome = await sandbox.execute(shell="sleep 600 & echo done")
    assert (bytes(outcome.stdout), outcome.exit_code, outcome.stdout.end) == (b"done\n", 0, "heldOpen")


async def test_an_endless_output_is_kept_at_both_ends_and_counted(sandbox: Sandbox, tmp_path: Path) -> None:
    """61, 62: haiku.rag#623, cube-harness#368, stella#1119: only the head was kept, or memory ran out."""
    outcome = await sandbox.execute(["seq", "400000"], output_limit_bytes=2000, spill_to=tmp_path / "spill")
    whole = b"".join(b"%d\n" % number for number in range(1, 400_001))
    assert (outcome.stdout.data, outcome.stdout.tail) == (whole[:1000], whole[-1000:])
    assert outcome.stdout.total_bytes == len(whole) == outcome.stdout.dropped_bytes + 2000
    assert content(outcome.stdout.spilled_to) == whole


async def test_large_input_arrives_whole(sandbox: Sandbox) -> None:
    data = os.urandom(1024) * 1024 * 3
    outcome = await sandbox.execute(["cat"], stdin=data, output_limit_bytes=len(data))
    assert bytes(outcome.stdout) == data


# ------------------------------------------------------------------ time-outs, cancels, crashes


async def test_a_time_out_kills_the_whole_tree_and_keeps_what_was_written(bare: Sandbox, tmp_path: Path) -> None:
    """2, 3, 7, 9, 12, 19, 21: SWE-agent/SWE-ReX#29, inspect_ai#4108, narailabs/doc-wiki#72, e2b-dev/E2B#500,
    daytonaio/daytona#5144, letta-evals#262, OpenHands#5927."""
    child = tmp_path / "child"
    script = f"trap '' TERM; echo out; echo err >&2; sh -c 'trap \"\" TERM; echo $$ >{child}; sleep 600' & wait"
    outcome = await bare.execute(shell=script, timeout_s=1.5)
    assert (outcome.ended, outcome.exit_code, outcome.tree) == ("timedOut", None, "gone")
    assert (bytes(outcome.stdout), bytes(outcome.stderr)) == (b"out\n", b"err\n")
    assert outcome.shell_code == 124
    assert not alive(await begun(child))
    assert (await bare.execute(["true"])).ok


async def test_a_cancel_kills_the_whole_tree(bare: Sandbox, tmp_path: Path) -> None:
    """4, inspect_ai#1585: an endless loop survived, and ate the processor."""
    child = tmp_path / "child"
    call = asyncio.ensure_future(bare.execute(shell=f"sh -c 'echo $$ >{child}; while :; do :; done' & wait"))
    pid = await begun(child)
    call.cancel()
    await asyncio.wait((call,))
    assert call.cancelled()
    assert not alive(pid)
    assert (await bare.execute(["true"])).ok


async def test_two_sandboxes_have_nothing_in_common(host: Host) -> None:
    async with host.lease("local") as one, host.lease("local") as other:
        assert (await one.execute(shell="echo 1 >file")).ok
        assert (await other.execute(shell="test ! -e file")).ok
    assert mentioning(one.id) == mentioning(other.id) == {}


async def test_commands_of_one_sandbox_run_side_by_side(sandbox: Sandbox) -> None:
    """14, cloudflare/sandbox-sdk#438: one stuck command wedged the container for all others."""
    stuck = asyncio.ensure_future(sandbox.execute(["sleep", "600"]))
    outcomes = await asyncio.gather(*(sandbox.execute(["echo", str(number)]) for number in range(30)))
    assert [outcome.stdout.decode() for outcome in outcomes] == [f"{number}\n" for number in range(30)]
    assert not stuck.done()
    stuck.cancel()
    await asyncio.wait((stuck,))


async def test_a_killed_worker_costs_the_open_command_and_not_the_sandbox(tmp_path: Path, records: Records) -> None:
    """The next command runs through a new worker, which attaches the sandbox again with its files."""
    settings = Configuration(host=HostSettings(timing=QUICK))
    child = tmp_path / "child"
    async with (
        Host.open(settings, home=tmp_path / "home", log=records.log) as host,
        host.lease("local", config=NOT_ISOLATED) as sandbox,
    ):
        assert (await sandbox.execute(shell="echo kept >file")).ok
        first = await host._supervisor("local").worker()
        written = asyncio.Event()
        script = f"echo $$ >{child}; echo partial; exec sleep 600"
        call = asyncio.ensure_future(sandbox.execute(shell=script, on_output=lambda *_: written.set()))
        pid = await begun(child)
        await written.wait()
        os.kill(first.process.pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashed) as raised:
            await call
        assert raised.value.dispatched == "unknown"
        assert raised.value.partial is not None
        assert raised.value.partial.stdout.data == b"partial\n"
        assert raised.value.report is not None
        assert raised.value.report.signal == signal.SIGKILL
        assert bytes((await sandbox.execute(["cat", "file"])).stdout) == b"kept\n"
        assert host._supervisor("local").starts == 2
        await eventually(lambda: not alive(pid))
        assert marked_with(first.process.identity.token) == []
    assert mentioning(sandbox.id) == {}
    assert children() == []


async def test_a_cancelled_lease_leaves_no_sandbox(host: Host, tmp_path: Path) -> None:
    for turns in range(0, 40, 4):

        async def lease() -> None:
            async with host.lease("local"):
                await asyncio.Event().wait()

        leasing = asyncio.ensure_future(lease())
        for _ in range(turns):
            await asyncio.sleep(0)
        leasing.cancel()
        await asyncio.wait((leasing,))
        assert leasing.cancelled()
    state = host.home.state_dir("local")
    assert [path.name for path in state.iterdir() if path.name.startswith("sp")] == []


# ------------------------------------------------------------------ leases and processes


async def test_a_life_time_ends_the_sandbox_and_a_longer_command_is_refused(host: Host) -> None:
    async with host.lease("local", ttl_s=1.0) as sandbox:
        with pytest.raises(UsageError, match="outlasts the lease"):
            await sandbox.execute(["sleep", "600"], timeout_s=60)
        await eventually(lambda: mentioning(sandbox.id) == {})
        with pytest.raises(LeaseLost, match="expire"):
            await sandbox.execute(["true"])


async def test_an_egress_that_cannot_be_enforced_is_refused_before_anything_is_made(host: Host) -> None:
    with pytest.raises(NotSupported):
        async with host.lease("local", egress=Egress(mode="none"), config=NOT_ISOLATED):
            pytest.fail("there is a lease")
    async with host.lease("local", egress=Egress(mode="all")) as sandbox:
        assert (await sandbox.execute(["true"])).ok


async def test_a_process_has_a_terminal_of_the_size_asked_for(sandbox: Sandbox) -> None:
    """41, docker/sbx-releases#63: a terminal started with 0 rows and 0 columns."""
    async with sandbox.start(["stty", "size"], pty=(100, 30)) as process:
        outcome = await process.wait()
    assert bytes(outcome.stdout) == b"30 100\r\n"
    assert bytes(outcome.stderr) == b""


async def test_a_process_is_written_to_and_killed(sandbox: Sandbox) -> None:
    async with sandbox.start(["cat"], stdin=True) as process:
        output = process.output()
        await process.stdin.write(b"hello\n")
        assert await anext(output) == ("stdout", b"hello\n")
        assert await process.kill()
        outcome = await process.wait()
    assert (outcome.ended, outcome.tree) == ("signalled", "gone")


# ------------------------------------------------------------------ a worker that is stuck while its lease ends


async def test_a_stuck_worker_is_replaced_at_the_end_of_a_lease_and_its_sandbox_is_ended(
    tmp_path: Path, records: Records
) -> None:
    """A closing does not wait out the wedge limit: a new worker ends what the stuck one holds."""
    timing = msgspec.structs.replace(QUICK, suspect_s=0.2)
    limits = Limits(cancel_grace_ms=200)
    settings = Configuration(host=HostSettings(timing=timing), providers={"local": ProviderSettings(limits=limits)})
    async with Host.open(settings, home=tmp_path / "home", log=records.log) as host:
        mark = tmp_path / "begun"
        async with host.lease("local", config=NOT_ISOLATED) as leased:
            running = asyncio.ensure_future(leased.execute(shell=f"echo $$ > {mark}; sleep 600"))
            await begun(mark)
            supervisor = host._supervisor("local")
            assert supervisor.current is not None
            stuck = supervisor.current.process.pid
            os.kill(stuck, signal.SIGSTOP)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert not supervisor.current.ended.done()
        assert mentioning(leased.id) == {}
        assert not exists(leased.working_directory)
        assert supervisor.starts == 2
        assert not alive(stuck)
    assert children() == []
    assert any("neither a cancel nor a ping" in text for text in records.texts("error"))


async def test_output_that_a_stalled_consumer_never_took_is_counted_after_a_time_out(
    tmp_path: Path, records: Records
) -> None:
    """The command is killed at its limit and answered; what was read and not taken is dropped, and counted."""
    handed_on = 0
    answered = asyncio.Event()

    async def stall(stream: str, data: bytes) -> None:
        nonlocal handed_on
        handed_on += len(data)
        await answered.wait()

    patient = msgspec.structs.replace(QUICK, command_margin_s=PATIENCE_S)
    settings = Configuration(host=HostSettings(timing=patient))
    async with (
        Host.open(settings, home=tmp_path / "home", log=records.log) as host,
        host.lease("local") as sandbox,
    ):
        running = asyncio.ensure_future(sandbox.execute(shell="yes flood", timeout_s=1.5, on_output=stall))
        await eventually(lambda: handed_on > 0)
        worker = host._supervisor("local").current
        assert worker is not None
        await eventually(lambda: "execute" not in worker.client.open_methods)
        answered.set()
        outcome = await running
    stdout = outcome.stdout
    assert (outcome.ended, stdout.end) == ("timedOut", "heldOpen")
    assert stdout.total_bytes == len(stdout.data) + len(stdout.tail) + stdout.dropped_bytes
    assert stdout.total_bytes > handed_on
    assert stdout.dropped_bytes > 0
    assert stdout.untaken_bytes > 0


async def test_a_consumer_that_never_comes_back_does_not_keep_a_command_beyond_its_time_out(
    tmp_path: Path, records: Records
) -> None:
    impatient = msgspec.structs.replace(QUICK, close_grace_s=0.2, command_margin_s=PATIENCE_S)
    settings = Configuration(host=HostSettings(timing=impatient))

    async def never(stream: str, data: bytes) -> None:
        await asyncio.Event().wait()

    async with (
        Host.open(settings, home=tmp_path / "home", log=records.log) as host,
        host.lease("local") as sandbox,
        asyncio.timeout(PATIENCE_S),
    ):
        outcome = await sandbox.execute(shell="yes flood", timeout_s=1.5, on_output=never)
    assert outcome.ended == "timedOut"
    assert 0 < outcome.stdout.untaken_bytes <= outcome.stdout.dropped_bytes
