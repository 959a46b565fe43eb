"""The conformance kit judges the worker, as whoever installs it would have it judged."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = ("LEASE-9", "LEASE-10", "LEASE-14", "LEASE-18", "LEASE-20", "CAP-3")
"""What is judged without isolation in each run; that all else holds there too is in the README."""


def test_without_isolation_the_life_of_a_sandbox_is_the_same(tmp_path: Path) -> None:
    config = tmp_path / "conformance.toml"
    config.write_text('[worker]\nconfig = { isolation = "none" }\n')
    kit = [sys.executable, "-P", "-m", "sandport_conformance", "run", "--config", str(config)]
    worker = ["--", sys.executable, "-P", "-m", "sandport_provider_local"]
    judged = subprocess.run(
        [*kit, "--only", *WITHOUT, *worker],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert " 0 untestable" in judged.stdout, judged.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_worker_keeps_every_must_up_to_l4_and_nothing_is_untestable(tmp_path: Path) -> None:
    kit = [sys.executable, "-P", "-m", "sandport_conformance", "run", "--level", "L4"]
    worker = ["--", sys.executable, "-P", "-m", "sandport_provider_local"]
    judged = subprocess.run(
        [*kit, *worker], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "L0-L4 conformant" in judged.stdout, judged.stdout
    assert " 0 untestable" in judged.stdout, judged.stdout
