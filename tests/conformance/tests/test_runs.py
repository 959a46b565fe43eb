"""A run: each outcome, what it means, and whose fault a failure is."""

import datetime
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandport_conformance.declaration import Check, Needs, Uses
from sandport_conformance.lab import Lab
from sandport_conformance.masking import leaked_form
from sandport_conformance.mutants import command_of
from sandport_conformance.outcomes import Failed, Misuse, NotStarted, Outcome, Severity, TimedOut, WorkerGone
from sandport_conformance.processes import running
from sandport_conformance.report import ExitCode, Report, Verdict
from sandport_conformance.run import Run, judge
from sandport_conformance.times import Times
from tests.conformance.tests import specimens
from tests.conformance.tests.conftest import HEALTHY_COMMAND, TIMES, a_check, python, settings


def passes(lab: Lab) -> None:
    """Say hello and nothing else."""
    lab.worker.ping()


def fails(lab: Lab) -> None:
    """Find the worker at fault."""
    lab.worker.ping()
    raise Failed("it was late")


def stumbles(lab: Lab) -> None:
    """Be at fault itself."""
    raise KeyError("a bug")


def reads_the_record(lab: Lab) -> None:
    """Look at every session."""
    assert list(lab.sessions())


def report_of(*checks: Check, command: tuple[str, ...] = HEALTHY_COMMAND, **sections: Any) -> Report:
    with Run(command, settings=settings(**sections), checks=checks, seed=1, times=TIMES) as run:
        run.start()
        for check in checks:
            run.judge(check)
        return run.finish()


@pytest.mark.parametrize(
    ("check", "outcome", "verdict", "code"),
    [
        (a_check(passes), Outcome.PASS, Verdict.GOOD, ExitCode.CONFORMANT),
        (a_check(fails), Outcome.FAIL, Verdict.BAD, ExitCode.NOT_CONFORMANT),
        (a_check(fails, severity=Severity.SHOULD), Outcome.FAIL, Verdict.WARNING, ExitCode.CONFORMANT),
        (a_check(fails, scored=False), Outcome.FAIL, Verdict.WARNING, ExitCode.CONFORMANT),
        (
            a_check(fails, needs=Needs(capabilities={"expiry": ("nobody knows",)})),
            Outcome.NOT_APPLICABLE,
            Verdict.NONE,
            ExitCode.CONFORMANT,
        ),
        (a_check(passes, needs=Needs(commands=("flood",))), Outcome.UNTESTABLE, Verdict.BAD, ExitCode.NOT_CONFORMANT),
        (
            a_check(passes, needs=Needs(commands=("flood",)), severity=Severity.SHOULD),
            Outcome.UNTESTABLE,
            Verdict.BAD,
            ExitCode.NOT_CONFORMANT,
        ),
    ],
)
def test_an_outcome_counts_as_its_check_says(check: Check, outcome: Outcome, verdict: Verdict, code: ExitCode) -> None:
    report = report_of(check, commands={"flood": False})
    (result,) = report.results
    assert (result.outcome, result.verdict, report.exit_code) == (outcome, verdict, code)
    assert report.counts[outcome] == 1
    assert sum(report.counts.values()) == 1


def test_a_group_that_is_not_advertised_makes_its_checks_not_applicable() -> None:
    """kubernetes-csi/csi-test#564: tests called what the driver had never declared."""
    check = a_check(fails, needs=Needs(groups=("process",)))
    report = report_of(check, command=specimens.command(specimens.WithoutProcesses))
    (result,) = report.results
    assert result.outcome is Outcome.NOT_APPLICABLE
    assert "startProcess" in result.reason
    assert "L0 conformant without process, 0/0 MUST" in report.summary
    (result,) = report_of(check).results
    assert result.outcome is Outcome.FAIL


def test_an_exception_of_the_kit_is_no_fault_of_the_workers() -> None:
    report = report_of(a_check(stumbles), a_check(passes, requirement_id="FRAME-2"))
    assert [result.id for result in report.results] == ["FRAME-2"]
    assert report.exit_code is ExitCode.HARNESS
    (fault,) = report.faults
    assert fault.check == "FRAME-1"
    assert "KeyError: 'a bug'" in fault.traceback
    assert not report.conformant
    assert "not judged" in report.summary


def test_a_failure_shows_what_passed_since_its_check_began() -> None:
    report = report_of(a_check(passes, requirement_id="FRAME-2"), a_check(fails))
    failed = report.results[1]
    (evidence,) = failed.evidence
    assert evidence.exit_cause == "still running"
    assert evidence.command == HEALTHY_COMMAND
    assert evidence.transcript[0].text == "FRAME-1 begins"
    assert {entry.direction for entry in evidence.transcript} == {"note", "sent", "received"}
    assert report.results[0].evidence == ()


def test_a_check_that_leaves_the_shared_worker_useless_fails_and_harms_no_other() -> None:
    def kills(lab: Lab) -> None:
        lab.worker.process.signal(9)

    report = report_of(a_check(kills), a_check(passes, requirement_id="FRAME-2"))
    assert [result.outcome for result in report.results] == [Outcome.FAIL, Outcome.PASS]
    assert "does not serve on after this" in report.results[0].reason
    assert "signal 9" in report.results[0].reason


def test_a_check_has_one_shared_worker_also_when_that_has_ended() -> None:
    def goes_on(lab: Lab) -> None:
        lab.worker.process.signal(9)
        lab.worker.exit()
        lab.worker.ping()

    (result,) = report_of(a_check(goes_on)).results
    assert "signal 9" in result.reason
    assert len(result.evidence) == 1


def test_a_check_uses_the_processes_that_it_declares() -> None:
    def mixes(lab: Lab) -> None:
        _ = lab.worker

    assert "TypeError" in report_of(a_check(mixes, uses=Uses.OWN)).faults[0].traceback

    def peeks(lab: Lab) -> None:
        list(lab.sessions())

    assert "TypeError" in report_of(a_check(peeks)).faults[0].traceback


@pytest.mark.parametrize(
    ("failure", "requirement_id", "begins"),
    [
        (Failed("it is wrong"), "SYNC-1", "Do what it should."),
        (WorkerGone("it ended"), "SYNC-1", "First find out why the worker ended"),
        (TimedOut("nothing came"), "SYNC-1", "First find out what the worker waits for"),
        (WorkerGone("it ended"), "CMD-1", "First find out why the worker ended"),
        (TimedOut("nothing came"), "CMD-1", "Do what it should."),
        (WorkerGone("it ended"), "FRAME-6", "Do what it should."),
    ],
)
def test_the_advice_fits_the_failure(failure: Failed, requirement_id: str, begins: str) -> None:
    """Who reads how to close files, where the worker has crashed, looks in the wrong place."""

    def goes_wrong(lab: Lab) -> None:
        raise failure

    (result,) = report_of(a_check(goes_wrong, requirement_id=requirement_id, uses=Uses.OWN)).results
    assert result.fix.startswith(begins)


def test_the_session_for_the_record_ends_a_worker_that_waits_for_the_end_of_its_input() -> None:
    """As PROC-8 has it: the answer to `shutdown` alone ends nothing."""
    report = report_of(a_check(reads_the_record, uses=Uses.RECORD), command=specimens.command(specimens.WaitsForTheEnd))
    assert report.notes == ()


def test_the_record_has_every_session_and_a_tour() -> None:
    seen: list[tuple[str, ...]] = []

    def reads(lab: Lab) -> None:
        for session in lab.sessions(sandbox=True):
            seen.append(tuple(method for _, method, _ in session.requests))  # noqa: PERF401 - a check is a loop

    report = report_of(a_check(passes, requirement_id="FRAME-2"), a_check(reads, uses=Uses.RECORD))
    assert report.exit_code is ExitCode.CONFORMANT
    assert report.notes == ()
    assert seen[0] == ("initialize", "ping", "ping")
    assert {"validateConfig", "acquireLease", "execute", "destroyLease", "shutdown"} <= set(seen[1])


def test_a_story_is_told_once_and_fails_every_check_that_asks() -> None:
    told = []

    def story(lab: Lab) -> str:
        told.append(lab.spawn().ping())
        return "the end"

    def sad_story(lab: Lab) -> str:
        lab.spawn()
        raise Failed("it ended badly")

    def asks(lab: Lab) -> None:
        assert lab.once(story) == "the end"

    def asks_sadly(lab: Lab) -> None:
        lab.once(sad_story)

    ids = ("FRAME-1", "FRAME-2", "FRAME-3", "FRAME-4")
    runs: tuple[Callable[[Lab], None], ...] = (asks, asks, asks_sadly, asks_sadly)
    report = report_of(*(a_check(run, requirement_id=i, uses=Uses.OWN) for i, run in zip(ids, runs, strict=True)))
    assert len(told) == 1
    assert [result.outcome for result in report.results] == [Outcome.PASS] * 2 + [Outcome.FAIL] * 2
    assert all(len(result.evidence) == 1 for result in report.results[2:])


# --- known failures


def known(**members: object) -> dict[str, Any]:
    return {"known_failures": [{"check": "FRAME-1", "reason": "our vendor", **members}]}


def test_a_known_failure_does_not_fail_the_run_and_is_not_conformance() -> None:
    report = report_of(a_check(fails), **known())
    (result,) = report.results
    assert (result.verdict, result.known) == (Verdict.KNOWN, "our vendor")
    assert report.exit_code is ExitCode.CONFORMANT
    assert not report.conformant
    assert "conformant but for 1 known failure," in report.summary


def test_a_known_failure_that_passes_fails_the_run() -> None:
    report = report_of(a_check(passes), **known())
    assert report.results[0].verdict is Verdict.BAD
    assert "take it out" in report.results[0].reason
    assert report.exit_code is ExitCode.NOT_CONFORMANT


@pytest.mark.parametrize(("days", "code"), [(1, ExitCode.CONFORMANT), (0, ExitCode.NOT_CONFORMANT)])
def test_a_known_failure_counts_again_from_its_last_day_on(days: int, code: ExitCode) -> None:
    expires = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=days)
    assert report_of(a_check(fails), **known(expires=expires)).exit_code is code


def test_a_known_failure_is_no_excuse_for_what_could_not_be_judged() -> None:
    check = a_check(passes, needs=Needs(commands=("flood",)))
    assert report_of(check, commands={"flood": False}, **known()).results[0].verdict is Verdict.BAD


def test_a_known_failure_of_no_check_is_refused() -> None:
    with pytest.raises(Misuse, match="there is no check 'FRAME-999'"):
        report_of(a_check(passes), known_failures=[{"check": "FRAME-999", "reason": "x"}])


# --- starts and ends


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("/no/such/program",), "cannot be run"),
        (python("sys.exit('no licence')"), "(?s)ended with exit code 1.*no licence.*next: start it as the kit does"),
        (python("print('usage: me')"), "(?s)ended with exit code 0.*'usage: me'.*does the command reach its"),
        (python("sys.stdin.readline(); sys.exit(0)"), "(?s)exit code 0.*Ask it by hand: echo .*ping.* | "),
        (specimens.command(specimens.RefusesTheHello), "refuses the hello: InvalidParams"),
    ],
)
def test_a_worker_that_cannot_be_started_is_not_judged(command: tuple[str, ...], reason: str) -> None:
    report = judge(command, settings=settings(), level="L0", times=TIMES)
    assert report.exit_code is ExitCode.NOT_STARTED
    assert report.results == ()
    with pytest.raises(NotStarted, match=reason):
        raise NotStarted(report.not_started)


def test_a_program_without_an_interpreter_is_told_what_it_lacks(tmp_path: Path) -> None:
    script = tmp_path / "worker"
    script.write_text("exec cat\n", encoding="utf-8")
    script.chmod(0o755)
    report = judge((str(script),), settings=settings(), level="L0", times=TIMES)
    assert report.exit_code is ExitCode.NOT_STARTED
    assert "does its first line name its interpreter" in report.not_started


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("print('got a line', flush=True); sys.stdin.read()", "(?s)it wrote on stdout: b'got a line'.*print to stderr"),
        ("print('bad day', file=sys.stderr); sys.stdin.read()", "(?s)of its stderr: bad day.*flush each line"),
    ],
)
def test_a_worker_that_never_answers_is_told_what_it_said_instead(code: str, advice: str) -> None:
    report = judge(python(code), settings=settings(), level="L0", times=Times(factor=0.1))
    assert report.exit_code is ExitCode.NOT_STARTED
    assert re.search(advice, report.not_started)


def test_a_run_can_end_with_its_first_failure() -> None:
    broken = command_of("l0_frames:SplitsAtUnicodeSeparators")
    asked = ["FRAME-2", "FRAME-3", "MSG-1"]
    report = judge(broken, settings=settings(), only=asked, seed=1, times=TIMES, fail_fast=True)
    assert [result.id for result in report.results] == ["FRAME-2"]
    assert report.exit_code is ExitCode.NOT_CONFORMANT


def test_a_program_finds_the_file_of_a_worker_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.py").write_text("import sys; sys.exit('it was read')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    report = judge([sys.executable, "worker.py"], settings=settings(), level="L0", times=TIMES)
    assert "it was read" in report.not_started


def test_a_banner_before_the_hello_only_warns() -> None:
    """bazelbuild/rules_java#158 (F03): a runtime's own words before the first message are tolerated."""
    command = ("/bin/sh", "-c", 'echo "my runtime 1.0"; exec "$@"', "sh", *HEALTHY_COMMAND)
    asked = ["FRAME-1", "FRAME-11", "HELLO-15", "HELLO-21", "PROC-1/record"]
    report = judge(command, settings=settings(), only=asked, seed=1, times=TIMES)
    assert [result.id for result in report.results if result.verdict is Verdict.WARNING] == ["HELLO-15/silence"]
    assert report.conformant, report.summary


def test_a_log_of_eight_megabytes_before_the_hello_does_not_stop_the_run() -> None:
    report = report_of(a_check(fails), command=specimens.command(specimens.FloodsStderr))
    (evidence,) = report.results[0].evidence
    assert evidence.stderr.endswith("the last line\n")


def test_a_sandbox_that_is_still_listed_after_the_run_fails_it() -> None:
    def leaves(lab: Lab) -> None:
        lab.new_sandbox()

    report = report_of(a_check(leaves), command=specimens.command(specimens.KeepsSandboxes))
    assert report.results[0].outcome is Outcome.PASS
    (left,) = report.left
    assert "was still listed after the run" in left
    assert report.exit_code is ExitCode.NOT_CONFORMANT
    assert "1 left behind" in report.summary


def test_what_a_disposable_worker_leaves_is_killed_and_removed_without_a_word() -> None:
    seconds = 300_000 + os.getpid() % 100_000
    folders = []

    def leaves(lab: Lab) -> None:
        sandbox = lab.new_sandbox()
        sandbox.execute(lab.command("leave_daemon", name="daemon", seconds=seconds))
        folders.append(Path(sandbox.lease["workingDirectory"]))
        raise Failed("it is broken on purpose")

    check = a_check(leaves)
    worker = specimens.command(specimens.KeepsSandboxes)
    with Run(worker, settings=settings(), checks=[check], seed=1, times=TIMES, disposable=True) as run:
        run.start()
        run.judge(check)
        report = run.finish()
    assert report.results[0].reason == "it is broken on purpose"
    assert report.left == ()
    assert not folders[0].exists()
    assert running(f"sleep {seconds}") == []


def test_the_prefix_of_the_authors_file_begins_every_sandbox_id() -> None:
    ids = []

    def mints(lab: Lab) -> None:
        ids.append(lab.new_sandbox_id())
        ids.append(lab.new_sandbox().id)

    report_of(a_check(mints), run={"name_prefix": "ci7"})
    assert len(set(ids)) == 2
    assert all(minted.startswith("spci7") and len(minted) == 28 for minted in ids)
    assert ids[0][:15] == ids[1][:15]


def test_a_missing_config_is_untestable_and_a_refusal_is_a_failure() -> None:
    def acquires(lab: Lab) -> None:
        lab.new_sandbox()

    command = specimens.command(specimens.NeedsToken)
    report = report_of(a_check(acquires), command=command)
    assert report.results[0].outcome is Outcome.UNTESTABLE
    assert "config.region" in report.results[0].reason
    assert report.left == ()
    report = report_of(a_check(acquires), command=command, worker={"config": {"region": "eu"}})
    assert report.results[0].outcome is Outcome.FAIL
    assert "QuotaExceeded" in report.results[0].reason


def test_a_secret_is_nowhere_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker tells it in an error, there also in base64, and in its log."""
    monkeypatch.setenv("SPECIMEN_TOKEN", "hunter2-hunter2")

    def acquires(lab: Lab) -> None:
        lab.new_sandbox()

    worker = {"config": {"region": "eu"}, "secrets": {"token": "SPECIMEN_TOKEN"}}
    report = report_of(a_check(acquires), command=specimens.command(specimens.NeedsToken), worker=worker)
    (result,) = report.results
    assert "the token is [masked]" in result.evidence[0].stderr
    assert "no quota for [masked]" in result.reason
    assert "hunter2" not in repr(report)
    assert "aHVudGVyM" not in repr(report)


def test_a_canary_is_found_where_it_was_leaked_and_masked_in_the_report() -> None:
    planted = []

    def leaks(lab: Lab) -> None:
        planted.append(canary := lab.canary())
        error = lab.worker.refused(f"x/{canary}", {}, "MethodNotFound")
        assert leaked_form(json.dumps(error).encode(), canary) == canary
        assert leaked_form(b"nothing", canary) is None
        raise Failed(f"it says {canary}")

    report = report_of(a_check(leaks))
    assert report.results[0].reason == "it says [masked]"
    assert planted[0] not in repr(report)


def test_the_seed_decides_what_is_left_to_chance() -> None:
    drawn: list[float] = []

    def draws(lab: Lab) -> None:
        drawn.append(lab.random.random())

    report_of(a_check(draws), a_check(draws, requirement_id="FRAME-2"))
    report_of(a_check(draws))
    assert drawn[0] == drawn[2]
    assert drawn[0] != drawn[1]


def test_a_run_leaves_no_directory_behind(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report_of(a_check(passes))
    assert os.listdir(tmp_path) == []
