"""The mirror of the kit: Sandport's host passes, a host that is broken on purpose fails every check."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from sandport_conformance.cli import main
from sandport_conformance.host import HostReport, judge_host
from sandport_conformance.hosting import hostile
from sandport_conformance.hosting.catalogue import every_host_check, select
from sandport_conformance.hosting.declaration import host_check
from sandport_conformance.hosting.played import Measured
from sandport_conformance.outcomes import Failed, Outcome
from sandport_conformance.times import Times, measure

KIT = Path(__file__).resolve().parents[1]
OURS = (sys.executable, str(KIT / "adapters/sandport_host.py"))
CARELESS = (sys.executable, str(KIT / "adapters/careless_host.py"))
SAMPLE = (
    "FRAME-15/endless",
    "CRED-6/flood",
    "CMD-20/low",
    "PROC-22",
    "PROC-20/environment",
    "SYNC-34",
    "SYNC-35/links",
    "SYNC-36",
)
"""What the careless host is judged by here, beside every fourth of the others: all of them take minutes, for most of
what it does wrong is to wait. The whole is one command, which HOSTS.md gives."""


TOLERANCE = ("FRAME-2/heard", "MSG-8/heard", "MSG-9/heard", "MSG-20/heard")
"""Who takes everything bears what is new, too."""
BLURTED = tuple(
    f"{name}/said"
    for name in ("FRAME-1", "FRAME-5", "FRAME-7", "FRAME-18", "MSG-2", "MSG-17", "MSG-18", "OCT-2", "EVO-3")
)


def reasons(report: HostReport) -> dict[str, str]:
    assert report.faults == {}
    return {result.check.id: result.reason for result in report.failed}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sandports_own_host_does_what_it_should_with_every_worker_that_misbehaves() -> None:
    report = judge_host(OURS, times=measure(2.0))
    assert reasons(report) == {}
    assert {entry.name for entry in report.measured} == set(hostile.BOUNDS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_careless_host_fails_every_check_but_those_that_ask_for_patience_and_tolerance() -> None:
    asked = dict.fromkeys([*SAMPLE, *(check.id for check in every_host_check()[::4])])
    report = judge_host(CARELESS, only=list(asked), times=Times())
    failed = reasons(report)
    assert set(asked) - set(failed) <= {"PING-5/busy", *TOLERANCE}
    assert "the host grew by" in failed["FRAME-15/endless"]
    assert "the host grew by" in failed["CRED-6/flood"]
    assert "there should have been an error" in failed["CMD-20/low"]
    assert "there still ran" in failed["PROC-22"]
    assert "AWS_SECRET_ACCESS_KEY" in failed["PROC-20/environment"]
    assert "in a folder of mode" in failed["SYNC-34"]
    assert "escaped-through-a-link" in failed["SYNC-35/links"]
    assert "the absolute name" in failed["SYNC-36"]
    assert report.exit_code == 1


def test_a_hasty_host_fails_the_check_that_asks_for_patience() -> None:
    assert "PING-5/busy" in reasons(judge_host((*CARELESS, "--hasty"), only=["PING-5/busy"], times=Times()))


def test_a_picky_host_fails_the_checks_that_ask_for_tolerance() -> None:
    report = judge_host((*CARELESS, "--picky"), only=TOLERANCE, times=Times())
    assert set(reasons(report)) == set(TOLERANCE)


def test_whatever_a_host_writes_against_the_wire_is_seen_by_the_check_that_asks_for_it() -> None:
    failed = reasons(judge_host(CARELESS, only=BLURTED, times=Times()))
    assert set(failed) == set(BLURTED)
    assert "x-careless/twice" in failed["MSG-18/said"]


def test_a_spoilt_line_and_a_false_count_are_judged_and_reported(tmp_path: Path) -> None:
    out = tmp_path / "host.json"
    assert main(["host", "--only", "FRAME-16/debug", "CMD-20/low", "--json", str(out), "--", *OURS]) == 0
    told = json.loads(out.read_text(encoding="utf-8"))
    assert [(entry["check"], entry["outcome"]) for entry in told["results"]] == [
        ("FRAME-16/debug", "pass"),
        ("CMD-20/low", "pass"),
    ]


def test_the_report_on_a_host_is_written_for_machines_and_for_people(tmp_path: Path) -> None:
    junit, html = tmp_path / "host.xml", tmp_path / "host.html"
    written = ["--junit", str(junit), "--html", str(html)]
    assert main(["host", "--only", "CMD-20/low", *written, "--", "/bin/true"]) == 3
    suite = ET.fromstring(junit.read_text(encoding="utf-8"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == tuple("1100")
    (failure,) = suite.iter("failure")
    assert (failure.get("message") or "").startswith("the host gave no answer")
    page = html.read_text(encoding="utf-8")
    assert "<td>CMD-20/low</td>" in page
    assert "the host gave no answer" in page
    assert "<dt>fails</dt><dd>a host that believes any result</dd>" in page


def test_a_check_of_a_host_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "PING-4"]) == 0
    told = capsys.readouterr().out
    assert "PING-4  (a host, MUST)" in told
    assert "sandport-conformance host --only PING-4" in told
    assert main(["explain", "FRAME-1"]) == 0  # it binds both, and each has its story
    told = capsys.readouterr().out
    assert "FRAME-1  (L0, MUST)" in told
    assert "FRAME-1/said  (a host, MUST)" in told


def test_a_host_that_hangs_or_says_nothing_fails_and_is_no_fault_of_the_kit() -> None:
    silent = judge_host(("/bin/true",), only=["MSG-15", "PING-4"], times=Times())
    assert silent.exit_code == 3, "it started no worker: there is nothing to judge"
    assert len(silent.results) == 1
    assert "it started no worker" in silent.not_started
    assert reasons(silent)["MSG-15"].startswith("the host gave no answer (exit code 0)")
    hangs = judge_host(("/bin/sh", "-c", "exec sleep 600"), only=["MSG-15"], times=Times(factor=0.02))
    assert "was killed" in reasons(hangs)["MSG-15"]


def test_a_host_that_moves_no_files_is_not_judged_by_them_and_is_not_conformant_by_that(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.write_text('#!/bin/sh\necho \'{"unsupported": "--send"}\'\n', encoding="utf-8")
    adapter.chmod(0o755)
    report = judge_host((str(adapter),), only=["SYNC-34", "SYNC-36"], times=Times())
    assert {result.outcome for result in report.results} == {Outcome.NOT_APPLICABLE}
    assert "has nothing for --send" in report.results[0].reason
    assert (report.exit_code, report.failed) == (1, ())
    assert "0/0 checks pass, 3 n/a" in report.summary


def test_a_name_that_fits_no_check_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "--only", "FRAME-11", "--", *OURS]) == 2
    assert "no check of a host is called 'FRAME-11'" in capsys.readouterr().err


def test_every_check_judges_what_binds_a_host_and_says_what_fails_it() -> None:
    for check in every_host_check():
        assert check.requirement.binds in ("host", "both")
        assert check.title.endswith(".")
        assert check.why.endswith(".")
        assert check.broken
        assert not check.broken.endswith(".")


def test_a_requirement_on_workers_cannot_be_asked_of_a_host() -> None:
    with pytest.raises(LookupError, match="binds no host"):
        host_check("FRAME-10", why="It matters.", broken="does not matter")(lambda stage: None)


def test_memory_above_its_bound_fails() -> None:
    bound = hostile.BOUNDS["stopped worker"].in_bytes({"creditBytes": 1000})
    hostile.keep(Measured("stopped worker", bound, bound, bound))
    with pytest.raises(Failed, match="the host grew by"):
        hostile.keep(Measured("stopped worker", bound + 1, bound, bound))


def test_the_written_table_has_a_line_for_every_bound() -> None:
    written = (KIT / "HOSTILE.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in written for name in hostile.BOUNDS)
    assert select(["PING-5"])
