"""What a run found: frozen, complete, free of secrets, and the same through every door."""

from __future__ import annotations

import datetime
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from .declaration import Check
from .outcomes import Outcome, Severity
from .transcript import Entry


class ExitCode(IntEnum):
    """What the command ends with."""

    CONFORMANT = 0
    NOT_CONFORMANT = 1
    USAGE = 2
    NOT_STARTED = 3
    HARNESS = 4


class Verdict(StrEnum):
    """What an outcome means for the run, by the check's severity and the author's known failures."""

    GOOD = "good"
    WARNING = "warning"
    """A SHOULD that is not met, or a check that is not scored yet."""
    KNOWN = "known failure"
    BAD = "bad"
    """Fails the run."""
    NONE = "none"
    """Not applicable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What passed in one worker process of a check that did not pass.

    Attributes:
        command: How it was started.
        exit_cause: How it ended; "still running" where it did not.
        stderr: The end of its log.
        transcript: What was sent and received, from the beginning of the check on.
    """

    command: tuple[str, ...]
    exit_cause: str
    stderr: str
    transcript: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One check of a run.

    Attributes:
        reason: Why it did not pass; empty where it did.
        fix: What its author should do about it.
        verdict: What that means for the run.
        known: The author's reason, where the check is a known failure.
        duration_s: From its beginning to its end, starts and stops of workers included.
        peak_memory_bytes: The most memory of a worker that it used; 0 where the machine does not tell.
        without: For what is not applicable: the group or capability that the worker does without, where it is one.
        evidence: For a failure: one entry for each process.
    """

    check: Check
    outcome: Outcome
    reason: str
    verdict: Verdict
    known: str
    duration_s: float
    peak_memory_bytes: int
    fix: str = ""
    without: str = ""
    evidence: tuple[Evidence, ...] = ()

    @property
    def id(self) -> str:
        """The check's id."""
        return self.check.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An exception of the kit itself; it says nothing about the worker."""

    check: str
    traceback: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole of a run.

    Attributes:
        command: The worker command.
        worker: The provider's name and version, as it says them.
        level: The highest level that was asked for; empty where checks were named.
        protocol_version: The version that was spoken.
        kit_version: The kit's own.
        seed: Repeats the run's choices.
        scale: What every time limit was multiplied with, the machine's slowness included.
        platform: System, release and machine.
        began_at: When, in UTC.
        results: Every check that was judged, in order.
        left: What was still there after the run: each line fails it.
        notes: What happened beside the checks.
        faults: Exceptions of the kit.
        not_started: Why there is nothing to judge; empty where the worker could be started.
        options: What a run that repeats this one must be given beside the seed, as words of a command line.
        unjudged: MUSTs of the level that bind workers and that no check shows.
    """

    command: tuple[str, ...]
    worker: tuple[str, str]
    level: str
    protocol_version: int
    kit_version: str
    seed: int
    scale: float
    platform: str
    began_at: datetime.datetime
    duration_s: float
    results: tuple[Result, ...] = ()
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    not_started: str = ""
    unjudged: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    def rerun(self, *words: str) -> str:
        """The options of `run` that this run was given, with more of them, as a shell takes them."""
        return shlex.join(("run", *self.options, *words))

    @property
    def counts(self) -> dict[Outcome, int]:
        """How many checks ended in each of the four outcomes."""
        counted = Counter(result.outcome for result in self.results)
        return {outcome: counted[outcome] for outcome in Outcome}

    @property
    def conformant(self) -> bool:
        """Whether every MUST that applies was met, nothing was left behind, and the kit itself did not fail."""
        return self.exit_code is ExitCode.CONFORMANT and not self.known_failures

    @property
    def known_failures(self) -> int:
        """How many checks failed as the author's file says they do."""
        return sum(result.verdict is Verdict.KNOWN for result in self.results)

    @property
    def exit_code(self) -> ExitCode:
        """What the command ends with; a fault of the kit outweighs the rest, for the run is not whole then."""
        if self.faults:
            return ExitCode.HARNESS
        if self.not_started:
            return ExitCode.NOT_STARTED
        if self.left or any(result.verdict is Verdict.BAD for result in self.results):
            return ExitCode.NOT_CONFORMANT
        return ExitCode.CONFORMANT

    @property
    def summary(self) -> str:
        """One line, as for a badge."""
        parts = [f"protocol {self.protocol_version}", self._verdict()]
        for severity in Severity:
            judged = [
                result
                for result in self.results
                if result.check.severity is severity and result.outcome is not Outcome.NOT_APPLICABLE
            ]
            passed = sum(result.outcome is Outcome.PASS for result in judged)
            parts.append(f"{passed}/{len(judged)} {severity}")
        parts.append(f"{self.counts[Outcome.NOT_APPLICABLE]} n/a")
        parts.append(f"{self.counts[Outcome.UNTESTABLE]} untestable")
        if self.left:
            parts.append(f"{len(self.left)} left behind")
        if self.faults:
            parts.append(f"{len(self.faults)} faults of the kit")
        parts.append(f"seed {self.seed}")
        return ", ".join(parts)

    def _verdict(self) -> str:
        levels = sorted({result.check.level for result in self.results}) or [self.level or "nothing"]
        span = levels[0] if len(levels) == 1 else f"{levels[0]}-{levels[-1]}"
        if self.not_started:
            return "not started"
        if self.faults:
            return f"{span} not judged"
        if self.exit_code is not ExitCode.CONFORMANT:
            return f"{span} NOT conformant"
        if self.known_failures:
            known = f"{self.known_failures} known failure{'s' * (self.known_failures > 1)}"
            return f"{span} conformant{self._without()} but for {known}"
        return f"{span} conformant{self._without()}"

    def _without(self) -> str:
        """What the worker does without, in words: conformance says nothing of it."""
        names = sorted({result.without for result in self.results if result.without})
        return (
            f" without {', '.join(names[:-1])} and {names[-1]}"
            if names[1:]
            else "".join(f" without {n}" for n in names)
        )
