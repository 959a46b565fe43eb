"""startProcess and its three companions: input under back-pressure, output by offset, terminals."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from providers.local.tests.leases import Lease, unique_sleep
from providers.local.tests.machine import children_of, running, started, state_of, until
from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import Limits, errors, types

pytestmark = pytest.mark.anyio

WINDOW = 256 * 1024


@pytest.fixture
async def slow(state_dir: Path) -> AsyncIterator[Lease]:
    """A sandbox whose host takes output only as a test says, with a small window."""
    limits = Limits(credit_bytes=WINDOW)
    async with HostInMemory(LocalProvider, state_dir=state_dir, limits=limits, credit="manual") as host:
        lease = await Lease.acquire(host, state_dir)
        yield lease
        await lease.destroy()


# ---------------------------------------------------------------- output


async def test_output_before_anybody_follows_is_not_lost(lease: Lease) -> None:
    await lease.spawn("p", "sh", "-c", "echo early; echo wrong >&2; exit 5")
    request = lease.wait("p")
    result = await request.result()
    assert (result.exit_code, request.stdout, request.stderr) == (5, b"early\n", b"wrong\n")
    assert (result.stdout.total_bytes, result.stdout.data) == (6, b"")


async def test_an_ended_process_can_be_asked_for_again(lease: Lease) -> None:
    """E2B#1074: a process could not be attached to after two minutes."""
    await lease.spawn("p", "sh", "-c", "echo out; exit 4")
    first = lease.wait("p")
    await first.result()
    again, later = lease.wait("p"), None
    assert (await again.result()).exit_code == 4
    later = lease.wait("p", stdout=2)
    assert (await later.result()).exit_code == 4
    assert (again.stdout, later.stdout) == (b"out\n", b"t\n")
    assert [piece.offset for piece in later.pieces if piece.stream == "stdout"] == [2, 4]


async def test_following_can_stop_and_go_on_without_a_gap_or_a_repeat(lease: Lease) -> None:
    """n8n's sandbox service, boxlite#1046: a stream could not be resumed from an offset."""
    await lease.spawn("p", "sh", "-c", "echo one; read go; echo two", stdin=True)
    first = lease.wait("p")
    await first.received("stdout", 4)
    first.cancel()
    with pytest.raises(errors.Cancelled):
        await first.result()
    second = lease.wait("p", stdout=len(first.stdout))
    await lease.write("p", b"go\n").result()
    assert (await second.result()).exit_code == 0
    assert first.stdout + second.stdout == b"one\ntwo\n"


async def test_the_end_of_an_output_is_seen_also_while_nobody_has_room_for_what_came_before_it(
    slow: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of file has no bytes; a consumer that is late says nothing about who holds the stream."""
    monkeypatch.setattr("sandport_provider_local.command.DRAIN_S", 0.0)
    size = WINDOW + 30_000
    request = slow.start("head", "-c", str(size), "/dev/zero", live=True)
    await request.received("stdout", WINDOW)
    await asyncio.to_thread(until, lambda: children_of(slow.reaper) == [], "the command has ended")
    assert (await slow.run("true")).exit_code == 0, "its worker has heard of that"
    assert not request.ended
    request.give_credit("stdout", size)
    result = await request.result()
    assert (result.stdout.total_bytes, result.stdout.end, request.end_of("stdout")) == (size, "seen", "seen")


async def test_only_one_call_follows_at_a_time(lease: Lease) -> None:
    await lease.spawn("p", "cat", stdin=True)
    first = lease.wait("p")
    with pytest.raises(errors.Overloaded):
        await lease.wait("p").result()
    await lease.write("p", b"", end=True).result()
    assert (await first.result()).exit_code == 0


async def test_a_program_that_nobody_follows_is_stopped_by_its_pipe(slow: Lease) -> None:
    word = unique_sleep()
    await slow.spawn("p", "yes", word)
    (pid,) = started(word)
    asleep = 0
    while asleep < 20:
        asleep = asleep + 1 if state_of(pid) == "S" else 0
        await slow.run("true")
    request = slow.wait("p")
    await request.received("stdout", WINDOW)
    assert await slow.signal("p", kill=True)
    request.give_credit("stdout", 8 * 1024 * 1024)
    result = await request.result()
    assert (result.signal, result.tree) == (9, "gone")
    assert len(request.stdout) == result.stdout.total_bytes
    assert request.stdout.startswith(f"{word}\n".encode() * 1000)


async def test_a_call_never_gets_more_than_its_credit(slow: Lease) -> None:
    request = slow.start("sh", "-c", "head -c 3000000 /dev/zero; echo end >&2", live=True)
    await request.received("stdout", WINDOW)
    assert (await slow.run("true")).exit_code == 0, "only the stalled command stands still"
    assert len(request.stdout) == WINDOW
    given = WINDOW
    while not request.ended and given < 3_000_000:
        request.give_credit("stdout", 100_000)
        given += 100_000
        await request.received("stdout", min(given, 3_000_000))
        assert len(request.stdout) <= given
    result = await request.result()
    assert (result.exit_code, result.stdout.total_bytes, len(request.stdout)) == (0, 3_000_000, 3_000_000)


async def test_the_time_out_runs_on_while_a_stream_is_stalled(slow: Lease) -> None:
    word = unique_sleep()
    request = slow.start("yes", word, live=True, timeout_ms=1500)
    await request.received("stdout", WINDOW)
    # The command is over; its result waits for the consumer, who may take all that was written.
    while running(word):
        await slow.run("true")
    request.give_credit("stdout", 64 * 1024 * 1024)
    result = await request.result()
    assert (result.ended, len(request.stdout)) == ("timedOut", result.stdout.total_bytes)


async def test_a_process_that_timed_out_is_answered_though_nobody_takes_its_output(
    slow: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandport_provider_local.command.STALLED_S", 0.1)
    await slow.spawn("p", "yes", timeout_ms=1500)
    stalled = slow.wait("p")
    result = await stalled.result()
    assert (result.ended, result.stdout.end, stalled.end_of("stdout")) == ("timedOut", "heldOpen", "heldOpen")
    assert result.stdout.total_bytes == len(stalled.stdout) == WINDOW
    assert result.stdout.dropped_bytes > 0
    # What the one did not take is there for the next.
    monkeypatch.undo()
    rest = slow.wait("p", stdout=WINDOW)
    rest.give_credit("stdout", 8 * 1024 * 1024)
    again = await rest.result()
    assert (again.ended, again.stdout.end, again.stdout.dropped_bytes) == ("timedOut", rest.end_of("stdout"), 0)
    assert again.stdout.total_bytes == WINDOW + result.stdout.dropped_bytes
    assert len(rest.stdout) == result.stdout.dropped_bytes


async def test_what_is_not_kept_any_more_is_a_gap_and_not_skipped(lease: Lease) -> None:
    await lease.spawn("p", "head", "-c", "5000000", "/dev/zero")
    assert (await lease.wait("p").result()).stdout.total_bytes == 5_000_000
    with pytest.raises(errors.OutputGap) as caught:
        await lease.wait("p").result()
    assert caught.value.detail is not None
    assert caught.value.detail.limit is not None
    tail = lease.wait("p", stdout=caught.value.detail.limit)
    await tail.result()
    assert len(tail.stdout) == 5_000_000 - caught.value.detail.limit
    with pytest.raises(errors.InvalidParams):
        await lease.wait("p", stdout=5_000_001).result()


async def test_output_of_megabytes_arrives_whole_and_in_order(lease: Lease) -> None:
    """langsmith-sdk#3022: records were lost and the exit was 0."""
    request = lease.start("seq", "1", "1500000", live=True)
    result = await request.result()
    expected = b"".join(b"%d\n" % n for n in range(1, 1_500_001))
    assert result.stdout.total_bytes == len(expected)
    assert hashlib.sha256(request.stdout).digest() == hashlib.sha256(expected).digest()
    offsets = [piece.offset for piece in request.pieces if piece.stream == "stdout"]
    assert offsets == sorted(offsets)
    assert max(len(piece.data) for piece in request.pieces) <= 128 * 1024


async def test_only_so_many_results_are_kept(lease: Lease) -> None:
    for number in range(300):
        await lease.spawn(f"p{number}", "true")
        if number % 50 == 49:
            await lease.wait(f"p{number}").result()
    with pytest.raises(errors.ProcessNotFound):
        await lease.wait("p0").result()
    assert (await lease.wait("p299").result()).exit_code == 0


async def test_an_id_serves_one_process(lease: Lease) -> None:
    await lease.spawn("p", "true")
    with pytest.raises(errors.InvalidParams):
        await lease.spawn("p", "true")


async def test_a_process_that_cannot_be_started_leaves_its_id_free(lease: Lease) -> None:
    with pytest.raises(errors.CommandNotFound):
        await lease.spawn("p", "no-such-program")
    await lease.spawn("p", "true")
    assert (await lease.wait("p").result()).exit_code == 0


async def test_a_process_outlives_the_call_that_followed_it(lease: Lease) -> None:
    """rivet-dev/sandbox-agent#152: a background process was killed by the default of a foreground one."""
    word = unique_sleep()
    await lease.spawn("p", "sleep", word)
    request = lease.wait("p")
    request.cancel()
    with pytest.raises(errors.Cancelled):
        await request.result()
    assert len(started(word)) == 1


# ---------------------------------------------------------------- input


async def test_what_is_written_comes_out_and_the_end_ends_it(lease: Lease) -> None:
    await lease.spawn("p", "cat", stdin=True)
    request = lease.wait("p")
    assert (await lease.write("p", b"hello ").result()).taken_bytes == 6
    await request.received("stdout", 6)
    assert (await lease.write("p", b"world", end=True).result()).taken_bytes == 5
    assert (await request.result()).exit_code == 0
    assert request.stdout == b"hello world"
    assert (await lease.write("p", b"late").result()).taken_bytes == 0


async def test_a_write_is_answered_only_when_the_pipe_took_it_all(lease: Lease) -> None:
    await lease.spawn("p", "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done; sha256sum", stdin=True)
    data = bytes(range(256)) * 4096
    write = lease.write("p", data, end=True)
    for _ in range(5):
        await lease.run("true")
    assert not write.ended, "this is more than a pipe holds, and nobody reads"
    await lease.run("touch", "go")
    assert (await write.result()).taken_bytes == len(data)
    request = lease.wait("p")
    await request.result()
    assert request.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_at_most_four_writes_wait(lease: Lease) -> None:
    await lease.spawn("p", "sleep", "600", stdin=True)
    data = b"x" * 200_000
    waiting = [lease.write("p", data) for _ in range(4)]
    with pytest.raises(errors.Overloaded):
        await lease.write("p", b"x").result()
    assert await lease.signal("p", kill=True)
    taken = [(await request.result()).taken_bytes for request in waiting]
    assert 0 < taken[0] < len(data)
    assert taken[1:] == [0, 0, 0]


async def test_a_process_that_closes_its_input_takes_less(lease: Lease) -> None:
    await lease.spawn("p", "sh", "-c", "exec <&-; sleep 600", stdin=True)
    answer = await lease.write("p", b"x" * 1_000_000).result()
    assert answer.taken_bytes < 1_000_000


async def test_a_process_without_an_open_input_is_not_written_to(lease: Lease) -> None:
    await lease.spawn("p", "cat")
    with pytest.raises(errors.InvalidParams):
        await lease.write("p", b"x").result()
    assert (await lease.wait("p").result()).exit_code == 0


# ---------------------------------------------------------------- terminals


async def test_a_terminal_has_its_size_before_the_program_starts(lease: Lease) -> None:
    """docker/sbx-releases#63: a terminal began with 0 rows and 0 columns."""
    await lease.spawn("p", "stty", "size", pty=types.PtySize(columns=132, rows=43))
    request = lease.wait("p")
    result = await request.result()
    assert (result.exit_code, request.data("pty")) == (0, b"43 132\r\n")
    assert request.end_of("pty") == "seen"


async def test_a_terminal_controls_the_session_and_carries_all_three_streams(lease: Lease) -> None:
    # The seventh field is the number of the controlling terminal: 136 for /dev/pts, and which one.
    text = "tty; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all >&2; cut -d' ' -f7 /proc/$$/stat >/dev/tty"
    await lease.spawn("p", "sh", "-c", text, pty=types.PtySize(columns=80, rows=24))
    request = lease.wait("p")
    assert (await request.result()).exit_code == 0
    tty, every, number = request.data("pty").decode().split()
    assert (tty, every) == (f"/dev/pts/{int(number) - (136 << 8)}", "all")


async def test_a_terminal_is_resized_while_the_program_runs(lease: Lease) -> None:
    text = 'trap "stty size" WINCH; echo up; while :; do sleep 0.01; done'
    await lease.spawn("p", "sh", "-c", text, pty=types.PtySize(columns=80, rows=24))
    request = lease.wait("p")
    await request.received("pty", 4)
    assert await lease.signal("p", resize=types.PtySize(columns=100, rows=30))
    await request.received("pty", 4 + len("30 100\r\n"))
    assert request.data("pty") == b"up\r\n30 100\r\n"
    assert await lease.signal("p", kill=True)
    assert (await request.result()).tree == "gone"


async def test_input_of_a_terminal_is_echoed_and_ends(lease: Lease) -> None:
    await lease.spawn("p", "cat", stdin=True, pty=types.PtySize(columns=80, rows=24))
    request = lease.wait("p")
    assert (await lease.write("p", b"hello\n").result()).taken_bytes == 6
    await request.received("pty", len("hello\r\nhello\r\n"))
    await lease.write("p", b"part", end=True).result()
    assert (await request.result()).exit_code == 0
    assert request.data("pty") == b"hello\r\nhello\r\npartpart"


async def test_a_terminal_without_an_open_input_is_at_its_end(lease: Lease) -> None:
    await lease.spawn("p", "cat", pty=types.PtySize(columns=80, rows=24))
    assert (await lease.wait("p").result()).exit_code == 0


async def test_the_interrupt_character_reaches_the_program(lease: Lease) -> None:
    await lease.spawn("p", "sh", "-c", "echo up; exec cat", stdin=True, pty=types.PtySize(columns=80, rows=24))
    request = lease.wait("p")
    await request.received("pty", 4)
    await lease.write("p", b"\x03").result()
    result = await request.result()
    assert (result.ended, result.signal) == ("signalled", 2)


@pytest.mark.parametrize("size", [types.PtySize(columns=-1, rows=24), types.PtySize(columns=80, rows=65536)])
async def test_a_size_that_no_terminal_has_is_refused(lease: Lease, size: types.PtySize) -> None:
    with pytest.raises(errors.InvalidParams):
        await lease.spawn("p", "true", pty=size)


@pytest.mark.parametrize("number", [-1, 0, 65, 10**12])
async def test_what_is_no_signal_is_refused_and_disturbs_nothing(lease: Lease, number: int) -> None:
    await lease.spawn("p", "cat", stdin=True)
    with pytest.raises(errors.InvalidParams):
        await lease.signal("p", signal=number)
    await lease.write("p", b"", end=True).result()
    assert (await lease.wait("p").result()).exit_code == 0


async def test_a_process_without_a_terminal_is_not_resized(lease: Lease) -> None:
    await lease.spawn("p", "true")
    with pytest.raises(errors.InvalidParams):
        await lease.signal("p", resize=types.PtySize(columns=80, rows=24))
