"""Stories that are told together: each fails for itself, and none is told twice."""

import threading

import pytest

from sandport_conformance.bench import Bench
from sandport_conformance.declaration import Uses
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed
from sandport_conformance.session import Session
from sandport_conformance.stories import Stage, Tale, tell
from tests.conformance.tests.conftest import a_check

LONG_S = 20.0


@pytest.fixture
def lab(bench: Bench) -> Lab:
    return Lab(bench, a_check(lambda lab: None, uses=Uses.OWN))


def test_stories_are_told_at_the_same_time(lab: Lab) -> None:
    met = threading.Barrier(2)

    def one(stage: Stage) -> int:
        return met.wait(LONG_S)

    def other(stage: Stage) -> int:
        return met.wait(LONG_S)

    tale = Tale((one, other))
    assert {tell(lab, tale, one), tell(lab, tale, other)} == {0, 1}


def test_a_story_is_told_once(lab: Lab) -> None:
    told: list[Stage] = []
    tale = Tale((told.append,))
    for _ in range(2):
        tell(lab, tale, told.append)
    assert len(told) == 1


def test_a_story_that_fails_is_the_failure_of_those_alone_who_ask_for_it(lab: Lab) -> None:
    def bad(stage: Stage) -> None:
        raise Failed("in this story")

    def good(stage: Stage) -> str:
        return "in that one"

    tale = Tale((bad, good))
    assert tell(lab, tale, good) == "in that one"
    with pytest.raises(Failed, match="in this story"):
        tell(lab, tale, bad)


def test_a_failure_shows_the_workers_of_its_own_story(lab: Lab) -> None:
    def speaks(stage: Stage) -> Session:
        session = stage.spawn()
        session.ping()
        return session

    def is_silent(stage: Stage) -> Session:
        return stage.spawn(greet=False)

    tale = Tale((speaks, is_silent))
    for story in (speaks, is_silent):
        session = tell(lab, tale, story)
        assert lab.used == [session]
    lab.release()
    assert not session.alive()
