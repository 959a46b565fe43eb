"""What a person is told of a command while it is at work, and what is noted of it in the report."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator, Sequence

from .application import Settings
from .failures import OutputFailed, failure_of
from .messages import say, write
from .plan import Talk
from .report import Phase, Report
from .status import Status
from .transfer import Transfer


class Narrator:
    """Lines on stderr, times and failures in the report.

    Args:
        talk: How much to say.
        settings: What the shared options say.
        report: Where times and failures go.
        for_machine: A program reads what comes of it, so that nothing is drawn.
        told: What the log has said of failures already; it may grow.
    """

    def __init__(
        self, talk: Talk, settings: Settings, report: Report, *, for_machine: bool, told: Sequence[str] = ()
    ) -> None:
        self._told = told
        self.talk = talk
        self.report = report
        self.status = Status(quiet=talk == "quiet" or for_machine)
        self._settings = settings

    @contextlib.contextmanager
    def phase(self, phase: Phase, what: str | None) -> Iterator[None]:
        """Count the block's time, and show on a terminal what takes long."""
        with self.report.timing(phase):
            if what is None:
                yield
            else:
                with self.status.doing(what):
                    yield

    def tell(self, what: str, phase: Phase) -> None:
        """Something was done; for those who want to know."""
        if self.talk == "verbose":
            say(f"{what} ({self.report.timings_ms.get(phase, 0) / 1000:.2f} s)")

    def remark(self, what: str) -> None:
        """Something that everybody should know who did not ask for silence."""
        if self.talk != "quiet":
            say(what)

    def failed(self, error: Exception, *, of: Transfer | None = None) -> None:
        """Something went wrong: a line, an exit code, a part of the report."""
        failure = failure_of(error, started=self.report.ids.sandbox is not None)
        self.report.failed(failure)
        if self._settings.debug:
            write("".join(traceback.format_exception(error)))
        if isinstance(error, OutputFailed) and error.closed:
            return  # as any program in a pipe: whoever closed it knows
        if self._settings.interrupts.received is not None and self.talk != "verbose":
            return  # the cancelled call says that it was cancelled; clean-up that fails is in the log
        if any(failure.message.startswith(one) for one in self._told):
            return  # the end of a worker, say, which is in the log whoever it hits
        text = failure.message if of is None else f"{of.option}: {failure.message}"
        say(text if failure.condition != "Bug" else f"a fault in sandport itself: {text}\nrun it again with --debug")
