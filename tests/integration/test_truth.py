"""A result is proven, or it is an error with what was received; and nothing is ever run twice."""

from pathlib import Path

import pytest

from sandport.errors import NotAttached, ProtocolViolation, SandportError, UsageError
from tests.integration.conftest import OpenHost
from tests.integration.stage import Journal, eventually, worker

pytestmark = pytest.mark.anyio

LIES = {
    "no end marks": "stdout has no end mark",
    "one end mark": "stderr has no end mark",
    "too few": "stdout has 2 bytes by the result and 3 were received",
    "too many": "stdout has 4 bytes by the result and 3 were received",
    "another end": "stdout ended heldOpen by the result and seen by its mark",
    "no exit code": "a command that exited has an exitCode",
    "a code and a signal": "exitCode belongs to ended 'exited' only",
    "another schema": "Invalid enum value 'well'",
    "a gap": "a gap: stdout continues at 5, 3 bytes were received",
    "after the end": "output on stdout after its end",
    "an unknown stream": "this command has no stream pty",
}


@pytest.mark.parametrize(("lie", "said"), LIES.items(), ids=LIES.keys())
async def test_a_result_that_is_not_proven_is_an_error_with_what_was_received(
    open_host: OpenHost, lie: str, said: str
) -> None:
    """cloudflare/sandbox-sdk#873 (29), OpenSandbox#1277 (36), kubernetes#124571 (59): a broken stream became exit 0."""
    async with open_host(scripted=worker("lies")) as host, host.lease("scripted") as sandbox:
        with pytest.raises(ProtocolViolation) as raised:
            await sandbox.execute([lie])
        assert said in str(raised.value)
        assert raised.value.dispatched == "yes"
        assert raised.value.partial is not None
        assert raised.value.partial.stdout.data == b"abc"
        assert bytes((await sandbox.execute(["the truth"])).stdout) == b"abc"
        assert host._supervisor("scripted").starts == 1


@pytest.mark.parametrize("lie", ["no end marks", "a gap"])
async def test_the_same_holds_for_output_that_a_consumer_takes(open_host: OpenHost, lie: str) -> None:
    pieces: list[bytes] = []
    async with open_host(scripted=worker("lies")) as host, host.lease("scripted") as sandbox:
        with pytest.raises(ProtocolViolation) as raised:
            await sandbox.execute([lie], on_output=lambda stream, data: pieces.append(data))
        assert raised.value.partial is not None
        assert raised.value.partial.stdout.data == b"abc"
    assert pieces in ([b"abc"], [])  # what had not been handed on when the call ended is in `partial` alone


async def test_a_sandbox_that_the_worker_does_not_know_yet_is_attached_and_the_command_sent_once_more(
    open_host: OpenHost, journal: Journal
) -> None:
    async with (
        open_host(scripted=worker("forgets", "1", "no", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        assert (await sandbox.execute(["x"])).ok
    assert journal.received("attachLease") == 1
    assert journal.received("execute") == 2
    assert len(journal.of("executes")) == 1


async def test_it_is_sent_once_more_and_not_again(open_host: OpenHost, journal: Journal) -> None:
    async with (
        open_host(scripted=worker("forgets", "5", "no", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with pytest.raises(NotAttached):
            await sandbox.execute(["x"])
    assert journal.received("attachLease") == 1
    assert journal.received("execute") == 2


@pytest.mark.parametrize("dispatched", ["unknown", "yes"])
async def test_it_is_not_sent_again_where_it_may_have_run(
    open_host: OpenHost, journal: Journal, dispatched: str
) -> None:
    async with (
        open_host(scripted=worker("forgets", "1", dispatched, journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with pytest.raises(NotAttached):
            await sandbox.execute(["x"])
    assert journal.received("execute") == 1


@pytest.mark.parametrize("code", [-32603, -32013, -32025, -32015, -32026, -32024, -40000])
@pytest.mark.parametrize("dispatched", ["no", "unknown"])
async def test_no_error_makes_a_host_run_a_command_twice(
    open_host: OpenHost, journal: Journal, code: int, dispatched: str
) -> None:
    """22, inspect_ai's retry of exec: a command that may have started was run again although it had effects."""
    async with (
        open_host(scripted=worker("fails", str(code), dispatched, journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with pytest.raises(SandportError) as raised:
            await sandbox.execute(["x"])
        assert raised.value.dispatched == dispatched
    assert len(journal.of("executes")) == 1


async def test_a_timed_out_command_is_sent_once(open_host: OpenHost, journal: Journal) -> None:
    """22, inspect_ai's retry of exec: the default ran a command again that had timed out."""
    async with (
        open_host(scripted=worker("well_behaved", "--processes", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        assert (await sandbox.execute(["sleep", "600"], timeout_s=0.3)).ended == "timedOut"
        assert len(journal.of("executes")) == 1
        async with sandbox.start(["sleep", "600"], timeout_s=0.3) as process:
            assert (await process.wait()).ended == "timedOut"
        assert len(journal.of("executes")) == 2


async def test_an_error_that_a_consumer_raises_is_its_own_and_ends_the_command(
    open_host: OpenHost, journal: Journal
) -> None:
    """Also where it looks like one of the wire's: nothing is repeated for it, and nothing runs on."""
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        for error in (ValueError("mine"), NotAttached("mine", dispatched="no")):

            def fail(stream: str, data: bytes, error: Exception = error) -> None:
                raise error

            with pytest.raises(type(error), match="mine"):
                await sandbox.execute(shell="echo x; exec sleep 600", on_output=fail)
        ends = await journal.until("ended", 2)
        assert [end["killed"] for end in ends] == ["cancelled", "cancelled"]
    assert len(journal.of("executes")) == 2


async def test_what_a_consumer_raises_after_the_end_runs_nothing_again(open_host: OpenHost, journal: Journal) -> None:
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        running = await host._supervisor("scripted").worker()

        async def fail_late(stream: str, data: bytes) -> None:
            await eventually(lambda: running.client.open_methods == ())
            raise NotAttached("mine", dispatched="no")

        with pytest.raises(NotAttached, match="mine"):
            await sandbox.execute(["echo", "x"], on_output=fail_late)
    assert len(journal.of("executes")) == 1


async def test_a_full_disk_ends_the_command_that_spills_to_it_and_no_other(
    open_host: OpenHost, journal: Journal, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    (spill / "stdout").symlink_to("/dev/full")
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with pytest.raises(OSError, match="No space left"):
            await sandbox.execute(shell="seq 100000; exec sleep 600", spill_to=spill)
        (end,) = await journal.until("ended")
        assert end["killed"] == "cancelled"
        assert (await sandbox.execute(["true"])).ok
        assert host._supervisor("scripted").starts == 1


async def test_what_makes_no_sense_is_refused_before_anything_is_sent(open_host: OpenHost, journal: Journal) -> None:
    """67, opencoredev sandbox-sdk#9: a variable's name became shell code."""
    async with (
        open_host(scripted=worker("well_behaved", journal=journal.path)) as host,
        host.lease("scripted") as sandbox,
    ):
        with pytest.raises(UsageError, match="is not a variable's name"):
            await sandbox.execute(["x"], env={"A;touch x": "1"})
        with pytest.raises(UsageError, match="NUL"):
            await sandbox.execute(["a\0b"])
        with pytest.raises(UsageError, match="argv is a list of words"):
            await sandbox.execute("ls -l")
    assert journal.received("execute") == 0
