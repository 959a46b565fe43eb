"""What a vendor lists: the only knowledge of a sandbox that needs no row."""

from __future__ import annotations

from msgspec import Raw

from sandport.numbers import Timing
from sandport.rate_limits import RateLimits, key_of
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ListedLease, ListLeasesParams, ListLeasesResult

from .attachment import Workers


async def listed(
    provider: str,
    workers: Workers,
    *,
    config: Raw,
    secrets: dict[str, str],
    sandbox_id: str | None = None,
    limits: RateLimits,
    timing: Timing,
) -> list[ListedLease]:
    """Everything that a vendor lists of this store, or under one id; all pages.

    Raises:
        SandportError: A page could not be had; a part of a list says nothing.
    """
    found: list[ListedLease] = []
    cursor: str | None = None
    key = key_of(provider, secrets)

    async def one_page(left_s: float) -> ListLeasesResult:
        worker = await workers.worker()
        return await worker.client.call(
            METHODS["listLeases"],
            ListLeasesParams(config=config, secrets=secrets, sandbox_id=sandbox_id, cursor=cursor),
            ListLeasesResult,
            deadline_s=left_s,
        )

    while True:
        page = await limits.call(key, one_page, deadline_s=timing.call_s)
        found += [one for one in page.leases if sandbox_id is None or one.sandbox_id == sandbox_id]
        cursor = page.next_cursor
        if cursor is None:
            return found
