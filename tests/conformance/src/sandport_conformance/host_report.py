"""The report on a host as JUnit XML and as one page; `host` writes it as JSON."""

from __future__ import annotations

import shlex
from html import escape
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from .outcomes import Outcome, Severity
from .report_html import prose
from .report_junit import clean
from .report_style import STYLE
from .reports import reports_of

if TYPE_CHECKING:
    from .host import HostReport, HostResult


def to_junit(report: HostReport) -> str:
    """One test case for each check; a SHOULD that fails is skipped with its reason, as in the report on a worker."""
    suite = ET.Element("testsuite", name="sandport-conformance host", tests=str(len(report.results)))
    properties = ET.SubElement(suite, "properties")
    ET.SubElement(properties, "property", name="summary", value=clean(report.summary))
    for result in report.results:
        case = ET.SubElement(suite, "testcase", classname="host", name=result.check.id, time=f"{result.took_s:.3f}")
        if result.check.id in report.faults:
            error = ET.SubElement(case, "error", message="a fault of the kit itself", type="error")
            error.text = clean(report.faults[result.check.id])
        elif _is_bad(result):
            failure = ET.SubElement(case, "failure", message=clean(result.reason), type=result.outcome.value)
            failure.text = clean(f"{result.reason}\n\nclause: {result.check.requirement.clause}")
        elif result.outcome is not Outcome.PASS:
            ET.SubElement(case, "skipped", message=clean(f"{result.outcome.value}: {result.reason}"))
    for kind in ("failure", "error", "skipped"):
        suite.set({"failure": "failures", "error": "errors"}.get(kind, kind), str(len(suite.findall(f".//{kind}"))))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def to_html(report: HostReport) -> str:
    """One page that needs nothing else: the summary, what failed, every check, and the memory that was measured."""
    verdict = "good" if report.exit_code == 0 else "bad"
    rows = "".join(
        f"<tr class={_css(result)}><td>{escape(result.check.id)}</td><td>{escape(result.check.severity)}</td>"
        f"<td class=outcome>{escape(result.outcome)}</td><td>{prose(result.check.title)}{_why(result)}</td>"
        f"<td class=number>{result.took_s:.2f} s</td></tr>"
        for result in report.results
    )
    memory = "".join(
        f"<tr><td>{escape(one.name)}</td><td class=number>{one.peak_bytes / 1_048_576:.1f} MiB</td>"
        f"<td class=number>{one.grown_bytes / 1_048_576:.1f} MiB</td>"
        f"<td class=number>{one.bound_bytes / 1_048_576:.1f} MiB</td></tr>"
        for one in report.measured
    )
    faults = "".join(
        f"<section class=bad><h3>A fault of the kit in {escape(name)}</h3><pre>{escape(text)}</pre></section>"
        for name, text in report.faults.items()
    )
    heads = "".join(f"<th>{name}</th>" for name in ("check", "", "outcome", "passes when", "time"))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>Conformance of a host</title>',
        f"<style>{STYLE}</style></head><body>",
        f"<header class={verdict}><h1>Conformance of a host</h1><p class=summary>{escape(report.summary)}</p></header>",
        f"<main><dl><dt>host</dt><dd>{escape(shlex.join(report.command))}</dd></dl>{faults}",
        *_stories(report),
        f"<h2>All checks</h2><div class=wide><table class='checks hosts'><thead><tr>{heads}</tr></thead>",
        f"<tbody>{rows}</tbody></table></div>",
    ]
    if memory:
        heads = "".join(f"<th>{name}</th>" for name in ("worker", "peak", "grown by", "bound"))
        parts.append(f"<h2>Memory</h2><table><thead><tr>{heads}</tr></thead><tbody>{memory}</tbody></table>")
    return "\n".join([*parts, "</main></body></html>"]) + "\n"


def _stories(report: HostReport) -> list[str]:
    told = [_story(result) for result in report.failed]
    return ["<h2>What did not pass</h2>", *told] if told else []


def _story(result: HostResult) -> str:
    check = result.check
    reports = escape(", ".join(reports_of(check)))
    source = f"<dt>seen in</dt><dd>{reports}</dd>" if reports else ""
    return (
        f"<section class={_css(result)}><h3>{escape(check.id)} <small>{escape(check.severity)}</small></h3>"
        f"<p class=reason>{escape(result.reason)}</p>"
        f"<dl><dt>clause</dt><dd>{prose(check.requirement.clause)}</dd><dt>why</dt><dd>{prose(check.why)}</dd>"
        f"<dt>fails</dt><dd>a host that {prose(check.broken)}</dd>{source}</dl></section>"
    )


def _is_bad(result: HostResult) -> bool:
    unmet = result.outcome not in (Outcome.PASS, Outcome.NOT_APPLICABLE)
    return unmet and result.check.severity is Severity.MUST


def _css(result: HostResult) -> str:
    if result.outcome is Outcome.NOT_APPLICABLE:
        return "none"
    return "good" if result.outcome is Outcome.PASS else "bad" if _is_bad(result) else "warning"


def _why(result: HostResult) -> str:
    return f"<br><small>{escape(result.reason)}</small>" if result.reason else ""
