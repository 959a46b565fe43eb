"""The demo does the main job, and its last check can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "examples" / "demo" / "run.py"


def demo(*arguments: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, str(RUN), "--offline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, env=environ, check=False)


@pytest.mark.slow
def test_the_demo_runs_a_projects_tests_in_a_sandbox_and_leaves_nothing(tmp_path: Path) -> None:
    done = demo(tmp_path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on both sides" in done.stdout
    assert "no process, no file of state, no temporary file" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_demo_fails_when_a_process_is_left_behind(tmp_path: Path) -> None:
    done = demo("--sabotage", tmp_path=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "LEFT: process" in done.stdout
    assert "sleep 60" in done.stdout
