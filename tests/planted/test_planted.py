"""The list of planted bugs fits the source, and what should find them does: a sample of `python -m tests.planted`."""

from __future__ import annotations

import pytest

from tests.machines.trace import FIXTURES, read
from tests.planted.bugs import ROOT, Bug, read_bugs
from tests.planted.search import replay, search, workspace_copy

PLANTED = read_bugs()
SAMPLE = {bug.id: bug for bug in PLANTED if bug.id in {"drain-is-forgotten", "late-create-ignored"}}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.id)
def test_a_bug_can_still_be_planted(bug: Bug) -> None:
    """Where this fails, the source has changed: write the same bug into what stands there now."""
    assert bug.edit
    assert [edit.problem(ROOT) for edit in bug.edit] == [None] * len(bug.edit)
    assert all(edit.old != edit.new for edit in bug.edit)


@pytest.mark.parametrize("bug", [bug for bug in PLANTED if bug.has_trace], ids=lambda bug: bug.id)
def test_what_finds_a_bug_is_played_again_in_every_run(bug: Bug) -> None:
    assert (ROOT / bug.test).is_file()
    machine, steps = read(FIXTURES / f"{bug.id}.json")
    assert machine == bug.found_by
    assert steps


def test_every_bug_has_a_name_of_its_own() -> None:
    names = [bug.id for bug in PLANTED]
    assert len(names) == len(set(names)) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in PLANTED if not bug.has_trace], ids=lambda bug: bug.id)
def test_a_bug_of_whole_runs_is_found_by_them(bug: Bug) -> None:
    with workspace_copy(bug) as copy:
        found = search(copy, bug, bug.test)
    assert found.verdict == "found", found.report


@pytest.mark.slow
@pytest.mark.parametrize("bug", SAMPLE.values(), ids=SAMPLE.keys())
def test_a_planted_bug_is_found_by_search_and_by_its_trace(bug: Bug) -> None:
    with workspace_copy(bug) as copy:
        found = search(copy, bug, bug.test, "--hypothesis-seed=1")
        assert found.verdict == "found", found.report
        played = replay(copy, bug)
        assert played.verdict == "found", played.report
