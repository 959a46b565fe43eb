"""What a test looks at on the machine itself: processes and their ends, never through the code under test."""

import contextlib
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 60.0
"""Every wait ends with a failure after so long; none of them is a measure of speed."""


def running(word: str) -> list[int]:
    """Live processes that have this word among their arguments."""
    return [pid for pid in pids() if word.encode() in arguments_of(pid) and state_of(pid) not in "ZX"]


def started(word: str, count: int = 1) -> list[int]:
    """As `running`, once there are so many: a process shows its arguments a moment after it was started."""
    found: list[int] = []

    def are_there() -> bool:
        found[:] = running(word)  # Kept: amid an exec, a moment later, a process may show none.
        return len(found) == count

    until(are_there, f"{count} processes run with {word}")
    return found


def arguments_of(pid: int) -> list[bytes]:
    return _read(pid, "cmdline").split(b"\0")


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def state_of(pid: int) -> str:
    """The letter of ps; X where there is no such process."""
    text = _read(pid, "stat")
    return text[text.rindex(b")") + 2 :][:1].decode() if text else "X"


def start_ticks(pid: int) -> int:
    text = _read(pid, "stat")
    return int(text[text.rindex(b")") + 2 :].split()[19])


def children_of(pid: int) -> list[int]:
    return [int(child) for child in _read(pid, f"task/{pid}/children").split()]


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def entries(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def environment_of(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def descriptors_of(pid: int) -> dict[int, str]:
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # The one that the listing itself had open.
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def wait_for_end(*numbers: int) -> None:
    """Wait until these processes have ended."""
    deadline = time.monotonic() + PATIENCE_S
    for pid in numbers:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            left_ms = max(0.0, deadline - time.monotonic()) * 1000
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            assert poll.poll(left_ms), f"process {pid} has not ended"
        finally:
            os.close(fd)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that the kernel sends no event for."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.002)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
