"""The driver: bytes, exits, logs and leftovers of a process that does what it likes."""

import json
import os
import signal

import pytest

from sandport_conformance.outcomes import NotStarted, TimedOut, WorkerGone
from sandport_conformance.processes import ExitCause, Identity, kill_survivors, survivors
from sandport_conformance.worker import WorkerProcess
from tests.conformance.tests.conftest import Spawn, python

LONG_S = 60.0


def read_lines(process: WorkerProcess, count: int) -> list[bytes]:
    assert process.pump(lambda: len(process.lines) >= count, timeout_s=LONG_S)
    return [line for _, line in process.lines]


def test_a_worker_starts_in_the_root_with_only_the_environment_that_it_is_given(spawn: Spawn) -> None:
    code = "import json; print(json.dumps([os.getcwd(), dict(os.environ), os.getsid(0) == os.getpid()]), flush=True)"
    (line,) = read_lines(spawn(python(code), environ={"GIVEN": "yes"}), 1)
    cwd, environ, leads_session = json.loads(line)
    assert cwd == "/"
    assert set(environ) <= {"PATH", "GIVEN", "SANDPORT_WORKER_TOKEN", "LC_CTYPE"}
    assert leads_session


@pytest.mark.parametrize("command", [("/no/such/program",), ("/etc/passwd",), ("/",), ("nul\0byte",)])
def test_a_program_that_cannot_be_run_is_no_started_worker(spawn: Spawn, command: tuple[str, ...]) -> None:
    with pytest.raises(NotStarted, match="cannot be run"):
        spawn(command)


def test_a_full_log_never_stops_a_worker(spawn: Spawn) -> None:
    """anthropics/claude-agent-sdk-python#103: both sides waited when stderr's pipe was full."""
    process = spawn(python("sys.stderr.write('x' * (8 << 20) + 'last'); sys.stderr.flush(); print('done', flush=True)"))
    assert read_lines(process, 1) == [b"done"]
    process.end(eof_s=LONG_S, term_s=LONG_S)
    process.release(grace_s=0)
    assert process.stderr_bytes == (8 << 20) + 4
    assert process.stderr_text().endswith("xlast")
    assert len(process.stderr_text()) <= 1 << 16


def test_lines_end_at_line_feeds_alone_and_what_is_left_is_told(spawn: Spawn) -> None:
    process = spawn(python(r"os.write(1, 'a\u2028b\x85c\rd\n\ne'.encode())"))
    process.wait_exit(LONG_S)
    assert [line for _, line in process.lines] == ["a\u2028b\x85c\rd".encode(), b""]
    assert process.unfinished_line == b"e"


def test_bytes_are_sent_in_the_pieces_that_are_asked_for(spawn: Spawn) -> None:
    code = "while (data := os.read(0, 100)): print(len(data), flush=True)"
    process = spawn(python(code))
    for size in (3, 1):
        process.write(b"x" * size, timeout_s=LONG_S, pieces=())
        read_lines(process, 1)
        assert process.lines.popleft()[1] == b"%d" % size
    process.write(b"abcdef", timeout_s=LONG_S, pieces=(1, 2))
    process.close_input()
    process.wait_exit(LONG_S)
    assert sum(int(line) for _, line in process.lines) == 6


def test_a_worker_that_does_not_read_is_waited_for_so_long_and_no_longer(spawn: Spawn) -> None:
    process = spawn(python("time.sleep(600)"))
    with pytest.raises(TimedOut, match="did not read its stdin"):
        process.write(b"x" * (1 << 20), timeout_s=0.2)


def test_a_large_frame_goes_to_a_worker_that_writes_before_it_reads(spawn: Spawn) -> None:
    """Both pipes are full unless the driver reads while it writes."""
    code = "os.write(1, b'y' * (1 << 20) + b'\\n')\nprint(len(sys.stdin.read()), flush=True)"
    process = spawn(python(code))
    process.write(b"x" * (1 << 20), timeout_s=LONG_S)
    process.close_input()
    assert read_lines(process, 2)[1] == b"%d" % (1 << 20)


def test_a_worker_that_is_gone_is_told_with_its_exit_and_the_end_of_its_log(spawn: Spawn) -> None:
    process = spawn(python("sys.exit('no licence')"))
    process.wait_exit(LONG_S)
    with pytest.raises(WorkerGone, match="ended with exit code 1: no licence"):
        process.write(b"x", timeout_s=LONG_S)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("sys.exit(3)", ExitCause(code=3)),
        ("os.kill(os.getpid(), 11)", ExitCause(signal=11)),
        ("sys.exit(139)", ExitCause(code=139)),
    ],
)
def test_an_exit_and_a_signal_are_told_apart(spawn: Spawn, code: str, cause: ExitCause) -> None:
    assert spawn(python(code)).wait_exit(LONG_S) == cause


def test_an_exit_is_judged_by_the_process_and_not_by_its_pipes(spawn: Spawn) -> None:
    """modelcontextprotocol/python-sdk#2773: a child that held the pipe made a prompt exit look like a hang."""
    process = spawn(python("os.fork() or time.sleep(600)"))
    assert process.wait_exit(LONG_S) == ExitCause(code=0)
    assert not process.out_ended
    assert process.release(grace_s=0)


def test_the_ladder_ends_a_worker_that_ignores_everything_it_can(spawn: Spawn) -> None:
    code = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile 1: time.sleep(9)"
    )
    process = spawn(python(code))
    read_lines(process, 1)
    assert process.end(eof_s=0.1, term_s=0.1) == ExitCause(signal=signal.SIGKILL)
    notes = [entry.text for entry in process.transcript.entries() if entry.direction == "note"]
    assert notes[:3] == ["stdin closed", "SIGTERM sent", "SIGKILL sent"]


def test_what_a_worker_left_is_found_in_any_session_and_killed(spawn: Spawn) -> None:
    """A grandchild in a session of its own keeps the token in its environment."""
    code = "import subprocess as s; p = s.Popen(['sleep', '600'], start_new_session=True); print(p.pid, flush=True)"
    process = spawn(python(code))
    pid = int(read_lines(process, 1)[0])
    process.wait_exit(LONG_S)
    assert [survivor.pid for survivor in process.survivors()] == [pid]
    assert [survivor.command for survivor in process.release(grace_s=0)] == ["sleep 600"]
    assert process.survivors() == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the machine does not tell when a process was started")
def test_a_number_that_another_process_has_by_now_makes_nobody_a_survivor(spawn: Spawn) -> None:
    """hashicorp/nomad#23969: a stale pid was trusted, and strangers were killed."""
    stranger = spawn(python("os.fork(); print('up', flush=True); time.sleep(600)"))
    read_lines(stranger, 2)
    reused = Identity(token="of a worker that is gone", pid=stranger.pid, started=1)
    assert survivors(reused) == []
    assert kill_survivors(reused) == []
    assert stranger.exit_cause is None


def test_nothing_of_anybody_else_is_ever_a_survivor(spawn: Spawn) -> None:
    one, other = spawn(python("time.sleep(600)")), spawn(python("time.sleep(600)"))
    assert one.survivors() == []
    one.end(eof_s=0, term_s=1)
    one.release(grace_s=0)
    assert other.exit_cause is None


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="the machine does not tell the memory of a process")
def test_the_most_memory_that_a_worker_had_is_known(spawn: Spawn) -> None:
    process = spawn(python("data = b'x' * (200 << 20); del data; print('done', flush=True); sys.stdin.read()"))
    read_lines(process, 1)
    assert process.peak_memory_bytes() > 200 << 20
    process.end(eof_s=LONG_S, term_s=1)
    assert 200 << 20 < process.peak_memory_bytes() < 300 << 20
