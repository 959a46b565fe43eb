"""The limits of a sandbox, as what is written to which of the kernel's files in either version.

- memory: what the sandbox has in RAM, its tmpfs and page cache included. Nothing is swapped out past it: version 1
  limits both together (`memsw`; a kernel without that accounting gets a swappiness of 0), version 2 allows no swap.
  `memory.oom.group` stays 0: the kernel kills the greediest process and not the whole sandbox, whose init would be in
  it, so that a command ends as `outOfMemory` and the sandbox goes on.
- pids: processes and threads together; at the limit fork fails with EAGAIN.
- cpus: CPU time per time, in a period of a tenth of a second.

Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import math
import os

from sandport_provider_local.cgroup_files import write_text
from sandport_provider_local.cgroup_places import CgroupUnavailable

MIN_MEMORY_BYTES = 1024 * 1024
"""Under that not even a process can start, and the kernel's counters are in pages."""
MIN_CPUS = 0.01
"""The kernel takes no quota below a millisecond."""
PERIOD_US = 100_000

_MOST_BYTES = 2**63 - 65536
_MOST_PIDS = 4 * 1024 * 1024


class Setting:
    """One file of a cgroup and what is written to it."""

    __slots__ = ("file", "value", "instead")

    def __init__(self, file: str, value: int | str, *, instead: Setting | None = None, optional: bool = False) -> None:
        self.file = file
        self.value = str(value)
        self.instead = (instead,) if instead is not None else () if optional else None
        """What is done where the kernel has no such file; None: then the limit cannot be had."""

    def apply(self, directory: str) -> None:
        """Write it.

        Raises:
            CgroupUnavailable: The kernel has no such file, or does not take the value.
        """
        try:
            write_text(os.path.join(directory, self.file), self.value)
        except FileNotFoundError as error:
            if self.instead is None:
                raise CgroupUnavailable(f"this kernel was built without {self.file}") from error
            for setting in self.instead:
                setting.apply(directory)
        except OSError as error:
            raise CgroupUnavailable(
                f"{self.file} of {directory} does not take {self.value}: {error.strerror}. "
                "A cgroup above it may allow less"
            ) from error


def settings_of(memory_bytes: int | None, pids: int | None, cpus: float | None) -> dict[str, dict[int, list[Setting]]]:
    """What is written for the limits, by controller and version, in this order."""
    wanted: dict[str, dict[int, list[Setting]]] = {}
    if memory_bytes is not None:
        if memory_bytes < MIN_MEMORY_BYTES:
            raise ValueError(f"memory_bytes must be at least {MIN_MEMORY_BYTES}, not {memory_bytes}")
        most = min(memory_bytes, _MOST_BYTES)
        no_swap = Setting("memory.swappiness", 0, optional=True)
        wanted["memory"] = {
            1: [Setting("memory.limit_in_bytes", most), Setting("memory.memsw.limit_in_bytes", most, instead=no_swap)],
            2: [Setting("memory.max", most), Setting("memory.swap.max", 0, optional=True)],
        }
    if pids is not None:
        if pids < 1:
            raise ValueError(f"pids must be at least 1, not {pids}")
        setting = Setting("pids.max", min(pids, _MOST_PIDS))
        wanted["pids"] = {1: [setting], 2: [setting]}
    if cpus is not None:
        if not math.isfinite(cpus) or cpus < MIN_CPUS:
            raise ValueError(f"cpus must be at least {MIN_CPUS}, not {cpus}")
        # More than the kernel has CPUs for is the same as no limit, and beyond its range an error.
        quota_us = round(min(cpus, 4096) * PERIOD_US)
        wanted["cpu"] = {
            1: [Setting("cpu.cfs_period_us", PERIOD_US), Setting("cpu.cfs_quota_us", quota_us)],
            2: [Setting("cpu.max", f"{quota_us} {PERIOD_US}")],
        }
    return wanted
