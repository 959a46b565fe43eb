"""The table of what copies hold in memory can be made, and what it tells of small trees is flat."""

from __future__ import annotations

import pytest

from tests.bench.tree_memory import CASES, Case, smaller, weighed

MIB = 1 << 20
ENTRIES = 20_000
NAMES_KIB = ENTRIES * 60 // 1024
"""What holding each name once would take: the least that a copy could forget to let go."""


@pytest.mark.slow
@pytest.mark.parametrize("act", ["out", "mirror"])
def test_a_copy_holds_less_than_the_names_of_its_tree(act: str) -> None:
    """e2b-dev/E2B#1301, airflow#71676: what was moved or listed lay in memory as a whole."""
    peak = weighed(Case(what="many entries", act=act, entries=ENTRIES))
    assert f"{ENTRIES:,}" in peak.told
    assert peak.grown_kib < NAMES_KIB


@pytest.mark.parametrize("act", ["in", "out"])
def test_large_files_are_not_held(act: str) -> None:
    """e2b-dev/E2B#1301, #1433, prime#824, cwsandbox-client#135 (73): a file lay in memory as a whole."""
    peak = weighed(Case(what="large files", act=act, dense_bytes=128 * MIB))
    assert f"{128 * MIB:,} bytes" in peak.told
    assert peak.grown_kib < 16 * 1024


def test_ceilings_and_sparse_files_can_be_weighed() -> None:
    for case in (CASES[7], CASES[-1]):
        small = smaller(case)
        peak = weighed(small)
        assert peak.told == "refused" if "ceiling" in case.act else f"{small.sparse_bytes:,} bytes" in peak.told
