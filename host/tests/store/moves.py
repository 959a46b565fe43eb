"""Every move of a store by its name, and all that a store holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from host.tests.store.making import next_lease
from sandport.store.records import Leased, LeaseRow, Receipt, SandboxRow, Use
from sandport.store.states import SANDBOX_STATES, Move
from sandport.store.store import Store


async def make(store: Store, move: Move, had: Leased, *, by: str) -> None:
    """Call the method of a move with arguments that fit."""
    ref, lease = had.sandbox.ref, had.lease.id
    if move == "release" and had.sandbox.state == "leased" and had.lease.owner == by and not had.lease.kept:
        await store.keep(lease, by=by)
    calls: dict[Move, Callable[[], Awaitable[object]]] = {
        "request": lambda: store.request(had.sandbox, had.lease),
        "creating": lambda: store.creating(ref, by=by, provider_version="1", settle_ms=0),
        "created": lambda: store.created(ref, lease, by=by, handle="h", lease_result=b"{}"),
        "refused": lambda: store.refused(ref, lease, by=by, reason="r"),
        "doubtful": lambda: store.doubtful(ref, by=by, reason="r"),
        "ending": lambda: store.ending(ref, by=by, reason="r"),
        "gone": lambda: store.gone(ref, by=by),
        "seen": lambda: store.seen(ref, by=by),
        "failed": lambda: store.failed(ref, by=by, error="e", due_at_ms=0),
        "claim": lambda: store.claim(ref, by=by),
        "use": lambda: store.use(lease, by=by),
        "keep": lambda: store.keep(lease, by=by),
        "release": lambda: store.release(lease, by=by),
        "rest": lambda: store.rest(ref, lease, by=by, reason="r"),
        "reuse": lambda: store.reuse(ref, next_lease(ref, f"{lease}-again", by), by=by),
        "forget": lambda: store.forget(ref.sandbox_id, by=by, reason="r"),
    }
    await calls[move]()


Everything = tuple[list[SandboxRow], list[LeaseRow], list[Use], list[list[Receipt]]]


async def everything(store: Store) -> Everything:
    """All that a store holds."""
    sandboxes = await store.sandboxes(states=SANDBOX_STATES)
    leases, uses, receipts = await asyncio.gather(
        store.leases(ended=True),
        store.uses(),
        asyncio.gather(*(store.receipts(row.id) for row in sandboxes)),
    )
    return sandboxes, leases, uses, receipts
