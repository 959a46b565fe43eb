"""The two runs of the sweep that say most in a second: one that nobody cuts, and one whose create loses its answer.

`tests/planted` plants bugs that these must find.
"""

from tests.chaos.cell import Order, Stage
from tests.chaos.fleet import run_all
from tests.chaos.points import Plan, Point
from tests.chaos.sweep import STEPS


def test_a_run_that_nobody_cuts_passes_every_step_in_order() -> None:
    (account,) = run_all([Order(provider="local", stages=(Stage(job="life"),))], cells=1)
    assert account.faults == ()
    steps = list(dict.fromkeys(one.point.step for one in account.passed[0]))
    assert steps == [step for step in STEPS if step != "recovery"]
    assert len({one.point for one in account.passed[0]}) == len(account.passed[0])


def test_a_create_whose_answer_died_with_its_worker_is_never_sent_again() -> None:
    """agent-sandbox#1352, harbor#1918: what is repeated without proof that it was not done is done twice."""
    plan = Plan(Point.parse("acquire/< acquireLease answered#1:before"), "worker")
    (account,) = run_all([Order(provider="fake", stages=(Stage(job="life", plan=plan),))], cells=1)
    assert account.hits == (True,)
    assert (account.double_creates, account.faults) == (0, ())
