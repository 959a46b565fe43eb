"""What is known about the end of a worker, in one object that every failed call shares."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from .levels import LevelReader
from .memory import MemoryFacts

Kind = Literal["exit", "violation", "wedge"]
"""It ended by itself or by somebody else's hand; or the host ended it, for breaking the wire or for its silence."""


_CALLS = 8
_LINE = 300
_REASON = 2_000
"""Characters of a line in a message, and of one that a worker wrote to be all of it."""
_GAVE_UP = "sandport worker: "
"""How a worker of the SDK begins the one sentence that says why it does not start."""


def last_words(log_tail: Sequence[str], lines: int = 3) -> str:
    """What a message says of a log's end: the sentence by which a worker gave up, else its last lines; or nothing."""
    read = LevelReader()
    said = [text.splitlines()[-1].strip() for line in log_tail if (text := read.read(line)[1].strip())]
    if not said:
        return ""
    if said[-1].startswith(_GAVE_UP):
        return ": " + said[-1].removeprefix(_GAVE_UP)[:_REASON]
    return "; its log ends: " + " | ".join(line[:_LINE] for line in said[-lines:])


class Survivor(Struct, frozen=True, kw_only=True):
    """A process that carries a worker's token."""

    pid: int
    start_ticks: int
    token: str
    argv: tuple[str, ...]
    since_ms: int
    """When it was started, Unix milliseconds."""
    group: int = 0
    """Its process group."""
    is_worker: bool = False
    """Whether a record proves that it is the worker itself."""
    in_group: bool = False
    """Whether it is proven to be in the worker's own process group."""

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.since_ms / 1000))
        return f"pid {self.pid} ({' '.join(self.argv)[:200] or '?'}) since {since}"


class CrashReport(Struct, frozen=True, kw_only=True):
    """The end of one worker process."""

    id: str
    """The same for every call that failed with it."""
    provider: str
    tenant: str | None = None
    pid: int
    exit_code: int | None = None
    signal: int | None = None
    """The signal that ended it; `exit_code` is None then."""
    uptime_s: float
    phase: str
    """What the worker was doing: a state of `worker.states`, e.g. `starting` (until its hello), `busy`, `stopping`."""
    kind: Kind = "exit"
    cause: str = ""
    """Why the host ended it, where the host did."""
    log_tail: tuple[str, ...] = ()
    """The last lines of its stderr."""
    open_methods: tuple[str, ...] = ()
    """Calls that were open, oldest first."""
    peak_memory_bytes: int | None = None
    memory: MemoryFacts = MemoryFacts()
    """What was known about memory, where it was killed and not by this host."""
    log_path: str = ""
    """The file with all of its log; empty where there is none."""
    survivors: tuple[Survivor, ...] = ()
    """Processes that carry its token and are not in its group; they are left alone."""

    def how(self) -> str:
        """The end in words, e.g. `was killed by SIGKILL` or `exited with code 3`."""
        if self.signal is not None:
            try:
                name = signal.Signals(self.signal).name
            except ValueError:
                name = f"signal {self.signal}"
            return f"was killed by {name}{self._who()}"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return "ended"

    def _who(self) -> str:
        if self.signal != signal.SIGKILL or self.cause:
            return ""
        hint = self.memory.hint(self.peak_memory_bytes)
        return f" ({hint})" if hint else ", and not by this host"

    def summary(self, lines: int = 3) -> str:
        """One line about the end, and the last lines of the log that say something."""
        whose = self.provider if self.tenant is None else f"{self.provider} (tenant {self.tenant})"
        text = f"the {whose} worker (pid {self.pid}) {self.how()}"
        if self.cause:
            text += f": {self.cause}"
        if self.kind == "wedge" and (calls := [name for name in self.open_methods if name != "ping"]):
            text += f" (these calls were open: {', '.join(calls[:_CALLS])})"
        text += last_words(self.log_tail, lines)
        if self.survivors:
            text += f"; it left {len(self.survivors)} running: " + ", ".join(str(left) for left in self.survivors[:3])
        if self.log_path:
            text += f"; all of its log is in {self.log_path}"
        return text
