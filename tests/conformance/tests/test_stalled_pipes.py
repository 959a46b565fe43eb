"""The driver as a host that is busy: it does not read for a while, or leaves the log full."""

import signal

import pytest

from sandport_conformance.outcomes import WorkerGone
from sandport_conformance.worker import WorkerProcess
from tests.conformance.tests.conftest import Spawn, python

LONG_S = 60.0
SHORT_S = 0.2


def read_line(process: WorkerProcess) -> bytes:
    assert process.pump(lambda: process.lines, timeout_s=LONG_S)
    return process.lines.popleft()[1]


def test_a_full_log_has_no_room_for_a_byte_and_then_all_of_it(spawn: Spawn) -> None:
    look = "import select; print(select.select([], [2], [], 0)[1], flush=True)"
    code = f"{look}; os.write(2, b'late'); print('on', flush=True)"
    process = spawn(python(code), full_stderr=True)
    assert read_line(process) == b"[]"
    assert not process.pump(lambda: process.lines, timeout_s=SHORT_S)
    process.drain_stderr()
    assert read_line(process) == b"on"
    assert process.wait_exit(LONG_S)
    process.drained(LONG_S)
    assert process.stderr_text() == "late"
    assert process.stderr_bytes == 4


def test_a_worker_with_a_full_log_that_nobody_reads_can_still_be_ended(spawn: Spawn) -> None:
    process = spawn(python("os.write(2, b'x'); sys.stdin.read()"), full_stderr=True)
    assert process.end(eof_s=LONG_S, term_s=LONG_S).code == 0


def test_what_an_unheard_worker_takes_until_its_output_is_full_is_told(spawn: Spawn) -> None:
    process = spawn(python("while (data := os.read(0, 1 << 16)): os.write(1, data)"))
    lines = (b"x" * 999 + b"\n") * 4096
    taken = process.write_unheard(lines, timeout_s=LONG_S)
    assert 0 < taken < len(lines)
    assert not process.lines, "nothing is read meanwhile"
    process.write(lines[taken:], timeout_s=LONG_S)
    process.close_input()
    process.wait_exit(LONG_S)
    assert len(process.lines) == 4096


def test_a_worker_that_takes_nothing_and_says_nothing_is_waited_for_so_long(spawn: Spawn) -> None:
    process = spawn(python("time.sleep(600)"))
    assert process.write_unheard(b"x" * (4 << 20), timeout_s=SHORT_S) <= 1 << 20


def test_everything_is_taken_by_a_worker_that_keeps_its_answers(spawn: Spawn) -> None:
    process = spawn(python("data = sys.stdin.read(); os.write(1, data.encode()); time.sleep(600)"))
    assert process.write_unheard(b"x" * (1 << 20), timeout_s=SHORT_S) == 1 << 20


def test_bytes_that_were_taken_are_no_longer_in_the_pipe(spawn: Spawn) -> None:
    process = spawn(python("while (data := os.read(0, 9)): print(len(data), flush=True)"))
    for _ in range(5):
        process.write(b"ab", timeout_s=LONG_S)
        process.wait_taken(timeout_s=LONG_S)
    assert [read_line(process) for _ in range(5)] == [b"2"] * 5


def test_an_exit_can_be_waited_for_with_the_output_left_in_the_pipe(spawn: Spawn) -> None:
    process = spawn(python("print('left', flush=True)"))
    assert process.wait_exit(LONG_S, read=False)
    assert not process.lines
    assert read_line(process) == b"left"


def test_a_worker_that_waits_for_a_reader_does_not_end_by_itself(spawn: Spawn) -> None:
    process = spawn(python("os.write(1, b'x' * (8 << 20))"))
    assert process.wait_exit(SHORT_S, read=False) is None
    assert process.wait_exit(LONG_S)


def test_nothing_can_be_said_after_the_end_of_input(spawn: Spawn) -> None:
    process = spawn(python("time.sleep(600)"))
    process.close_input()
    with pytest.raises(WorkerGone, match="its stdin was ended"):
        process.write(b"x", timeout_s=LONG_S)
    process.signal(signal.SIGKILL)
