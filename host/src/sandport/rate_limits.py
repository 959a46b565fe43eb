"""Holding back where a vendor says that it is asked too much: one gate for each credential.

Limits are a credential's and not a worker's: workers come and go. What counts as one credential is in `key_of`: the
provider, the tenant, and the secrets of a lease. RateLimited pauses every call of its credential; Overloaded, or
QuotaExceeded with a time to come back, also teaches how many creates go at once. Who waits is let go in the order of
arrival, a little apart, and never past its own deadline.

`Gate` is the whole of it without a loop or a clock; `RateLimits` gives it both.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from msgspec import Struct

from sandport_protocol import codec

from .errors import DeadlineExceeded, Overloaded, QuotaExceeded, RateLimited, WireError
from .numbers import RateLimit

_T = TypeVar("_T")


def key_of(provider: str, tenant: str | None, secrets: Mapping[str, str]) -> str:
    """The key of a credential: one for each provider and tenant, and each set of secrets that a lease brings itself.

    That is as near as the host comes to what a vendor counts together. A worker has its credential from its environment
    or its config, where nobody else can tell it from the rest: tenants who share an account are counted apart, and of
    one tenant two environments with two accounts together.

    It is made of secrets: keep it in memory, and out of logs and stores.

    Args:
        provider: The provider's name.
        tenant: Whose lease it is; None is one of its own.
        secrets: Secrets by name, as they are sent to it.
    """
    return hashlib.sha256(codec.encode([provider, tenant, dict(sorted(secrets.items()))])).hexdigest()


class Ticket:
    """One call's place in the queue; it keeps it over all of its attempts."""

    __slots__ = ("creates", "left", "number", "sent_at")

    def __init__(self, number: int, *, creates: bool) -> None:
        self.number = number
        self.creates = creates
        self.left = False
        self.sent_at = 0.0

    def __lt__(self, other: Ticket) -> bool:
        return self.number < other.number


class _Pause:
    """A time in which nobody goes, and who has already been told of it."""

    __slots__ = ("began", "last", "next_go", "streak", "until")

    def __init__(self) -> None:
        self.until = self.began = self.next_go = float("-inf")
        self.streak = 0
        self.last = 0
        """The last ticket that waited when it ended; until that one has gone they go a little apart."""


class Gate:
    """Who may go now, for one credential; whoever asks says what time it is.

    Args:
        policy: The numbers.
        dice: A number from 0 up to 1, for the jitter.
    """

    def __init__(self, policy: RateLimit, *, dice: Callable[[], float] = random.random) -> None:
        self._policy = policy
        self._dice = dice
        self._numbers = 0
        self._all = _Pause()
        self._creates = _Pause()
        self._waiting: dict[bool, list[Ticket]] = {False: [], True: []}
        self._learned: int | None = None
        self._learned_at = 0.0
        self.at_most: int | None = None
        """How many creates go at once, by configuration."""
        self.creating = 0
        """How many of them are on their way."""
        self.calling = 0
        """How many others are."""

    # -------------------------------------------------------------- going

    def ticket(self, *, creates: bool) -> Ticket:
        """A place behind everybody who came before."""
        self._numbers += 1
        return Ticket(self._numbers, creates=creates)

    def enter(self, ticket: Ticket, now: float) -> bool:
        """Go at once, where nobody waits and nothing holds it back; else it waits until `ready` names it."""
        waiting = self._waiting[ticket.creates]
        if not self._heads(waiting) and self._free_at(ticket.creates) <= now and self._has_place(ticket.creates, now):
            self._go(ticket, now)
            return True
        heapq.heappush(waiting, ticket)
        return False

    def ready(self, now: float) -> list[Ticket]:
        """Who goes now; they count as on their way."""
        gone: list[Ticket] = []
        while True:
            first: Ticket | None = None
            for creates, waiting in self._waiting.items():
                head = self._heads(waiting)
                if head is None or self._free_at(creates) > now or not self._has_place(creates, now):
                    continue
                if first is None or head < first:
                    first = head
            if first is None:
                return gone
            heapq.heappop(self._waiting[first.creates])
            self._go(first, now)
            gone.append(first)
            for pause in (self._all, self._creates) if first.creates else (self._all,):
                self._spread(pause, first, now)

    def due(self) -> float | None:
        """When to ask `ready` again, if nothing ends before; None where only an end can let somebody go."""
        times = []
        for creates, waiting in self._waiting.items():
            if self._heads(waiting) is None:
                continue
            free_at = self._free_at(creates)
            if self._has_place(creates, self._learned_at):
                times.append(free_at)
            elif self._learned is not None:
                times.append(max(free_at, self._learned_at + self._policy.relearn_s))
        return min(times, default=None)

    def held_until(self, *, creates: bool) -> float:
        """Until when nobody of this kind goes, as far as is known."""
        return max(self._all.until, self._creates.until) if creates else self._all.until

    def leave(self, ticket: Ticket) -> None:
        """Its caller gave up waiting."""
        ticket.left = True

    def done(self, ticket: Ticket) -> None:
        """What was on its way has ended, whatever came of it."""
        if ticket.creates:
            self.creating -= 1
        else:
            self.calling -= 1

    # -------------------------------------------------------------- what the vendor said

    def limited(self, ticket: Ticket, now: float, retry_after_s: float | None) -> None:
        """It was asked too often: everybody waits."""
        self._pause(self._all, ticket, now, retry_after_s)

    def refused(self, ticket: Ticket, now: float, retry_after_s: float | None, limit: int | None) -> None:
        """It takes no more creates at once: those that are on their way are as many as it takes.

        Args:
            ticket: Whose create was refused; `done` was told of it.
            now: The time.
            retry_after_s: Seconds, where the vendor said so.
            limit: The ceiling, where the vendor said so.
        """
        taught = limit if limit is not None and 0 < limit <= self.creating + 1 else max(1, self.creating)
        self._learned = taught if self._learned is None else min(self._learned, taught)
        self._learned_at = now
        # With nothing on its way there is no end to wait for.
        if retry_after_s is not None or not self.creating:
            self._pause(self._creates, ticket, now, retry_after_s)

    def succeeded(self, ticket: Ticket) -> None:
        """It went well: the next pause without a time is a short one again."""
        for pause in (self._all, self._creates):
            if ticket.sent_at > pause.began:
                pause.streak = 0

    def places(self, now: float) -> int | None:
        """How many creates may be on their way at once; None where nothing is known."""
        if self._learned is not None and now - self._learned_at >= self._policy.relearn_s:
            steps = int((now - self._learned_at) // self._policy.relearn_s)
            self._learned += steps
            self._learned_at += steps * self._policy.relearn_s
        known = [limit for limit in (self.at_most, self._learned) if limit is not None]
        return min(known, default=None)

    def is_idle(self, now: float) -> bool:
        """Whether nothing is lost when it is forgotten."""
        forgotten_s = 10 * self._policy.relearn_s
        return (
            not self.creating
            and not self.calling
            and not any(self._heads(waiting) for waiting in self._waiting.values())
            and max(self._all.next_go, self._creates.next_go) <= now
            and (self._learned is None or now - self._learned_at > forgotten_s)
        )

    # -------------------------------------------------------------- inside

    def _pause(self, pause: _Pause, ticket: Ticket, now: float, retry_after_s: float | None) -> None:
        # Calls that were sent before the pause was known fail one after the other: that is one refusal and not many.
        is_news = ticket.sent_at > pause.began
        if is_news:
            pause.streak += 1
            pause.began = now
            # Also where it says when to come back: who says "at once", and refuses again, is not asked without end.
            first_s = self._policy.first_pause_s if retry_after_s is None else self._policy.shortest_pause_s
            least_s = min(self._policy.longest_pause_s, first_s * 2.0 ** min(pause.streak - 1, 64))
            retry_after_s = max(retry_after_s or 0.0, least_s)
        elif retry_after_s is None:
            return
        if now + retry_after_s > pause.until:
            pause.until = now + retry_after_s
            pause.next_go = pause.until + self._policy.spread_s * self._dice()
            pause.last = 0

    def _spread(self, pause: _Pause, gone: Ticket, now: float) -> None:
        """Keep those who waited for the end of a pause apart; places that come free one by one are no burst."""
        if pause.until > float("-inf") and not pause.last:
            pause.last = self._numbers
        if gone.number <= pause.last:
            pause.next_go = now + self._policy.spread_s * self._dice()

    def _go(self, ticket: Ticket, now: float) -> None:
        ticket.sent_at = now
        if ticket.creates:
            self.creating += 1
        else:
            self.calling += 1

    def _free_at(self, creates: bool) -> float:  # noqa: FBT001 - it is the key of the queues
        return max(self._all.next_go, self._creates.next_go) if creates else self._all.next_go

    def _has_place(self, creates: bool, now: float) -> bool:  # noqa: FBT001 - it is the key of the queues
        if not creates:
            return True
        places = self.places(now)
        return places is None or self.creating < places

    @staticmethod
    def _heads(waiting: list[Ticket]) -> Ticket | None:
        """Who is first, past those who gave up."""
        while waiting and waiting[0].left:
            heapq.heappop(waiting)
        return waiting[0] if waiting else None


class _Open(Struct):
    """A gate in use, who waits at it, and its timer."""

    gate: Gate
    waiters: dict[Ticket, asyncio.Future[None]]
    timer: asyncio.TimerHandle | None = None


class RateLimits:
    """The gates of a host.

    Args:
        policy: The numbers.
        dice: A number from 0 up to 1, for the jitter.
    """

    def __init__(self, policy: RateLimit | None = None, *, dice: Callable[[], float] = random.random) -> None:
        self._policy = policy or RateLimit()
        self._dice = dice
        self._gates: dict[str, _Open] = {}

    @property
    def gates(self) -> int:
        """How many credentials something is known of."""
        return len(self._gates)

    async def call(
        self,
        key: str,
        attempt: Callable[[float], Awaitable[_T]],
        *,
        deadline_s: float,
        creates: bool = False,
        at_most: int | None = None,
        repeats: bool = True,
    ) -> _T:
        """The result of a call, made when its credential allows, and made again where the vendor asked to come back.

        Args:
            key: Whose credential it uses: `key_of`.
            attempt: Makes the call once, given the seconds that are left; each attempt to create mints an id of its
                own. It is repeated only after an error that says that nothing was dispatched and that a retry helps.
            deadline_s: For all attempts and all waiting.
            creates: Whether it creates a sandbox: these are also held to a number at once.
            at_most: That number, where it is configured; else it is learned from the vendor's refusals.
            repeats: Whether the call may be made again; one that may not still waits for its turn, and what the vendor
                answers holds back those that come after it.

        Raises:
            RateLimited, Overloaded, QuotaExceeded: The vendor's last word, where there is no time left to come back.
            DeadlineExceeded: Its turn did not come in time; nothing was sent.
            Exception: Whatever else the attempt raised.

        Cancel: a waiting call leaves the queue, nothing was sent; in an attempt, what the attempt does.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        entry = self._entry(key)
        gate = entry.gate
        if at_most is not None:
            gate.at_most = at_most
        ticket = gate.ticket(creates=creates)
        last: WireError | None = None
        try:
            while True:
                if not gate.enter(ticket, loop.time()):
                    await self._turn(entry, ticket, end, last)
                try:
                    try:
                        result = await attempt(end - loop.time())
                    finally:
                        # However it ended, by a cancel too: its place is the next one's.
                        gate.done(ticket)
                except (RateLimited, Overloaded, QuotaExceeded) as error:
                    if not self._told(gate, ticket, error, end) or not repeats:
                        raise
                    last = error
                    # Who waits goes by what is known now, and not by what was known when it came.
                    self._wake(entry)
                else:
                    gate.succeeded(ticket)
                    return result
        finally:
            self._wake(entry)
            if not entry.waiters and gate.is_idle(loop.time()) and self._gates.get(key) is entry:
                del self._gates[key]

    def _entry(self, key: str) -> _Open:
        entry = self._gates.get(key)
        if entry is None:
            now = asyncio.get_running_loop().time()
            for other in [name for name, old in self._gates.items() if not old.waiters and old.gate.is_idle(now)]:
                del self._gates[other]
            entry = self._gates[key] = _Open(Gate(self._policy, dice=self._dice), {})
        return entry

    @staticmethod
    def _told(gate: Gate, ticket: Ticket, error: WireError, end: float) -> bool:
        """Let the gate know what the vendor said; whether the call is made again."""
        now = asyncio.get_running_loop().time()
        if isinstance(error, RateLimited):
            gate.limited(ticket, now, error.retry_after_s)
        elif ticket.creates and (isinstance(error, Overloaded) or error.retry_after_s is not None):
            gate.refused(ticket, now, error.retry_after_s, error.detail.limit if error.detail else None)
        else:
            return False  # a quota that is full until somebody frees it, or too much of something else
        may_repeat = error.dispatched == "no" and error.retry != "never"
        return may_repeat and gate.held_until(creates=ticket.creates) < end

    async def _turn(self, entry: _Open, ticket: Ticket, end: float, last: WireError | None) -> None:
        """Wait until the gate lets it go."""
        loop = asyncio.get_running_loop()
        gate = entry.gate
        now = loop.time()
        held_until = gate.held_until(creates=ticket.creates)
        if held_until >= end:
            gate.leave(ticket)
            raise last or RateLimited(
                f"not sent: the vendor limits this credential for another {held_until - now:.1f} s, and the call has "
                f"{end - now:.1f} s",
                retry_after_s=held_until - now,
                dispatched="no",
            )
        turn: asyncio.Future[None] = loop.create_future()
        entry.waiters[ticket] = turn
        self._wake(entry)
        try:
            await asyncio.wait((turn,), timeout=end - now)
        except asyncio.CancelledError:
            if turn.done():
                gate.done(ticket)  # it was let go at the same moment: the place goes to the next one
            raise
        finally:
            entry.waiters.pop(ticket, None)
            if not turn.done():
                gate.leave(ticket)
        if not turn.done():
            raise last or DeadlineExceeded(
                f"not sent: its turn did not come in {end - now:.1f} s ({gate.creating} creates are on their way)",
                dispatched="no",
            )

    def _wake(self, entry: _Open) -> None:
        """Let go whoever may go, and look again when the next one may."""
        loop = asyncio.get_running_loop()
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        if not entry.waiters:
            return
        for ticket in entry.gate.ready(loop.time()):
            entry.waiters[ticket].set_result(None)
        due = entry.gate.due()
        if due is not None:
            entry.timer = loop.call_at(due, self._wake, entry)
