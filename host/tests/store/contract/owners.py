"""Owners: what the dead leave, and who gets it."""

from __future__ import annotations

import asyncio

import pytest

from host.tests.store.contract.promises import Promises
from host.tests.store.making import A, B, Books, C, next_lease
from sandport.store.errors import Stale
from sandport.store.records import SandboxRow

promise = Promises()


@promise
async def a_dead_owner_loses_its_leases(books: Books) -> None:
    had = await books.leased()
    with pytest.raises(Stale):
        await books.b.claim(had.sandbox.ref, by=B)
    assert [row.id for row in await books.b.work(books.clock.now_ms(), by=B, dead={A})] == [had.sandbox.id]
    row = await books.b.claim(had.sandbox.ref, by=B, dead={A})
    assert (row.owner, row.state) == (B, "leased")
    assert (await books.b.lease(had.lease.id)).owner == B
    assert await books.b.uses() == []
    receipt = (await books.b.receipts(had.sandbox.id))[-1]
    assert (receipt.what, receipt.detail, receipt.instance) == ("taken over", A, B)
    with pytest.raises(Stale):
        await books.a.ending(had.sandbox.ref, by=A, reason="it was not dead after all")
    assert await books.b.claim(had.sandbox.ref, by=B) == row
    with pytest.raises(Stale):
        await books.a.claim(had.sandbox.ref, by=A, dead={C})


@promise
async def of_several_who_claim_one_gets_it(books: Books) -> None:
    refs = [(await books.in_state("creating", by=C)).sandbox.ref for _ in range(20)]
    claims = [store.claim(ref, by=by, dead={C}) for ref in refs for store, by in ((books.a, A), (books.b, B))]
    won = [row for row in await asyncio.gather(*claims, return_exceptions=True) if isinstance(row, SandboxRow)]
    assert sorted(row.id for row in won) == sorted(ref.sandbox_id for ref in refs)


@promise
async def a_takeover_leaves_alone_what_has_ended_and_what_is_its_own(books: Books) -> None:
    had = await books.in_state("ending")
    await books.b.claim(had.sandbox.ref, by=B, dead={A})
    assert (await books.a.lease(had.lease.id)).owner == A
    receipts = await books.whats(had.sandbox.ref)
    await books.b.claim(had.sandbox.ref, by=B, dead={A})
    assert await books.whats(had.sandbox.ref) == receipts


@promise
async def a_sandbox_at_rest_that_clean_up_has_taken_is_not_leased_again(books: Books) -> None:
    idle = await books.in_state("idle")
    await books.b.claim(idle.sandbox.ref, by=B)
    with pytest.raises(Stale):
        await books.a.reuse(idle.sandbox.ref, next_lease(idle.sandbox.ref, "le-again", A), by=A)
