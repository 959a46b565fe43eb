"""The conformance kit judges the worker, through its pytest door: one item for each check."""

import subprocess
import sys
from pathlib import Path

import pytest

WORKER = f"{sys.executable} -P -m sandport_provider_fake"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_worker_keeps_every_must_and_nothing_is_untestable(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sandport_conformance", "run", "--level", "L4", "--", *WORKER.split()]
    judged = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert judged.returncode == 0, judged.stdout
    assert "L0-L4 conformant" in judged.stdout, judged.stdout
    assert " 0 untestable" in judged.stdout, judged.stdout
