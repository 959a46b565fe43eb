"""`kill -9` in the middle of twenty leases: a few moments, and the same check where nobody cleans up."""

import pytest

from tests.chaos.kill import KINDS, faults, killed, missed, moments, table
from tests.chaos.moments import Moment

SEED = 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_twenty_leases_leave_nothing_whoever_is_killed_in_the_middle_of_them() -> None:
    which = [
        Moment("creating", 0.01, "host"),
        Moment("doubtful", 0.0, "both"),
        Moment("ending", 0.005, "worker"),
        Moment("leased", 0.05, "host"),
    ]
    done = killed(which, SEED, cells=2)
    assert [(one.moment, faults(one)) for one in done if faults(one)] == []
    assert {row.state for one in done for row in one.account.rows} >= {"creating", "leased"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_check_fails_where_the_next_start_does_not_clean_up() -> None:
    # Of two providers it is the machine's to decide whose sandboxes are there by then; one of `local` has a process.
    (one,) = killed([Moment("leased", 0.05, "both")], SEED, recovers=False, provider="local", cells=1)
    assert one.account.struck
    found = faults(one)
    for kind in ("a row is left", "a file of the home: workers/local/sp", "process "):
        assert [fault for fault in found if fault.startswith(kind)], kind


def test_moments_are_the_same_for_the_same_seed() -> None:
    assert moments("host", 20, 1) == moments("host", 20, 1)
    assert moments("host", 20, 1) != moments("host", 20, 2)
    assert {one.who for kind in KINDS for one in moments(kind, 5, 1)} == set(KINDS)


def test_a_table_says_how_many_were_in_a_state_and_which_were_hit_too_seldom() -> None:
    assert "0 times" in table("host", [])
    assert "idle" not in missed([])
    assert "doubtful" in missed([])
