"""The pytest door: one item for each check, in an author's own suite."""

import shlex
from pathlib import Path

import pytest

from sandport_conformance.catalogue import find
from sandport_conformance.mutants import command_of
from tests.conformance.tests import specimens
from tests.conformance.tests.conftest import HEALTHY_COMMAND, python

pytest_plugins = ["pytester"]
# Each starts a pytest of its own that starts workers: seconds where it is quiet, a minute where it is not.
pytestmark = pytest.mark.timeout(600)


def suite(pytester: pytest.Pytester, *options: str, worker: tuple[str, ...] = HEALTHY_COMMAND) -> pytest.RunResult:
    """An author's suite with one test of its own, and a worker."""
    pytester.makepyfile(test_own="def test_of_the_author(): pass")
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--sandport-worker", shlex.join(worker), *options)


def test_checks_are_items_beside_the_authors_tests(pytester: pytest.Pytester) -> None:
    result = suite(pytester, "--sandport-level", "L0", "-v", "--strict-markers")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "test_own.py::test_of_the_author PASSED*",
            "sandport-conformance::FRAME-2 PASSED*",
            "sandport-conformance::nothing-is-left PASSED*",
            "protocol 1, L0 conformant, *",
        ]
    )
    result.stdout.no_fnmatch_line("*PROC-3*")


def test_a_failed_check_tells_its_story_and_no_traceback_of_the_kit(pytester: pytest.Pytester) -> None:
    result = suite(pytester, "-k", "PROC-8", worker=command_of("l1_process:FailsAtTheEnd"))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "PROC-8 (MUST): after a shutdown the worker should end with exit code 0, not exit code 1",
            "clause: After the answer to `shutdown`*",
            "fix: *",
            "ended: *exit code 1",
            "*received {*",
        ]
    )
    result.stdout.no_fnmatch_line("*run.py*")


def test_known_failures_are_expected_and_what_is_not_declared_is_skipped(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    config = tmp_path / "conformance.toml"
    entries = (f'[[known_failures]]\ncheck = "{check.id}"\nreason = "our exit code"\n' for check in find("PROC-8"))
    config.write_text("".join(entries))
    worker = command_of("l1_process:FailsAtTheEnd")
    result = suite(pytester, "-k", "PROC-8", "--sandport-config", str(config), "-rx", worker=worker)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["XFAIL *sandport-conformance::PROC-8 - known failure: our exit code"])


def test_markers_choose_levels(pytester: pytest.Pytester) -> None:
    result = suite(pytester, "-m", "sandport_l1", "--collect-only", "-q", "--sandport-level", "L1")
    result.stdout.fnmatch_lines(["sandport-conformance::PROC-3"])
    result.stdout.no_fnmatch_line("*FRAME*")
    result.stdout.no_fnmatch_line("*test_own*")


def test_a_sandbox_that_is_left_fails_the_last_item(pytester: pytest.Pytester) -> None:
    worker = specimens.command(specimens.KeepsSandboxes)
    result = suite(pytester, "-k", "PROC-12 or nothing-is-left", worker=worker)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["sandbox sp*, made in PROC-12*, was still listed after the run; fix: *"])


def test_a_worker_that_cannot_be_started_fails_each_check_with_the_cause(pytester: pytest.Pytester) -> None:
    result = suite(pytester, "-k", "FRAME-2", worker=python("sys.exit('no licence')"))
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*no licence*"])


@pytest.mark.parametrize("options", [("--sandport-level", "L9"), ("--sandport-config", "absent.toml")])
def test_wrong_usage_is_said_before_anything_runs(pytester: pytest.Pytester, options: tuple[str, str]) -> None:
    result = suite(pytester, *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{options[1]}*"])


def test_without_a_worker_the_plugin_adds_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_of_the_author(): pass")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*Sandport*")
