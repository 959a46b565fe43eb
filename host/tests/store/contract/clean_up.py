"""Clean-up: what is due, what was tried, and the operator's way out."""

from __future__ import annotations

import pytest

from host.tests.store.contract.promises import Promises
from host.tests.store.making import A, B, Books, C
from sandport.store.errors import Stale
from sandport.store.states import SANDBOX_STATES

promise = Promises()


@promise
async def work_is_what_nobody_live_has_in_hand_the_longest_due_first(books: Books) -> None:
    now_ms = books.clock.now_ms()
    mine = {state: (await books.in_state(state)).sandbox for state in SANDBOX_STATES}
    deads = {state: (await books.in_state(state, by=C)).sandbox for state in SANDBOX_STATES}
    for_a = {row.id for row in await books.a.work(now_ms, by=A)}
    assert for_a == {mine["ending"].id, mine["doubtful"].id}
    assert await books.b.work(now_ms, by=B) == []
    rows = await books.b.work(now_ms, by=B, dead={C})
    assert {row.id for row in rows} == {row.id for row in deads.values() if row.state not in ("gone", "idle")}
    assert [row.due_at_ms for row in rows] == sorted(row.due_at_ms for row in rows)
    assert await books.b.next_due_ms() is None


@promise
async def what_is_not_due_waits_whoever_has_it(books: Books) -> None:
    ref = (await books.in_state("doubtful")).sandbox.ref
    later_ms = books.clock.now_ms() + 60_000
    await books.a.failed(ref, by=A, error="down", due_at_ms=later_ms)
    await books.b.claim(ref, by=B)
    for by, dead in ((B, {C}), (A, {B})):
        assert await books.a.work(later_ms - 1, by=by, dead=dead) == []
        assert [row.ref for row in await books.a.work(later_ms, by=by, dead=dead)] == [ref]


@promise
async def a_failed_attempt_is_nobodys_and_due_later(books: Books) -> None:
    for state in ("ending", "doubtful", "creating"):
        had = await books.in_state(state)
        later_ms = books.clock.now_ms() + 60_000
        await books.a.failed(had.sandbox.ref, by=A, error="vendor is down", due_at_ms=later_ms)
        row = await books.a.sandbox(had.sandbox.id)
        assert row is not None
        assert (row.state, row.owner, row.attempts, row.last_error) == (state, None, 1, "vendor is down")
        assert (await books.a.lease(had.lease.id)).owner == (None if state == "creating" else A)
        assert await books.a.next_due_ms() == later_ms
        assert await books.b.work(later_ms - 1, by=B) == []
        assert [row.id for row in await books.b.work(later_ms, by=B)] == [row.id]
        assert (await books.whats(had.sandbox.ref))[-1] == "attempt failed"
        await books.b.claim(had.sandbox.ref, by=B)
        await books.b.failed(had.sandbox.ref, by=B, error="no worker", due_at_ms=later_ms, counts=False)
        row = await books.a.sandbox(had.sandbox.id)
        assert row is not None
        assert (row.attempts, row.last_error) == (1, "no worker")
        await books.b.claim(had.sandbox.ref, by=B)
        await books.b.gone(had.sandbox.ref, by=B, what="gone", detail="not listed for as long as it takes to settle")
        assert (await books.a.lease(had.lease.id)).state == "ended"


@promise
async def attempts_are_counted_anew_for_what_is_ended_anew(books: Books) -> None:
    had = await books.in_state("doubtful")
    await books.a.failed(had.sandbox.ref, by=A, error="down", due_at_ms=0)
    row = await books.b.ending(had.sandbox.ref, by=B, reason="it was listed")
    assert (row.attempts, row.last_error, row.due_at_ms) == (0, "", books.clock.now_ms())


@promise
async def receipts_of_attempts_do_not_grow_without_end(books: Books) -> None:
    had = await books.in_state("ending")
    for _ in range(105):
        await books.a.failed(had.sandbox.ref, by=A, error="down", due_at_ms=0)
        await books.a.claim(had.sandbox.ref, by=A)
    whats = await books.whats(had.sandbox.ref)
    assert whats == ["requested", "creating", "created", "ending", *["attempt failed"] * 100]
    row = await books.a.sandbox(had.sandbox.id)
    assert row is not None
    assert row.attempts == 105


@promise
async def the_operator_can_forget_a_sandbox_in_any_state(books: Books) -> None:
    for state in SANDBOX_STATES:
        had = await books.in_state(state)
        if state == "gone":
            with pytest.raises(Stale):
                await books.b.forget(had.sandbox.id, by=B, reason="vendor account is closed")
            continue
        await books.b.forget(had.sandbox.id, by=B, reason="vendor account is closed")
        over = await books.a.leased(had.lease.id)
        assert (over.sandbox.state, over.sandbox.owner, over.lease.state) == ("gone", None, "ended")
        receipt = (await books.a.receipts(had.sandbox.id))[-1]
        assert (receipt.what, receipt.detail, receipt.instance) == ("forgotten", "vendor account is closed", B)
    assert await books.a.uses() == []
