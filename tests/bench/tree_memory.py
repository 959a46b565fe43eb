"""What a copy of a tree holds in memory at its peak: `python -m tests.bench.tree_memory [--quick]`.

A table of what no row of `./dev bench` tells, because there is no floor to hold it against: the memory should stay
flat whatever the tree. Each copy has a process of its own; told is how much its peak lies above what it had before the
copy. `--quick` takes a hundredth of each tree.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from .order import ROOT, CannotMeasure
from .rows_commands import scratch

_FILES_IN_FOLDER = 1_000
_SPARSE_DATA = 16
"""Pieces of data in a sparse file, so that its holes lie between them."""


class Case(Struct, frozen=True, kw_only=True):
    """One copy."""

    what: str
    act: str
    """What the child does, see `_acts`."""
    entries: int = 0
    in_folder: int = _FILES_IN_FOLDER
    sparse_bytes: int = 0
    dense_bytes: int = 0
    """A multiple of 16 MiB."""


class Peak(Struct, frozen=True, kw_only=True):
    """What came of it."""

    case: Case
    grown_kib: int
    took_s: float
    told: str


CASES = (
    *(Case(what=f"{entries:,} entries in", act="in", entries=entries) for entries in (1_000, 100_000, 1_000_000)),
    Case(what="100,000 entries of one folder in", act="in", entries=100_000, in_folder=100_000),
    *(Case(what=f"{entries:,} entries out", act="out", entries=entries) for entries in (1_000, 100_000, 1_000_000)),
    Case(what="1,000,000 entries past a ceiling of 999,999 out", act="out, ceiling", entries=1_000_000),
    *(
        Case(what=f"{entries:,} entries mirrored, each of them known", act="mirror", entries=entries)
        for entries in (1_000, 100_000, 1_000_000)
    ),
    Case(what="1,000,000 entries deleted by a mirror", act="mirror of nothing", entries=1_000_000),
    Case(what="1 GiB sparse in", act="in", sparse_bytes=1 << 30),
    Case(what="8 GiB sparse in", act="in", sparse_bytes=8 << 30),
    Case(what="8 GiB sparse out", act="out", sparse_bytes=8 << 30),
)


def make(case: Case, top: Path) -> None:
    """The tree of a case."""
    top.mkdir()
    if case.sparse_bytes:
        with open(top / "sparse", "wb") as file:
            for piece in range(_SPARSE_DATA):
                file.seek(case.sparse_bytes // _SPARSE_DATA * piece)
                file.write(b"data")
            file.truncate(case.sparse_bytes)
        return
    if case.dense_bytes:
        # One file that two threads copy, where that is faster, and some that are left to the kernel.
        for label, share in (("large", 2), *((f"middling{number}", 16) for number in range(8))):
            with open(top / label, "wb") as file:
                file.writelines(bytes(range(256)) * 4096 for _ in range(case.dense_bytes // share >> 20))
        return
    left, number = case.entries, 0
    while left:
        folder = top / f"folder{number}"
        folder.mkdir()
        fd = os.open(folder, os.O_RDONLY)
        files = min(left - 1, case.in_folder)
        for name in range(files):
            os.close(os.open(f"file{name}", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)
        left, number = left - 1 - files, number + 1


def _acts() -> dict[str, Callable[[Path, Path, Case], str]]:
    from sandport.sync import DEFAULT_MAX_BYTES, TooLargeError, copy_in, copy_out
    from sandport.sync.result import SyncResult

    def below(folder: Path, act: Callable[[int], SyncResult]) -> str:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            result = act(fd)
        except TooLargeError:
            return "refused"
        finally:
            os.close(fd)
        if result.deleted:
            return f"{result.deleted:,} deleted"
        return f"{result.files + result.directories:,} entries, {result.total_bytes:,} bytes"

    def inward(source: Path, target: Path, case: Case) -> str:
        return below(target, lambda fd: copy_in(source, fd, b"target"))

    def outward(source: Path, target: Path, case: Case, *, max_entries: int = 2_000_000) -> str:
        most = DEFAULT_MAX_BYTES + 1
        return below(source, lambda fd: copy_out(fd, b".", target / "t", max_bytes=most, max_entries=max_entries))

    def ceiling(source: Path, target: Path, case: Case) -> str:
        return outward(source, target, case, max_entries=case.entries - 1)

    def mirror(source: Path, target: Path, case: Case) -> str:
        (target / "target").mkdir()
        return below(target, lambda fd: copy_in(source, fd, b"target", delete=True))

    def mirror_of_nothing(source: Path, target: Path, case: Case) -> str:
        nothing = target / "nothing"
        nothing.mkdir()
        return below(source, lambda fd: copy_in(nothing, fd, b".", delete=True))

    return {
        "in": inward,
        "out": outward,
        "out, ceiling": ceiling,
        "mirror": mirror,
        "mirror of nothing": mirror_of_nothing,
    }


def weigh(case: Case, source: Path, target: Path) -> Peak:
    """Do one copy in this process.

    Raises:
        CannotMeasure: The system does not tell.
    """
    act = _acts()[case.act]
    try:
        # From here on the peak is that of the copy alone.
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        raise CannotMeasure(f"the peak of memory cannot be set back: {error}") from error
    before_kib = _status_kib("VmRSS")
    begun = time.perf_counter()
    told = act(source, target, case)
    took_s = time.perf_counter() - begun
    return Peak(case=case, grown_kib=_status_kib("VmHWM") - before_kib, took_s=took_s, told=told)


def _status_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise CannotMeasure(f"/proc/self/status has no {field}")


def weighed(case: Case) -> Peak:
    """Do one copy in a process of its own, and remove what it left.

    Raises:
        CannotMeasure: It failed.
    """
    import msgspec

    with scratch() as place:
        source, target = Path(place, "source"), Path(place, "target")
        make(case, source)
        target.mkdir()
        order = json.dumps([msgspec.to_builtins(case), str(source), str(target)])
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.tree_memory", "--weigh", order],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CannotMeasure(f"{case.what}: {done.stderr.strip()[-500:]}")
        shutil.rmtree(source)
        return msgspec.json.decode(done.stdout, type=Peak)


def smaller(case: Case) -> Case:
    """A hundredth of it."""
    import msgspec

    return msgspec.structs.replace(
        case,
        what=f"a hundredth of {case.what}",
        entries=case.entries // 100,
        sparse_bytes=case.sparse_bytes // 100,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Weigh all cases and print the table."""
    import msgspec

    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.tree_memory", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="a hundredth of each tree")
    parser.add_argument("--weigh", help=argparse.SUPPRESS)
    asked = parser.parse_args(argv)
    if asked.weigh is not None:
        case, source, target = json.loads(asked.weigh)
        peak = weigh(msgspec.convert(case, Case), Path(source), Path(target))
        sys.stdout.buffer.write(msgspec.json.encode(peak))
        return
    print("| copy | peak above the start | took | what came of it |\n| --- | --- | --- | --- |", flush=True)
    for case in CASES:
        peak = weighed(smaller(case) if asked.quick else case)
        print(f"| {peak.case.what} | {peak.grown_kib / 1024:.1f} MiB | {peak.took_s:.2f} s | {peak.told} |", flush=True)


if __name__ == "__main__":
    main()
