"""Runs checks against a worker command, one after the other, and makes the report."""

from __future__ import annotations

import datetime
import platform
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from . import __version__
from .bench import Bench
from .catalogue import expect_checks, select, unjudged
from .command_line import with_absolute_files
from .declaration import Check, Uses
from .lab import Lab
from .outcomes import (
    Failed,
    Misuse,
    NoAnswer,
    NoLease,
    NoSandbox,
    NotApplicable,
    NotStarted,
    Outcome,
    Severity,
    TimedOut,
    Untestable,
    WorkerGone,
)
from .report import Evidence, Fault, Report, Result, Verdict
from .session import PROTOCOL_VERSION, Session
from .settings import KnownFailure, Settings
from .silence import look_into
from .times import Times, measure

_LARGEST_SEED = 1 << 31
_FEW_CHECKS = 10
_NO_LEASE = "Let an acquire succeed that has the author's config and nothing else; the worker's log may say why not."
_BELOW_CALLS = ("L0", "L1", "L2")


class Run:
    """One judgement of one worker command; a context manager that leaves nothing running.

    Args:
        command: Program and arguments; started with `/` as its directory, and files of the current one that it names
            are found all the same.
        settings: What the author's file says.
        checks: What to judge, in order.
        level: For the report.
        seed: Repeats an earlier run's choices; a random one where None.
        times: Time limits that were measured already; measured now where None.
        disposable: Whether what workers leave is killed and removed without a word; see `Bench`.
        options: For the report: what the command line was given that a run to repeat this one needs too.

    Raises:
        Misuse: A known failure names a check that does not exist.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        settings: Settings,
        checks: Sequence[Check],
        level: str = "",
        seed: int | None = None,
        times: Times | None = None,
        disposable: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        if not command:
            raise Misuse("there is no worker command; it comes after `--`")
        self.checks = tuple(checks)
        self.level = level
        self._options = tuple(options)
        self.seed = random.randrange(_LARGEST_SEED) if seed is None else seed
        self._began_at = datetime.datetime.now(datetime.UTC)
        self._began = time.monotonic()
        self._known = _known(settings.known_failures, self._began_at.date())
        self._bench = Bench(
            command,
            settings=settings,
            times=times or measure(settings.scale),
            seed=self.seed,
            together=len(self.checks) > _FEW_CHECKS,
            disposable=disposable,
        )
        self._results: list[Result] = []
        self._faults: list[Fault] = []
        self._left: list[str] = []
        self._not_started = ""
        self._lab: Lab | None = None
        self._finished = False
        self._ended = False
        """Whether nothing runs any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt) and not self._ended:
            self._finished = True
            self._cut_short(error)
        else:
            self.finish()

    def start(self) -> None:
        """Start the worker for the first time.

        Raises:
            NotStarted: There is nothing to judge.
        """
        try:
            self._bench.start()
        except NotStarted as error:
            self._not_started = self._bench.masker.text(str(error))
            raise

    def judge(self, check: Check) -> Result | None:
        """Run one check; None where the kit itself failed, which is in the report's `faults`."""
        self._lab = lab = Lab(self._bench, check)
        self._bench.check_id = check.id
        began = time.monotonic()
        outcome: Outcome | None = Outcome.PASS
        reason, fix, without, needless = "", check.fix, "", False
        try:
            self._perform(lab, check)
        except Failed as failure:
            outcome, reason = Outcome.FAIL, str(failure)
            fix = _fix(check, failure)
            if isinstance(failure, NoAnswer):
                said, look_for = look_into(failure, lab.used)
                reason = f"{reason}; {said}" if said else reason
                fix = fix if check.level in _BELOW_CALLS else f"{look_for} What the check is about: {check.fix}"
        except NotStarted as failure:
            outcome, reason = Outcome.FAIL, f"the worker could not be started again: {failure}"
            fix = "Let a worker start however often, also beside others and right after one has ended."
        except NotApplicable as why:
            outcome, reason, without = Outcome.NOT_APPLICABLE, str(why), why.without
        except Untestable as why:
            outcome, reason = Outcome.UNTESTABLE, str(why)
            needless = isinstance(why, NoSandbox)
            fix = "See why no sandbox can be had." if needless else "Give the kit what the reason says that it lacks."
        except Exception:  # noqa: BLE001 - a fault of the check's own code, whatever it is, must not be the worker's
            self._fault(check.id)
            outcome = None
        peak = lab.peak_memory_bytes()
        bad = outcome not in (Outcome.PASS, Outcome.NOT_APPLICABLE) and not needless
        evidence = self._evidence(lab, check) if bad else ()
        if bad and check.uses is Uses.SHARED:
            self._bench.drop_shared()  # what failed here must not fail the next check
        try:
            lab.release()
        except Exception:  # noqa: BLE001 - as above
            self._fault(check.id)
            return None
        if outcome is None:
            return None
        reason, verdict = self._verdict(check, outcome, reason)
        known = self._known.get(check.id)
        result = Result(
            check=check,
            outcome=outcome,
            reason=reason,
            verdict=verdict,
            known=self._bench.masker.text(known.reason) if known else "",
            duration_s=time.monotonic() - began,
            peak_memory_bytes=peak,
            fix=fix,
            without=without,
            evidence=evidence,
        )
        self._results.append(result)
        return result

    def finish(self) -> Report:
        """End everything that runs, look at what is left, and make the report; the same report when called again."""
        if not self._finished:
            self._finished = True
            try:
                self._left = self._bench.finish()
            except Exception:  # noqa: BLE001 - as above
                self._fault("after the run")
            except KeyboardInterrupt as interrupt:
                self._cut_short(interrupt)
                raise
            self._ended = True
        bench = self._bench
        return Report(
            command=tuple(map(bench.masker.text, bench.command)),
            worker=(bench.masker.text(bench.facts.name), bench.masker.text(bench.facts.version)),
            level=self.level,
            protocol_version=PROTOCOL_VERSION,
            kit_version=__version__,
            seed=self.seed,
            scale=bench.times.factor,
            platform=f"{platform.system()} {platform.release()} {platform.machine()}",
            began_at=self._began_at,
            duration_s=time.monotonic() - self._began,
            results=tuple(self._results),
            left=tuple(self._left),
            notes=tuple(bench.notes),
            faults=tuple(self._faults),
            not_started=self._not_started,
            options=self._options,
            unjudged=unjudged(self.level) if self.level else (),
            limits=bench.facts.limits,
        )

    def abandon(self) -> None:
        """Give up a run that was never started."""
        if not self._finished:
            self._finished = True
            self._bench.finish()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Exceptions of the kit itself so far."""
        return tuple(self._faults)

    # -------------------------------------------------------------- inside

    def _cut_short(self, interrupt: KeyboardInterrupt) -> None:
        self._ended = True
        self._bench.cut_short(interrupt)
        if self._lab is not None:
            self._lab.remove_folders()

    def _perform(self, lab: Lab, check: Check) -> None:
        bench = self._bench
        bench.facts.require(check.needs)
        for command in check.needs.commands:
            if not bench.settings.commands.has(command):
                raise Untestable(f"the check runs commands.{command}, which the author's file sets to false")
        check.run(lab)
        if check.uses is Uses.SHARED:
            try:
                lab.worker.ping()
            except Failed as failure:
                raise type(failure)(f"the worker does not serve on after this: {failure}") from failure

    def _verdict(self, check: Check, outcome: Outcome, reason: str) -> tuple[str, Verdict]:
        known = self._known.get(check.id)
        return _verdict(check, outcome, self._bench.masker.text(reason), known, self._began_at.date())

    def _evidence(self, lab: Lab, check: Check) -> tuple[Evidence, ...]:
        return tuple(self._evidence_of(session, check) for session in lab.used)

    def _evidence_of(self, session: Session, check: Check) -> Evidence:
        entries = session.process.transcript.entries()
        begins = [n for n, entry in enumerate(entries) if entry.text == f"{check.id} begins"]
        cause = session.process.exit_cause
        return Evidence(
            command=tuple(map(self._bench.masker.text, session.process.command)),
            exit_cause=str(cause) if cause else "still running",
            stderr=session.process.stderr_text(),
            transcript=entries[begins[-1] if begins else 0 :],
        )

    def _fault(self, where: str) -> None:
        text = self._bench.masker.text(traceback.format_exc())
        self._faults.append(Fault(check=where, traceback=text))


def _fix(check: Check, failure: Failed) -> str:
    """What to do about a failure: the check's own advice, after another one where the worker ended or fell silent.

    Below the calls an end and a silence are what checks are about, and their advice is.
    """
    if isinstance(failure, NoLease):
        return f"{_NO_LEASE} The checks that need a sandbox are untestable until then."
    if isinstance(failure, WorkerGone) and check.level not in _BELOW_CALLS:
        return f"First find out why the worker ended; its log is in the report. What the check is about: {check.fix}"
    if isinstance(failure, TimedOut) and check.level not in (*_BELOW_CALLS, "L3"):
        return f"First find out what the worker waits for, or what takes so long. What the check is about: {check.fix}"
    return check.fix


def _known(failures: Mapping[str, KnownFailure], today: datetime.date) -> Mapping[str, KnownFailure]:
    from .catalogue import find

    for name in failures:
        if not any(check.id == name for check in find(name)):
            raise Misuse(f"known_failures: {name} has several checks; name one of them")
    return failures


def _verdict(
    check: Check, outcome: Outcome, reason: str, known: KnownFailure | None, today: datetime.date
) -> tuple[str, Verdict]:
    if outcome is Outcome.NOT_APPLICABLE:
        return reason, Verdict.NONE
    if outcome is Outcome.PASS:
        if known is None:
            return reason, Verdict.GOOD
        return "it passes, but is listed as a known failure: take it out of the author's file", Verdict.BAD
    if known is not None and outcome is Outcome.FAIL:
        if known.expires is None or today < known.expires:
            return reason, Verdict.KNOWN
        return f"{reason} (known, but only until {known.expires})", Verdict.BAD
    # What cannot be judged is never good enough, whatever the severity.
    if outcome is Outcome.FAIL and (check.severity is Severity.SHOULD or not check.scored):
        return reason, Verdict.WARNING
    return reason, Verdict.BAD


def judge(
    command: Sequence[str],
    *,
    settings: Settings | None = None,
    level: str = "L3",
    only: Sequence[str] = (),
    seed: int | None = None,
    times: Times | None = None,
    on_result: Callable[[Result], None] | None = None,
    disposable: bool = False,
    fail_fast: bool = False,
    options: Sequence[str] = (),
) -> Report:
    """Judge a worker command.

    Args:
        command: Program and arguments; started with `/` as its directory, and files of the current one that it names
            are found all the same.
        settings: What the author's file says; the defaults with the kit's own PATH and locale where None.
        level: The highest level, `L0` to `L4`.
        only: Ids of checks or requirements; then `level` does not matter.
        seed: Repeats an earlier run's choices.
        times: Time limits; measured where None.
        on_result: Called with each result as it comes.
        disposable: Kill and remove what the worker leaves, and say nothing about it: for workers that are broken on
            purpose, whose sandboxes are nothing but folders and processes of this machine.
        fail_fast: End the run with the first check that fails it; those after it are not in the report.
        options: For the report: what the command line was given that a run to repeat this one needs too.

    Returns:
        The report, also where the worker could not be started.

    Raises:
        Misuse: The command is empty, or a level, check or setting does not exist.
    """
    if settings is None:
        import os

        from .settings import parse

        settings = parse({}, os.environ)
    if not only:
        expect_checks(level)
    run = Run(
        with_absolute_files(command),
        settings=settings,
        checks=select(level=level, only=only),
        level="" if only else level,
        seed=seed,
        times=times,
        disposable=disposable,
        options=options,
    )
    with run:
        try:
            run.start()
        except NotStarted:
            return run.finish()
        for check in run.checks:
            result = run.judge(check)
            if result is not None and on_result is not None:
                on_result(result)
            if fail_fast and result is not None and result.verdict is Verdict.BAD:
                break
        return run.finish()
