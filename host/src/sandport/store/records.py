"""The rows of a store, as it gives and takes them.

Two records: a sandbox is what a vendor bills, a lease is somebody's right to one generation of it. Times are
milliseconds since the Unix epoch by the host's clock.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

SandboxState = Literal["intended", "creating", "leased", "idle", "ending", "doubtful", "gone"]
"""See `states`."""
LeaseState = Literal["requested", "active", "ended"]


class Ref(Struct, frozen=True):
    """One generation of one sandbox: what every action names."""

    sandbox_id: str
    generation: int = 1


class SandboxRow(Struct, frozen=True, kw_only=True):
    """What the host knows of one sandbox: enough to end it without any memory of who asked for it."""

    id: str
    """`sp` and 26 base32 characters; the vendor's resource carries it."""
    generation: int = 1
    """One more each time that it is leased again."""
    state: SandboxState = "intended"
    provider: str
    provider_version: str = ""
    """Known from `creating` on."""
    environment: str
    config: bytes = b"{}"
    """The provider's config as JSON, without secrets."""
    secrets: dict[str, str] = {}
    """By name, as they were given."""
    tenant: str | None = None
    handle: str | None = None
    lease_result: bytes | None = None
    """What the provider answered, as JSON; None until it did."""
    owner: str | None
    """The instance that acts on it; None where nobody does: it is kept or idle, or up for clean-up."""
    settle_ms: int = 0
    """How long after a create's end the provider's list may still miss what was created; known from `creating` on."""
    quiet_since_ms: int | None = None
    """Doubtful ones: since when nothing of it was seen."""
    created_at_ms: int = 0
    """When the row was written; the store sets it."""
    changed_at_ms: int = 0
    """When the row last changed; the store sets it."""
    expires_at_ms: int | None = None
    """When it ends by itself, as its provider attests; None where the provider attests nothing."""
    attempts: int = 0
    """How many attempts of clean-up have failed."""
    due_at_ms: int = 0
    """When the next attempt is due."""
    last_error: str = ""

    @property
    def ref(self) -> Ref:
        """This generation of it."""
        return Ref(self.id, self.generation)


class LeaseRow(Struct, frozen=True, kw_only=True):
    """Somebody's right to one generation of a sandbox."""

    id: str
    """`le` and 26 base32 characters."""
    sandbox_id: str
    generation: int = 1
    state: LeaseState = "requested"
    reason: str = ""
    """Why it ended."""
    environment: str
    name: str | None = None
    """Unique among the leases that have not ended."""
    kept: bool = False
    """It outlives the block and the process that asked for it."""
    owner: str | None
    """The instance whose block it is; None for a kept one that was let go."""
    run: str | None = None
    tenant: str | None = None
    principal: str | None = None
    workspace: str | None = None
    work_item: str | None = None
    workload: str | None = None
    env: dict[str, str | bytes] = {}
    """Variables for every command, in plain text for whoever attaches; none once it has ended."""
    requested_at_ms: int = 0
    """The store sets it, as it does the two below."""
    active_at_ms: int | None = None
    ended_at_ms: int | None = None


class Leased(Struct, frozen=True, kw_only=True):
    """A lease and the sandbox that it is a right to, read in one transaction."""

    lease: LeaseRow
    sandbox: SandboxRow


class Use(Struct, frozen=True, kw_only=True):
    """An instance uses a lease now: with a block, a command, a copy."""

    lease_id: str
    instance: str
    since_ms: int
    """When the first of those that still last began."""
    count: int = 1
    """How many last."""


What = Literal[
    "requested",
    "creating",
    "created",
    "refused",
    "doubtful",
    "seen",
    "ending",
    "destroyed",
    "gone",
    "attempt failed",
    "taken over",
    "kept",
    "not kept",
    "released",
    "idle",
    "leased again",
    "forgotten",
]
"""What a receipt says was done. `refused`: nothing was created; `gone`: seen to be gone; `destroyed`: we ended it."""


class Receipt(Struct, frozen=True, kw_only=True):
    """One thing that was done to a sandbox; never changed afterwards."""

    sandbox_id: str
    generation: int
    at_ms: int
    what: What
    detail: str = ""
    instance: str = ""
    """Who did it."""
