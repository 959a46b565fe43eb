"""The report in each of its forms says the same, whole and without danger to who reads it."""

import dataclasses
import datetime
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from sandport_conformance import schema
from sandport_conformance.declaration import Check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Outcome, Severity
from sandport_conformance.report import Evidence, Fault, Report, Result, Verdict
from sandport_conformance.report_html import to_html
from sandport_conformance.report_json import report_schema, to_json
from sandport_conformance.report_junit import to_junit
from sandport_conformance.transcript import Entry
from tests.conformance.tests.conftest import a_check

HOSTILE = "</code><script>alert(1)</script>]]>\x00\x1b[31m\ufffe&\"'"


def nothing(lab: Lab) -> None:
    """Never run."""


def a_result(
    check: Check, outcome: Outcome, verdict: Verdict, reason: str = "", known: str = "", *, told: bool = False
) -> Result:
    entries = (Entry(0.5, "sent", HOSTILE, 99), Entry(0.6, "received", "x", 5_000), Entry(0.7, "note", "gone", 4))
    evidence = Evidence(command=("python", "a worker.py"), exit_cause="signal 9", stderr=HOSTILE, transcript=entries)
    return Result(
        check=check,
        outcome=outcome,
        reason=reason,
        verdict=verdict,
        known=known,
        duration_s=0.25,
        peak_memory_bytes=15 << 20,
        evidence=(evidence,) if told else (),
    )


def must(requirement_id: str) -> Check:
    return a_check(nothing, requirement_id=requirement_id)


def should(requirement_id: str) -> Check:
    return a_check(nothing, requirement_id=requirement_id, severity=Severity.SHOULD)


REPORT = Report(
    command=("python", "a worker.py"),
    worker=("my cloud", "1.2"),
    level="L3",
    protocol_version=1,
    kit_version="0.1.0",
    seed=7,
    scale=1.5,
    platform="Linux 6.1 x86_64",
    began_at=datetime.datetime(2026, 9, 1, 12, 30, tzinfo=datetime.UTC),
    duration_s=3.5,
    results=(
        a_result(must("FRAME-2"), Outcome.PASS, Verdict.GOOD),
        a_result(must("FRAME-3"), Outcome.FAIL, Verdict.BAD, HOSTILE, told=True),
        a_result(must("CMD-14"), Outcome.FAIL, Verdict.KNOWN, "merged", "our vendor", told=True),
        a_result(should("HELLO-16"), Outcome.FAIL, Verdict.WARNING, "slow", told=True),
        a_result(must("CMD-19"), Outcome.NOT_APPLICABLE, Verdict.NONE, "kill is 'group'"),
        a_result(must("CMD-1"), Outcome.UNTESTABLE, Verdict.BAD, "no shell"),
        a_result(must("PROC-3"), Outcome.PASS, Verdict.BAD, "it passes, but is listed", "once"),
    ),
    left=("sandbox sp1 was still listed",),
    notes=("a note",),
)
GOOD = dataclasses.replace(REPORT, results=REPORT.results[:1], left=())


def test_the_summary_is_one_line_with_all_counts() -> None:
    assert REPORT.summary == (
        "protocol 1, L0-L3 NOT conformant, 2/5 MUST, 0/1 SHOULD, 1 n/a, 1 untestable, 1 left behind, seed 7"
    )
    assert GOOD.summary == "protocol 1, L0 conformant, 1/1 MUST, 0/0 SHOULD, 0 n/a, 0 untestable, seed 7"


@pytest.mark.parametrize(
    "report",
    [REPORT, GOOD, dataclasses.replace(GOOD, faults=(Fault(check="X", traceback="T"),), not_started="it ended")],
)
def test_the_json_is_what_its_schema_says(report: Report) -> None:
    written = json.loads(to_json(report))
    assert schema.faults(written, report_schema(), report_schema(), "report") == []
    assert written["exitCode"] == report.exit_code
    # Nothing that is written is missing from the schema, or a reader would have to guess.
    rule = report_schema()
    assert set(written) == set(rule["properties"])
    for check in written["checks"]:
        assert set(check) == set(rule["$defs"]["Check"]["properties"])
        for evidence in check["evidence"]:
            assert set(evidence) == set(rule["$defs"]["Evidence"]["properties"])


def test_the_junit_file_has_one_case_for_each_check_and_fault() -> None:
    suite = ET.fromstring(to_junit(REPORT))
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["8", "4", "0", "3"]
    assert len(cases["FRAME-2"]) == 0
    failure = cases["FRAME-3"].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "alert(1)" in failure.text
    assert "\\x00\\x1b[31m\\xfffe" in failure.text
    kinds = {name: [child.get("type") or child.get("message") for child in case] for name, case in cases.items()}
    assert kinds["CMD-1"] == ["untestable"]
    assert kinds["PROC-3"] == ["known failure that passes"]
    assert kinds["CMD-14"] == ["known failure: merged - our vendor"]
    assert kinds["HELLO-16"] == ["warning: slow"]
    assert kinds["CMD-19"] == ["not applicable: kill is 'group'"]
    assert kinds["left behind"] == ["failure"]


def test_a_long_message_is_short_in_junit_and_tells_its_size() -> None:
    (bad,) = [result for result in REPORT.results if result.id == "FRAME-3"]
    long = Entry(at_s=1.0, direction="sent", text="y" * 5000 + "\n", size_bytes=9000)
    evidence = dataclasses.replace(bad.evidence[0], transcript=(long,))
    report = dataclasses.replace(REPORT, results=(dataclasses.replace(bad, evidence=(evidence,)),))
    failure = next(ET.fromstring(to_junit(report)).iter("failure"))
    assert f"   1.0000 sent     {'y' * 1000} ... (9000 bytes)\n" in (failure.text or "")


def test_a_fault_of_the_kit_and_a_start_that_failed_are_errors_in_junit() -> None:
    report = dataclasses.replace(GOOD, faults=(Fault(check="X", traceback="T"),), not_started="it ended")
    assert ET.fromstring(to_junit(report)).get("errors") == "2"


def test_the_page_tells_how_to_repeat_the_checks_that_were_asked_for_by_name() -> None:
    page = to_html(dataclasses.replace(GOOD, level=""))
    assert "sandport-conformance run --only FRAME-2 --seed 7 -- " in page


def test_the_page_of_a_worker_that_did_not_start_has_no_empty_table() -> None:
    page = to_html(dataclasses.replace(GOOD, results=(), not_started="it ended\nnext: look"))
    assert "next: look" in page
    assert "All checks" not in page


class _Page(HTMLParser):
    """The tags of a page, checked to be closed in order."""

    VOID = ("meta", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_shows_everything_and_loads_nothing() -> None:
    text = to_html(REPORT)
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert {tag for tag, _ in page.tags} & {"script", "img", "link", "iframe"} == set()
    assert not re.search(r"url\(|@import|https?://", text)
    links = {attributes.get("href") for tag, attributes in page.tags if tag == "a"}
    ids = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert links == ids
    for result in REPORT.results:
        assert result.id in page.text
        assert result.reason in page.text.replace("\ufffd", "\x00") or result.verdict is Verdict.GOOD
    for said in (
        REPORT.summary,
        "sandbox sp1 was still listed",
        "a note",
        "run --level L3 --seed 7 -- ",
        "signal 9",
        "15 MiB",
        "0.25 s",
    ):
        assert said in page.text
    assert "(5000 bytes in all)" in page.text
    assert "alert(1)" in page.text
