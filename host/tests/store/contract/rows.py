"""Rows: how they are listed, when they are dropped, and whose they are."""

from __future__ import annotations

import pytest

from host.tests.store.contract.promises import Promises
from host.tests.store.making import A, B, Books
from sandport.store.errors import LeaseUnknown
from sandport.store.states import SANDBOX_STATES

promise = Promises()


@promise
async def rows_are_listed_by_state_and_owner(books: Books) -> None:
    had = {state: await books.in_state(state) for state in SANDBOX_STATES}
    others = await books.leased(by=B)
    ids = {state: row.sandbox.id for state, row in had.items()}
    everyone = [row.id for row in await books.a.sandboxes()]
    assert everyone == [*(ids[state] for state in SANDBOX_STATES if state != "gone"), others.sandbox.id]
    assert [row.id for row in await books.a.sandboxes(states={"gone", "idle"})] == [ids["idle"], ids["gone"]]
    assert [row.id for row in await books.a.sandboxes(owners={B})] == [others.sandbox.id]
    assert [row.id for row in await books.a.sandboxes(owners={None})] == [ids["idle"]]
    assert len(await books.a.sandboxes(states=SANDBOX_STATES, owners={None, A, B})) == len(SANDBOX_STATES) + 1
    assert await books.a.sandboxes(states=()) == []
    assert await books.a.counts() == {**dict.fromkeys(SANDBOX_STATES, 1), "leased": 2}
    open_leases = {lease.id for lease in await books.a.leases()}
    assert open_leases == {had[state].lease.id for state in ("intended", "creating", "leased")} | {others.lease.id}
    assert len(await books.a.leases(ended=True)) == len(SANDBOX_STATES) + 1
    assert await books.a.owners() == {A, B}


@promise
async def what_is_long_gone_is_dropped_with_all_that_belongs_to_it(books: Books) -> None:
    old = await books.in_state("gone")
    books.clock.advance(10)
    then_ms = books.clock.now_ms()
    recent, live = await books.in_state("gone"), await books.leased()
    assert await books.a.prune(then_ms) == 1
    assert await books.a.prune(then_ms) == 0
    assert await books.a.sandbox(old.sandbox.id) is None
    assert await books.a.receipts(old.sandbox.id) == []
    with pytest.raises(LeaseUnknown):
        await books.a.lease(old.lease.id)
    assert (await books.a.leased(recent.lease.id)) == recent
    assert (await books.a.leased(live.lease.id)) == live


@promise
async def both_see_one_store_id(books: Books) -> None:
    assert books.a.store_id == books.b.store_id
    assert books.a.store_id.startswith("st")
