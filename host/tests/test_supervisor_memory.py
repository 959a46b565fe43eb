"""Whether a kill was one for want of memory is said where the facts say so, with the facts, and nowhere else."""

import signal
from pathlib import Path

import pytest

from sandport.worker.memory import MemoryFacts, kernel_kills, memory_facts
from sandport.worker.report import CrashReport

MIB = 1024 * 1024


def machine(
    root: Path, *, kills: int = 0, total_mib: int = 8192, cgroup: str = "", limits: dict[str, str] | None = None
) -> Path:
    """A folder with the files of a machine in it, as the kernel writes them."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/vmstat").write_text(f"nr_free_pages 1\noom_kill {kills}\nnuma_hit 7\n")
    (root / "proc/meminfo").write_text(f"MemTotal:       {total_mib * 1024} kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in (limits or {}).items():
        (root / "sys/fs/cgroup" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup" / path).write_text(text)
    return root


def killed(memory: MemoryFacts, peak_mib: int | None, *, cause: str = "", number: int = signal.SIGKILL) -> str:
    return CrashReport(
        id="c0ffee00",
        provider="p",
        pid=7,
        signal=number,
        uptime_s=1.0,
        phase="serving",
        cause=cause,
        peak_memory_bytes=peak_mib * MIB if peak_mib else None,
        memory=memory,
    ).how()


def test_a_worker_over_its_limit_is_named_with_the_signal_the_limit_and_what_it_used(tmp_path: Path) -> None:
    """R08, bazelbuild/bazel#5767, evanw/esbuild#4260: a kill for memory was reported as a print on stdout."""
    root = machine(
        tmp_path, kills=4, cgroup="0::/a/b\n", limits={"a/b/memory.max": "max\n", "a/memory.max": "268435456"}
    )
    before = kernel_kills(system=root)
    assert before == 4
    machine(tmp_path, kills=5, cgroup="0::/a/b\n")
    facts = memory_facts(before, system=root)
    assert (facts.limit_bytes, facts.kernel_kills) == (256 * MIB, 1)
    assert killed(facts, 250) == (
        "was killed by SIGKILL (probably out of memory: the kernel ended a process for that meanwhile; its peak was "
        "250 MiB, the control group allows 256 MiB)"
    )


def test_a_peak_near_the_limit_is_a_hint_by_itself(tmp_path: Path) -> None:
    facts = memory_facts(0, system=machine(tmp_path, total_mib=1024))
    assert killed(facts, 900) == (
        "was killed by SIGKILL (probably out of memory: its peak was 900 MiB, the machine allows 1.0 GiB)"
    )


@pytest.mark.parametrize(
    ("facts", "peak_mib", "cause", "number"),
    [
        (MemoryFacts(limit_bytes=8192 * MIB), 100, "", signal.SIGKILL),
        (MemoryFacts(), None, "", signal.SIGKILL),
        (MemoryFacts(limit_bytes=100 * MIB), 100, "it was wedged", signal.SIGKILL),
        (MemoryFacts(limit_bytes=100 * MIB, kernel_kills=1), 100, "", signal.SIGSEGV),
    ],
    ids=["far from the limit", "nothing known", "killed by this host", "another signal"],
)
def test_no_other_end_is_blamed_on_memory(facts: MemoryFacts, peak_mib: int | None, cause: str, number: int) -> None:
    assert "memory" not in killed(facts, peak_mib, cause=cause, number=number)


def test_the_smallest_limit_of_all_levels_and_both_versions_holds(tmp_path: Path) -> None:
    limits = {"memory/x/memory.limit_in_bytes": str(64 * MIB), "memory/memory.limit_in_bytes": "9223372036854771712"}
    root = machine(tmp_path, cgroup="5:cpu:/x\n4:memory:/x\n0::/\n", limits=limits)
    assert memory_facts(None, system=root).limit_bytes == 64 * MIB


def test_a_machine_that_says_nothing_gives_no_reason(tmp_path: Path) -> None:
    assert kernel_kills(system=tmp_path) is None
    assert memory_facts(None, system=tmp_path) == MemoryFacts()


def test_this_machine_is_read() -> None:
    assert memory_facts(kernel_kills()).limit_bytes
