"""The report as JUnit XML, for what collects test results."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from .outcomes import Outcome
from .report import Report, Result, Verdict
from .transcript import Entry

_LONG_TEXT = 1000
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report) -> str:
    """One test case for each check, and one for each thing that concerns the whole run."""
    cases = [_case(result) for result in report.results]
    if report.not_started:
        cases.append(_bad("run", "start", "the worker could not be started", report.not_started, kind="error"))
    cases += [_bad("run", "left behind", text, text) for text in report.left]
    cases += [
        _bad("run", fault.check, "a fault of the kit itself", fault.traceback, kind="error") for fault in report.faults
    ]
    suite = ET.Element(
        "testsuite",
        name=clean(f"sandport-conformance {report.worker[0]}".strip()),
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
        time=f"{report.duration_s:.3f}",
        timestamp=report.began_at.isoformat(timespec="seconds"),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (("summary", report.summary), ("seed", report.seed), ("kit", report.kit_version)):
        ET.SubElement(properties, "property", name=name, value=clean(str(value)))
    suite.extend(cases)
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _case(result: Result) -> ET.Element:
    check = result.check
    case = ET.Element("testcase", classname=check.level, name=check.id, time=f"{result.duration_s:.3f}")
    if result.verdict is Verdict.BAD:
        kind = result.outcome.value if result.outcome is not Outcome.PASS else "known failure that passes"
        failure = ET.SubElement(case, "failure", message=clean(result.reason), type=kind)
        failure.text = clean(_story(result))
    elif result.outcome is Outcome.NOT_APPLICABLE:
        ET.SubElement(case, "skipped", message=clean(f"not applicable: {result.reason}"))
    elif result.verdict is not Verdict.GOOD:
        text = f"{result.verdict}: {result.reason}{' - ' + result.known if result.known else ''}"
        ET.SubElement(case, "skipped", message=clean(text))
    return case


def _story(result: Result) -> str:
    lines = [result.reason, "", f"clause: {result.check.requirement.clause}", f"fix: {result.fix}"]
    for evidence in result.evidence:
        lines += ["", f"worker: {' '.join(evidence.command)}", f"ended: {evidence.exit_cause}"]
        lines += [f"{entry.at_s:9.4f} {entry.direction:8} {_shortened(entry)}" for entry in evidence.transcript]
        lines += ["stderr:", evidence.stderr]
    return "\n".join(lines)


def _shortened(entry: Entry) -> str:
    """Of a long message as much as a person reads in a log; the other reports have more of it."""
    text = entry.text.rstrip("\n")
    return text if len(text) <= _LONG_TEXT else f"{text[:_LONG_TEXT]} ... ({entry.size_bytes} bytes)"


def _bad(group: str, name: str, message: str, text: str, *, kind: str = "failure") -> ET.Element:
    case = ET.Element("testcase", classname=group, name=clean(name), time="0")
    ET.SubElement(case, kind, message=clean(message), type=kind).text = clean(text)
    return case


def clean(text: str) -> str:
    """What XML cannot hold, spelled out."""
    return _NOT_XML.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
