"""Whether a worker that was killed probably ran out of memory: what the kernel counted, what it used, what it may use.

A SIGKILL says nothing of its reason. The kernel counts the processes that it ended for want of memory, and says how
much a group of processes may use; together with the worker's own peak that is a reason, or none.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

_NEAR = 0.8
"""A peak of so much of the limit fits: pages of the rest of the group count too."""
_UNLIMITED = 1 << 60
"""Version 1 of control groups writes a number near the largest where there is no limit."""


class MemoryFacts(Struct, frozen=True, kw_only=True):
    """What is known about memory at the end of a worker."""

    limit_bytes: int | None = None
    """What this machine, or the control group around this process, allows."""
    limited_by: str = "the machine"
    kernel_kills: int = 0
    """Processes that the kernel ended for want of memory during the worker's life, on the whole machine."""

    def hint(self, peak_bytes: int | None) -> str:
        """Why the end may have been one for want of memory; empty where nothing says so."""
        used = f"its peak was {_human(peak_bytes)}" if peak_bytes else "its peak is not known"
        limit = f"{self.limited_by} allows {_human(self.limit_bytes)}" if self.limit_bytes else "no limit is known"
        if self.kernel_kills:
            return f"probably out of memory: the kernel ended a process for that meanwhile; {used}, {limit}"
        if peak_bytes and self.limit_bytes and peak_bytes >= _NEAR * self.limit_bytes:
            return f"probably out of memory: {used}, {limit}"
        return ""


def memory_facts(kills_before: int | None, *, system: Path = Path("/")) -> MemoryFacts:
    """The facts now, for a worker at whose start the kernel had ended so many.

    Args:
        kills_before: What `kernel_kills` answered then.
        system: Where /proc and /sys are.
    """
    kills = kernel_kills(system=system)
    limit, limited_by = _limit(system)
    return MemoryFacts(
        limit_bytes=limit,
        limited_by=limited_by,
        kernel_kills=max(0, kills - kills_before) if kills is not None and kills_before is not None else 0,
    )


def kernel_kills(*, system: Path = Path("/")) -> int | None:
    """How many processes the kernel has ended for want of memory since the boot; None where it does not say."""
    return _number_after(system / "proc/vmstat", "oom_kill")


def _limit(system: Path) -> tuple[int | None, str]:
    """The smallest limit that holds for this process, and whose it is."""
    total_kib = _number_after(system / "proc/meminfo", "MemTotal:")
    smallest, whose = (total_kib * 1024 if total_kib is not None else None), "the machine"
    for file in _limit_files(system):
        try:
            text = file.read_text().strip()
        except OSError:
            continue  # not this version of control groups, or a level that has no limit to show
        if text.isdigit() and int(text) < _UNLIMITED and (smallest is None or int(text) < smallest):
            smallest, whose = int(text), "the control group"
    return smallest, whose


def _limit_files(system: Path) -> list[Path]:
    try:
        lines = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, name = system / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            root, name = system / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit of any level above holds too; in a container the path may name nothing that can be seen.
        folder = root / path.lstrip("/")
        while True:
            files.append(folder / name)
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    return files


def _number_after(file: Path, name: str) -> int | None:
    try:
        text = file.read_text()
    except OSError:
        return None
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return None


def _human(size: int | None) -> str:
    if size is None:
        return "?"
    value, units = float(size), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if value < 1024 or unit == units[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit takes every size")
