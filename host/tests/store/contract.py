"""What every store promises, whatever keeps it: a list of tests that take a store opened twice.

`test_contract` runs them over each kind of store. A store that joins brings a factory that opens the same store again
at each call, as another process would.

Why so long: it is one list, to be read as a whole by whoever writes another store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from host.tests.store.making import A, B, Books, C, lease_row, next_lease, sandbox_row
from host.tests.store.moves import everything, make
from sandport.store.errors import InUse, LeaseUnknown, NameTaken, Stale
from sandport.store.records import Leased, LeaseRow, Ref, SandboxRow, SandboxState
from sandport.store.states import ALL_MOVES, LEASE_MOVES, MOVES, SANDBOX_STATES

Promise = Callable[[Books], Awaitable[None]]
PROMISES: list[Promise] = []


def promise(test: Promise) -> Promise:
    """Make it part of the contract."""
    PROMISES.append(test)
    return test


# --- the life of a sandbox ---


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


# --- refusals ---


@promise
async def every_move_of_the_table_is_reached_and_every_other_one_is_refused(books: Books) -> None:
    for state in SANDBOX_STATES:
        for move in ALL_MOVES:
            if move == "request":
                continue
            before = await books.in_state(state)
            owner = before.sandbox.owner or A
            if (state, move) in MOVES:
                await make(books.a, move, before, by=owner)
                after = await books.a.leased(before.sandbox.id)
                assert after.sandbox.state == MOVES[state, move], (state, move)
                if move == "reuse":
                    assert LEASE_MOVES[None, move] == after.lease.state
                else:
                    expected = LEASE_MOVES.get((before.lease.state, move), before.lease.state)
                    assert after.lease.state == expected, (state, move, before.lease.state)
                if move != "use":
                    assert len(await books.a.receipts(before.sandbox.id)) > 0
            else:
                held = await everything(books.a)
                with pytest.raises(Stale) as stale:
                    await make(books.a, move, before, by=owner)
                assert stale.value.row == before.sandbox, (state, move)
                assert await everything(books.a) == held, (state, move)


@promise
async def no_move_is_for_another_instance_or_generation(books: Books) -> None:
    for state, move in MOVES:
        if state is None or move in ("claim", "use", "forget"):
            continue
        before = await books.in_state(state)
        held = await everything(books.a)
        if before.sandbox.owner is not None:
            # A block of another instance uses what is leased: that is told apart, since waiting may help.
            with pytest.raises((Stale, InUse)):
                await make(books.b, move, before, by=B)
            assert await everything(books.a) == held, (state, move)
        if move not in ("keep", "release"):
            for generation in (0, 2):
                other = Leased(
                    sandbox=_with_generation(before.sandbox, generation),
                    lease=before.lease,
                )
                with pytest.raises(Stale) as stale:
                    await make(books.a, move, other, by=before.sandbox.owner or A)
                assert stale.value.row == before.sandbox
                assert await everything(books.a) == held, (state, move)


@promise
async def a_sandbox_that_is_not_there_is_stale_and_a_lease_unknown(books: Books) -> None:
    nothing = Leased(sandbox=sandbox_row("sp-none"), lease=lease_row("le-none", "sp-none"))
    for move in ALL_MOVES:
        if move == "request":
            continue
        kind = LeaseUnknown if move in ("use", "keep", "release") else Stale
        with pytest.raises(kind):
            await make(books.a, move, nothing, by=A)
    assert await books.a.sandbox("sp-none") is None
    await books.a.unuse("le-none", by=A)


@promise
async def a_request_needs_rows_that_fit(books: Books) -> None:
    sandbox, lease = sandbox_row("sp1"), lease_row("le1", "sp1")
    wrong = [
        (sandbox, lease_row("le1", "sp2")),
        (sandbox, lease_row("le1", "sp1", owner=B)),
        (sandbox_row("sp1", owner=None), lease_row("le1", "sp1", owner=None)),
        (_with_generation(sandbox, 2), lease),
        (SandboxRow(id="sp1", provider="p", environment="e", owner=A, state="leased"), lease),
    ]
    for bad_sandbox, bad_lease in wrong:
        with pytest.raises(ValueError, match=r"request|lease"):
            await books.a.request(bad_sandbox, bad_lease)
    await books.a.request(sandbox, lease)
    held = await everything(books.a)
    for again in (lease_row("le2", "sp1"), lease):
        with pytest.raises(Stale):
            await books.a.request(sandbox, again)
    with pytest.raises(Stale):
        await books.a.request(sandbox_row("sp2"), lease_row("le1", "sp2"))
    assert await everything(books.a) == held


@promise
async def only_the_lease_of_the_generation_can_become_active(books: Books) -> None:
    first, second = await books.creating(), await books.creating()
    held = await everything(books.a)
    with pytest.raises(Stale):
        await books.a.created(first.sandbox.ref, second.lease.id, by=A, handle="h", lease_result=b"{}")
    with pytest.raises(Stale):
        await books.a.refused(first.sandbox.ref, second.lease.id, by=A, reason="quota")
    with pytest.raises(LeaseUnknown):
        await books.a.refused(first.sandbox.ref, "le-none", by=A, reason="quota")
    assert await everything(books.a) == held
    third, fourth = await books.leased(), await books.leased()
    held = await everything(books.a)
    with pytest.raises(Stale):
        await books.a.rest(third.sandbox.ref, fourth.lease.id, by=A, reason="released")
    assert await everything(books.a) == held


@promise
async def an_operation_that_fails_takes_no_other_one_with_it(books: Books) -> None:
    """Of operations that are committed together, each fails alone; also one that had changed something by then."""
    first, second = await books.creating(), await books.creating()
    done = await asyncio.gather(
        books.a.request(sandbox_row("sp-x"), lease_row("le-x", "sp-x")),
        books.a.created(first.sandbox.ref, second.lease.id, by=A, handle="h", lease_result=b"{}"),
        books.a.request(sandbox_row("sp-y"), lease_row("le-x", "sp-y")),
        books.a.created(first.sandbox.ref, first.lease.id, by=A, handle="h", lease_result=b"{}"),
        books.a.lease("le-x"),
        books.a.creating(Ref("sp-x"), by=B, provider_version="", settle_ms=0),
        books.a.lease("le-nowhere"),
        return_exceptions=True,
    )
    kinds = [type(result) for result in done]
    assert kinds == [type(None), Stale, Stale, type(None), LeaseRow, Stale, LeaseUnknown]
    assert await books.b.sandbox("sp-y") is None
    assert (await books.b.leased("le-x")).sandbox.state == "intended"
    assert (await books.b.leased(first.lease.id)).sandbox.state == "leased"


# --- names ---


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


# --- use ---


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


# --- kept leases ---


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


# --- owners and clean-up ---


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


# --- reading ---


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


# --- upkeep ---


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


def _with_generation(row: SandboxRow, generation: int) -> SandboxRow:
    return msgspec.structs.replace(row, generation=generation)
