"""The door `host`: plays misbehaving workers to a host command and judges what the host does.

The contract of a host command is in HOSTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .command_line import resolve
from .hosting.catalogue import select
from .hosting.declaration import HostCheck
from .hosting.hostile import table
from .hosting.played import Measured
from .hosting.stage import Stage
from .outcomes import Failed, Misuse, NotApplicable, Outcome, Severity
from .requirements import requirements
from .times import Times, measure


@dataclass(frozen=True, slots=True, kw_only=True)
class HostResult:
    """What one check said."""

    check: HostCheck
    outcome: Outcome
    reason: str
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """A whole run.

    Attributes:
        faults: Tracebacks of the kit's own faults, by the id of the check; they are not counted against the host.
        not_started: Why the run ended with its first check: the command answered nothing and started no worker.
    """

    command: tuple[str, ...]
    results: tuple[HostResult, ...]
    measured: tuple[Measured, ...]
    faults: dict[str, str] = field(default_factory=dict)
    not_started: str = ""

    @property
    def applied(self) -> tuple[HostResult, ...]:
        """Checks that had something to judge."""
        return tuple(result for result in self.results if result.outcome is not Outcome.NOT_APPLICABLE)

    @property
    def failed(self) -> tuple[HostResult, ...]:
        """Checks that failed, MUST or SHOULD."""
        return tuple(result for result in self.results if result.outcome is Outcome.FAIL)

    @property
    def exit_code(self) -> int:
        """0 conformant, 1 not, 3 not started, 4 for a fault of the kit."""
        if self.faults:
            return 4
        if self.not_started:
            return 3
        return int(not self.applied or any(result.check.severity is Severity.MUST for result in self.failed))

    @property
    def summary(self) -> str:
        """One line with all counts."""
        applied = self.applied
        judged = {one.id for result in applied for one in (result.check.requirement, *result.check.also)}
        bound = [one.id for one in requirements().values() if one.binds in ("host", "both") and one.level != "-"]
        passed = sum(result.outcome is Outcome.PASS for result in self.results)
        word = {0: "conformant", 1: "not conformant", 3: "not started", 4: "a fault of the kit"}[self.exit_code]
        return (
            f"host {word}, {passed}/{len(applied)} checks pass, {len(self.results) - len(applied)} n/a, "
            f"{len(judged)} requirements judged, "
            f"{len(set(bound) - judged)} that bind hosts were not"
        )

    def to_json(self) -> str:
        """The report as JSON."""
        value: dict[str, Any] = {
            "command": list(self.command),
            "summary": self.summary,
            "exitCode": self.exit_code,
            "results": [
                {
                    "check": result.check.id,
                    "severity": result.check.severity.value,
                    "title": result.check.title,
                    "also": [one.id for one in result.check.also],
                    "source": result.check.source,
                    "outcome": result.outcome.value,
                    "reason": result.reason,
                    "tookS": round(result.took_s, 3),
                }
                for result in self.results
            ],
            "memory": [
                {
                    "worker": one.name,
                    "peakBytes": one.peak_bytes,
                    "grownBytes": one.grown_bytes,
                    "boundBytes": one.bound_bytes,
                }
                for one in self.measured
            ],
            "faults": self.faults,
        }
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def judge_host(
    command: Sequence[str],
    *,
    only: Sequence[str] = (),
    times: Times | None = None,
    on_result: Callable[[HostResult], None] = lambda result: None,
) -> HostReport:
    """Judge a host command.

    Args:
        command: The host's adapter, as HOSTS.md says; absolute.
        only: Ids of checks or requirements; all where empty.
        times: How long things may take; measured where None.
        on_result: Called with each result as it comes.

    Raises:
        Misuse: A name fits no check.
    """
    checks = select(only)
    results: list[HostResult] = []
    faults: dict[str, str] = {}
    not_started = ""
    with tempfile.TemporaryDirectory(prefix="sandport-host-") as folder:
        stage = Stage(command, Path(folder), times or measure())
        for check in checks:
            began, outcome, reason = time.monotonic(), Outcome.PASS, ""
            try:
                check.run(stage)
            except Failed as failure:
                outcome, reason = Outcome.FAIL, str(failure)
            except NotApplicable as absence:
                outcome, reason = Outcome.NOT_APPLICABLE, str(absence)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the kit's fault and told as such
                faults[check.id] = traceback.format_exc()
                outcome, reason = Outcome.UNTESTABLE, f"a fault of the kit: {error!r}"
            result = HostResult(check=check, outcome=outcome, reason=reason, took_s=time.monotonic() - began)
            results.append(result)
            if outcome is Outcome.FAIL and not stage.began:
                not_started = f"{reason.removesuffix(': ')}; it started no worker. What a host command is: HOSTS.md"
                break
            on_result(result)
        measured = tuple(stage.measured.values())
    return HostReport(
        command=tuple(command), results=tuple(results), measured=measured, faults=faults, not_started=not_started
    )


def _tell(result: HostResult) -> None:
    check = result.check
    sys.stdout.write(f"{result.outcome:14} {check.id:20} {result.took_s:6.2f} s  {check.title}\n")
    if result.reason:
        sys.stdout.write(f"           {result.reason}\n")
    if result.outcome is Outcome.FAIL:
        sys.stdout.write(f"           a host that fails: {check.broken}\n")
    sys.stdout.flush()


def _page(measured: tuple[Measured, ...]) -> str:
    return (
        "# What hostile workers cost a host\n\n"
        "Written by `sandport-conformance host --write HOSTILE.md -- HOST COMMAND` for Sandport's own host: the most\n"
        "memory that it had in RAM (`VmHWM`), and how much of that is above a run with a worker that behaves. The\n"
        "bound follows from the ceilings of the wire and eight mebibytes beside; the run fails where it is passed.\n\n"
        + table(measured)
    )


def _write(report: HostReport, chosen: argparse.Namespace) -> None:
    if chosen.json:
        chosen.json.write_text(report.to_json(), encoding="utf-8")
    if chosen.junit:
        from .host_report import to_junit

        chosen.junit.write_text(to_junit(report), encoding="utf-8")
    if chosen.html:
        from .host_report import to_html

        chosen.html.write_text(to_html(report), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `--help`. 0 conformant, 1 not, 2 wrong usage, 3 not started, 4 a fault of the kit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, command = given, []
    if "--" in given:
        cut = given.index("--")
        own, command = given[:cut], given[cut + 1 :]
    parser = argparse.ArgumentParser(
        prog="sandport-conformance host",
        usage="sandport-conformance host [OPTION...] -- HOST COMMAND",
        description="Play misbehaving workers to a host, and judge what the host does.",
    )
    parser.add_argument("--only", action="extend", nargs="+", default=[], metavar="ID", help="only these checks")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the report as JSON")
    parser.add_argument("--junit", type=Path, metavar="OUT", help="write the report as JUnit XML")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the report as one page")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the table of memory")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="multiply every time limit")
    parser.add_argument("--list", action="store_true", help="list the checks and judge nothing")
    chosen = parser.parse_args(own)
    try:
        if chosen.list:
            for check in select(chosen.only):
                sys.stdout.write(f"{check.severity:6}  {check.id:20} {check.title}\n")
            return 0
        if not chosen.scale > 0:
            raise Misuse("--scale must be above 0")
        report = judge_host(
            resolve(command, whose="host"), only=chosen.only, times=measure(chosen.scale), on_result=_tell
        )
    except Misuse as error:
        sys.stderr.write(f"sandport-conformance: {error}\n")
        return 2
    _write(report, chosen)
    if report.measured:
        sys.stdout.write("\n" + table(report.measured))
    if chosen.write and not report.faults and not chosen.only:
        chosen.write.write_text(_page(report.measured), encoding="utf-8")
    for fault in report.faults.values():
        sys.stderr.write(fault)
    if report.not_started:
        sys.stdout.write(f"the host could not be started: {report.not_started}\n")
    sys.stdout.write(f"\n{report.summary}\n")
    return report.exit_code
