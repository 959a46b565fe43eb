"""A vendor in memory and the provider for it: what a create can come to, and what a list can hide.

The provider is real to the SDK and the host; only what it talks to is not. Every effect asks first whether its worker
still lives: a killed process does nothing more, though its coroutines may still be unwound.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from sandport_sdk.v1 import Capabilities, Provider, errors, types

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandport_sdk.v1 import Call

Plan = Literal["works", "refuses", "half", "lost", "late", "hidden", "crash before", "crash after", "ignores cancel"]
"""What becomes of a create:

works           it is made and told
refuses         nothing is made, and that is told
half            it is made, and an error is told
lost            it is made, and nothing is told
late            it is made some time after it was asked for, whoever still waits
hidden          as `lost`, and lists do not show it for a while
crash before    the worker dies, nothing is made
crash after     it is made, the worker dies
ignores cancel  it takes its time, whatever is told to the worker
"""
SETTLE_S = 15.0
"""What the provider declares; whatever appears after its call is over appears within it."""
LATE_S = 12.0
HIDDEN_S = 13.0
STUBBORN_S = 28.0
"""A handler that heeds no cancel ends before its worker counts as wedged, and long after the settle time."""


class Entry(Struct):
    """A sandbox at the vendor."""

    store_id: str
    made_at_s: float
    expires_at_s: float
    shown_from_s: float


class MemoryVendor:
    """Sandboxes, and who asked for what."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.entries: dict[str, Entry] = {}
        self.creates: list[str] = []
        self.destroyed: list[str] = []
        self.plan: Plan = "works"
        self.down_until_s = 0.0

    def check_up(self) -> None:
        """Raise Unavailable in an outage."""
        if self.now_s() < self.down_until_s:
            raise errors.Unavailable("the vendor is down", dispatched="no")

    def make(self, sandbox_id: str, store_id: str, ttl_s: float, *, hidden_s: float = 0.0) -> Entry:
        """A sandbox is there from now on."""
        now_s = self.now_s()
        entry = Entry(store_id, now_s, now_s + ttl_s, now_s + hidden_s)
        self.entries[sandbox_id] = entry
        return entry

    def expire(self) -> None:
        """End what has lived long enough."""
        now_s = self.now_s()
        for sandbox_id in [name for name, entry in self.entries.items() if entry.expires_at_s <= now_s]:
            del self.entries[sandbox_id]

    def listed(self, store_id: str) -> list[str]:
        """What a list shows."""
        self.expire()
        return sorted(
            name
            for name, entry in self.entries.items()
            if entry.store_id == store_id and entry.shown_from_s <= self.now_s()
        )


class Life:
    """Whether a worker's process lives."""

    def __init__(self, die: Callable[[], None]) -> None:
        self.die = die
        self.over = False

    async def check(self) -> None:
        """Go no further in a process that was killed."""
        if self.over:
            await asyncio.get_running_loop().create_future()


class MemoryProvider(Provider):
    """Talks to the vendor in memory.

    Attributes:
        vendor: Whom it talks to.
        life: Of the worker that serves it.
    """

    vendor: MemoryVendor
    life: Life

    name = "memory"
    version = "1"
    display_name = "Memory"
    capabilities = Capabilities(expiry="vendor", create_settle_ms=round(SETTLE_S * 1000))

    async def probe(self, params: types.ProbeParams, call: Call) -> types.ProbeResult:
        return types.ProbeResult(checks=())

    async def acquire_lease(self, params: types.AcquireLeaseParams, call: Call) -> types.LeaseResult:
        call.dispatched = "no"
        self.vendor.check_up()
        plan, self.vendor.plan = self.vendor.plan, "works"
        if plan == "refuses":
            raise errors.QuotaExceeded("there is no room", dispatched="no")
        if plan == "crash before":
            self.life.die()
            await self.life.check()
        call.dispatched = "unknown"
        self.vendor.creates.append(params.sandbox_id)
        make = self._maker(params)
        if plan == "late":
            # It is the vendor's now: nothing that happens to the worker holds it up.
            asyncio.get_running_loop().call_later(LATE_S, make)
            await asyncio.sleep(LATE_S)
        elif plan == "ignores cancel":
            await _whatever(STUBBORN_S)
            await self.life.check()
            make()
        else:
            make(hidden_s=HIDDEN_S if plan == "hidden" else 0.0)
        if plan == "crash after":
            self.life.die()
        await self.life.check()
        if plan == "half":
            raise errors.Internal("it was made and something else failed", dispatched="unknown")
        if plan in ("lost", "hidden"):
            await asyncio.get_running_loop().create_future()
        return _lease(params.sandbox_id, self.vendor.entries[params.sandbox_id])

    def _maker(self, params: types.AcquireLeaseParams) -> Callable[..., Entry]:
        store_id = self.session.store_id

        def make(*, hidden_s: float = 0.0) -> Entry:
            return self.vendor.make(params.sandbox_id, store_id, params.ttl_ms / 1000, hidden_s=hidden_s)

        return make

    async def attach_lease(self, params: types.AttachLeaseParams, call: Call) -> types.AttachLeaseResult:
        self.vendor.check_up()
        self.vendor.expire()
        entry = self.vendor.entries.get(params.sandbox_id)
        if entry is None:
            return types.AttachLeaseResult(state="gone")
        return types.AttachLeaseResult(state="attached", lease=_lease(params.sandbox_id, entry))

    async def list_leases(self, params: types.ListLeasesParams, call: Call) -> types.ListLeasesResult:
        self.vendor.check_up()
        names = [name for name in self.vendor.listed(self.session.store_id) if params.sandbox_id in (None, name)]
        return types.ListLeasesResult(leases=tuple(types.ListedLease(sandbox_id=name, handle=name) for name in names))

    async def destroy_lease(self, params: types.DestroyLeaseParams, call: Call) -> types.DestroyLeaseResult:
        self.vendor.check_up()
        await self.life.check()
        self.vendor.expire()
        if self.vendor.entries.pop(params.sandbox_id, None) is None:
            return types.DestroyLeaseResult(state="gone")
        self.vendor.destroyed.append(params.sandbox_id)
        return types.DestroyLeaseResult(state="destroyed")

    async def execute(self, params: types.ExecuteParams, call: Call) -> types.ExecuteResult:
        raise errors.NotSupported("there is nothing to run commands in", dispatched="no")


def provider_of(vendor: MemoryVendor, life: Life) -> type[Provider]:
    """The class that a worker of this vendor serves."""
    return type("MemoryProvider", (MemoryProvider,), {"vendor": vendor, "life": life})


async def _whatever(seconds_s: float) -> None:
    """Wait, and take no notice of a cancel."""
    end = asyncio.get_running_loop().time() + seconds_s
    waiting: asyncio.Future[Any] = asyncio.ensure_future(asyncio.sleep(seconds_s))
    while not waiting.done():
        try:
            await asyncio.wait((waiting,), timeout=end - asyncio.get_running_loop().time())
        except asyncio.CancelledError:
            continue


def _lease(sandbox_id: str, entry: Entry) -> types.LeaseResult:
    return types.LeaseResult(handle=sandbox_id, working_directory="/", expires_at_ms=round(entry.expires_at_s * 1000))
