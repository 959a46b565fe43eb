r"""When a worker may be started: one state, three counts, no clock, no loop and no dice of its own.

```text
         start            served
idle ------------> starting ------------> serving ---- end ----> idle
down ------------>    |                   |     \---- stable: the counts are cleared
 ^                    | start failure     | crash, wedge
 +--------------------+-------------------+

stop, from anywhere --> stopping, which nothing leaves
```

Owned by the supervisor and not by what restarts: a count that lived in the worker would begin anew with each of them.
A failed start, a crash and a wedge have each a window of their own, and each a streak that sets the delay; only a
worker that has served for a while, and still answers, clears them.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal, get_args

from msgspec import Struct

from sandport.numbers import Restart

Fault = Literal["start failure", "crash", "wedge"]
State = Literal["idle", "starting", "serving", "down", "stopping"]
Event = Literal["start", "served", "start failure", "crash", "wedge", "stable", "end", "stop"]

FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    ("idle", "start"): "starting",
    ("down", "start"): "starting",
    ("starting", "served"): "serving",
    ("starting", "start failure"): "down",
    ("serving", "stable"): "serving",
    ("serving", "crash"): "down",
    ("serving", "wedge"): "down",
    ("serving", "end"): "idle",
    **{(state, "stop"): "stopping" for state in get_args(State)},
    # What was under way when the stop came still ends, and changes nothing any more.
    **{("stopping", event): "stopping" for event in ("served", "start failure", "crash", "wedge", "stable", "end")},
}
"""Every move that there is; any other is a mistake of the caller."""

_SAID: Final[Mapping[Fault, str]] = {
    "start failure": "failed to start",
    "crash": "crashed",
    "wedge": "was wedged",
}


class Go(Struct, frozen=True):
    """It may be started."""

    delay_s: float
    """Seconds to wait before; 0 where it has not failed of late."""


class GivenUp(Struct, frozen=True, kw_only=True):
    """It is not started for a while: it failed too often."""

    fault: Fault
    count: int
    window_s: float
    wait_s: float
    """Seconds until it may be tried again."""
    why: str
    """What was said of the last failure of this kind."""

    def __str__(self) -> str:
        said = f"{_SAID[self.fault]} {self.count} times in {self.window_s:g} s"
        last = f"; the last time: {self.why}" if self.why else ""
        return f"{said}; it is not started again for {self.wait_s:.0f} s{last}"


class Closing(Struct, frozen=True):
    """Nothing is started any more."""


class Count(Struct, frozen=True, kw_only=True):
    """What is counted of one kind of failure."""

    in_window: int = 0
    streak: int = 0
    """How many since the worker last was stable."""


class _Tally:
    """Failures of one kind."""

    __slots__ = ("at_most", "streak", "times", "why", "window_s")

    def __init__(self, at_most: int, window_s: float) -> None:
        self.at_most = at_most
        self.window_s = window_s
        self.times: deque[float] = deque()
        self.streak = 0
        self.why = ""

    def prune(self, now: float) -> None:
        while self.times and self.times[0] <= now - self.window_s:
            self.times.popleft()

    def clear(self) -> None:
        self.times.clear()
        self.streak = 0
        self.why = ""


class Restarts:
    """Told what became of each worker; says whether, and after which delay, the next may be started.

    Args:
        policy: The limits.
        clock: Seconds that only grow.
        dice: A number from 0 up to 1, for the jitter.
    """

    def __init__(
        self,
        policy: Restart,
        *,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._dice = dice
        self._state: State = "idle"
        self._not_before = -float("inf")
        self._tallies: dict[Fault, _Tally] = {
            "start failure": _Tally(policy.start_failures_at_most, policy.window_s),
            "crash": _Tally(policy.at_most, policy.window_s),
            "wedge": _Tally(policy.wedges_at_most, policy.wedge_window_s),
        }

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._state

    def counts(self) -> dict[Fault, Count]:
        """What counts now, by kind."""
        now = self._clock()
        for tally in self._tallies.values():
            tally.prune(now)
        return {fault: Count(in_window=len(tally.times), streak=tally.streak) for fault, tally in self._tallies.items()}

    def may_start(self) -> Go | GivenUp | Closing:
        """Whether the next worker may be started, and when."""
        if self._state == "stopping":
            return Closing()
        now = self._clock()
        worst: GivenUp | None = None
        for fault, tally in self._tallies.items():
            tally.prune(now)
            over = len(tally.times) - tally.at_most
            if over > 0:
                wait_s = tally.times[over - 1] + tally.window_s - now
                if worst is None or wait_s > worst.wait_s:
                    worst = GivenUp(
                        fault=fault, count=len(tally.times), window_s=tally.window_s, wait_s=wait_s, why=tally.why
                    )
        return worst or Go(max(0.0, self._not_before - now))

    # -------------------------------------------------------------- what became of it

    def starting(self) -> None:
        """A worker is being spawned."""
        self._move("start")

    def served(self) -> None:
        """It said hello and got ready."""
        self._move("served")

    def stable(self) -> None:
        """It has served for the time that the policy asks, and answers: what was counted is forgotten."""
        self._move("stable")
        if self._state == "serving":
            for tally in self._tallies.values():
                tally.clear()
            self._not_before = -float("inf")

    def failed(self, fault: Fault, why: str = "") -> None:
        """It did not come up, ended by itself, or did not answer and was ended."""
        self._move(fault)
        if self._state == "stopping":
            return
        now = self._clock()
        tally = self._tallies[fault]
        tally.prune(now)
        tally.times.append(now)
        tally.streak += 1
        tally.why = why
        self._not_before = max(self._not_before, now + self._delay_s(tally.streak))

    def ended(self) -> None:
        """It was asked to end, and did."""
        self._move("end")

    def stop(self) -> None:
        """The host is closing."""
        self._move("stop")

    def _move(self, event: Event) -> None:
        try:
            self._state = TRANSITIONS[self._state, event]
        except KeyError:
            raise ValueError(f"{event!r} while {self._state!r}") from None

    def _delay_s(self, streak: int) -> float:
        first, longest = self._policy.first_delay_s, self._policy.longest_delay_s
        # Capped before the power: a streak of thousands is legal.
        top = min(longest, first * 2.0 ** min(streak, 64))
        return max(min(first, longest), top * (0.5 + 0.5 * self._dice()))
