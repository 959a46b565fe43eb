"""The deadlines of all open calls of a worker on one timer.

A timer for each call would cost a tenth of a small call's time, though nearly all of them are cancelled unused. This
one stands at the earliest deadline that it was told; when it goes off, whoever is over is told, and it is set to the
earliest of those that are left.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Deadlines:
    """Watches what is open.

    Args:
        loop: Whose clock counts.
        look: Looks after what is over, and answers the next time at which something will be.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[float], float]) -> None:
        self._loop = loop
        self._look = look
        self._timer: asyncio.TimerHandle | None = None
        self._stands_at = math.inf

    def watch(self, due: float) -> None:
        """See to it that somebody looks at this time."""
        if due < self._stands_at:
            self.stop()
            self._stands_at = due
            self._timer = self._loop.call_at(due, self._goes_off)

    def stop(self) -> None:
        """Watch nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._stands_at = math.inf

    def _goes_off(self) -> None:
        self._timer = None
        self._stands_at = math.inf
        self.watch(self._look(self._loop.time()))
