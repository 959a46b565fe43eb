"""Starting a worker's process and knowing how it ended, whatever the program around us does."""

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandport.errors import WorkerStartFailed
from sandport.worker.identity import Identity, is_running, process_start_ticks, signal_exactly
from sandport.worker.launch import WorkerCommand, WorkerProcess, spawn

pytestmark = pytest.mark.anyio

PROGRAM_BOUND_S = 60


def start(*argv: str) -> WorkerProcess:
    return spawn(WorkerCommand(provider="p", argv=argv), os.environ)


def wait_until_gone(pid: int) -> None:
    """Return when a process is no more, or only a number that waits to be reaped; a kill takes its moment."""
    limit = time.monotonic() + PROGRAM_BOUND_S
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().split()[2] not in "ZX":
            assert time.monotonic() < limit, f"process {pid} lives on"
            time.sleep(0.005)


def read_all(process: WorkerProcess) -> str:
    """Everything on its stdout, to the end."""
    with open(process.stdout_fd, "rb", closefd=False) as stdout:
        return stdout.read().decode()


def close(process: WorkerProcess) -> None:
    for fd in (process.stdin_fd, process.stdout_fd, process.stderr_fd):
        os.close(fd)


@pytest.mark.parametrize(
    ("script", "exit_code", "number"), [("exit 0", 0, None), ("exit 137", 137, None), ("kill -9 $$", None, 9)]
)
async def test_an_exit_code_and_a_signal_are_told_apart(script: str, exit_code: int | None, number: int | None) -> None:
    process = start("sh", "-c", script)
    exited = await process.exited
    assert (exited.exit_code, exited.signal) == (exit_code, number)
    assert exited.peak_memory_bytes
    close(process)


async def test_a_process_is_known_by_more_than_its_number() -> None:
    process = start("sleep", "600")
    identity = process.identity
    assert identity.started_ticks == process_start_ticks(process.pid) > 0
    assert len(identity.token) == 32
    assert identity.boot_id
    process.signal_group(signal.SIGKILL)
    await process.exited
    assert process_start_ticks(process.pid) == 0
    close(process)


async def test_a_worker_has_a_session_of_its_own_and_three_descriptors() -> None:
    """S14, evanw/esbuild#2727: a worker kept a stream that it had inherited."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    process = start("sh", "-c", "ls -l /proc/self/fd; echo $$; cut -d' ' -f6 /proc/$$/stat; pwd")
    text = await asyncio.to_thread(read_all, process)
    await process.exited
    assert f"pipe:[{os.stat(write).st_ino}]" not in text
    pid, session, folder = text.split()[-3:]
    assert pid == session == str(process.pid)
    assert folder == "/"
    for fd in (read, write):
        os.close(fd)
    close(process)


async def test_what_is_left_in_the_group_ends_with_the_leader() -> None:
    """S03, modelcontextprotocol/python-sdk PR #2773 (2): the group was asked for after the leader was reaped."""
    process = start("sh", "-c", "sleep 600 & echo $!")
    await process.exited
    child = int(os.read(process.stdout_fd, 100))
    try:
        await asyncio.to_thread(wait_until_gone, child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    close(process)


async def test_no_signal_is_sent_to_a_number_that_was_given_back() -> None:
    process = start("true")
    await process.exited
    process.signal_group(signal.SIGKILL)
    close(process)


WITHOUT_STANDARD_DESCRIPTORS = """
import asyncio, os, sys
from sandport.worker.launch import WorkerCommand, spawn

async def main():
    # The loop has its own descriptors by now, so that the lowest free ones are these.
    for fd in (0, 1, 2):
        os.close(fd)
    process = spawn(WorkerCommand(provider="p", argv=("true",)), os.environ)
    await process.exited
    os.write(int(sys.argv[1]), b"%d" % min(process.stdin_fd, process.stdout_fd, process.stderr_fd))

asyncio.run(main())
"""


def test_no_pipe_of_a_worker_gets_the_number_of_a_standard_descriptor() -> None:
    """F07, ElementsProject/lightning#4385, #4175: a plugin's pipe got the number of stdout, and host logs."""
    read, write = os.pipe()
    with open(read, "rb") as told:
        subprocess.run(
            [sys.executable, "-c", WITHOUT_STANDARD_DESCRIPTORS, str(write)],
            pass_fds=(write,),
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=PROGRAM_BOUND_S,
        )
        os.close(write)
        assert int(told.read()) > 2


IGNORES_CHILDREN = """
import asyncio, os, signal
from sandport.worker.launch import WorkerCommand, spawn

signal.signal(signal.SIGCHLD, signal.SIG_IGN)

async def main():
    exited = await spawn(WorkerCommand(provider="p", argv=("sh", "-c", "exit 3")), os.environ).exited
    print(exited.exit_code, exited.signal)

asyncio.run(main())
"""


def test_a_program_that_ignores_its_children_still_learns_of_the_end() -> None:
    """The kernel reaps for such a program, and the status is gone; the end must be seen all the same."""
    done = subprocess.run(
        [sys.executable, "-c", IGNORES_CHILDREN], capture_output=True, text=True, check=True, timeout=PROGRAM_BOUND_S
    )
    assert done.stdout == "None None\n"


NO_PIDFD = """
import asyncio, os
from sandport.worker.launch import WorkerCommand, spawn

def refuse(pid, flags=0):
    raise OSError(38, "Function not implemented")

os.pidfd_open = refuse

async def main():
    exited = await spawn(WorkerCommand(provider="p", argv=("sh", "-c", "exit 3")), os.environ).exited
    print(exited.exit_code, exited.signal)

asyncio.run(main())
"""


def test_a_kernel_without_pid_descriptors_will_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_PIDFD], capture_output=True, text=True, check=True, timeout=PROGRAM_BOUND_S
    )
    assert done.stdout == "3 None\n"


async def test_a_start_without_descriptors_left_is_an_error_and_leaks_none() -> None:
    """N02, O13: evanw/esbuild#2129, mozilla-ai/mcpd#299."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 2, hard))
    try:
        with pytest.raises(WorkerStartFailed, match="Too many open files"):
            start("true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == before


# ------------------------------------------------------------------ the descriptor that means one process


def seen_to_run(identity: Identity) -> None:
    """Wait until it shows that it is the one; the bound ends a hang."""
    end = time.monotonic() + 60
    while not is_running(identity) and time.monotonic() < end:
        time.sleep(0.01)


async def test_ten_thousand_looks_at_a_worker_use_up_no_descriptor() -> None:
    """R09, hashicorp/go-plugin PR #378, PR #173: each check leaked a handle of the process."""
    nothing = len(os.listdir("/proc/self/fd"))
    process = start("sleep", "600")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10_000):
        assert process.alive
    # Amid its exec a process shows no environment yet, however long that takes on a busy machine.
    seen_to_run(process.identity)
    for _ in range(1000):
        assert is_running(process.identity)
        assert not signal_exactly(process.identity, 0, group=os.getpgrp())
    assert len(os.listdir("/proc/self/fd")) == before
    process.signal_group(signal.SIGKILL)
    await process.exited
    assert not process.alive
    close(process)
    assert len(os.listdir("/proc/self/fd")) == nothing


OLD_KERNEL = """
import asyncio, errno, os, signal
from sandport.worker.launch import WorkerCommand, spawn

whole = signal.pidfd_send_signal
asked = []

def of_old(pidfd, number, siginfo=None, flags=0):
    asked.append(flags)
    if flags:
        raise OSError(errno.EINVAL, "Invalid argument")
    whole(pidfd, number)

signal.pidfd_send_signal = of_old

async def main():
    process = spawn(WorkerCommand(provider="p", argv=("sh", "-c", "sleep 600 & echo $!; wait")), os.environ)
    child = int(os.read(process.stdout_fd, 100))
    process.signal_group(signal.SIGKILL)
    exited = await process.exited
    print(child, exited.signal, any(asked))

asyncio.run(main())
"""


def test_a_kernel_that_signals_no_group_by_descriptor_will_do() -> None:
    """Before Linux 6.9 the number of the group is all there is; it is used only while the leader is not reaped."""
    done = subprocess.run(
        [sys.executable, "-c", OLD_KERNEL], capture_output=True, text=True, check=True, timeout=PROGRAM_BOUND_S
    )
    child, number, asked = done.stdout.split()
    assert (number, asked) == ("9", "True")
    wait_until_gone(int(child))


REAPED_ELSEWHERE = """
import asyncio, errno, os, signal, sys
from sandport.worker.launch import WorkerCommand, spawn

kills = []
os.killpg = lambda group, number: kills.append(group)
if sys.argv[1] == "old":
    whole = signal.pidfd_send_signal

    def of_old(pidfd, number, siginfo=None, flags=0):
        if flags:
            raise OSError(errno.EINVAL, "Invalid argument")
        whole(pidfd, number)

    signal.pidfd_send_signal = of_old
if sys.argv[1] == "none":

    def refuse(pid, flags=0):
        raise OSError(38, "Function not implemented")

    os.pidfd_open = refuse

async def main():
    process = spawn(WorkerCommand(provider="p", argv=("true",)), os.environ)
    os.waitpid(process.pid, 0)  # the program around us reaps whatever ends: the number may be anybody's now
    process.signal_group(signal.SIGKILL)
    exited = await process.exited
    process.signal_group(signal.SIGKILL)
    print(exited.exit_code, exited.signal, kills)

asyncio.run(main())
"""


@pytest.mark.parametrize("kernel", ["new", "old", "none"])
def test_a_number_that_somebody_else_gave_back_is_not_signalled(kernel: str) -> None:
    """O10, hashicorp/nomad#23969: a stranger was killed by a number that was his meanwhile."""
    program = [sys.executable, "-c", REAPED_ELSEWHERE, kernel]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=PROGRAM_BOUND_S)
    assert done.stdout == "None None []\n"
