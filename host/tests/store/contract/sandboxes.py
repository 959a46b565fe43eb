"""The life of a sandbox, from what is asked for to what is gone."""

from __future__ import annotations

import pytest

from host.tests.store.contract.promises import Promises
from host.tests.store.making import A, B, Books, lease_row, next_lease, sandbox_row
from sandport.store.errors import Stale
from sandport.store.records import SandboxState

promise = Promises()


@promise
async def a_lease_is_written_down_before_and_after_its_create(books: Books) -> None:
    a = books.a
    sandbox, lease = sandbox_row("sp1", tenant="t"), lease_row("le1", "sp1", name="n")
    await a.request(sandbox, lease)
    began = books.clock.now_ms()
    asked = await books.b.leased("le1")
    assert (asked.sandbox.state, asked.lease.state) == ("intended", "requested")
    assert (asked.sandbox.created_at_ms, asked.lease.requested_at_ms) == (began, began)
    assert [(use.lease_id, use.instance, use.count) for use in await a.uses("le1")] == [("le1", A, 1)]
    books.clock.advance(1)
    await a.creating(sandbox.ref, by=A, provider_version="1.2", settle_ms=7)
    asked = await books.b.leased("sp1")
    assert (asked.sandbox.state, asked.lease.state) == ("creating", "requested")
    assert (asked.sandbox.provider_version, asked.sandbox.settle_ms) == ("1.2", 7)
    books.clock.advance(1)
    await a.created(sandbox.ref, "le1", by=A, handle="h", lease_result=b"{}", expires_at_ms=99)
    had = await books.b.leased("n")
    assert (had.sandbox.state, had.lease.state) == ("leased", "active")
    assert (had.sandbox.handle, had.sandbox.lease_result, had.sandbox.expires_at_ms) == ("h", b"{}", 99)
    assert (had.sandbox.changed_at_ms, had.lease.active_at_ms) == (began + 2000, began + 2000)
    assert (had.sandbox.config, had.sandbox.secrets, had.sandbox.tenant) == (sandbox.config, sandbox.secrets, "t")
    assert had.lease.env == lease.env
    assert await books.whats(sandbox.ref) == ["requested", "creating", "created"]


@promise
async def an_ended_lease_leaves_receipts_and_nobody(books: Books) -> None:
    had = await books.leased()
    ending = await books.a.ending(had.sandbox.ref, by=A, reason="released")
    assert (ending.state, ending.owner, ending.handle) == ("ending", A, "handle")
    assert (await books.a.lease(had.lease.id)).reason == "released"
    assert await books.a.uses() == []
    await books.a.gone(had.sandbox.ref, by=A, detail="destroyed, and the list says so")
    over = await books.a.leased(had.lease.id)
    assert (over.sandbox.state, over.sandbox.owner, over.lease.state) == ("gone", None, "ended")
    assert over.lease.env == {}
    assert over.lease.ended_at_ms == books.clock.now_ms()
    receipts = await books.b.receipts(had.sandbox.id)
    assert [(receipt.what, receipt.instance) for receipt in receipts] == [
        ("requested", A),
        ("creating", A),
        ("created", A),
        ("ending", A),
        ("destroyed", A),
    ]
    assert receipts[-1].detail == "destroyed, and the list says so"
    assert await books.a.owners() == frozenset()


@promise
async def a_refused_create_is_gone_at_once(books: Books) -> None:
    for had in (await books.requested(), await books.creating()):
        await books.a.refused(had.sandbox.ref, had.lease.id, by=A, reason="quota")
        over = await books.b.leased(had.lease.id)
        assert (over.sandbox.state, over.lease.state, over.lease.reason) == ("gone", "ended", "quota")
        assert over.lease.env == {}
        assert await books.a.uses(had.lease.id) == []


@promise
async def a_doubtful_create_is_due_at_once_and_stays_its_owners(books: Books) -> None:
    had = await books.creating()
    books.clock.advance(3)
    now_ms = books.clock.now_ms()
    await books.a.doubtful(had.sandbox.ref, by=A, reason="no answer")
    row = await books.a.sandbox(had.sandbox.id)
    assert row is not None
    assert (row.state, row.owner, row.quiet_since_ms, row.due_at_ms) == ("doubtful", A, now_ms, now_ms)
    assert (await books.a.lease(had.lease.id)).state == "ended"
    assert await books.a.uses() == []
    assert [row.id for row in await books.a.work(now_ms, by=A)] == [had.sandbox.id]
    assert await books.b.work(now_ms, by=B) == []


@promise
async def a_doubtful_one_that_is_seen_is_quiet_since_then_only(books: Books) -> None:
    ref = (await books.in_state("doubtful")).sandbox.ref
    books.clock.advance(60)
    await books.a.seen(ref, by=A, handle="late")
    row = await books.a.sandbox(ref.sandbox_id)
    assert row is not None
    assert (row.quiet_since_ms, row.handle) == (books.clock.now_ms(), "late")
    await books.a.seen(ref, by=A)
    assert (await books.a.ending(ref, by=A, reason="late")).handle == "late"


@promise
async def a_sandbox_at_rest_is_leased_again_as_the_next_generation(books: Books) -> None:
    first = await books.in_state("idle")
    assert (first.sandbox.owner, first.lease.state) == (None, "ended")
    row = await books.b.reuse(first.sandbox.ref, next_lease(first.sandbox.ref, "le-again", B), by=B)
    assert (row.state, row.generation, row.owner, row.handle) == ("leased", 2, B, "handle")
    lease = await books.a.lease(first.sandbox.id)
    assert (lease.id, lease.state, lease.active_at_ms) == ("le-again", "active", books.clock.now_ms())
    with pytest.raises(Stale) as stale:
        await books.a.ending(first.sandbox.ref, by=A, reason="the first one's owner wakes up late")
    assert stale.value.row == row
    with pytest.raises(Stale):
        await books.b.rest(row.ref, first.lease.id, by=B, reason="the wrong lease")
    assert await books.a.sandbox(row.id) == row
    assert [use.instance for use in await books.a.uses()] == [B]


@promise
async def whatever_may_exist_can_be_ended_and_what_does_not_exist_is_gone(books: Books) -> None:
    may_exist: tuple[SandboxState, ...] = ("creating", "leased", "idle", "doubtful")
    for state in may_exist:
        had = await books.in_state(state)
        assert (await books.a.ending(had.sandbox.ref, by=A, reason="released")).state == "ending"
        assert (await books.a.lease(had.lease.id)).state == "ended"
    may_be_gone: tuple[SandboxState, ...] = ("creating", "doubtful", "ending")
    for state in may_be_gone:
        had = await books.in_state(state)
        await books.a.gone(had.sandbox.ref, by=A, what="gone", detail="never listed")
        over = await books.b.leased(had.lease.id)
        assert (over.sandbox.state, over.lease.state) == ("gone", "ended")
