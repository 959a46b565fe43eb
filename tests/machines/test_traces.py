"""What once found a fault is played again, step by step, in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines.trace import FIXTURES, play, read
from tests.machines.worlds import WORLDS

TRACES = sorted(FIXTURES.glob("*.json"))


def test_there_are_traces_of_every_machine() -> None:
    assert {read(path)[0] for path in TRACES} == set(WORLDS)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_trace_that_found_a_fault_finds_none_now(path: Path) -> None:
    machine, steps = read(path)
    play(WORLDS[machine](), steps)
