"""How long a worker may take, on this machine: every limit is a base, scaled by what the machine needs for a start.

A limit ends a hang; none judges speed. Where a requirement is about order ("a ping overtakes work"), a check puts a
ping behind what it waits for instead of a clock beside it.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass

_EXPECTED_START_S = 0.004
"""Starting and ending `/bin/sh -c :` on an idle machine of 2020."""
_MOST = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The limits in force.

    Attributes:
        factor: What every base was multiplied with: the machine's slowness times the author's scale.
        vendor_s: What a call that may wait for a vendor gets, before the factor.
    """

    factor: float = 1.0
    vendor_s: float = 60.0

    @property
    def start_s(self) -> float:
        """From the start of the process to the answer of its hello."""
        return 20 * self.factor

    @property
    def answer_s(self) -> float:
        """An answer that depends on nothing outside the worker."""
        return 10 * self.factor

    @property
    def call_s(self) -> float:
        """A call that may wait for a vendor: acquire, attach, list, destroy, probe, the start of a command."""
        return self.vendor_s * self.factor

    @property
    def exit_s(self) -> float:
        """The end of the process after what should end it."""
        return 10 * self.factor

    @property
    def moment_s(self) -> float:
        """A pause in which something that must not happen would have time to happen; never a proof by itself."""
        return 0.2 * self.factor


def measure(scale: float = 1.0) -> Times:
    """The limits for this machine as it is now: the best of three starts of a shell says how slow it is."""
    best = _MOST
    for _ in range(3):
        begin = time.monotonic()
        subprocess.run(["/bin/sh", "-c", ":"], check=True, stdin=subprocess.DEVNULL)
        best = min(best, time.monotonic() - begin)
    return Times(factor=min(_MOST, max(1.0, best / _EXPECTED_START_S)) * scale)
