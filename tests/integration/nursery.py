"""A program that runs a command, signals it at a moment, and waits until nothing that came of it is left.

It is the reaper of every orphan below it, so a process that the command left behind cannot hide by losing its
parent. Its one argument is an `Order` as JSON; its answer, an `Account`, goes to stdout.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

import msgspec

PR_SET_CHILD_SUBREAPER = 36


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and when to signal it."""

    argv: tuple[str, ...]
    signals: tuple[int, ...] = ()
    after_s: float = 0.0
    """From the start to the first signal."""
    gap_s: float = 0.0
    """Between two signals."""
    on_output: bool = False
    """Count from the first byte of its output, not from the start."""
    patience_s: float = 40.0
    """How long whatever it left behind may take to end."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    code: int
    out: str
    err: str
    left_s: float
    """From the last signal, or the start, to its exit."""
    gone_s: float
    """From its exit to the end of the last process below it."""
    survivors: tuple[str, ...]
    """Command lines of those that did not end in time; they were killed."""


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"


def reap(deadline: float) -> tuple[str, ...]:
    """Wait for every process below; kill and name those that are there at the deadline."""
    survivors: list[str] = []
    while True:
        with contextlib.suppress(ChildProcessError):
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid:
                continue
            if time.monotonic() < deadline:
                # A child that ends interrupts the wait; the bound is for orphans, which announce themselves too.
                signal.sigtimedwait({signal.SIGCHLD}, 0.05)
                continue
            for child in children():
                survivors.append(command_line(child))
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)
            continue
        return tuple(survivors)


def run(order: Order) -> Account:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in order.signals:
        if number != signal.SIGKILL:  # What started the tests may ignore it, as nohup does, and that is inherited.
            signal.signal(number, signal.SIG_DFL)
    with subprocess.Popen(
        order.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        last = time.monotonic()
        first = os.read(process.stdout.fileno(), 65536) if order.on_output else b""
        # The moments are what is tested here, so this is the one place that sleeps.
        time.sleep(order.after_s)
        for number in order.signals:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            last = time.monotonic()
            time.sleep(order.gap_s)
        out, err = process.communicate()
        ended = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    survivors = reap(ended + order.patience_s)
    return Account(
        code=process.returncode,
        out=(first + out).decode(),
        err=err.decode(),
        left_s=ended - last,
        gone_s=time.monotonic() - ended,
        survivors=survivors,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(run(msgspec.json.decode(sys.argv[1], type=Order))))
