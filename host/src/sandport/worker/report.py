"""What is known about the end of a worker, in one object that every failed call shares."""

from __future__ import annotations

import signal
from typing import Literal

from msgspec import Struct

Kind = Literal["exit", "violation", "wedge"]
"""It ended by itself or by somebody else's hand; or the host ended it, for breaking the wire or for its silence."""


class CrashReport(Struct, frozen=True, kw_only=True):
    """The end of one worker process."""

    id: str
    """The same for every call that failed with it."""
    provider: str
    pid: int
    exit_code: int | None = None
    signal: int | None = None
    """The signal that ended it; `exit_code` is None then."""
    uptime_s: float
    phase: str
    """What the worker was doing: `starting` (until its hello), `importing` (until ready), `serving`, `stopping`."""
    kind: Kind = "exit"
    cause: str = ""
    """Why the host ended it, where the host did."""
    log_tail: tuple[str, ...] = ()
    """The last lines of its stderr."""
    open_methods: tuple[str, ...] = ()
    """Calls that were open, oldest first."""
    peak_memory_bytes: int | None = None

    def how(self) -> str:
        """The end in words, e.g. `was killed by SIGKILL` or `exited with code 3`."""
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            hint = " (out of memory is a common reason)" if self.signal == signal.SIGKILL and not self.cause else ""
            return f"was killed by {name}{hint}"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return "ended"

    def summary(self, lines: int = 3) -> str:
        """One line about the end, and the last lines of the log that say something."""
        text = f"the {self.provider} worker (pid {self.pid}) {self.how()}"
        if self.cause:
            text += f": {self.cause}"
        tail = [line for line in self.log_tail if line.strip()][-lines:]
        if tail:
            text += "; its log ends: " + " | ".join(line.strip()[:300] for line in tail)
        return text
