"""F: files into a local sandbox, beside `tar | tar` over the same tree in memory."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sandport.sync import copy_in

from .machine import cores
from .order import Subject, subject
from .rounds import Goal, Row, Size, Values, median, rotated
from .rows_commands import scratch

_FILES_IN_FOLDER = 100
_SMALL_BYTES = 2048


class Files:
    """Ten thousand small files, and one large one."""

    name = "files"
    rows = (
        Row(
            id="F1",
            what="10,000 small files into a sandbox that is a directory here",
            unit="s",
            ours="ours small",
            floor="tar small",
            beside="tar to tar",
            goal=Goal("at most", 1.3),
        ),
        Row(
            id="F2",
            what="the same over a socket of the worker's",
            unit="s",
            ours="socket small",
            floor="tar small",
            beside="tar to tar",
        ),
        Row(
            id="F3",
            what="the same over a command in the sandbox",
            unit="s",
            ours="command small",
            floor="tar small",
            beside="tar to tar",
            goal=Goal("at most", 3),
        ),
        Row(
            id="F4",
            what="one file of 1 GiB into a sandbox that is a directory here",
            unit="s",
            ours="ours large",
            floor="tar large",
            beside="tar to tar",
            goal=Goal("at most", 0.6),
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """All ways over the same tree, each into a folder of its own."""
        values: Values = {}
        with contextlib.ExitStack() as stack:
            top = stack.enter_context(scratch())
            target = Path(top, "target")
            ways: dict[str, Callable[[Path], float]] = {
                "tar": lambda source: _once(_tar, source, target),
                "ours": lambda source: _once(_copy_in, source, target),
            }
            for name in ("socket", "command"):
                far = stack.enter_context(subject(f"sandport files, {name}", cores=cores()))
                ways[name] = partial(_far, far)
            source = _made(Path(top, "small"), _small_files, size.small_files)
            times: dict[str, list[float]] = {name: [] for name in ways}
            for block in range(size.copies):
                for name in rotated(tuple(ways), turn + block):
                    times[name].append(ways[name](source))
            values |= {f"{name} small": median(taken) for name, taken in times.items()}
            shutil.rmtree(source)
            source = _made(Path(top, "large"), _large_file, size.large_file_bytes)
            for name in rotated(("tar", "ours"), turn):
                values[f"{name} large"] = ways[name](source)
        return values


def _made(source: Path, make: Callable[[Path, int], None], extent: int) -> Path:
    source.mkdir()
    make(source, extent)
    return source


def _far(far: Subject, source: Path) -> float:
    return far.measure("sync in", path=str(source), size_bytes=_weight(source)[1])[0]


def _once(copy: Callable[[Path, Path], None], source: Path, target: Path) -> float:
    target.mkdir()
    try:
        begun = time.perf_counter()
        copy(source, target)
        took = time.perf_counter() - begun
        if _weight(source) != _weight(target):
            raise RuntimeError(f"{copy.__name__}: the copy is not complete")
        return took
    finally:
        shutil.rmtree(target)


def _weight(top: Path) -> tuple[int, int]:
    """Files and bytes of a tree."""
    sizes = [os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(top) for name in names]
    return len(sizes), sum(sizes)


def _copy_in(source: Path, target: Path) -> None:
    root_fd = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        copy_in(source, root_fd, b".")
    finally:
        os.close(root_fd)


def _tar(source: Path, target: Path) -> None:
    with subprocess.Popen(["tar", "-C", source, "-cf", "-", "."], stdout=subprocess.PIPE) as packing:
        subprocess.run(["tar", "-C", target, "-xf", "-"], stdin=packing.stdout, check=True)
    if packing.returncode != 0:
        raise RuntimeError(f"tar ended with {packing.returncode}")


def _small_files(source: Path, count: int) -> None:
    content = os.urandom(_SMALL_BYTES)
    for number in range(count):
        folder = source / f"folder{number // _FILES_IN_FOLDER}"
        if number % _FILES_IN_FOLDER == 0:
            folder.mkdir()
        (folder / f"file{number}.txt").write_bytes(content[: 256 + number % (_SMALL_BYTES - 256)])


def _large_file(source: Path, size_bytes: int) -> None:
    piece = os.urandom(1024 * 1024)
    with open(source / "large", "wb") as file:
        file.writelines(itertools.repeat(piece, size_bytes // len(piece)))
