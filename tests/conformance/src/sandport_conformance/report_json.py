"""The report as JSON; `report.schema.json` says what each member means."""

from __future__ import annotations

import json
from importlib.resources import files

from .report import Evidence, Report, Result
from .schema import Json


def to_json(report: Report) -> str:
    """The whole report, readable and in a stable order."""
    return json.dumps(_report(report), indent=1, ensure_ascii=False) + "\n"


def report_schema() -> Json:
    """The JSON Schema of what `to_json` writes."""
    loaded: Json = json.loads(files(__package__).joinpath("report.schema.json").read_text(encoding="utf-8"))
    return loaded


def _report(report: Report) -> Json:
    return {
        "format": 1,
        "summary": report.summary,
        "conformant": report.conformant,
        "exitCode": int(report.exit_code),
        "command": list(report.command),
        "worker": {"name": report.worker[0], "version": report.worker[1]},
        "level": report.level,
        "protocolVersion": report.protocol_version,
        "kitVersion": report.kit_version,
        "seed": report.seed,
        "scale": round(report.scale, 3),
        "platform": report.platform,
        "beganAt": report.began_at.isoformat(timespec="seconds"),
        "durationS": round(report.duration_s, 3),
        "counts": {outcome.value: count for outcome, count in report.counts.items()},
        "checks": [_check(result) for result in report.results],
        "left": list(report.left),
        "notes": list(report.notes),
        "unjudged": list(report.unjudged),
        "faults": [{"check": fault.check, "traceback": fault.traceback} for fault in report.faults],
        "notStarted": report.not_started,
    }


def _check(result: Result) -> Json:
    check = result.check
    return {
        "id": check.id,
        "requirements": [check.requirement.id, *(requirement.id for requirement in check.also)],
        "level": check.level,
        "severity": check.severity.value,
        "scored": check.scored,
        "title": check.title,
        "clause": check.requirement.clause,
        "outcome": result.outcome.value,
        "verdict": result.verdict.value,
        "reason": result.reason,
        "known": result.known,
        "durationS": round(result.duration_s, 4),
        "peakMemoryBytes": result.peak_memory_bytes,
        "evidence": [_evidence(evidence) for evidence in result.evidence],
    }


def _evidence(evidence: Evidence) -> Json:
    return {
        "command": list(evidence.command),
        "exitCause": evidence.exit_cause,
        "stderr": evidence.stderr,
        "transcript": [
            {"atS": entry.at_s, "direction": entry.direction, "text": entry.text, "sizeBytes": entry.size_bytes}
            for entry in evidence.transcript
        ],
    }
