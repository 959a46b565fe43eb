"""Uses: what a process is at is not taken from it."""

from __future__ import annotations

import pytest

from host.tests.store.contract.promises import Promises
from host.tests.store.making import A, B, Books, C
from sandport.store.errors import InUse, Stale

promise = Promises()


@promise
async def a_lease_in_use_elsewhere_is_not_ended_without_force(books: Books) -> None:
    had = await books.let_go()
    got = await books.b.use(had.lease.id, by=B)
    assert got == await books.a.leased(had.lease.id)
    with pytest.raises(InUse) as in_use:
        await books.a.ending(had.sandbox.ref, by=A, reason="ended")
    assert [(use.instance, use.lease_id) for use in in_use.value.uses] == [(B, had.lease.id)]
    assert in_use.value.row == had.sandbox
    assert await books.a.leased(had.lease.id) == had
    row = await books.a.ending(had.sandbox.ref, by=A, reason="ended", force=True)
    assert (row.state, row.owner) == ("ending", A)
    with pytest.raises(Stale):
        await books.b.use(had.lease.id, by=B)
    await books.b.unuse(had.lease.id, by=B)


@promise
async def ones_own_use_and_that_of_the_dead_keep_nothing_alive(books: Books) -> None:
    mine, deads = await books.let_go(), await books.let_go()
    await books.a.use(mine.lease.id, by=A)
    assert (await books.a.ending(mine.sandbox.ref, by=A, reason="ended")).state == "ending"
    await books.a.use(deads.lease.id, by=C)
    with pytest.raises(InUse):
        await books.a.ending(deads.sandbox.ref, by=A, reason="ended", dead={B})
    assert (await books.a.ending(deads.sandbox.ref, by=A, reason="ended", dead={C})).owner == A


@promise
async def a_block_elsewhere_is_in_use_and_force_takes_it(books: Books) -> None:
    had = await books.leased()
    with pytest.raises(InUse):
        await books.b.ending(had.sandbox.ref, by=B, reason="ended")
    assert (await books.b.ending(had.sandbox.ref, by=B, reason="ended", force=True)).owner == B
    with pytest.raises(Stale) as stale:
        await books.a.ending(had.sandbox.ref, by=A, reason="released")
    assert stale.value.row is not None
    assert stale.value.row.owner == B
    assert stale.value.lease is not None
    assert stale.value.lease.reason == "ended"


@promise
async def a_sandbox_in_use_elsewhere_does_not_come_to_rest(books: Books) -> None:
    had = await books.leased()
    await books.b.use(had.lease.id, by=B)
    with pytest.raises(InUse):
        await books.a.rest(had.sandbox.ref, had.lease.id, by=A, reason="released")
    await books.b.unuse(had.lease.id, by=B)
    await books.a.rest(had.sandbox.ref, had.lease.id, by=A, reason="released")


@promise
async def each_use_needs_its_end(books: Books) -> None:
    had = await books.let_go()
    for _ in range(2):
        await books.b.use(had.lease.id, by=B)
    assert [use.count for use in await books.a.uses(had.lease.id)] == [2]
    await books.b.unuse(had.lease.id, by=B)
    with pytest.raises(InUse):
        await books.a.ending(had.sandbox.ref, by=A, reason="ended")
    await books.b.unuse(had.lease.id, by=B)
    await books.b.unuse(had.lease.id, by=B)
    await books.a.ending(had.sandbox.ref, by=A, reason="ended")


@promise
async def the_uses_of_the_dead_are_dropped_at_once(books: Books) -> None:
    had = await books.let_go()
    for instance in (A, B, C):
        await books.a.use(had.lease.id, by=instance)
    assert await books.a.owners() == {A, B, C}
    assert await books.a.unuse_all({B, C}) == 2
    assert await books.a.unuse_all({B, C}) == 0
    assert await books.a.unuse_all(()) == 0
    assert [use.instance for use in await books.a.uses()] == [A]
    assert await books.a.owners() == {A}
