"""What the kit did not try is in its report: a green run hides nothing."""

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.stage import ROOT

HANG_S = 110


def test_what_a_run_did_not_exercise_is_in_its_report_with_the_reason(tmp_path: Path) -> None:
    """L12, kubernetes-csi/csi-test#143, modelcontextprotocol/conformance#248: quiet runs hid what did not run."""
    settings, written = tmp_path / "kit.toml", tmp_path / "report.json"
    settings.write_text("[commands]\nflood = false\n")
    kit = [sys.executable, "-m", "sandport_conformance", "run", "--config", str(settings), "--json", str(written)]
    chosen = ("FRAME-2", "CMD-19", "OUT-2")
    worker = [sys.executable, "examples/stdlib_worker/worker.py"]
    done = subprocess.run(
        [*kit, "--only", *chosen, "--", *worker],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    report = json.loads(written.read_text())
    told = {check["id"]: (check["outcome"], check["reason"]) for check in report["checks"]}
    assert set(told) >= set(chosen)
    assert told["FRAME-2"][0] == "pass"
    assert told["CMD-19"] == ("not applicable", "the capability kill is 'group'")
    assert told["OUT-2"] == ("untestable", "commands.flood is false in the author's file")
    # What could not be tried is no pass: neither for a program that looks at the code, nor for a person.
    assert done.returncode != 0
    assert not report["conformant"]
    last = done.stdout.splitlines()[-1]
    assert "NOT conformant" in last
    assert "2 n/a, 1 untestable" in last  # the second is what the capability asks too
