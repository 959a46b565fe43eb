"""When a worker may be started again: counts that live outside of it, windows, delays, and an end that stays one."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandport.numbers import Restart
from sandport.worker.restarts import FAULTS, TRANSITIONS, Closing, Event, Fault, GivenUp, Go, Restarts, State

POLICY = Restart(at_most=3, window_s=60, start_failures_at_most=2, wedges_at_most=1, wedge_window_s=300, stable_s=60)
AT_MOST: dict[Fault, int] = {"crash": 3, "start failure": 2, "wedge": 1}
WINDOW_S: dict[Fault, float] = {"crash": 60, "start failure": 60, "wedge": 300}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def restarts(policy: Restart = POLICY, dice: float = 0.0) -> tuple[Restarts, Clock]:
    clock = Clock()
    return Restarts(policy, clock=clock, dice=lambda: dice), clock


def fail(table: Restarts, fault: Fault, why: str = "") -> None:
    """One worker that ends this way."""
    table.starting()
    if fault != "start failure":
        table.served()
    table.failed(fault, why)


def delay_of(table: Restarts) -> float:
    answer = table.may_start()
    assert isinstance(answer, Go)
    return answer.delay_s


def given_up(table: Restarts) -> GivenUp:
    answer = table.may_start()
    assert isinstance(answer, GivenUp)
    return answer


# ------------------------------------------------------------------ one case each


def test_the_first_start_waits_for_nothing() -> None:
    assert delay_of(restarts()[0]) == 0


@pytest.mark.parametrize(("dice", "delays"), [(0.0, [0.1, 0.2, 0.4, 0.8]), (1.0, [0.2, 0.4, 0.8, 1.6])])
def test_the_delay_doubles_with_every_failure_between_its_bounds(dice: float, delays: list[float]) -> None:
    table, clock = restarts(Restart(at_most=1000), dice)
    seen = []
    for _ in range(40):
        fail(table, "crash")
        seen.append(delay_of(table))
        clock.now += 60  # the window lets it go, the streak does not
    assert seen[:4] == pytest.approx(delays)
    assert max(seen) == (5.0 if dice == 0 else 10.0)


def test_a_delay_counts_from_the_failure_and_not_from_who_asks() -> None:
    table, clock = restarts()
    fail(table, "crash")
    clock.now += 0.04
    assert delay_of(table) == pytest.approx(0.06)
    clock.now += 0.06
    assert delay_of(table) == pytest.approx(0)


def test_each_kind_of_failure_has_a_count_of_its_own() -> None:
    """R04, dask/distributed#6426: failed starts and crashes were one thing."""
    table, _ = restarts()
    for fault in ("crash", "crash", "crash", "start failure", "start failure", "wedge"):
        fail(table, fault)
        assert isinstance(table.may_start(), Go)
    assert {fault: count.in_window for fault, count in table.counts().items()} == {
        "crash": 3,
        "start failure": 2,
        "wedge": 1,
    }
    fail(table, "start failure", "it cannot be imported")
    answer = given_up(table)
    assert (answer.fault, answer.count, answer.why) == ("start failure", 3, "it cannot be imported")


def test_a_provider_that_was_given_up_says_why_and_when_it_is_tried_again_and_is() -> None:
    table, clock = restarts()
    fail(table, "wedge", "it answered no ping")
    clock.now += 100
    fail(table, "wedge", "it answered no ping for 30 s")
    assert str(given_up(table)) == (
        "was wedged 2 times in 300 s; it is not started again for 200 s; the last time: it answered no ping for 30 s"
    )
    clock.now += given_up(table).wait_s
    assert isinstance(table.may_start(), Go)


def test_the_wait_is_until_as_many_are_left_as_may_be() -> None:
    table, clock = restarts()
    for _ in range(5):
        fail(table, "start failure")
        clock.now += 10
    assert given_up(table).wait_s == pytest.approx(60 - 30)  # two of the five may stay: the third must be out


def test_the_longest_of_several_waits_is_the_one_that_is_told() -> None:
    table, _ = restarts()
    for fault in ("start failure",) * 3 + ("wedge",) * 2:
        fail(table, fault)
    assert given_up(table).fault == "wedge"


def test_only_a_worker_that_was_stable_clears_what_was_counted() -> None:
    """R02, mattermost/mattermost#14088: a restart deleted the counter with the object that it was in."""
    table, clock = restarts(Restart(at_most=1000))
    for _ in range(5):
        fail(table, "crash")
        clock.now += 59
    table.starting()
    table.served()
    assert table.counts()["crash"].streak == 5
    table.stable()
    assert {count.streak for count in table.counts().values()} == {0}
    table.failed("crash")
    assert delay_of(table) == pytest.approx(0.1)


def test_it_is_started_again_after_every_crash_that_is_far_from_the_last() -> None:
    """R03, jupyter/jupyter_client#689: a flag that stayed set let it restart once and never again."""
    table, clock = restarts()
    for _ in range(100):
        fail(table, "crash")
        clock.now += 21
        assert isinstance(table.may_start(), Go)


def test_a_stopping_host_starts_nothing_whatever_it_is_told() -> None:
    table, _ = restarts()
    table.starting()
    table.served()
    table.stop()
    table.failed("crash")
    assert table.may_start() == Closing()
    assert table.counts()["crash"].in_window == 0
    with pytest.raises(ValueError, match="'start' while 'stopping'"):
        table.starting()


def test_what_cannot_have_happened_is_refused() -> None:
    table, _ = restarts()
    with pytest.raises(ValueError, match="'crash' while 'idle'"):
        table.failed("crash")
    table.starting()
    with pytest.raises(ValueError, match="'start' while 'starting'"):
        table.starting()


def test_every_state_can_be_reached_and_left_but_the_last() -> None:
    left = {state for state, _ in TRANSITIONS if TRANSITIONS[state, _] != state}
    assert left == set(get_args(State)) - {"stopping"}
    assert set(TRANSITIONS.values()) == set(get_args(State))
    assert {event for _, event in TRANSITIONS} == set(get_args(Event))


@given(dice=st.floats(0, 1, exclude_max=True), count=st.integers(1, 3000), first=st.floats(0.001, 5))
def test_a_delay_is_never_out_of_its_bounds(dice: float, count: int, first: float) -> None:
    table, _ = restarts(Restart(at_most=10_000, first_delay_s=first), dice)
    for _ in range(count):
        fail(table, "crash")
    assert first * 0.999 <= delay_of(table) <= 10.0


# ------------------------------------------------------------------ against a model


class RestartMachine(RuleBasedStateMachine):
    """The table, and beside it a list of everything that failed since the worker was last stable."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.failures: list[tuple[float, Fault]] = []
        self.state: State = "idle"

    @initialize(dice=st.randoms(use_true_random=False))
    def begin(self, dice: object) -> None:
        self.table = Restarts(POLICY, clock=self.clock, dice=dice.random)  # type: ignore[attr-defined]

    @rule(seconds=st.floats(0.01, 200))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def wait_as_told(self) -> None:
        answer = self.table.may_start()
        if isinstance(answer, GivenUp):
            self.clock.now += answer.wait_s + 1e-6
            now = self.table.may_start()
            assert isinstance(now, Go) or (isinstance(now, GivenUp) and now.wait_s > 1e-6)
        elif isinstance(answer, Go):
            self.clock.now += answer.delay_s
            assert delay_of(self.table) <= 1e-6

    @precondition(lambda self: self.state in ("idle", "down"))
    @rule()
    def start(self) -> None:
        if isinstance(self.table.may_start(), Go):
            self.table.starting()
            self.state = "starting"

    @precondition(lambda self: self.state == "starting")
    @rule(serves=st.booleans())
    def come_up(self, serves: bool) -> None:
        if serves:
            self.table.served()
            self.state = "serving"
        else:
            self.note("start failure")

    @precondition(lambda self: self.state == "serving")
    @rule(fault=st.sampled_from(("crash", "wedge")))
    def end_badly(self, fault: Fault) -> None:
        self.note(fault)

    def note(self, fault: Fault) -> None:
        self.table.failed(fault, f"{fault} {len(self.failures)}")
        self.failures.append((self.clock.now, fault))
        self.state = "down"
        answer = self.table.may_start()
        assert not isinstance(answer, Go) or 0.1 - 1e-6 <= answer.delay_s <= 10 + 1e-6

    @precondition(lambda self: self.state == "serving")
    @rule()
    def prove_stable(self) -> None:
        self.table.stable()
        self.failures.clear()

    @precondition(lambda self: self.state == "serving")
    @rule()
    def end_as_asked(self) -> None:
        self.table.ended()
        self.state = "idle"

    @rule()
    @precondition(lambda self: len(self.failures) > 4)
    def close(self) -> None:
        self.table.stop()
        self.state = "stopping"

    @invariant()
    def the_answer_is_what_the_failures_say(self) -> None:
        if not hasattr(self, "table"):
            return
        answer = self.table.may_start()
        assert self.table.state == self.state
        if self.state == "stopping":
            assert answer == Closing()
            return
        now = self.clock.now
        counts = {f: sum(f == kind and now - at < WINDOW_S[f] for at, kind in self.failures) for f in FAULTS}
        assert {fault: count.in_window for fault, count in self.table.counts().items()} == counts
        too_many = {fault for fault in FAULTS if counts[fault] > AT_MOST[fault]}
        if too_many:
            assert isinstance(answer, GivenUp)
            assert answer.fault in too_many
            assert 0 < answer.wait_s <= WINDOW_S[answer.fault] + 1e-6
            assert answer.count == counts[answer.fault]
        else:
            assert isinstance(answer, Go)
            assert 0 <= answer.delay_s <= 10 + 1e-6
            if not self.failures:
                assert answer.delay_s == 0


TestRestartMachine = RestartMachine.TestCase
