"""Ctrl-C, SIGTERM and SIGHUP, from the first moment of the process to the last.

Before anything was started, and after everything was ended, a signal ends the process at once. In between the first
one cancels what runs, so that it is cleaned up; a second one leaves without waiting. (Python itself must be up first:
for its first hundredths of a second a signal ends it in Python's own way, and nothing has been started then.)

What is cancelled may be waiting for a reader of our output who does not read, and so may what is said of the end: a
write is begun again after a signal. From the first signal on a timer looks at what the main thread is at, and breaks
off a write of which nothing is taken.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from types import FrameType

from .descriptors import Unread, is_writing

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ECHO_S = 0.1
"""The same signal again so soon is not a second one: timeout(1), and wrappers that pass a Ctrl-C on to a group which
the terminal has told already, send each twice. No finger is that fast."""
READER_S = 0.5
"""After a signal, a reader who takes nothing for so long, or at most twice as long, is not waited for."""
ABSENT_READER_S = 0.05
"""The same once one was not waited for: what is still to be said must not add up."""


class Interrupts:
    """The handler of this process's signals.

    Attributes:
        received: The first signal that was caught, None before.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._received_at = 0.0
        self._cancel: Callable[[], object] | None = None
        self._abandon: Callable[[], object] | None = None
        self._writing: FrameType | None = None

    def install(self) -> None:
        """Catch the signals; one that the parent had ignored (nohup, a background job) stays ignored."""
        for number in CAUGHT:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def guard(self, cancel: Callable[[], object]) -> None:
        """From now on something runs: the first signal calls `cancel`, in the middle of whatever the thread does."""
        self._cancel = cancel

    def on_leaving(self, abandon: Callable[[], object]) -> None:
        """What a second signal still does, without waiting, before it ends the process."""
        self._abandon = abandon

    def relax(self) -> None:
        """Everything was ended: from now on a signal ends the process at once."""
        self._cancel = self._abandon = None

    def finish(self) -> None:
        """The exit code is settled: a signal that comes while the interpreter winds up no longer changes it."""
        if self.received is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in CAUGHT:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_IGN)

    @property
    def exit_code(self) -> int | None:
        """128 and the signal, as a shell says it; None where none came."""
        return None if self.received is None else 128 + self.received

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        first = self.received is None
        if first:
            self.received, self._received_at = number, now
        if self._cancel is not None:
            if first:
                signal.signal(signal.SIGALRM, self._look)
                signal.setitimer(signal.ITIMER_REAL, READER_S, READER_S)
                self._cancel()
                return
            if number == self.received and now - self._received_at < ECHO_S:
                return
        # Once: a third signal leaves even where this one waits for somebody who does not read our words.
        abandon, self._abandon = self._abandon, None
        try:
            if abandon is not None:
                abandon()
        finally:
            # Not an exception: that would pass through whatever runs, and could be caught there.
            os._exit(self.exit_code or 0)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        """Break off a write in which nothing moved since the last look: one that gets on returns, and is another."""
        writing = frame if frame is not None and is_writing(frame) else None
        if writing is None or writing is not self._writing:
            self._writing = writing
            return
        self._writing = None
        signal.setitimer(signal.ITIMER_REAL, ABSENT_READER_S, ABSENT_READER_S)
        raise Unread
