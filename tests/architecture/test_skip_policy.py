"""On CI a skip passes only if tests/skips.toml lists it, and a listed skip must happen."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.workspace import ROOT

SUITE = """
import pytest

def test_runs():
    pass

@pytest.mark.skip(reason="no bubblewrap on this machine")
def test_is_skipped():
    pass

@pytest.mark.xfail(reason="a known fault")
def test_fails_as_known():
    assert False
"""

LISTED = '[[skip]]\ntest = "test_suite.py::test_is_*"\nreason = "no bubblewrap"\n'


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with our conftest and one skipped test."""
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "skips.toml").write_text("")
    return tmp_path


def run_suite(folder: Path, *arguments: str, ci: str = "true") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_ci_fails_on_a_skip_that_nobody_listed(suite: Path) -> None:
    done = run_suite(suite)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert (
        "tests/skips.toml does not list the skip of test_suite.py::test_is_skipped: "
        "Skipped: no bubblewrap on this machine"
    ) in done.stdout


def test_elsewhere_a_skip_is_only_named_in_the_summary(suite: Path) -> None:
    done = run_suite(suite, "-rs", ci="")
    assert done.returncode == pytest.ExitCode.OK
    assert "no bubblewrap on this machine" in done.stdout


def test_ci_accepts_a_listed_skip(suite: Path) -> None:
    (suite / "tests" / "skips.toml").write_text(LISTED)
    done = run_suite(suite)
    assert done.returncode == pytest.ExitCode.OK, done.stdout


def test_a_listed_test_that_is_skipped_for_another_reason_fails_ci(suite: Path) -> None:
    (suite / "tests" / "skips.toml").write_text(LISTED.replace("no bubblewrap", "no network"))
    done = run_suite(suite)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "does not list the skip" in done.stdout


def test_a_whole_module_that_is_skipped_fails_ci(suite: Path) -> None:
    (suite / "tests" / "skips.toml").write_text(LISTED)
    (suite / "test_absent.py").write_text('import pytest\npytest.skip("no such part", allow_module_level=True)\n')
    done = run_suite(suite)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "does not list the skip of test_absent.py" in done.stdout


@pytest.mark.parametrize("listed", [True, False], ids=["the skip is listed", "no skip is listed"])
def test_several_processes_judge_as_one_does(suite: Path, *, listed: bool) -> None:
    if listed:
        (suite / "tests" / "skips.toml").write_text(LISTED)
    done = run_suite(suite, "-n", "2")
    assert done.returncode == (pytest.ExitCode.OK if listed else pytest.ExitCode.TESTS_FAILED), done.stdout
    assert ("does not list the skip of test_suite.py::test_is_skipped" in done.stdout) is not listed


def test_several_processes_fail_on_a_whole_module_that_is_skipped(suite: Path) -> None:
    (suite / "tests" / "skips.toml").write_text(LISTED)
    (suite / "test_absent.py").write_text('import pytest\npytest.skip("no such part", allow_module_level=True)\n')
    done = run_suite(suite, "-n", "2")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "does not list the skip of test_absent.py" in done.stdout


def test_an_entry_that_no_skip_answers_to_fails_ci(suite: Path) -> None:
    stale = '[[skip]]\ntest = "test_suite.py::test_gone"\nreason = "no such thing"\n'
    (suite / "tests" / "skips.toml").write_text(LISTED + stale)
    done = run_suite(suite)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "stale entry in tests/skips.toml, nothing was skipped: test_suite.py::test_gone" in done.stdout


def test_a_run_of_some_tests_does_not_judge_the_entries_for_others(suite: Path) -> None:
    (suite / "tests" / "skips.toml").write_text(LISTED)
    done = run_suite(suite, "-k", "test_runs")
    assert done.returncode == pytest.ExitCode.OK, done.stdout


def test_a_misspelt_key_in_the_list_is_refused(suite: Path) -> None:
    (suite / "tests" / "skips.toml").write_text(LISTED.replace("reason", "reasons"))
    done = run_suite(suite)
    assert done.returncode not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    assert "unknown field `reasons`" in done.stdout + done.stderr
