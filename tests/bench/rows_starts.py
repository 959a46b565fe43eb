"""S: starts. From the spawn of a worker to what it can first be used for."""

from __future__ import annotations

import subprocess
import sys
import time

from .machine import cores
from .order import ROOT, CannotMeasure, subject
from .rounds import Goal, Row, Size, Values, median, rotated

HEAVY = "hypothesis"
"""What the heavy provider imports; the largest pure import that the development environment has."""

COMMAND = "import sys; from sandport.cli import main; sys.exit(main())"
"""What the installed `sandport` does."""


class Starts:
    """A plain worker, a reference server, a worker with a heavy import, and that import alone."""

    name = "starts"
    rows = (
        Row(
            id="S1",
            what="spawn to the first answer of a plain worker",
            unit="ms",
            ours="plain",
            floor="ref",
            beside="reference server",
            goal=Goal("at most", 1.3),
        ),
        Row(
            id="S3h",
            what="spawn to the hello of a worker with a heavy import",
            unit="ms",
            ours="heavy hello",
            floor="plain",
            beside="S1",
            goal=Goal("at most", 1.3),
        ),
        Row(
            id="S3r",
            what="spawn to ready of a worker with a heavy import",
            unit="ms",
            ours="heavy ready",
            floor="import and hello",
            beside="its hello and the import alone",
            goal=Goal("at most", 1.1),
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Each start a few times, in turns."""
        times: dict[str, list[float]] = {"ref": [], "plain": [], "heavy hello": [], "heavy ready": [], "import": []}
        with subject("ref", cores=cores()) as ref, subject("sandport", cores=cores()) as ours:
            for block in range(size.starts):
                for kind in rotated(("ref", "plain", "heavy", "import"), turn + block):
                    if kind == "heavy":
                        hello_s, ready_s = ours.measure("heavy start")
                        times["heavy hello"].append(hello_s)
                        times["heavy ready"].append(ready_s)
                    elif kind == "import":
                        times["import"].append(import_s(HEAVY))
                    else:
                        times[kind] += (ref if kind == "ref" else ours).measure("start")
        values = {kind: 1e3 * median(taken) for kind, taken in times.items()}
        return values | {"import and hello": values["import"] + values["heavy hello"]}


class Imports:
    """What importing our packages costs, and the command's help."""

    name = "imports"
    rows = (
        Row(
            id="I1", what="`sandport --help`", unit="ms", ours="help", floor="bare", beside="a Python that does nothing"
        ),
        Row(
            id="I2",
            what="import sandport",
            unit="ms",
            ours="sandport",
            floor="asyncio",
            beside="import asyncio, msgspec",
        ),
        Row(
            id="I3",
            what="import sandport_sdk.worker and .v1",
            unit="ms",
            ours="sdk",
            floor="asyncio",
            beside="import asyncio, msgspec",
        ),
    )

    def run(self, size: Size, turn: int) -> Values:
        """Each in a process of its own, in turns."""
        jobs = {
            "help": lambda: run_s("-c", COMMAND, "--help"),
            "bare": lambda: run_s("-c", "pass"),
            "sandport": lambda: import_s("sandport"),
            "sdk": lambda: import_s("sandport_sdk.worker, sandport_sdk.v1"),
            "asyncio": lambda: import_s("asyncio, msgspec"),
        }
        times: dict[str, list[float]] = {name: [] for name in jobs}
        for block in range(size.starts):
            for name in rotated(tuple(jobs), turn + block):
                times[name].append(jobs[name]())
        return {name: 1e3 * median(taken) for name, taken in times.items()}


def import_s(modules: str) -> float:
    """Seconds that an import takes in a fresh interpreter, its own start not counted."""
    code = f"import time; t = time.perf_counter(); import {modules}; print(time.perf_counter() - t)"
    return float(_output("-c", code))


def run_s(*arguments: str) -> float:
    """Seconds of a whole Python program."""
    begun = time.perf_counter()
    _output(*arguments)
    return time.perf_counter() - begun


def _output(*arguments: str) -> bytes:
    done = subprocess.run([sys.executable, "-P", *arguments], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        raise CannotMeasure(f"{' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout
