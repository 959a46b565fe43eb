"""The report as one page that needs nothing else: no script, no font, no picture."""

from __future__ import annotations

import re
import shlex
from html import escape

from .outcomes import Outcome
from .report import Evidence, Report, Result, Verdict
from .report_style import STYLE
from .reports import reports_of

_ORDER = (Verdict.BAD, Verdict.KNOWN, Verdict.WARNING, Verdict.NONE, Verdict.GOOD)


def to_html(report: Report) -> str:
    """The page: the summary, what failed with its story, and every check in a table."""
    verdict = "good" if report.conformant else "warning" if report.exit_code == 0 else "bad"
    told = [result for result in report.results if result.verdict in (Verdict.BAD, Verdict.KNOWN, Verdict.WARNING)]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(_title(report))}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<header class={verdict}><h1>{escape(_title(report))}</h1>",
        f"<p class=summary>{escape(report.summary)}</p></header>",
        "<main>",
        _counts(report),
        _facts(report),
        _whole_run(report),
    ]
    if told:
        parts.append("<h2>What did not pass</h2>")
        told.sort(key=lambda result: (_ORDER.index(result.verdict), result.check.level))  # the cause is often below
        parts += map(_story, told)
    if report.results:
        parts += ["<h2>All checks</h2>", _table(report)]
    parts.append("</main></body></html>")
    return "\n".join(parts) + "\n"


def _title(report: Report) -> str:
    name = " ".join(filter(None, report.worker)) or "a worker"
    return f"Conformance of {name}"


def _counts(report: Report) -> str:
    shown = {
        Outcome.PASS: "good",
        Outcome.FAIL: "bad",
        Outcome.NOT_APPLICABLE: "none",
        Outcome.UNTESTABLE: "bad",
    }
    cells = "".join(
        f"<li class={shown[outcome] if count else 'none'}><b>{count}</b> {escape(outcome.value)}</li>"
        for outcome, count in report.counts.items()
    )
    return f"<ul class=counts>{cells}</ul>"


def _facts(report: Report) -> str:
    facts = {
        "worker": shlex.join(report.command),
        "judged": report.began_at.strftime("%Y-%m-%d %H:%M UTC") + f", in {report.duration_s:.1f} s",
        "kit": f"sandport-conformance {report.kit_version}, protocol {report.protocol_version}",
        "repeat with": _command(report),
        "machine": f"{report.platform}; time limits times {report.scale:.1f}",
    }
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<dl>{rows}</dl>"


def _command(report: Report) -> str:
    asked = ("--level", report.level) if report.level else ("--only", *(result.id for result in report.results))
    again = report.rerun(*asked, "--seed", str(report.seed))
    return f"sandport-conformance {again} -- {shlex.join(report.command)}"


def _whole_run(report: Report) -> str:
    parts = []
    if report.not_started or report.left or report.faults:
        parts.append("<h2>The whole run</h2>")
    if report.not_started:
        parts.append(f"<section class=bad><h3>Not started</h3><pre>{escape(report.not_started)}</pre></section>")
    if report.left:
        items = "".join(f"<li>{escape(text)}</li>" for text in report.left)
        parts.append(f"<section class=bad><h3>Left behind</h3><ul>{items}</ul></section>")
    parts += [
        f"<section class=bad><h3>A fault of the kit in {escape(fault.check)}</h3><pre>{escape(fault.traceback)}</pre>"
        "</section>"
        for fault in report.faults
    ]
    if report.unjudged:
        names = escape(", ".join(report.unjudged))
        parts.append(f"<p>MUSTs that bind workers and that no check shows: {names}</p>")
    if report.notes:
        items = "".join(f"<li>{escape(text)}</li>" for text in report.notes)
        parts.append(f"<details><summary>notes</summary><ul>{items}</ul></details>")
    return "".join(parts)


def _story(result: Result) -> str:
    check = result.check
    known = f"<p>Known: {escape(result.known)}</p>" if result.known else ""
    reports = escape(", ".join(reports_of(check)))
    source = f"<dt>seen in</dt><dd>{reports}</dd>" if reports else ""
    evidence = "".join(_evidence(each, number) for number, each in enumerate(result.evidence, 1))
    return (
        f'<section class={_css(result)} id="{escape(check.id)}">'
        f"<h3>{escape(check.id)} <small>{escape(check.level)} {escape(check.severity)} "
        f"{escape(_label(result))}</small></h3>"
        f"<p class=reason>{escape(result.reason)}</p>{known}"
        f"<dl><dt>clause</dt><dd>{prose(check.requirement.clause)}</dd>"
        f"<dt>why</dt><dd>{prose(check.why)}</dd><dt>fix</dt><dd>{prose(result.fix)}</dd>{source}</dl>"
        f"{evidence}</section>"
    )


def prose(text: str) -> str:
    """Text of ours, in which backquotes mean code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


def _evidence(evidence: Evidence, number: int) -> str:
    arrows = {"sent": "&rarr;", "received": "&larr;", "note": "&middot;"}
    lines = "".join(
        f"<tr class={entry.direction}><td>{entry.at_s:.3f}</td><td>{arrows[entry.direction]}</td>"
        f"<td><code>{escape(entry.text.rstrip(chr(10)))}</code>{_cut(entry.size_bytes, entry.text)}</td></tr>"
        for entry in evidence.transcript
    )
    log = f"<h4>stderr</h4><pre>{escape(evidence.stderr)}</pre>" if evidence.stderr.strip() else ""
    return (
        f"<details><summary>process {number}: {escape(evidence.exit_cause)}, {len(evidence.transcript)} entries"
        f"</summary><p><code>{escape(shlex.join(evidence.command))}</code></p>"
        f"<table class=transcript>{lines}</table>{log}</details>"
    )


def _cut(size_bytes: int, text: str) -> str:
    return f" <i>({size_bytes} bytes in all)</i>" if size_bytes > len(text.encode("utf-8", "replace")) + 64 else ""


def _table(report: Report) -> str:
    rows = "".join(
        f"<tr class={_css(result)}><td>{escape(result.check.level)}</td><td>{_link(result)}</td>"
        f"<td>{escape(result.check.severity)}</td><td class=outcome>{escape(_label(result))}</td>"
        f"<td>{prose(result.check.title)}{_why_not(result)}</td>"
        f"<td class=number>{result.duration_s:.2f} s</td><td class=number>{_memory(result)}</td></tr>"
        for result in report.results
    )
    heads = "".join(f"<th>{name}</th>" for name in ("level", "check", "", "outcome", "passes when"))
    heads += "".join(f"<th class=number>{name}</th>" for name in ("time", "memory"))
    return f"<div class=wide><table class=checks><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"


def _link(result: Result) -> str:
    name = escape(result.id)
    told = result.verdict in (Verdict.BAD, Verdict.KNOWN, Verdict.WARNING)
    return f'<a href="#{name}">{name}</a>' if told else name


def _why_not(result: Result) -> str:
    return f"<br><small>{escape(result.reason)}</small>" if result.verdict is Verdict.NONE else ""


def _memory(result: Result) -> str:
    return f"{result.peak_memory_bytes / 1_048_576:.0f} MiB" if result.peak_memory_bytes else ""


def _label(result: Result) -> str:
    if result.verdict in (Verdict.WARNING, Verdict.KNOWN):
        return str(result.verdict)
    return str(result.outcome)


def _css(result: Result) -> str:
    return "warning" if result.verdict in (Verdict.WARNING, Verdict.KNOWN) else str(result.verdict)
