"""One search for one bug: a copy of the workspace with the edit in it, and the test that must fail there.

Never touches the workspace itself. What it proves: that the edited file was imported from the copy (`witness`), and
that a machine failed in one of its steps, not for instance an import.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from .bugs import ROOT, Bug, Edit

EXAMPLES = 1500
"""Of the search for one bug; most are found within the first fifty."""
LIMIT_S = 600.0
"""Ends a hang."""
_OUT_OF_TIME = "from pytest-timeout"
"""What pytest says of a test that the limit ended: nothing was found then, and nothing was shown to be sound."""

Verdict = Literal["found", "not found", "broken"]
"""`broken`: the test did not run as it should, so it says nothing."""

REPLAY = "tests/machines/test_traces.py"

_SKIPPED = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")


class Search(Struct, frozen=True):
    """How a search ended."""

    verdict: Verdict
    report: str
    """What pytest wrote."""
    trace: str | None = None
    """The steps that found it."""


@contextmanager
def workspace_copy(bug: Bug | None) -> Iterator[Path]:
    """A copy of everything that the machines import, with the bug in it.

    Raises:
        ValueError: An edit does not fit the source any more.
    """
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder).resolve()
        for source in sources():
            shutil.copytree(source, copy / source.relative_to(ROOT), ignore=_SKIPPED)
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, copy / name)
        for edit in bug.edit if bug is not None else ():
            edit.make(copy)
        yield copy


def sources() -> list[Path]:
    """The folders that are copied, wherever a distribution's source is; a new one is taken without being named."""
    found = [*ROOT.glob("*/src"), *ROOT.glob("providers/*/src")]
    return [*found, ROOT / "examples", *(ROOT / "tests" / name for name in ("chaos", "machines", "planted"))]


def search(copy: Path, bug: Bug, test: str, *arguments: str) -> Search:
    """Run one test in the copy, which must fail there."""
    ended, trace, problem = _run(copy, bug.edit if bug.has_trace else (), test, arguments)
    if problem is not None:
        return Search("broken", f"{problem}\n{ended.stdout}")
    if ended.returncode == 0:
        return Search("not found", ended.stdout)
    if ended.returncode != 1 or (bug.has_trace and trace is None):
        return Search("broken", f"the test ended with {ended.returncode}, without a trace\n{ended.stdout}")
    return Search("found", ended.stdout, trace)


def replay(copy: Path, bug: Bug) -> Search:
    """Play the trace of the bug in the copy, where it must fail."""
    test = f"{REPLAY}::test_a_trace_that_found_a_fault_finds_none_now[{bug.id}]"
    ended, _, problem = _run(copy, bug.edit, test, ())
    if problem is not None or ended.returncode not in (0, 1):
        return Search("broken", f"{problem or ended.returncode}\n{ended.stdout}")
    return Search("found" if ended.returncode else "not found", ended.stdout)


def baseline(copy: Path, test: str, *arguments: str) -> Search:
    """Run one test in a copy without a bug, where it must pass."""
    ended, _, problem = _run(copy, (), test, arguments)
    if problem is not None or ended.returncode not in (0, 1):
        return Search("broken", f"{problem or ended.returncode}\n{ended.stdout}")
    return Search("found" if ended.returncode else "not found", ended.stdout)


def shorten(copy: Path, trace: str) -> str:
    """The steps of a trace that are needed to find the bug of the copy.

    Raises:
        subprocess.CalledProcessError: It does not find it.
    """
    path = copy / "trace.json"
    path.write_text(trace, encoding="utf-8")
    command = [sys.executable, "-m", "tests.machines.shorten", str(path)]
    subprocess.run(command, cwd=copy, env=_environment(copy), stderr=subprocess.PIPE, check=True)
    return path.read_text(encoding="utf-8")


def _environment(copy: Path) -> dict[str, str]:
    """CI's own settings are left out: there hypothesis takes no seed."""
    return {name: value for name, value in os.environ.items() if name != "CI"} | {
        "PYTHONPATH": os.pathsep.join(str(copy / source.relative_to(ROOT)) for source in sources()),
        "PYTHONDONTWRITEBYTECODE": "1",
        "SANDPORT_PLANTED_IN": str(copy),
        "SANDPORT_WITNESS": str(copy / "witness"),
        "SANDPORT_TRACES": str(copy / "traces"),
        "SANDPORT_MACHINE_EXAMPLES": str(EXAMPLES),
        "SANDPORT_MACHINE_SHRINK": "0",
    }


def _run(
    copy: Path, edits: tuple[Edit, ...], test: str, arguments: tuple[str, ...]
) -> tuple[subprocess.CompletedProcess[str], str | None, str | None]:
    """How pytest ended, the trace that it left, and why it proves nothing, if so."""
    witness, traces = copy / "witness", copy / "traces"
    witness.unlink(missing_ok=True)
    for left in (traces, copy / ".hypothesis"):
        shutil.rmtree(left, ignore_errors=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.planted.witness", "-p", "no:cacheprovider"]
    command += ["--timeout", str(LIMIT_S), test, *arguments]
    ended = subprocess.run(
        command,
        cwd=copy,
        env=_environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    imported = witness.read_text(encoding="utf-8").splitlines() if witness.is_file() else []
    missing = [edit.file for edit in edits if edit.file not in imported]
    problem = f"{', '.join(missing)} was not imported from the copy" if missing or not imported else None
    if _OUT_OF_TIME in ended.stdout:
        problem = f"it did not end within {LIMIT_S:.0f} s, on this machine as it is now"
    trace = next((path.read_text(encoding="utf-8") for path in sorted(traces.glob("*.json"))), None)
    return ended, trace, problem
