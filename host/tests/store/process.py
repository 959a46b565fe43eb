"""Another process on the same store, for the tests that need one: `python -m host.tests.store.process ROLE STORE ...`.

It says `ready` on a line, waits for one, then plays its role and tells on stdout what came of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from host.tests.store.making import lease_row, next_lease, sandbox_row
from sandport.store.errors import InUse, Stale
from sandport.store.records import Ref
from sandport.store.sqlite import SqliteStore

Role = Callable[[SqliteStore, list[str]], Awaitable[None]]


def tell(*words: str) -> None:
    """One line, at once and whole."""
    os.write(1, " ".join(words).encode() + b"\n")


async def write_until_killed(store: SqliteStore, arguments: list[str]) -> None:
    """Lives of sandboxes, several at once; each step is told as soon as it was acknowledged."""
    me, seed = arguments
    draw = random.Random(int(seed))

    async def lives() -> None:
        while True:
            number = f"{me}-{draw.getrandbits(64):x}"
            ref, lease_id = Ref(f"sp{number}"), f"le{number}"
            await store.request(sandbox_row(ref.sandbox_id, owner=me), lease_row(lease_id, ref.sandbox_id, owner=me))
            tell(ref.sandbox_id, "intended")
            await store.creating(ref, by=me, provider_version="1", settle_ms=0)
            tell(ref.sandbox_id, "creating")
            if draw.random() < 0.3:
                await store.doubtful(ref, by=me, reason="no answer")
                tell(ref.sandbox_id, "doubtful")
            else:
                await store.created(ref, lease_id, by=me, handle="h", lease_result=b"{}")
                tell(ref.sandbox_id, "leased")
            await store.ending(ref, by=me, reason="over")
            tell(ref.sandbox_id, "ending")
            await store.gone(ref, by=me)
            tell(ref.sandbox_id, "gone")

    await asyncio.gather(*(lives() for _ in range(8)))


async def claim_all(store: SqliteStore, arguments: list[str]) -> None:
    """Claim every row of the dead instances, in an order of its own."""
    me, *dead = arguments
    rows = await store.sandboxes(owners=set(dead))
    random.Random(me).shuffle(rows)

    async def claim(ref: Ref) -> None:
        try:
            await store.claim(ref, by=me, dead=frozenset(dead))
        except Stale:
            return
        tell(ref.sandbox_id)

    await asyncio.gather(*(claim(row.ref) for row in rows))


async def sweep(store: SqliteStore, arguments: list[str]) -> None:
    """End whatever nobody uses: kept leases that are nobody's, and sandboxes at rest."""
    (me,) = arguments

    async def end(ref: Ref) -> None:
        try:
            await store.claim(ref, by=me)
            await store.ending(ref, by=me, reason="swept")
        except InUse:
            tell(ref.sandbox_id, "in use")
        except Stale:
            tell(ref.sandbox_id, "taken")
        else:
            tell(ref.sandbox_id, "swept")

    await _some_at_once([end(Ref(f"sp{number}")) for number in range(1000)])


async def use_all(store: SqliteStore, arguments: list[str]) -> None:
    """Use each kept lease, and lease again each sandbox at rest."""
    (me,) = arguments

    async def take(number: int) -> None:
        try:
            if number % 2:
                await store.use(f"le{number}", by=me)
            else:
                ref = Ref(f"sp{number}")
                await store.reuse(ref, next_lease(ref, f"le{number}-again", me), by=me)
        except Stale:
            tell(f"sp{number}", "lost")
        else:
            tell(f"sp{number}", "live")

    await _some_at_once([take(number) for number in range(1000)])


async def open_only(store: SqliteStore, arguments: list[str]) -> None:
    """Say which store it is."""
    tell(store.store_id)


async def _some_at_once(all_of_them: list[Awaitable[None]]) -> None:
    for start in range(0, len(all_of_them), 10):
        await asyncio.gather(*all_of_them[start : start + 10])


ROLES: dict[str, Role] = {
    "write until killed": write_until_killed,
    "claim all": claim_all,
    "sweep": sweep,
    "use all": use_all,
    "open": open_only,
}


async def main(role: str, path: str, arguments: list[str]) -> None:
    """Open the store once told to, and play the role."""
    tell("ready")
    sys.stdin.readline()
    store = await SqliteStore.open(Path(path))
    try:
        await ROLES[role](store, arguments)
    finally:
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
