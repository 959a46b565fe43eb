"""The memory of a session's processes, looked at between a child's fork, its leaving and its program.

A host was blamed for memory that was its worker's: the look had fallen between the fork of the worker and its `setsid`,
where it is one more process of the host's session, with all that the host has.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from sandport_conformance.session_memory import SessionMemory

HELD = 64 << 20

LEADER = f"""
import os
held = b"x" * {HELD}
def say(): os.write(1, b".")
def wait(): os.read(0, 1) or os._exit(0)
child = os.fork()
if not child:
    say(), wait()
    CHILD
    say(), wait()
    os._exit(0)
os.waitpid(child, 0)
say(), wait()
"""
GoOn = Callable[[], None]


@contextmanager
def session(child: str) -> Iterator[tuple[SessionMemory, GoOn]]:
    """A process with 64 MiB and its forked child, which is told to go on, and says when it has; then the parent is."""
    command = [sys.executable, "-c", LEADER.replace("CHILD", child)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, says = process.stdin.fileno(), process.stdout.fileno()

        def go_on() -> None:
            os.write(told, b".")
            assert os.read(says, 1) == b"."

        assert os.read(says, 1) == b"."
        memory = SessionMemory(process.pid)
        memory.look_for_more()
        memory.look()
        assert 2 * HELD < memory.peak_bytes < 3 * HELD  # as it is for now, a helper that was forked
        yield memory, go_on


@pytest.mark.parametrize("more", [0, 2 * HELD])
def test_a_child_that_leaves_the_session_was_never_of_it(more: int) -> None:
    with session(f"os.setsid(); more = b'y' * {more}") as (memory, go_on):
        go_on()
        memory.look()
        assert HELD < memory.peak_bytes < 2 * HELD


def test_a_program_that_a_child_runs_has_its_own_memory_and_not_its_parents() -> None:
    program = "os.execv('/bin/sh', ['sh', '-c', 'printf .; head -c 1 > /dev/null'])"
    with session(program) as (memory, go_on):
        go_on()
        memory.look()
        assert HELD < memory.peak_bytes < 2 * HELD


@pytest.mark.parametrize("more", [0, 2 * HELD])
def test_a_child_that_stays_counts_with_the_most_that_it_had_also_after_its_end(more: int) -> None:
    with session(f"more = b'y' * {more}") as (memory, go_on):
        go_on()
        memory.look()
        go_on()
        memory.look_for_more()
        memory.look()
        assert 2 * HELD + more < memory.peak_bytes < 3 * HELD + more
