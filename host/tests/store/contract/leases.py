"""Leases: how they are called, and those that are kept after their block."""

from __future__ import annotations

import pytest

from host.tests.store.contract.promises import Promises
from host.tests.store.making import A, B, Books, lease_row, next_lease, sandbox_row
from sandport.store.errors import LeaseUnknown, NameTaken, Stale

promise = Promises()


@promise
async def a_name_belongs_to_one_lease_that_has_not_ended(books: Books) -> None:
    first = await books.leased(name="mine")
    with pytest.raises(NameTaken) as taken:
        await books.b.request(sandbox_row("sp-x", owner=B), lease_row("le-x", "sp-x", owner=B, name="mine"))
    assert (taken.value.name, taken.value.lease_id) == ("mine", first.lease.id)
    assert await books.a.sandbox("sp-x") is None
    second = await books.leased()
    with pytest.raises(NameTaken):
        await books.a.keep(second.lease.id, by=A, name="mine")
    assert (await books.a.lease(second.lease.id)).kept is False
    await books.a.ending(first.sandbox.ref, by=A, reason="released")
    assert (await books.a.lease("mine")).id == first.lease.id
    kept = await books.a.keep(second.lease.id, by=A, name="mine")
    assert (kept.name, kept.kept) == ("mine", True)
    assert (await books.b.lease("mine")).id == second.lease.id
    third = await books.leased(name="ours")
    await books.a.ending(third.sandbox.ref, by=A, reason="released")
    await books.a.keep(second.lease.id, by=A, name="ours")
    assert (await books.b.lease("ours")).id == second.lease.id
    await books.a.keep(second.lease.id, by=A, name="mine")
    assert (await books.b.lease("ours")).id == third.lease.id
    idle = await books.in_state("idle")
    with pytest.raises(NameTaken):
        await books.a.reuse(idle.sandbox.ref, next_lease(idle.sandbox.ref, "le-again", A, name="mine"), by=A)
    assert (await books.a.leased(idle.lease.id)) == idle


@promise
async def a_lease_is_found_by_what_people_type(books: Books) -> None:
    had = await books.leased(name="build")
    other = await books.leased()
    for which in (had.lease.id, "build", had.sandbox.id, had.lease.id[:28]):
        assert (await books.a.lease(which)).id == had.lease.id
    await books.a.request(sandbox_row("spzzzzzz"), lease_row("leyyyyyy", "spzzzzzz"))
    assert (await books.a.lease("leyyyy")).id == "leyyyyyy"
    assert (await books.a.lease("spzz")).id == "leyyyyyy"
    with pytest.raises(LeaseUnknown) as several:
        await books.a.lease("le0000")
    assert set(several.value.nearest) == {had.lease.id, other.lease.id}
    assert several.value.asked == "le0000"
    with pytest.raises(LeaseUnknown, match="did you mean 'build'") as unknown:
        await books.a.lease("biuld")
    assert unknown.value.nearest == ("build",)
    for which in ("le", "", "%", "le______"):
        with pytest.raises(LeaseUnknown):
            await books.a.lease(which)
    await books.a.forget("spzzzzzz", by=A, reason="test")
    assert (await books.a.lease("leyyyy")).state == "ended"


@promise
async def a_kept_lease_is_nobodys_after_its_block(books: Books) -> None:
    had = await books.leased(kept=True, name="mine")
    await books.a.release(had.lease.id, by=A)
    free = await books.b.leased("mine")
    assert (free.lease.owner, free.sandbox.owner, free.sandbox.state, free.lease.state) == (
        None,
        None,
        "leased",
        "active",
    )
    assert await books.a.uses() == []
    assert await books.b.work(books.clock.now_ms(), by=B, dead={A}) == []
    assert (await books.whats(had.sandbox.ref))[-1] == "released"
    with pytest.raises(Stale):
        await books.a.release(had.lease.id, by=A)


@promise
async def only_a_kept_lease_can_be_let_go(books: Books) -> None:
    had = await books.leased()
    with pytest.raises(Stale):
        await books.a.release(had.lease.id, by=A)
    await books.a.keep(had.lease.id, by=A)
    with pytest.raises(Stale):
        await books.b.release(had.lease.id, by=B)
    await books.a.release(had.lease.id, by=A)


@promise
async def one_that_is_kept_no_more_is_somebodys(books: Books) -> None:
    had = await books.let_go(name="mine")
    lease = await books.b.keep(had.lease.id, by=B, kept=False)
    assert (lease.kept, lease.owner, lease.name) == (False, B, "mine")
    assert (await books.a.leased(had.lease.id)).sandbox.owner == B
    with pytest.raises(Stale):
        await books.a.keep(had.lease.id, by=A)
    assert (await books.whats(had.sandbox.ref))[-1] == "not kept"


@promise
async def a_kept_one_past_its_attested_end_is_up_for_clean_up(books: Books) -> None:
    now_ms = books.clock.now_ms()
    had = await books.let_go(expires_at_ms=now_ms + 5000)
    assert await books.a.next_due_ms() == now_ms + 5000
    assert await books.a.work(now_ms, by=A) == []
    books.clock.advance(5)
    assert [row.id for row in await books.a.work(books.clock.now_ms(), by=A)] == [had.sandbox.id]
