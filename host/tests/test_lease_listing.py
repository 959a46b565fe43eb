"""A vendor's list ends, whatever its worker says."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from sandport.errors import DeadlineExceeded, ProtocolViolation
from sandport.lease.listing import MOST_LISTED, listed
from sandport.numbers import Timing
from sandport.rate_limits import RateLimits
from sandport_protocol.v1 import ListedLease, ListLeasesParams, ListLeasesResult

pytestmark = pytest.mark.anyio

IDS = ["sp" + f"{number:026d}".translate(str.maketrans("0189", "wxyz")) for number in range(1000)]
Answer = Callable[[str | None], ListLeasesResult]


class Paged:
    """A worker that answers with the page of a cursor."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.pages = 0
        self.client = self

    async def worker(self) -> Any:
        return SimpleNamespace(client=self)

    async def call(self, method: Any, params: ListLeasesParams, result: Any, *, deadline_s: float) -> Any:
        self.pages += 1
        return self._answer(params.cursor)


def entry(number: int) -> ListedLease:
    return ListedLease(sandbox_id=IDS[number], handle=f"h{number}", created_at_ms=0, expires_at_ms=0)


async def ask(paged: Paged, *, sandbox_id: str | None = None, list_s: float = 300.0) -> list[ListedLease]:
    timing = Timing(list_s=list_s)
    return await listed(
        "p",
        paged,
        config=Raw(b"{}"),
        secrets={},
        tenant=None,
        sandbox_id=sandbox_id,
        limits=RateLimits(),
        timing=timing,
    )


async def test_all_pages_are_one_list() -> None:
    def answer(cursor: str | None) -> ListLeasesResult:
        at = int(cursor or 0)
        return ListLeasesResult(leases=(entry(at),), next_cursor=str(at + 1) if at < 9 else None)

    assert await ask(Paged(answer)) == [entry(at) for at in range(10)]
    assert await ask(Paged(answer), sandbox_id=IDS[7]) == [entry(7)]


@given(before=st.integers(0, 5), around=st.integers(1, 5))
async def test_a_list_that_runs_in_a_circle_is_noticed_after_one_round(before: int, around: int) -> None:
    def answer(cursor: str | None) -> ListLeasesResult:
        at = int(cursor or 0)
        return ListLeasesResult(leases=(), next_cursor=str(at + 1 if at < before + around else before + 1))

    paged = Paged(answer)
    with pytest.raises(ProtocolViolation, match="does not end"):
        await ask(paged)
    assert paged.pages == before + around + 1


@pytest.mark.parametrize("sandbox_id", [None, IDS[1]])
async def test_a_list_has_no_more_entries_than_an_account(sandbox_id: str | None) -> None:
    page = tuple(map(entry, range(1000)))
    paged = Paged(lambda cursor: ListLeasesResult(leases=page, next_cursor=str(int(cursor or 0) + 1)))
    with pytest.raises(ProtocolViolation, match="100,000"):
        await ask(paged, sandbox_id=sandbox_id)
    assert paged.pages == MOST_LISTED // 1000 + 1


async def test_a_list_of_ever_new_pages_ends_with_its_one_deadline() -> None:
    paged = Paged(lambda cursor: ListLeasesResult(leases=(), next_cursor=str(int(cursor or 0) + 1)))
    with pytest.raises(DeadlineExceeded, match="did not end within"):
        await ask(paged, list_s=0.05)
