"""What a vendor lists: the only knowledge of a sandbox that needs no row."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

from msgspec import Raw

from sandport.errors import DeadlineExceeded, ProtocolViolation
from sandport.numbers import Timing
from sandport.rate_limits import RateLimits, key_of
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import ListedLease, ListLeasesParams, ListLeasesResult

from .attachment import Workers

MOST_LISTED: Final = 100_000
"""Far more than any account may hold at once; beyond it the list is a worker's mistake."""


async def listed(
    provider: str,
    workers: Workers,
    *,
    config: Raw,
    secrets: dict[str, str],
    tenant: str | None,
    sandbox_id: str | None = None,
    limits: RateLimits,
    timing: Timing,
) -> list[ListedLease]:
    """Everything that a vendor lists of this store, or under one id; all pages, within `Timing.list_s`.

    Raises:
        ProtocolViolation: The list has no end: a page came again, or there are more entries than an account can have.
        DeadlineExceeded: It took too long.
        SandportError: A page could not be had; a part of a list says nothing.
    """
    found: list[ListedLease] = []
    cursor: str | None = None
    seen: set[bytes] = set()
    entries = 0
    key = key_of(provider, tenant, secrets)
    loop = asyncio.get_running_loop()
    end = loop.time() + timing.list_s

    async def one_page(left_s: float) -> ListLeasesResult:
        worker = await workers.worker()
        return await worker.client.call(
            METHODS["listLeases"],
            ListLeasesParams(config=config, secrets=secrets, sandbox_id=sandbox_id, cursor=cursor),
            ListLeasesResult,
            deadline_s=left_s,
        )

    while True:
        left_s = end - loop.time()
        if left_s <= 0:
            raise DeadlineExceeded(
                f"the list of {provider} did not end within {timing.list_s:g} s ({entries} entries came)",
                dispatched="yes",
            )
        page = await limits.call(key, one_page, deadline_s=min(timing.call_s, left_s))
        entries += len(page.leases)
        if entries > MOST_LISTED:
            raise ProtocolViolation(
                f"the list of {provider} has more than {MOST_LISTED:,} entries, which is no list of one account",
                dispatched="yes",
            )
        found += [one for one in page.leases if sandbox_id is None or one.sandbox_id == sandbox_id]
        cursor = page.next_cursor
        if cursor is None:
            return found
        # A digest: a cursor may be as long as a frame.
        mark = hashlib.sha256(cursor.encode("utf-8", "surrogatepass")).digest()
        if mark in seen:
            raise ProtocolViolation(
                f"the list of {provider} does not end: a page names one as its next that was there before",
                dispatched="yes",
            )
        seen.add(mark)
