"""What a lease is asked for with; kept as long as the sandbox, since attach and clean-up need it again."""

from __future__ import annotations

import os

import msgspec
from msgspec import Raw, Struct

from sandport_protocol.v1 import Egress, new_sandbox_id


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """One acquire, with an id that serves it alone."""

    sandbox_id: str
    lease_id: str
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
    keep: bool = False
    """The sandbox outlives the block, and the process, that asked for it."""
    name: str | None = None
    """What a person calls the lease; one that has not ended has it alone."""
    run: str | None = None
    tenant: str | None = None
    principal: str | None = None
    workspace: str | None = None
    work_item: str | None = None


def asked_again(request: LeaseRequest) -> LeaseRequest:
    """The same with ids of its own: one that was sent is never sent in a second create."""
    return msgspec.structs.replace(request, sandbox_id=new_sandbox_id(os.urandom(17)), lease_id=new_lease_id())


def new_lease_id() -> str:
    """A fresh lease id: `le` and 26 base32 characters."""
    return "le" + new_sandbox_id(os.urandom(17))[2:]
