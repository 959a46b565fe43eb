"""Calls of one credential hold back when its vendor says so: all of them, in order, never past their own deadline."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandport.errors import DeadlineExceeded, Overloaded, QuotaExceeded, RateLimited, Unavailable
from sandport.numbers import RateLimit
from sandport.rate_limits import Gate, RateLimits, Ticket, key_of
from sandport_protocol.errors import Detail

QUICK = RateLimit(first_pause_s=0.01, longest_pause_s=0.04, spread_s=0.001, relearn_s=3600)
PATIENCE_S = 60.0


def gate(policy: RateLimit | None = None, dice: float = 0.5) -> Gate:
    return Gate(policy or RateLimit(), dice=lambda: dice)


def sent(at: Gate, now: float, *, creates: bool = False) -> Ticket:
    ticket = at.ticket(creates=creates)
    assert at.enter(ticket, now)
    return ticket


def waiting(at: Gate, now: float, *, creates: bool = False) -> Ticket:
    ticket = at.ticket(creates=creates)
    assert not at.enter(ticket, now)
    return ticket


# ------------------------------------------------------------------ the gate, without a loop


def test_nothing_is_held_back_before_a_vendor_says_so() -> None:
    at = gate()
    assert all(at.enter(at.ticket(creates=creates), 1.0) for creates in (False, True) * 50)
    assert at.due() is None


def test_a_pause_holds_every_call_of_the_credential_until_the_time_that_was_told() -> None:
    """keeperhub#1431, cwsandbox-client#175: the time to come back was ignored."""
    at = gate()
    first = sent(at, 1.0)
    at.done(first)
    at.limited(first, 2.0, 2.0)
    others = [waiting(at, 2.5), waiting(at, 3.0, creates=True)]
    assert at.held_until(creates=False) == 4.0
    assert at.ready(3.999) == []
    due = at.due()
    assert due is not None
    assert 4.0 <= due <= 4.0 + RateLimit().spread_s
    gone = []
    while (now := at.due()) is not None:
        gone += at.ready(now)
    assert gone == others


def test_who_waited_goes_in_the_order_of_arrival_and_a_little_apart() -> None:
    at = gate(dice=0.5)
    first = sent(at, 0.0)
    at.done(first)
    at.limited(first, 0.0, 1.0)
    assert not at.enter(first, 0.0)  # the one that was refused was there first, and stays it
    others = [waiting(at, 0.1 * number) for number in range(5)]
    times = []
    gone = []
    while (now := at.due()) is not None:
        gone += at.ready(now)
        times.append(now)
    assert gone == [first, *others]
    assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([0.025] * 5)
    # What comes after is not held by it.
    at.ready(times[-1] + 1)
    assert at.enter(at.ticket(creates=False), times[-1] + 1)
    assert at.enter(at.ticket(creates=False), times[-1] + 1)


def test_without_a_time_the_pause_grows_with_each_refusal_that_is_news() -> None:
    at = gate()
    now, pauses = 0.0, []
    for _ in range(8):
        now = max(now, at.due() or now)
        tickets = [at.ticket(creates=False) for _ in range(10)]
        for ticket in tickets:
            ticket.sent_at = now
        now += 0.1
        for ticket in tickets:  # ten that were on their way together are one refusal
            at.limited(ticket, now, None)
        pauses.append(at.held_until(creates=False) - now)
        now = at.held_until(creates=False) + 1
    assert pauses == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30])
    well = at.ticket(creates=False)
    well.sent_at = now
    at.succeeded(well)
    again = at.ticket(creates=False)
    again.sent_at = now + 1
    at.limited(again, now + 1, None)
    assert at.held_until(creates=False) - now - 1 == pytest.approx(1)


@pytest.mark.parametrize("told_s", [0.0, 0.001, -1.0])
def test_a_vendor_that_says_at_once_again_and_again_is_asked_less_and_less(told_s: float) -> None:
    """A worker that answered `retryAfterMs: 0` was asked 24 times a second, for as long as its caller had time."""
    gate = Gate(RateLimit(spread_s=0.0), dice=lambda: 0.0)
    now, asked = 0.0, []
    while now < 600.0:
        ticket = gate.ticket(creates=True)
        assert gate.enter(ticket, now)
        asked.append(now)
        gate.done(ticket)
        gate.limited(ticket, now, told_s)
        now = gate.held_until(creates=True)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert max(pauses) == pytest.approx(RateLimit().longest_pause_s)
    assert len(asked) < 40


def test_a_time_that_a_vendor_tells_holds_as_it_is_until_it_has_often_been_untrue() -> None:
    gate = Gate(RateLimit(spread_s=0.0), dice=lambda: 0.0)
    now = 0.0
    for _ in range(4):
        ticket = gate.ticket(creates=False)
        assert gate.enter(ticket, now)
        gate.done(ticket)
        gate.limited(ticket, now, 1.0)
        assert gate.held_until(creates=False) == pytest.approx(now + 1.0)
        now += 1.0


def test_a_refused_create_teaches_how_many_go_at_once() -> None:
    at = gate()
    tickets = [sent(at, 0.0, creates=True) for _ in range(20)]
    for ticket in tickets[8:]:
        at.done(ticket)
        at.refused(ticket, 1.0, None, None)
        assert not at.enter(ticket, 1.0)
    assert at.places(1.0) == 8
    assert at.due() == 1.0 + RateLimit().relearn_s
    assert at.enter(at.ticket(creates=False), 1.0)  # other calls are not concerned
    at.done(tickets[0])
    assert at.ready(1.5) == [tickets[8]]
    assert at.ready(1.5) == []


def test_who_comes_when_a_place_is_free_and_somebody_waits_for_it_does_not_overtake() -> None:
    at = gate()
    at.at_most = 1
    first = sent(at, 0.0, creates=True)
    second = waiting(at, 0.0, creates=True)
    at.done(first)
    third = waiting(at, 0.0, creates=True)
    assert at.ready(0.0) == [second]
    at.done(second)
    assert at.ready(0.0) == [third]


def test_a_limit_that_the_vendor_names_is_taken_at_once() -> None:
    at = gate()
    tickets = [sent(at, 0.0, creates=True) for _ in range(20)]
    at.done(tickets[0])
    at.refused(tickets[0], 1.0, None, 5)
    assert at.places(1.0) == 5


def test_what_was_learned_is_tried_anew_after_a_while_and_the_configured_number_is_not() -> None:
    at = gate(RateLimit(relearn_s=60))
    at.at_most = 4
    tickets = [sent(at, 0.0, creates=True) for _ in range(4)]
    at.done(tickets[0])
    at.refused(tickets[0], 0.0, None, 2)
    assert [at.places(now) for now in (0.0, 59.0, 60.0, 120.0, 900.0)] == [2, 2, 3, 4, 4]


def test_a_create_that_is_refused_alone_waits_for_a_time_since_it_cannot_wait_for_an_end() -> None:
    at = gate()
    alone = sent(at, 0.0, creates=True)
    at.done(alone)
    at.refused(alone, 1.0, None, None)
    assert not at.enter(alone, 1.0)
    due = at.due()
    assert due is not None
    assert due >= 2.0
    assert at.enter(at.ticket(creates=False), 1.0)


def test_who_gave_up_is_passed_over() -> None:
    at = gate()
    first = sent(at, 0.0)
    at.limited(first, 0.0, 1.0)
    one, two = waiting(at, 0.5), waiting(at, 0.5)
    at.leave(one)
    due = at.due()
    assert due is not None
    assert at.ready(due) == [two]
    assert at.due() is None


class GateMachine(RuleBasedStateMachine):
    """A gate under any order of arrivals, ends, refusals and time: it holds its limits and forgets nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.out: list[Ticket] = []
        self.queue: list[Ticket] = []
        self.limit: int | None = None

    @initialize(dice=st.randoms(use_true_random=False), at_most=st.none() | st.integers(1, 4))
    def begin(self, dice: random.Random, at_most: int | None) -> None:
        self.gate = Gate(RateLimit(relearn_s=1e9), dice=dice.random)
        self.gate.at_most = self.limit = at_most

    @rule(creates=st.booleans())
    def come(self, creates: bool) -> None:
        self.offer(self.gate.ticket(creates=creates))

    def offer(self, ticket: Ticket) -> None:
        if self.gate.enter(ticket, self.now):
            assert self.now >= self.gate.held_until(creates=ticket.creates)
            self.out.append(ticket)
        else:
            self.queue.append(ticket)

    @rule(seconds=st.floats(0.0, 5.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.look()

    def look(self) -> None:
        gone = self.gate.ready(self.now)
        for ticket in gone:
            assert self.now >= self.gate.held_until(creates=ticket.creates)
            earlier = [other for other in self.queue if other.creates == ticket.creates and other < ticket]
            assert earlier == [], "somebody who came later went first"
            self.queue.remove(ticket)
            self.out.append(ticket)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), well=st.booleans())
    def end(self, data: st.DataObject, well: bool) -> None:
        ticket = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.gate.done(ticket)
        if well:
            self.gate.succeeded(ticket)
        self.look()

    @precondition(lambda self: self.out)
    @rule(data=st.data(), retry_after_s=st.none() | st.floats(0.1, 10.0))
    def be_limited(self, data: st.DataObject, retry_after_s: float | None) -> None:
        ticket = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.gate.done(ticket)
        self.gate.limited(ticket, self.now, retry_after_s)
        if retry_after_s is not None:
            assert self.gate.held_until(creates=False) >= self.now + retry_after_s
        self.offer(ticket)

    @precondition(lambda self: any(ticket.creates for ticket in self.out))
    @rule(data=st.data(), retry_after_s=st.none() | st.floats(0.1, 10.0))
    def be_refused(self, data: st.DataObject, retry_after_s: float | None) -> None:
        ticket = data.draw(st.sampled_from([ticket for ticket in self.out if ticket.creates]))
        self.out.remove(ticket)
        self.gate.done(ticket)
        self.gate.refused(ticket, self.now, retry_after_s, None)
        taught = max(1, sum(other.creates for other in self.out))
        self.limit = taught if self.limit is None else min(self.limit, taught)
        self.offer(ticket)

    @precondition(lambda self: self.queue)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.queue))
        self.queue.remove(ticket)
        self.gate.leave(ticket)

    @invariant()
    def no_more_go_than_may(self) -> None:
        if hasattr(self, "gate"):
            creating = sum(ticket.creates for ticket in self.out)
            assert self.gate.creating == creating
            assert self.gate.places(self.now) == self.limit

    def teardown(self) -> None:
        if not hasattr(self, "gate"):
            return
        # Everything ends, and time passes: everybody who waits gets a turn.
        while self.out or self.queue:
            for ticket in self.out:
                self.gate.done(ticket)
            self.out.clear()
            due = self.gate.due()
            if self.queue:
                assert due is not None, "somebody waits for nothing"
                self.now = max(self.now, due)
            before = len(self.queue)
            self.look()
            assert len(self.queue) < before or not before, "nobody went at the time that was told"


TestGateMachine = GateMachine.TestCase


# ------------------------------------------------------------------ the key


def test_a_key_is_one_for_each_provider_tenant_and_set_of_secrets_and_tells_nothing() -> None:
    """Tenants of one provider were held back together, although each may have an account of its own."""
    key = key_of("e2b", "t", {"token": "sesame", "org": "x"})
    assert key == key_of("e2b", "t", {"org": "x", "token": "sesame"})
    assert "sesame" not in key
    others = [
        key_of("daytona", "t", {"token": "sesame", "org": "x"}),
        key_of("e2b", "u", {"token": "sesame", "org": "x"}),
        key_of("e2b", None, {"token": "sesame", "org": "x"}),
        key_of("e2b", "t", {"token": "other", "org": "x"}),
        key_of("e2b", "t", {"token": "sesame"}),
        key_of("e2b", "t", {}),
        key_of("e2b", None, {}),
    ]
    assert len({key, *others}) == len(others) + 1


_key_parts = st.tuples(
    st.text(max_size=3),
    st.none() | st.text(max_size=3),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)


@given(_key_parts, _key_parts)
def test_two_keys_are_equal_exactly_if_all_of_them_is(
    one: tuple[str, str | None, dict[str, str]], other: tuple[str, str | None, dict[str, str]]
) -> None:
    assert (key_of(*one) == key_of(*other)) == (one == other)


# ------------------------------------------------------------------ with a loop

Attempt = Callable[[float], Awaitable[int]]


class Vendor:
    """A vendor that takes so many creates at once, and counts."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.inside = self.peak = self.refusals = 0
        self.sent = self.sent_peak = 0
        self.peak_after_lesson = 0

    async def create(self, left_s: float) -> int:
        self.sent += 1
        self.sent_peak = max(self.sent_peak, self.sent)
        try:
            if self.inside >= self.at_once:
                self.refusals += 1
                await asyncio.sleep(0)
                raise Overloaded("too many creates", dispatched="no")
            self.inside += 1
            self.peak = max(self.peak, self.inside)
            for _ in range(5):
                await asyncio.sleep(0)
            self.inside -= 1
            return 1
        finally:
            self.sent -= 1


@pytest.mark.anyio
@pytest.mark.parametrize("at_most", [8, None], ids=["configured", "learned"])
async def test_a_hundred_creates_at_a_vendor_that_takes_eight_all_succeed(at_most: int | None) -> None:
    """98: cloudflare/sandbox-sdk#794: bursts of creates failed at random."""
    limits, vendor = RateLimits(QUICK), Vendor(8)

    async def burst() -> None:
        calls = [
            limits.call("k", vendor.create, deadline_s=PATIENCE_S, creates=True, at_most=at_most) for _ in range(100)
        ]
        assert sum(await asyncio.gather(*calls)) == 100

    await burst()
    assert vendor.peak == 8
    if at_most is not None:
        assert (vendor.sent_peak, vendor.refusals) == (8, 0)
        return
    assert vendor.refusals == 92
    vendor.sent_peak = vendor.refusals = 0
    await burst()  # the lesson is remembered
    assert (vendor.sent_peak, vendor.refusals) == (8, 0)


@pytest.mark.anyio
async def test_a_call_comes_back_when_the_vendor_said_and_not_sooner() -> None:
    """99: keeperhub#1431, cwsandbox-client#175: retry-after was ignored."""
    loop = asyncio.get_running_loop()
    times: list[float] = []

    async def attempt(left_s: float) -> int:
        times.append(loop.time())
        if len(times) == 1:
            raise RateLimited("slow down", retry_after_s=0.2, dispatched="no")
        return 7

    assert await RateLimits(QUICK).call("k", attempt, deadline_s=PATIENCE_S) == 7
    assert times[1] - times[0] >= 0.2


@pytest.mark.anyio
async def test_a_pause_is_for_one_credential_only() -> None:
    limits = RateLimits(QUICK)

    async def limited(left_s: float) -> int:
        raise RateLimited("slow down", retry_after_s=3600, dispatched="no")

    async def fine(left_s: float) -> int:
        return 1

    with pytest.raises(RateLimited, match="slow down"):
        await limits.call("one", limited, deadline_s=10)
    assert await limits.call("other", fine, deadline_s=10) == 1
    with pytest.raises(RateLimited, match="not sent: the vendor limits this credential for another 3") as raised:
        await limits.call("one", fine, deadline_s=10)
    assert raised.value.dispatched == "no"
    assert raised.value.retry_after_s == pytest.approx(3600, abs=60)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error",
    [
        RateLimited("x", dispatched="unknown"),
        RateLimited("x", dispatched="no", retry="never"),
        Overloaded("x", dispatched="yes"),
        QuotaExceeded("x", dispatched="no"),
        Unavailable("x", dispatched="no"),
    ],
    ids=lambda error: f"{error.condition} {error.dispatched} {error.retry}",
)
async def test_what_may_have_happened_or_will_not_change_is_not_repeated(error: Exception) -> None:
    tries = 0

    async def attempt(left_s: float) -> int:
        nonlocal tries
        tries += 1
        raise error

    with pytest.raises(type(error)) as raised:
        await RateLimits(QUICK).call("k", attempt, deadline_s=PATIENCE_S, creates=True)
    assert raised.value is error
    assert tries == 1


@pytest.mark.anyio
async def test_a_quota_with_a_time_to_come_back_is_waited_for() -> None:
    tries = 0

    async def attempt(left_s: float) -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise QuotaExceeded("full", dispatched="no", retry_after_s=0.01, detail=Detail(limit=3))
        return tries

    assert await RateLimits(QUICK).call("k", attempt, deadline_s=PATIENCE_S, creates=True) == 3


@pytest.mark.anyio
async def test_a_call_whose_turn_does_not_come_says_that_nothing_was_sent() -> None:
    limits = RateLimits(QUICK)
    held = asyncio.Event()

    async def slow(left_s: float) -> int:
        await held.wait()
        return 1

    first = asyncio.ensure_future(limits.call("k", slow, deadline_s=PATIENCE_S, creates=True, at_most=1))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded, match="its turn did not come") as raised:
        await limits.call("k", slow, deadline_s=0.02, creates=True, at_most=1)
    assert raised.value.dispatched == "no"
    held.set()
    assert await first == 1
    assert await limits.call("k", slow, deadline_s=PATIENCE_S, creates=True, at_most=1) == 1


@pytest.mark.anyio
async def test_callers_that_are_cancelled_take_no_place_with_them() -> None:
    limits = RateLimits(QUICK)
    inside = 0

    async def slow(left_s: float) -> int:
        nonlocal inside
        inside += 1
        try:
            await asyncio.sleep(0.001)
        finally:
            inside -= 1
        return 1

    dice = random.Random(7)
    calls = [
        asyncio.ensure_future(limits.call("k", slow, deadline_s=PATIENCE_S, creates=True, at_most=3))
        for _ in range(200)
    ]
    alive = calls[::2]
    for call in dice.sample(calls[1::2], 100):
        await asyncio.sleep(0)
        call.cancel()
        assert inside <= 3
    assert await asyncio.gather(*alive) == [1] * 100
    # A cut at the moment of being let go leaves no place taken: the next ones all go.
    assert (
        await asyncio.gather(
            *(limits.call("k", slow, deadline_s=PATIENCE_S, creates=True, at_most=3) for _ in range(9))
        )
        == [1] * 9
    )


@pytest.mark.anyio
async def test_a_caller_that_is_cancelled_when_it_is_let_go_passes_its_place_on() -> None:
    limits = RateLimits(QUICK)
    held = asyncio.Event()
    attempts = 0

    async def slow(left_s: float) -> int:
        nonlocal attempts
        attempts += 1
        await held.wait()
        return 1

    def call() -> asyncio.Task[int]:
        return asyncio.ensure_future(limits.call("k", slow, deadline_s=PATIENCE_S, creates=True, at_most=1))

    first, second, third = call(), call(), call()
    # At the end of the first the second is let go, and cut before it runs.
    first.add_done_callback(lambda _: second.cancel())
    await asyncio.sleep(0)
    held.set()
    assert sum(await asyncio.gather(first, third)) == 2
    assert second.cancelled()
    assert attempts == 2


@pytest.mark.anyio
async def test_a_host_with_many_credentials_keeps_nothing_of_those_that_went_well() -> None:
    limits = RateLimits(QUICK)

    async def fine(left_s: float) -> int:
        return 1

    for number in range(100):
        await limits.call(str(number), fine, deadline_s=10)
    assert limits.gates == 0
