"""The example does what its README says."""

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from examples.pytest_in_sandbox import run as example
from examples.pytest_in_sandbox.run import main

TESTS = """
from pathlib import Path

def test_good():
    assert not Path("secret").exists()
    Path("made").write_text("by a test")

def test_bad():
    assert 1 == 2
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDPORT_HOME", str(tmp_path / "home"))
    project = tmp_path / "project"
    project.mkdir()
    (project / ".gitignore").write_text("secret\n")
    (project / "secret").write_text("at home")
    (project / "test_it.py").write_text(TESTS)
    return project


@pytest.mark.slow
def test_the_report_comes_home_and_the_code_is_pytests_own(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([str(project), "--junit", str(tmp_path / "report.xml")]) == 1
    suite = next(ET.parse(tmp_path / "report.xml").iter("testsuite"))
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert "1 failed, 1 passed" in capfd.readouterr().out
    assert sorted(path.name for path in project.iterdir()) == [".gitignore", "secret", "test_it.py"]


@pytest.mark.slow
def test_what_comes_after_two_dashes_is_pytests(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([str(project), "--", "-k", "good"]) == 0
    assert "1 passed, 1 deselected" in capfd.readouterr().out


@pytest.mark.slow
def test_that_nothing_isolates_the_tests_is_said(project: Path, tmp_path: Path) -> None:
    barred = tmp_path / "bin" / "bwrap"
    barred.parent.mkdir()
    barred.write_text("#!/bin/sh\ncase $1 in --version) echo bubblewrap 0.8.0; exit;; esac\nexit 1\n")
    barred.chmod(0o755)
    environ = {**os.environ, "PATH": f"{barred.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, example.__file__, str(project), "--", "-k", "good"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing isolates this sandbox") == 1


def test_what_is_wrong_is_told_in_a_line_or_two(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(project), "--environment", "lcoal"]) == 2
    assert "did you mean 'local'?" in capsys.readouterr().err.splitlines()[0]
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "nowhere")])
    assert "nowhere is no folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_pytest_that_does_not_come_up_leaves_no_report_and_says_why(
    project: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([str(project), "--junit", str(tmp_path / "report.xml"), "--", "--no-such-option"]) == 4
    said = capfd.readouterr().err
    assert "no-such-option" in said
    assert "pytest wrote no report" in said
    assert not (tmp_path / "report.xml").exists()


WAITING = """
def test_that_waits():
    print("it waits", flush=True)
    import time
    time.sleep(300)
"""


@pytest.mark.slow
def test_an_interrupt_ends_the_sandbox_and_says_so(project: Path, tmp_path: Path) -> None:
    (project / "test_it.py").write_text(WAITING)
    command = [sys.executable, example.__file__, str(project), "--", "-s"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert any("it waits" in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "interrupted; the sandbox has ended" in said
    assert list((tmp_path / "home" / "workers" / "local").glob("sp*")) == []
