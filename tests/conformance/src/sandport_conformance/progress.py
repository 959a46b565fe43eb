"""What the command prints while it judges: each check as it ends, and the story of what failed."""

from __future__ import annotations

import os
from typing import TextIO

from .outcomes import Outcome
from .report import Report, Result, Verdict

_COLOURS = {Verdict.GOOD: "32", Verdict.BAD: "31", Verdict.WARNING: "33", Verdict.KNOWN: "33", Verdict.NONE: "2"}
_FOR_REASON = 600
_LOG_LINES = 3
_FOR_LOG_LINE = 200


class Progress:
    """Writes results as they come.

    Args:
        out: Where to; colours are used where it is a terminal and NO_COLOR is not set.
        quiet: Only what is not good.
    """

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out = out
        self._quiet = quiet
        self._shown: list[str] = []
        """The end of a log that was written last."""
        self._coloured = out.isatty() and not os.environ.get("NO_COLOR")

    def result(self, result: Result) -> None:
        """Write one check's line, and why it did not pass."""
        if self._quiet and result.verdict in (Verdict.GOOD, Verdict.NONE):
            return
        label = result.outcome.upper() if result.verdict is Verdict.BAD else result.outcome.value
        if result.verdict in (Verdict.WARNING, Verdict.KNOWN):
            label = result.verdict.value
        label = self._paint(f"{label:14}", result.verdict)
        self._out.write(
            f"{label} {result.check.level} {result.id:14} {result.duration_s:6.2f} s  {result.check.title}\n"
        )
        if result.reason:
            self._out.write(f"{'':15}{result.reason[:_FOR_REASON]}\n")
        if result.verdict in (Verdict.BAD, Verdict.WARNING) and result.outcome is not Outcome.UNTESTABLE:
            self._out.write(f"{'':15}fix: {result.fix}\n")
        self._log(result)
        if result.known:
            self._out.write(f"{'':15}known: {result.known}\n")
        self._out.flush()

    def _log(self, result: Result) -> None:
        """Write how the log of a worker that failed ends, unless it is what was shown last."""
        logs = [one.stderr.strip().splitlines()[-_LOG_LINES:] for one in result.evidence if one.stderr.strip()]
        if (
            result.verdict is not Verdict.BAD
            or result.outcome is not Outcome.FAIL
            or not logs
            or logs[-1] == self._shown
        ):
            return
        self._shown = logs[-1]
        for line in self._shown:
            self._out.write(f"{'':15}its log: {line[:_FOR_LOG_LINE]}\n")

    def end(self, report: Report) -> None:
        """Write what concerns the whole run, and the summary."""
        if report.not_started:
            self._out.write(f"the worker could not be started: {report.not_started}\n")
        for text in report.left:
            self._out.write(self._paint(f"left behind: {text}\n", Verdict.BAD))
        for fault in report.faults:
            self._out.write(f"a fault of the kit in {fault.check}, please report it:\n{fault.traceback}\n")
        if not self._quiet:
            for note in report.notes:
                self._out.write(f"note: {note}\n")
            if report.unjudged:
                what = "MUST that binds workers has" if len(report.unjudged) == 1 else "MUSTs that bind workers have"
                self._out.write(f"unjudged: {len(report.unjudged)} {what} no check: {', '.join(report.unjudged)}\n")
        bad = [result.id for result in sorted(report.results, key=_level) if result.verdict is Verdict.BAD]
        if bad and not self._quiet:
            self._out.write(
                f"next: `sandport-conformance explain {bad[0]}` tells what is asked and why; "
                f"`{report.rerun('--only', bad[0], '--html', 'report.html')}` writes down what passed over the pipes\n"
            )
        verdict = Verdict.GOOD if report.exit_code == 0 else Verdict.BAD
        self._out.write(self._paint(report.summary, verdict) + "\n")

    def _paint(self, text: str, verdict: Verdict) -> str:
        return f"\x1b[{_COLOURS[verdict]}m{text}\x1b[0m" if self._coloured else text


def _level(result: Result) -> str:
    return result.check.level  # what is wrong below is often the cause of what is wrong above
