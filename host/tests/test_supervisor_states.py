"""What a worker is doing is one value: busy is not wedged, wedged is not dead, and what is late changes nothing."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from sandport.worker.states import MEANS, TRANSITIONS, USABLE, Event, State, after

STATES: tuple[State, ...] = get_args(State)
EVENTS: tuple[Event, ...] = get_args(Event)


def through(*events: Event) -> State:
    state: State = "starting"
    for event in events:
        state = after(state, event)
    return state


def test_a_worker_goes_from_its_hello_to_its_end() -> None:
    assert through("said hello") == "importing"
    assert through("said hello", "got ready") == "serving"
    assert through("said hello", "got ready", "stop", "gone") == "dead"


def test_busy_is_usable_and_over_with_a_pong_and_wedged_is_neither() -> None:
    """R07, dask/distributed#8537: busy looked dead."""
    busy = through("said hello", "got ready", "pong late")
    assert busy == "busy"
    assert busy in USABLE
    assert after(busy, "pong") == "serving"
    wedged = after(busy, "wedge")
    assert wedged not in USABLE
    assert after(wedged, "pong") == "wedged"


@given(st.lists(st.sampled_from(EVENTS)))
def test_nothing_leads_back_to_a_usable_state_from_one_that_is_over(events: list[Event]) -> None:
    state = through(*events)
    for over in ("wedged", "broken", "stopping", "dead"):
        if state == over:
            assert all(after(state, event) not in USABLE for event in EVENTS)
    assert after(state, "gone") == "dead"


def test_every_state_is_told_in_words_and_can_be_reached() -> None:
    assert set(MEANS) == set(STATES)
    assert set(TRANSITIONS.values()) | {"starting"} == set(STATES)
    assert {event for _, event in TRANSITIONS} == set(EVENTS)
