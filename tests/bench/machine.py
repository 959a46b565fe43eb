"""What was measured on: facts that explain numbers, and no name of a machine."""

from __future__ import annotations

import os
import platform
import sysconfig
from pathlib import Path

from msgspec import Struct


class Machine(Struct, frozen=True, kw_only=True):
    """The facts beside a table."""

    cores: int
    processor: str
    memory_gib: int
    system: str
    python: str
    real_time: bool
    """The run had precedence over everything else on the machine (`chrt -r 1`), so that a neighbour cost it nothing."""
    load_before: float
    """Processes that wanted a core in the last minute, before the run."""

    def __str__(self) -> str:
        return (
            f"{self.cores} cores ({self.processor}), {self.memory_gib} GiB, {self.system}, {self.python}; "
            f"{'real-time priority, ' if self.real_time else ''}load before the run {self.load_before:.1f}"
        )


def this_machine() -> Machine:
    """The machine that this runs on."""
    optimized = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return Machine(
        cores=len(cores()),
        processor=_processor(),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3),
        system=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()} ({'' if optimized else 'not '}PGO)",
        real_time=hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
        load_before=os.getloadavg()[0],
    )


def cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def stay_on(chosen: tuple[int, ...]) -> None:
    """Keep this process, and what it starts from now on, on some cores; nothing happens where a system cannot."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)


def memory_bytes(pid: int) -> tuple[int, int]:
    """Resident and proportional size of a process; 0 where there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines()[1:]}
    return sizes["Rss"], sizes["Pss"]


def cpu_s(pid: int) -> float:
    """Processor time of every thread that a process has now, in seconds; 0 where there is no /proc."""
    total_ns = 0
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total_ns += int(thread.read_text().split()[0])
        except OSError:
            continue  # the thread ended just now
    return total_ns / 1e9


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
