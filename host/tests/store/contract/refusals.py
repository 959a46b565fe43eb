"""What is refused, and that nothing has changed by it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from host.tests.store.contract.promises import Promises
from host.tests.store.making import A, B, Books, lease_row, sandbox_row
from host.tests.store.moves import everything, make
from sandport.store.errors import InUse, LeaseUnknown, Stale
from sandport.store.records import Leased, LeaseRow, Ref, SandboxRow
from sandport.store.states import ALL_MOVES, LEASE_MOVES, MOVES, SANDBOX_STATES

promise = Promises()


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


def _with_generation(row: SandboxRow, generation: int) -> SandboxRow:
    return msgspec.structs.replace(row, generation=generation)
