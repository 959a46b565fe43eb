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

LONG_S = 60.0


@pytest.fixture(params=[True, False], ids=["together", "one by one"])
def lab(bench: Bench, request: pytest.FixtureRequest) -> Lab:
    bench.together = request.param
    return Lab(bench, a_check(lambda lab: None, uses=Uses.OWN))


def test_stories_are_told_at_the_same_time_where_many_checks_run(bench: Bench) -> None:
    tale = Tale("of a meeting")
    met = threading.Barrier(2)

    @tale.story
    def one(stage: Stage) -> int:
        return met.wait(LONG_S)

    @tale.story
    def other(stage: Stage) -> int:
        return met.wait(LONG_S)

    bench.together = True
    lab = Lab(bench, a_check(lambda lab: None))
    assert {tell(lab, tale, one), tell(lab, tale, other)} == {0, 1}


def test_a_story_that_nobody_asks_for_is_not_told_where_few_checks_run(bench: Bench) -> None:
    tale = Tale("of which little is wanted")
    told: list[str] = []

    @tale.story
    def wanted(stage: Stage) -> None:
        told.append("wanted")

    @tale.story
    def unwanted(stage: Stage) -> None:
        told.append("unwanted")

    tell(Lab(bench, a_check(lambda lab: None)), tale, wanted)
    assert told == ["wanted"]


def test_a_story_is_told_once(lab: Lab) -> None:
    tale = Tale("of one")
    told: list[Stage] = []

    @tale.story
    def once(stage: Stage) -> None:
        told.append(stage)

    for _ in range(2):
        tell(lab, tale, once)
    assert len(told) == 1


def test_a_story_that_fails_is_the_failure_of_those_alone_who_ask_for_it(lab: Lab) -> None:
    tale = Tale("of good and bad")

    @tale.story
    def bad(stage: Stage) -> None:
        raise Failed("in this story")

    @tale.story
    def good(stage: Stage) -> str:
        return "in that one"

    assert tell(lab, tale, good) == "in that one"
    with pytest.raises(Failed, match="in this story"):
        tell(lab, tale, bad)


def test_a_failure_shows_the_workers_of_its_own_story(lab: Lab) -> None:
    tale = Tale("of two workers")

    @tale.story
    def speaks(stage: Stage) -> Session:
        session = stage.spawn()
        session.ping()
        return session

    @tale.story
    def is_silent(stage: Stage) -> Session:
        return stage.spawn(greet=False)

    sessions = []
    for story in (speaks, is_silent):
        sessions.append(tell(lab, tale, story))
        assert lab.used == [sessions[-1]]
    lab.release()
    assert not any(session.alive() for session in sessions)
