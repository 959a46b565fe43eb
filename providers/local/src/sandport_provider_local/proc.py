"""What the kernel says of processes, and signals that reach the one that is meant and no other.

Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # Without the other's import of `enum`, which is a third of a start.

TICKS = os.sysconf("SC_CLK_TCK")
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


class Stat:
    """What /proc/PID/stat says about a process."""

    __slots__ = ("pid", "ppid", "session", "start_ticks", "live")

    def __init__(self, pid: int, text: bytes) -> None:
        fields = text[text.rindex(b")") + 2 :].split()
        self.pid = pid
        self.ppid = int(fields[1])
        self.session = int(fields[3])
        self.start_ticks = int(fields[19])
        # The leader of a process shows as a zombie while its other threads run on.
        self.live = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1


def read_file(path: str) -> bytes:
    """The whole of a file of /proc, or b"" where the process is gone or is not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        pieces = []
        while piece := os.read(fd, 65536):
            pieces.append(piece)
        return b"".join(pieces)
    except OSError:  # It ended while we read.
        return b""
    finally:
        os.close(fd)


def read_stat(pid: int) -> Stat | None:
    """The process of this number, or None."""
    text = read_file(f"/proc/{pid}/stat")
    return Stat(pid, text) if text else None


def user_of(pid: int) -> int | None:
    """Whose process this is. Its files do not tell: those of one that hides belong to root."""
    lines = read_file(f"/proc/{pid}/status").split(b"\n")
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Uid:")), None)


def has_variable(pid: int, assignment: bytes) -> bool:
    """Whether the process was started with exactly this `NAME=value` (and has not hidden it)."""
    return assignment in read_file(f"/proc/{pid}/environ").split(b"\0")


def all_pids() -> list[int]:
    """Every process that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children_of(pid: int) -> list[int]:
    """Processes whose parent this is, from the kernel's list, or where it has none from a look at all processes."""
    if not _LISTS_CHILDREN:
        return [p for p in all_pids() if (found := read_stat(p)) is not None and found.ppid == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in read_file(f"/proc/{pid}/task/{thread}/children").split()]


def signal_exactly(pid: int, start_ticks: int, number: int) -> bool:
    """Signal a process if the number still belongs to the one that started at `start_ticks`; False if not."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = read_stat(pid)
        if found is None or found.start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:  # It ended, or belongs to another user.
        return False
    finally:
        os.close(fd)


def freeze_and_kill(roots: list[Stat]) -> bool:
    """Kill these processes and everything below them; False if nothing of it was alive.

    Every process is stopped before its children are read, so that none is missed because its parent went first.
    """
    frozen: list[Stat] = []
    queue = list(roots)
    while queue:
        process = queue.pop()
        if not process.live:
            continue
        frozen.append(process)
        signal_exactly(process.pid, process.start_ticks, signal.SIGSTOP)
        children = [found for child in children_of(process.pid) if (found := read_stat(child)) is not None]
        again = read_stat(process.pid)
        if again is not None and again.start_ticks == process.start_ticks:
            queue.extend(child for child in children if child.ppid == process.pid)
    for process in frozen:
        signal_exactly(process.pid, process.start_ticks, signal.SIGKILL)
    return bool(frozen)


def signal_group(leader: int, number: int) -> bool:
    """Signal a group whose leader has not been reaped (so the number is its own); False if that failed."""
    try:
        os.killpg(leader, number)
    except OSError:  # Another user's, or no such signal.
        return False
    return True


def boot_time() -> float:
    """Seconds since the machine started, suspended time included: the clock that start times are measured by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_ticks() -> int:
    """When this process started, in clock ticks since the machine did."""
    found = read_stat(os.getpid())
    return found.start_ticks if found is not None else 0


def boot_id() -> str:
    """The kernel's name for the time since the machine started."""
    return read_file("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
