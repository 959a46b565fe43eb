"""When clean-up tries again. It never gives up: a vendor that is down for a day must find nothing forgotten."""

from __future__ import annotations

import random

from msgspec import Struct


class Delays(Struct, frozen=True, kw_only=True):
    """The waits between attempts at one sandbox."""

    first_s: float = 1.0
    longest_s: float = 600.0
    """A vendor's outage of hours costs a call each ten minutes, and its end is noticed within them."""
    absent_s: float = 30.0
    """Where the provider's worker cannot be started; that is no attempt, and does not make the delay grow."""
    look_s: float = 10.0
    """At least so often is looked for work that others left: owners that died since, leases whose time is over."""

    def after(self, attempts: int, *, draw: random.Random) -> float:
        """Seconds until the next attempt, after so many that failed: doubled each time, less up to a half."""
        # The exponent is bounded: attempts are counted for as long as the vendor is down.
        longest = min(self.longest_s, self.first_s * 2.0 ** min(max(attempts - 1, 0), 30))
        return longest * draw.uniform(0.5, 1.0)
