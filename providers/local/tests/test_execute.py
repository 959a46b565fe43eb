"""execute: the program's own end, its own bytes, and nothing of the worker's."""

import asyncio
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from providers.local.tests.leases import Lease, unique_sleep
from providers.local.tests.machine import running, started, wait_for_end
from sandport_provider_local.command import DRAIN_S, Command
from sandport_provider_local.provider import LocalProvider
from sandport_sdk.testing import HostInMemory
from sandport_sdk.v1 import B64, Limits, errors, types

pytestmark = pytest.mark.anyio


# ---------------------------------------------------------------- how it ended


async def test_a_command_has_no_limit_but_the_one_that_it_is_given(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rivet-dev/sandbox-agent#152 (17): sixty seconds that nobody had asked for ended what ran in the background."""
    loop = asyncio.get_running_loop()
    later = loop.call_later
    delays: set[float] = set()

    def recorded(delay: float, callback: Callable[..., object], *arguments: Any, **more: Any) -> asyncio.TimerHandle:
        if isinstance(getattr(callback, "__self__", None), Command):
            delays.add(delay)
        return later(delay, callback, *arguments, **more)

    monkeypatch.setattr(loop, "call_later", recorded)
    seen: list[set[float]] = []
    for number, timeout_ms in enumerate((None, 77_500)):
        delays.clear()
        assert (await lease.run("sleep", "0.1", timeout_ms=timeout_ms)).ended == "exited"
        await lease.spawn(f"p{number}", "sleep", "0.1", timeout_ms=timeout_ms)
        assert (await lease.wait(f"p{number}").result()).ended == "exited"
        seen.append(set(delays))
    assert seen[0], "nothing was recorded"
    assert seen[1] - seen[0] == {77.5}
    assert max(seen[0]) < 60


@pytest.mark.parametrize("code", [0, 1, 7, 126, 137, 255])
async def test_the_exit_code_is_the_programs_own(lease: Lease, code: int) -> None:
    result = await lease.sh(f"exit {code}")
    assert (result.ended, result.exit_code, result.signal, result.tree) == ("exited", code, None, None)


@pytest.mark.parametrize("number", [9, 15, 11])
async def test_a_signal_is_no_exit_code(lease: Lease, number: int) -> None:
    """earendil-works/pi#8992 (reported as 0), nearai/ironclaw#7764 (masked to 247)."""
    result = await lease.sh(f"ulimit -c 0; kill -{number} $$")
    assert (result.ended, result.exit_code, result.signal) == ("signalled", None, number)


async def test_a_kill_from_outside_is_a_signal_with_its_number(lease: Lease) -> None:
    """e2b infra#90: a killed process was -1 with no reason."""
    word = unique_sleep()
    request = lease.start("sleep", word)
    while not (found := running(word)):
        await lease.run("true")
    os.kill(found[0], 9)
    result = await request.result()
    assert (result.ended, result.signal, result.tree) == ("signalled", 9, None)


async def test_a_kill_is_one_for_want_of_memory_where_the_kernel_has_counted_one(lease: Lease, tmp_path: Path) -> None:
    """google/gvisor#14679, moby#10013 (52): such a kill was told as 128, as 0, or as a signal like any other."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom 0\noom_kill 3\n")
    assert lease.host._worker is not None
    provider = lease.host._worker._provider
    assert isinstance(provider, LocalProvider)
    sandbox = provider._sandboxes[lease.id]
    with counter.open("rb") as file:
        sandbox._oom_counter = file.fileno()
        try:
            for counted, number, ended in ((4, 9, "outOfMemory"), (4, 9, "signalled"), (5, 15, "signalled")):
                request = lease.start(
                    "sh", "-c", f"echo up; while ! [ -e go ]; do sleep 0.01; done; kill -{number} $$", live=True
                )
                await request.received("stdout", 3)
                counter.write_text(f"oom 0\noom_kill {counted}\n")
                await lease.run("touch", "go")
                result = await request.result()
                assert (result.ended, result.exit_code, result.signal) == (ended, None, number)
                await lease.run("rm", "go")
        finally:
            sandbox._oom_counter = None


async def test_a_missing_program_is_an_error_and_no_code(lease: Lease) -> None:
    """daytona#2283: an unknown command became -1."""
    with pytest.raises(errors.CommandNotFound) as caught:
        await lease.run("no-such-program-anywhere")
    assert caught.value.dispatched == "no"
    assert caught.value.detail is not None
    assert caught.value.detail.path == "no-such-program-anywhere"
    assert (await lease.sh("no-such-program-anywhere")).exit_code == 127


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"#!/bin/sh\n", 0o644, "permission"),
        (b"neither a script nor a program\n", 0o755, "format"),
        (b"#!/no/such/interpreter\n", 0o755, "interpreter"),
    ],
)
async def test_a_program_that_cannot_be_run_says_why(lease: Lease, content: bytes, mode: int, reason: str) -> None:
    program = lease.path / "sandbox" / "program"
    program.write_bytes(content)
    program.chmod(mode)
    with pytest.raises(errors.CommandNotExecutable) as caught:
        await lease.run("./program")
    assert caught.value.detail is not None
    assert caught.value.detail.reason == reason
    if reason == "format":
        assert "'./program' cannot be run" in str(caught.value)
        assert "#!/bin/sh" in str(caught.value)


async def test_a_directory_is_not_a_program(lease: Lease) -> None:
    with pytest.raises(errors.CommandNotExecutable) as caught:
        await lease.run("/usr")
    assert caught.value.detail is not None
    assert caught.value.detail.reason == "directory"


async def test_a_missing_working_directory_is_told_apart_from_a_missing_program(lease: Lease) -> None:
    with pytest.raises(errors.PathNotFound) as caught:
        await lease.run("true", cwd="no/such/folder")
    assert caught.value.detail is not None
    assert caught.value.detail.path == f"{lease.home}/no/such/folder"


async def test_a_program_is_found_from_the_commands_own_directory_and_path(lease: Lease) -> None:
    folder = lease.path / "sandbox" / "bin"
    folder.mkdir()
    program = folder / "hello"
    program.write_text("#!/bin/sh\necho hello from $PWD\n")
    program.chmod(0o755)
    assert (await lease.run("./hello", cwd="bin")).stdout.data == f"hello from {lease.home}/bin\n".encode()
    assert (await lease.run("hello", env={"PATH": f"/usr/bin:/bin:{lease.home}/bin"})).exit_code == 0


# ---------------------------------------------------------------- what it sees


async def test_a_command_sees_three_descriptors_and_no_other(lease: Lease) -> None:
    script = (
        "import os; print([f for f in map(int, os.listdir('/proc/self/fd')) if os.path.exists(f'/proc/self/fd/{f}')])"
    )
    assert (await lease.run(sys.executable, "-c", script)).stdout.data == b"[0, 1, 2]\n"
    assert (await lease.run(sys.executable, "-c", script, stdin=b"x")).stdout.data == b"[0, 1, 2]\n"


async def test_nothing_of_the_workers_environment_reaches_a_command(
    lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "secret-of-the-worker")
    seen = dict(line.split("=", 1) for line in (await lease.run("env")).stdout.data.decode().splitlines())
    assert set(seen) == {
        *("PATH", "HOME", "TMPDIR", "LANG", "USER", "LOGNAME"),
        *("SANDPORT_SANDBOX_ID", "SANDPORT_PROCESS"),
    }
    assert (seen["HOME"], seen["TMPDIR"]) == (lease.home, lease.tmp)


async def test_passing_one_variable_leaves_the_others(lease: Lease) -> None:
    """SWE-ReX wiped PATH when one variable was passed."""
    before = (await lease.sh("echo $PATH")).stdout.data
    result = await lease.sh("echo $PATH; echo $EXTRA", env={"EXTRA": "more"})
    assert result.stdout.data == before + b"more\n"


async def test_a_directory_and_variables_go_together(lease: Lease) -> None:
    """computesdk#436: environment together with a directory broke."""
    (lease.path / "sandbox" / "in here").mkdir()
    result = await lease.sh('pwd; echo "$A"', cwd="in here", env={"A": "a b"})
    assert result.stdout.data == f"{lease.home}/in here\na b\n".encode()


@pytest.mark.parametrize("value", ['a\nb $HOME "x" ünï', "'; touch x; '", ""])
async def test_a_variables_value_arrives_as_it_was_sent(lease: Lease, value: str) -> None:
    """OpenSandbox#1893, OpenSandbox#1837, sandcat#101: newline, space and dollar were corrupted."""
    script = "import os, sys; sys.stdout.buffer.write(os.environb[b'V'])"
    assert (await lease.run(sys.executable, "-c", script, env={"V": value})).stdout.data == value.encode()


async def test_arguments_are_any_bytes(lease: Lease) -> None:
    words = [B64(b"\xff\xfe"), "", "a b", "\n", "*", "$HOME", "ünï"]
    result = await lease.run("printf", "<%s>", *words)
    assert result.stdout.data == b"<\xff\xfe><><a b><\n><*><$HOME><\xc3\xbcn\xc3\xaf>"


async def test_long_arguments_arrive_whole(lease: Lease) -> None:
    """deepagents#1402, agentscope-java#2618: an argument list counted as too long."""
    words = [f"{number:04d}" * 5_000 for number in range(10)]
    script = "import sys, hashlib; print(hashlib.sha256('|'.join(sys.argv[1:]).encode()).hexdigest())"
    result = await lease.run(sys.executable, "-c", script, *words)
    assert result.stdout.data.decode().strip() == hashlib.sha256("|".join(words).encode()).hexdigest()


async def test_more_arguments_than_the_kernel_takes_are_an_error_of_their_own(lease: Lease) -> None:
    with pytest.raises(errors.TooLarge):
        await lease.run("true", *["x" * 100_000] * 60)
    assert (await lease.run("true")).exit_code == 0


async def test_the_working_directories_are_closed_to_others(lease: Lease) -> None:
    for folder in (lease.path, lease.path / "sandbox", lease.path / "tmp"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await lease.sh("echo x > made")
    assert stat.S_IMODE((lease.path / "sandbox/made").stat().st_mode) == 0o644


async def test_a_command_leads_a_session_of_its_own(lease: Lease) -> None:
    script = "import os; print(os.getsid(0) == os.getpid() == os.getpgrp())"
    assert (await lease.run(sys.executable, "-c", script)).stdout.data == b"True\n"


async def test_no_signal_is_blocked_or_ignored_for_a_command(lease: Lease) -> None:
    result = await lease.run("grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
    masks = dict(line.split() for line in result.stdout.data.decode().splitlines())
    libc_own = 0b11 << 31  # 32 and 33, which the C library's posix_spawn ignores for its threads.
    assert int(masks["SigBlk:"], 16) == 0
    assert int(masks["SigIgn:"], 16) & ~libc_own == 0


async def test_another_user_is_refused_and_the_own_one_is_not(lease: Lease) -> None:
    own = (await lease.run("id", "-un")).stdout.data.decode().strip()
    assert (await lease.run("true", user=own)).exit_code == 0
    with pytest.raises(errors.NotSupported):
        await lease.run("true", user="somebody-else")


# ---------------------------------------------------------------- streams


async def test_input_is_empty_and_ended_unless_given(lease: Lease) -> None:
    """langsmith-sdk#3453, mastra#24336: a program that reads its input hung."""
    result = await lease.run("cat")
    assert (result.exit_code, result.stdout.data) == (0, b"")


async def test_input_of_megabytes_arrives_whole(lease: Lease) -> None:
    """inspect_k8s_sandbox: input over some MiB reset the connection."""
    data = os.urandom(8 * 1024 * 1024)
    result = await lease.run("sha256sum", stdin=data)
    assert result.stdout.data.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_a_program_that_does_not_read_its_input_ends_as_it_would(lease: Lease) -> None:
    assert (await lease.run("true", stdin=b"x" * 4_000_000)).exit_code == 0


async def test_output_is_the_bytes_that_were_written(lease: Lease) -> None:
    """inspect_k8s_sandbox#206, kubernetes-client/python#717: what was not UTF-8 was replaced."""
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 2000); sys.stderr.buffer.write(b'\\xff\\x80')"
    result = await lease.run(sys.executable, "-c", script)
    assert hashlib.sha256(result.stdout.data).digest() == hashlib.sha256(bytes(range(256)) * 2000).digest()
    assert result.stderr.data == b"\xff\x80"


async def test_a_leading_newline_is_kept(lease: Lease) -> None:
    """simstudioai/sim#7143: the first newline was eaten."""
    assert (await lease.run("printf", r"\n\na")).stdout.data == b"\n\na"


async def test_ten_megabytes_are_counted_and_their_head_and_tail_kept(lease: Lease) -> None:
    """cube-harness#368, stella#1119: only the head was kept; agent-governance-toolkit#2303: no bound at all."""
    script = "import sys; [sys.stdout.write(f'{n:09d}\\n') for n in range(1_000_000)]"
    result = await lease.run(sys.executable, "-c", script, output_limit_bytes=2_000)
    out = result.stdout
    assert (out.total_bytes, out.dropped_bytes, out.end) == (10_000_000, 9_998_000, "seen")
    assert out.data == b"".join(b"%09d\n" % n for n in range(100))
    assert out.tail == b"".join(b"%09d\n" % n for n in range(999_900, 1_000_000))


async def test_a_result_fits_in_a_frame_however_much_was_asked_for(state_dir: Path) -> None:
    limits = Limits(frame_bytes=1024 * 1024)
    async with HostInMemory(LocalProvider, state_dir=state_dir, limits=limits) as host:
        lease = await Lease.acquire(host, state_dir)
        text = "head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2"
        result = await lease.sh(text, output_limit_bytes=100_000_000)
        for stream in (result.stdout, result.stderr):
            assert stream.total_bytes == 3_000_000
            assert len(stream.data) + len(stream.tail) + stream.dropped_bytes == 3_000_000
            assert len(stream.tail) > 100_000
        await lease.destroy()


async def test_the_last_line_is_there_every_time(lease: Lease) -> None:
    """E2B#1442: the tail of the log was missing."""
    for _ in range(20):
        assert (await lease.sh("seq 1 20000")).stdout.data.endswith(b"\n20000\n")


@pytest.mark.parametrize("live", [False, True])
async def test_a_child_that_keeps_the_output_does_not_keep_the_result(lease: Lease, live: bool) -> None:
    """earendil-works/pi#7636, bytedance/deer-flow#3864, lxd#12229: exec did not return before the daemon ended."""
    word = unique_sleep()
    began = time.monotonic()
    request = lease.start("sh", "-c", f"sleep {word} & echo done", live=live)
    result = await request.result()
    waited_ms = (time.monotonic() - began) * 1000 - result.duration_ms
    assert (result.ended, result.exit_code) == ("exited", 0)
    assert (request.stdout if live else result.stdout.data) == b"done\n"
    assert (result.stdout.end, result.stderr.end) == ("heldOpen", "heldOpen")
    assert waited_ms > DRAIN_S * 1000 - 10, "the wait for the streams is not the command's"
    (left,) = started(word)
    await lease.destroy()
    wait_for_end(left)


async def test_what_is_left_in_the_background_may_go_on_writing(lease: Lease) -> None:
    """A server that was started with `&` must not die of its next line of log, nor stop once a pipe is full."""
    done = lease.path / "sandbox" / "done"
    noise = "i=0; while [ $i -lt 300 ]; do printf '%01000d' 0; i=$((i+1)); done"
    result = await lease.sh(f"(sleep 0.4; {noise}; echo $? > done.new; mv done.new done) & echo started")
    assert result.stdout.end == "heldOpen"
    waiting = await lease.sh("while ! [ -e done ]; do sleep 0.01; done; cat done", timeout_ms=60_000)
    assert (waiting.ended, waiting.stdout.data) == ("exited", b"0\n"), done


async def test_both_streams_are_kept_apart(lease: Lease) -> None:
    """daytonaio/daytona#5144: streams merged, unbounded, dropped on timeout."""
    result = await lease.sh("echo o; echo e >&2; sleep 60", timeout_ms=1500)
    assert (result.ended, result.stdout.data, result.stderr.data) == ("timedOut", b"o\n", b"e\n")


async def test_a_here_document_of_a_thousand_lines_is_input_like_any(lease: Lease) -> None:
    """daytona#4230: a here-document hung the session."""
    lines = "\n".join(f"line {n}" for n in range(1000))
    assert (await lease.sh(f"cat <<'END'\n{lines}\nEND\n")).stdout.data.decode() == lines + "\n"


async def test_thirty_commands_at_once_do_not_mix(lease: Lease) -> None:
    """mirage#411, deer-flow#1433: two commands mixed their output."""
    requests = [lease.start("sh", "-c", f"for i in 1 2 3; do echo {n}; done; exit {n}") for n in range(30)]
    results = [await request.result() for request in requests]
    assert [(r.exit_code, r.stdout.data) for r in results] == [(n, b"%d\n" % n * 3) for n in range(30)]


async def test_live_output_comes_while_the_program_runs(lease: Lease) -> None:
    """paperclip#8999: a callback for output was dropped."""
    request = lease.start("sh", "-c", "echo first; cat; echo last", live=True, stdin=b"")
    assert (await request.received("stdout", 6)).startswith(b"first\n")
    result = await request.result()
    assert (request.stdout, result.stdout.total_bytes, result.stdout.data) == (b"first\nlast\n", 11, b"")
    assert (request.end_of("stdout"), request.end_of("stderr")) == ("seen", "seen")


async def test_a_command_on_a_destroyed_sandbox_is_an_error_of_the_sandbox(lease: Lease) -> None:
    """docker/sbx-releases#504: no such sandbox looked like a program that exits 1."""
    await lease.destroy()
    with pytest.raises(errors.LeaseNotFound):
        await lease.run("true")


async def test_an_unknown_sandbox_is_not_attached(lease: Lease) -> None:
    with pytest.raises(errors.NotAttached) as caught:
        await lease.host.call("execute", types.ExecuteParams(sandbox_id="sp" + "a" * 26, argv=("true",)))
    assert caught.value.dispatched == "no"


async def test_a_bound_of_commands_is_an_answer_and_no_wait(lease: Lease, tmp_path: Path) -> None:
    held = [lease.start("sleep", "600") for _ in range(256)]
    with pytest.raises(errors.Overloaded):
        await lease.run("true")
    held[0].cancel()
    with pytest.raises(errors.Cancelled):
        await held[0].result()
    assert (await lease.run("true")).exit_code == 0
