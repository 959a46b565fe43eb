"""What a lease is asked for with; kept as long as the lease, since attach and clean-up need it again."""

from __future__ import annotations

from msgspec import Raw, Struct

from sandport_protocol.v1 import Egress


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """One acquire, with an id that serves it alone."""

    sandbox_id: str
    provider: str
    environment: str
    config: Raw
    """The provider's config as JSON, without secrets."""
    secrets: dict[str, str]
    env: dict[str, str | bytes]
    """Variables of the environment, for every command."""
    egress: Egress | None
    workload: str | None
    ttl_s: float
    run: str | None = None
    tenant: str | None = None
    principal: str | None = None
    workspace: str | None = None
