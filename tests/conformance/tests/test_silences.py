"""What is not answered, and what cannot be had: told once, with what to look for, and not waited for for ever."""

import io

import pytest

from sandport_conformance.catalogue import find
from sandport_conformance.declaration import Check, Uses
from sandport_conformance.lab import Lab
from sandport_conformance.mutants.healthy import Healthy
from sandport_conformance.outcomes import Outcome, TimedOut
from sandport_conformance.patience import Patience
from sandport_conformance.progress import Progress
from sandport_conformance.report import Report
from sandport_conformance.run import Run
from sandport_conformance.times import Times
from tests.conformance.tests import specimens
from tests.conformance.tests.conftest import TIMES, a_check, settings

QUICK = Times(factor=2.0, vendor_s=0.5)
"""A second for what a vendor does, and as long as ever for the rest."""


def report_of(*checks: Check, worker: type[Healthy], times: Times = TIMES) -> Report:
    with Run(specimens.command(worker), settings=settings(), checks=checks, seed=1, times=times) as run:
        run.start()
        for check in checks:
            run.judge(check)
        return run.finish()


def printed(report: Report) -> str:
    out = io.StringIO()
    progress = Progress(out)
    for result in report.results:
        progress.result(result)
    progress.end(report)
    return out.getvalue()


def pings(lab: Lab) -> None:
    """Say hello."""
    lab.worker.ping()


def acquires(lab: Lab) -> None:
    """Have a sandbox."""
    lab.new_sandbox()


def runs(lab: Lab) -> None:
    """Run a command."""
    lab.new_sandbox().execute(["true"])


def follows(lab: Lab) -> None:
    """Run a command and read its output."""
    lab.new_sandbox().run_live(["true"])


def test_sandboxes_that_cannot_be_had_are_one_failure_and_asked_for_no_more_than_twice() -> None:
    ids = ("CMD-1", "CMD-2", "CMD-3", "CMD-4")
    report = report_of(*(a_check(acquires, requirement_id=i) for i in ids), worker=specimens.RefusesSandboxes)
    first, *rest = report.results
    assert first.outcome is Outcome.FAIL
    assert first.reason.startswith("no sandbox can be had: acquireLease was refused: Unavailable")
    assert first.fix.startswith("Let an acquire succeed")
    assert [result.outcome for result in rest] == [Outcome.UNTESTABLE] * 3
    assert {result.reason for result in rest} == {"no sandbox can be had: see CMD-1"}
    assert report.exit_code == 1
    assert printed(report).count("fix:") == 1
    assert "its log: asked for a sandbox" in printed(report)


def test_a_second_acquire_that_succeeds_is_believed() -> None:
    report = report_of(
        a_check(acquires, requirement_id="CMD-1"),
        a_check(acquires, requirement_id="CMD-2"),
        worker=specimens.RefusesTheFirstSandbox,
    )
    assert [result.outcome for result in report.results] == [Outcome.FAIL, Outcome.PASS]


@pytest.mark.parametrize(
    ("worker", "said", "look_for"),
    [
        (specimens.LosesCommands, "does not have the request in `open`", "whether execute was taken at all"),
        (specimens.HoldsCommands, "has the request in `open`: it was taken", "what execute waits for"),
    ],
)
def test_a_request_that_is_not_answered_is_looked_for(worker: type[Healthy], said: str, look_for: str) -> None:
    report = report_of(
        a_check(runs, requirement_id="CMD-1"),
        a_check(follows, requirement_id="CMD-2"),
        a_check(runs, requirement_id="FRAME-2"),
        worker=worker,
        times=QUICK,
    )
    for result in report.results:
        assert "no answer to execute" in result.reason
        assert said in result.reason
    first, second, wire = report.results
    assert look_for in first.fix
    assert "within 1.0 s" in first.reason
    assert "within 1.4 s" in second.reason, "the wait for its output counts"
    assert wire.fix == "Do what it should.", "on the wire a silence is what checks are about"
    if worker is specimens.LosesCommands:
        assert "its log: an execute came" in printed(report)


def test_a_method_that_was_never_answered_is_waited_for_with_less_patience() -> None:
    patience = Patience(Times(factor=1.0))
    whole_s = patience.of("execute")
    for _ in range(2):
        assert patience.of("execute") == whole_s
        patience.missed("execute")
    assert patience.of("execute") == 5.0
    assert patience.of("startProcess") == whole_s
    patience.answered("execute")
    assert patience.of("execute") == whole_s


def test_a_story_that_another_check_has_waited_for_says_so() -> None:
    def story(lab: Lab) -> None:
        lab.new_sandbox(lab.spawn()).execute(["true"])

    def asks(lab: Lab) -> None:
        lab.once(story)

    first, second = report_of(
        a_check(asks, requirement_id="CMD-1", uses=Uses.OWN),
        a_check(asks, requirement_id="CMD-2", uses=Uses.OWN),
        worker=specimens.LosesCommands,
        times=QUICK,
    ).results
    assert "waited for in" not in first.reason
    assert "(waited for in CMD-1, which tells the same story)" in second.reason


def test_an_answer_to_what_was_sent_by_hand_is_not_strange() -> None:
    def asks(lab: Lab) -> None:
        lab.worker.send({"jsonrpc": "2.0", "id": "outside", "method": "ping"})
        lab.new_sandbox().execute(["true"])

    (result,) = report_of(a_check(asks), worker=specimens.LosesCommands, times=QUICK).results
    assert "outside" not in result.reason


def test_what_is_left_behind_is_told_with_its_check_and_a_fix() -> None:
    report = report_of(
        a_check(pings, requirement_id="CMD-1"),
        a_check(acquires, requirement_id="CMD-2"),
        worker=specimens.KeepsSandboxes,
    )
    (left,) = report.left
    assert ", made in CMD-2, was still listed after the run; fix: let a destroy" in left


def test_the_list_after_everything_was_destroyed_is_evidence() -> None:
    def looks(lab: Lab) -> None:
        for _ in lab.sessions(sandbox=True):
            pass
        assert lab.listed_after_all() == []
        raise TimedOut("as if something were")

    (result,) = report_of(a_check(looks, uses=Uses.RECORD), worker=Healthy).results
    (evidence,) = result.evidence
    assert any("listLeases" in entry.text for entry in evidence.transcript)


def test_a_config_that_is_missing_is_the_files_and_no_fault_of_the_worker() -> None:
    checks = (*find("CONF-1/defaults"), *find("CONF-2"))
    report = report_of(*checks, worker=specimens.WantsAToken)
    assert [result.outcome for result in report.results] == [Outcome.UNTESTABLE] * 2
    for result in report.results:
        assert "no config was given, and the worker does not do without: write `[worker] config`" in result.reason
