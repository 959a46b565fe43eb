"""The conformance kit judges the worker, through its pytest door: one item for each check."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[1] / "src"
WORKER = shlex.join(["env", f"PYTHONPATH={SOURCES}", sys.executable, "-P", "-m", "hello_provider"])
"""By `env` the package is found also where it is not installed."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_worker_keeps_every_must_and_nothing_is_untestable(tmp_path: Path) -> None:
    door = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--sandport-worker", WORKER]
    door += ["--sandport-level", "L4"]
    judged = subprocess.run(door, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout
    assert "L0-L4 conformant" in judged.stdout, judged.stdout
    assert " 0 untestable" in judged.stdout, judged.stdout
