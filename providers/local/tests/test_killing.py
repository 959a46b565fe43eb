"""Time-out, cancel and kill: what the command started is gone, or the result says that it is not."""

import sys

import pytest

from providers.local.tests.leases import Lease, unique_sleep
from providers.local.tests.machine import running, started, wait_for_end
from sandport_provider_local.init import TERM_GRACE_S
from sandport_sdk.v1 import errors

pytestmark = pytest.mark.anyio

AMPLE_MS = 1500
"""A time-out by which a command has done what it does first, on a loaded machine too; a quiet one takes 20 ms."""

HOPPER = """
import os, time
end = time.monotonic() + 60
if os.fork():
    print("up", flush=True)
    time.sleep(60)
os.setsid()
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.setsid()
"""
"""One process at a time, which never lives for long: each one's child takes over, in a session of its own."""


async def test_a_time_out_keeps_what_was_written(lease: Lease) -> None:
    """SWE-agent/SWE-ReX#29, inspect_ai#4108, inspect_ai#1979: a time-out threw the output away."""
    result = await lease.sh("seq 1 100; echo a >&2; sleep 60", timeout_ms=AMPLE_MS)
    assert (result.ended, result.exit_code, result.signal, result.tree) == ("timedOut", None, 15, "gone")
    assert result.stdout.data.splitlines() == [b"%d" % n for n in range(1, 101)]
    assert result.stderr.data == b"a\n"


async def test_a_time_out_is_never_taken_for_want_of_memory(lease: Lease) -> None:
    """ianvs#820: a kill by the timer was called out of memory; letta-evals#262: it was a bare -1."""
    result = await lease.run("sleep", "60", timeout_ms=50)
    assert (result.ended, result.exit_code) == ("timedOut", None)


async def test_a_busy_loop_is_ended(lease: Lease) -> None:
    """inspect_ai#1585: an endless loop survived the time-out and ate the processor."""
    word = unique_sleep()
    result = await lease.run("sh", "-c", "echo up; while :; do :; done", "sh", word, timeout_ms=AMPLE_MS)
    assert (result.ended, result.tree, result.stdout.data, running(word)) == ("timedOut", "gone", b"up\n", [])


async def test_a_program_that_ignores_the_request_is_killed(lease: Lease) -> None:
    """narailabs/doc-wiki#72, CherryHQ/stella#1078: SIGTERM was ignored and nothing followed; ianvs#820: a SIGKILL that
    the timer sent was taken for the kernel's own."""
    result = await lease.sh('trap "" TERM; sleep 60 & wait; sleep 60', timeout_ms=AMPLE_MS)
    assert (result.ended, result.signal, result.tree) == ("timedOut", 9, "gone")
    assert result.duration_ms >= AMPLE_MS + TERM_GRACE_S * 1000


async def test_a_program_that_ends_in_order_on_request_is_let(lease: Lease) -> None:
    result = await lease.sh('trap "echo bye; exit 0" TERM; echo up; sleep 60 & wait', timeout_ms=AMPLE_MS)
    assert (result.ended, result.exit_code, result.signal) == ("timedOut", None, None)
    assert result.stdout.data == b"up\nbye\n"


async def test_a_program_that_takes_a_moment_to_end_in_order_has_it(lease: Lease) -> None:
    """`docker stop` gives 10 s, Kubernetes 30: a server closes its files, a test runner writes its report."""
    result = await lease.sh(
        'trap "sleep 0.5; echo saved; exit 0" TERM; echo up; while :; do sleep 0.05; done', timeout_ms=AMPLE_MS
    )
    assert (result.ended, result.signal, result.tree) == ("timedOut", None, "gone")
    assert result.stdout.data == b"up\nsaved\n"


async def test_a_command_that_ended_before_its_time_out_exited(lease: Lease) -> None:
    result = await lease.run("true", timeout_ms=60_000)
    assert (result.ended, result.exit_code, result.tree) == ("exited", 0, None)


async def test_the_time_out_does_not_wait_for_a_stream(lease: Lease) -> None:
    """microsandbox#1549: the time-out did not fire while the input was open."""
    await lease.spawn("p", "cat", stdin=True, timeout_ms=100)
    result = await lease.wait("p").result()
    assert (result.ended, result.tree) == ("timedOut", "gone")


async def test_a_child_in_a_session_of_its_own_is_killed(lease: Lease) -> None:
    word = unique_sleep()
    result = await lease.sh(f"setsid sleep {word} & sleep 60", timeout_ms=AMPLE_MS)
    assert (result.ended, result.tree, running(word)) == ("timedOut", "gone", [])
    assert result.duration_ms < AMPLE_MS + 30_000


async def test_twenty_forked_children_are_killed(lease: Lease) -> None:
    """NVIDIA-NeMo/Gym#1572: a time-out killed only the client."""
    word = unique_sleep()
    text = f"for i in 1 2 3 4 5 6 7 8 9 10; do sleep {word} & setsid sleep {word} & done; echo up; wait"
    request = lease.start("sh", "-c", text, live=True)
    await request.received("stdout", 3)
    request.cancel()
    with pytest.raises(errors.Cancelled) as caught:
        await request.result()
    assert caught.value.dispatched == "unknown"
    assert running(word) == []


async def test_an_orphan_that_forked_twice_is_killed(lease: Lease) -> None:
    word = unique_sleep()
    result = await lease.sh(f"setsid -f setsid -f sleep {word}; sleep 60", timeout_ms=AMPLE_MS)
    assert (result.tree, running(word)) == ("gone", [])


async def test_an_orphan_without_its_environment_is_killed_where_nobody_else_can_have_started_it(lease: Lease) -> None:
    word = unique_sleep()
    result = await lease.sh(f"env -i /usr/bin/setsid -f /bin/sleep {word}; sleep 60", timeout_ms=AMPLE_MS)
    assert (result.tree, running(word)) == ("gone", [])


async def test_an_orphan_that_cannot_be_told_from_another_commands_is_admitted(lease: Lease) -> None:
    """With another command about, nothing shows whose such a process is: it is not killed, and not called gone."""
    other = lease.start("sleep", "600")
    word = unique_sleep()
    result = await lease.sh(f"env -i /usr/bin/setsid -f /bin/sleep {word}; sleep 60", timeout_ms=AMPLE_MS)
    assert (result.ended, result.tree) == ("timedOut", "signalled")
    (left,) = started(word)
    assert not other.ended
    await lease.destroy()
    wait_for_end(left)
    with pytest.raises(errors.SandboxLost):
        await other.result()


async def test_an_orphan_without_its_environment_is_known_by_its_session(lease: Lease) -> None:
    other = lease.start("sleep", "600")
    word = unique_sleep()
    result = await lease.sh(f"(env -i /bin/sleep {word} &); sleep 60", timeout_ms=AMPLE_MS)
    assert (result.tree, running(word), other.ended) == ("gone", [], False)
    other.cancel()
    with pytest.raises(errors.Cancelled):
        await other.result()


async def test_what_an_earlier_command_left_running_is_not_touched(lease: Lease) -> None:
    """A time-out of one command ends that command and not the server that another had started."""
    word = unique_sleep()
    await lease.sh(f"sleep {word} >/dev/null 2>&1 &")
    (server,) = started(word)
    # A clock tick later, so that what is older is seen to be older.
    result = await lease.sh("sleep 0.05; exec sleep 60", timeout_ms=AMPLE_MS)
    assert (result.ended, running(word)) == ("timedOut", [server])


async def test_other_commands_of_the_sandbox_go_on(lease: Lease) -> None:
    """cloudflare/sandbox-sdk#438: one stuck command wedged all others."""
    other = lease.start("sh", "-c", "echo up; cat; sleep 0.5; echo down", live=True)
    await other.received("stdout", 3)
    result = await lease.sh("sleep 60 & sleep 60", timeout_ms=100)
    assert (result.tree, (await lease.run("true")).exit_code) == ("gone", 0)
    assert (await other.result()).exit_code == 0
    assert other.stdout == b"up\ndown\n"


async def test_a_command_after_a_time_out_runs_as_before(lease: Lease) -> None:
    """OpenHands#5927, OpenHands#13665: a time-out surfaced as a failure of the runtime."""
    await lease.run("sleep", "60", timeout_ms=50)
    assert (await lease.run("true")).exit_code == 0


async def test_a_timed_out_command_has_run_once(lease: Lease) -> None:
    await lease.sh("echo x >> counter; sleep 60", timeout_ms=AMPLE_MS)
    assert (lease.path / "sandbox/counter").read_text() == "x\n"


async def test_a_cancel_ends_the_tree_and_tells_what_was_written(lease: Lease) -> None:
    word = unique_sleep()
    request = lease.start("sh", "-c", f"echo some; setsid sleep {word} & sleep 60")
    while not (found := running(word)):
        await lease.run("true")
    request.cancel()
    with pytest.raises(errors.Cancelled) as caught:
        await request.result()
    wait_for_end(*found)
    assert caught.value.partial is not None
    assert caught.value.partial.stdout.data == b"some\n"


async def test_a_kill_of_a_process_ends_its_tree(lease: Lease) -> None:
    word = unique_sleep()
    await lease.spawn("p", "sh", "-c", f"setsid sleep {word} & sleep {word}")
    assert await lease.signal("p", kill=True)
    result = await lease.wait("p").result()
    assert (result.ended, result.signal, result.tree, running(word)) == ("signalled", 9, "gone", [])
    assert not await lease.signal("p", kill=True)


async def test_a_signal_reaches_the_group_and_then_nobody(lease: Lease) -> None:
    await lease.spawn("p", "sh", "-c", 'trap "exit 3" USR1; echo up; while :; do sleep 0.01; done')
    request = lease.wait("p")
    await request.received("stdout", 3)
    assert await lease.signal("p", signal=10)
    result = await request.result()
    assert (result.ended, result.exit_code, result.tree) == ("exited", 3, None)
    assert not await lease.signal("p", signal=10)


async def test_what_forks_all_the_time_is_ended_within_a_bound(lease: Lease) -> None:
    word = unique_sleep()
    storm = f"while :; do sleep {word} & setsid sleep {word} & n=$((n+1)); [ $n -gt 300 ] && sleep 0.05; done"
    result = await lease.sh(storm, timeout_ms=500)
    assert (result.ended, result.tree) == ("timedOut", "gone")
    assert running(word) == []


async def test_a_process_that_never_stays_is_caught_or_admitted_and_gone_with_the_sandbox(lease: Lease) -> None:
    word = unique_sleep()
    request = lease.start(sys.executable, "-c", HOPPER, word, timeout_ms=500)
    result = await request.result()
    assert result.ended == "timedOut"
    if result.tree == "gone":
        assert running(word) == []
    assert await lease.destroy() == "destroyed"
    assert running(word) == []
