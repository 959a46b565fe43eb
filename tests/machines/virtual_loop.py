"""An event loop whose clock stands still until somebody lets it go on: an hour of waiting costs nothing.

Callbacks run in the order in which they became ready, as in asyncio's own loops: code may rely on that, so no other
order is tried. What a machine chooses is between them: how many turns of the loop pass before the next bytes arrive,
and which timer comes before which bytes.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

BEGINNING_S = 1_700_000_000.0
"""The time of day, as Unix time, at which a `LoopClock` begins."""


class _NothingToWaitFor(selectors.SelectSelector):
    """Tells the loop that it has nothing to run, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.on_idle: Callable[[float | None], None] = lambda timeout: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            self.on_idle(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use `turn`, `settle` and `advance` from outside; inside, everything is as in any loop.

    Attributes:
        faults: What a callback or a forgotten future reported to the loop.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._until = 0.0
        selector = _NothingToWaitFor()
        super().__init__(selector)
        selector.on_idle = self._idle
        self.faults: list[str] = []
        self.set_exception_handler(self._on_fault)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to run at this time."""
        return not self._ready  # type: ignore[attr-defined, unused-ignore]

    @property
    def timers(self) -> list[asyncio.TimerHandle]:
        """Those that will go off."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined, unused-ignore]
        return [timer for timer in scheduled if not timer.cancelled()]

    def come_due(self) -> None:
        """Let the time of the next timer come: it goes off in the next turn, behind what is ready by then."""
        if self.is_idle and (timers := self.timers):
            self._now = max(self._now, min(timer.when() for timer in timers))

    def turn(self, count: int = 1) -> None:
        """Run what is ready, so many times, and not what becomes ready meanwhile."""
        for _ in range(count):
            self.stop()
            self.run_forever()

    def settle(self) -> None:
        """Run until nothing is left to run at this time."""
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Let so much time pass: every timer goes off in its order and at its own time."""
        self._until = self._now + seconds
        self.run_forever()

    def _idle(self, timeout: float | None) -> None:
        due = None if timeout is None else self._now + timeout
        if due is not None and due <= self._until:
            self._now = due
        else:
            self._now = max(self._now, self._until)
            self.stop()

    def _on_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.faults.append(f"{context.get('message')}: {context.get('exception')!r}")


def is_ready(task: asyncio.Task[Any]) -> bool:
    """Whether it runs in the loop's next turn: it has not begun, or what it waited for is there."""
    waits_for: asyncio.Future[Any] | None = task._fut_waiter  # type: ignore[attr-defined, unused-ignore]
    return not task.done() and (waits_for is None or waits_for.done())


class LoopClock:
    """The loop's virtual time as time of day."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        """Seconds of Unix time."""
        return BEGINNING_S + self._loop.time()

    def now_ms(self) -> int:
        """Milliseconds of Unix time."""
        return round(self.now_s() * 1000)

    async def sleep(self, seconds_s: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds_s)
