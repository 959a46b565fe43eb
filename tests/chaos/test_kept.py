"""What the journal keeps the provider keeps too, whoever died in between."""

import pytest

from tests.chaos.cell import Order, Stage
from tests.chaos.fleet import run_all
from tests.chaos.points import Plan, Point, Who


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["local", "fake"])
def test_a_sandbox_that_is_kept_in_the_journal_outlives_its_workers_whoever_died_over_it(provider: str) -> None:
    deaths: list[tuple[str, Who]] = [
        ("keep/commit kept#1:after", "host"),
        ("keep/commit kept#1:after", "both"),
        ("keep/> attachLease#1:before", "worker"),
        ("keep/> attachLease#1:after", "host"),
        ("keep/< attachLease answered#1:before", "both"),
    ]
    orders = [
        Order(provider=provider, stages=(Stage(job="life", plan=Plan(Point.parse(name), who)), Stage(job="glance")))
        for name, who in deaths
    ]
    accounts = run_all(orders, cells=3)
    assert [(death, account.faults) for death, account in zip(deaths, accounts, strict=True) if account.faults] == []
    assert [account.hits[0] for account in accounts] == [True] * len(deaths)
    # Kept it was, and not ended by whoever cleaned up.
    assert [sum(row.kept and row.state == "leased" for row in account.rows) for account in accounts] == [1] * len(
        deaths
    )
