"""What a lease is asked for with; kept as long as the sandbox, since attach and clean-up need it again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from sandport.arguments import check_config, check_seconds, check_variables, shown
from sandport.configuration import EnvironmentSettings, overridden
from sandport.errors import UsageError
from sandport_protocol import codec
from sandport_protocol.v1 import Egress, new_sandbox_id

from .name import RULE, may_be_called


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


def check_asked(*, ttl_s: float, name: str | None, env: Mapping[Any, Any], config: Mapping[Any, Any]) -> None:
    """Refuse what is wrong in any environment.

    Raises:
        UsageError: The life time makes no sense, the name is none that a lease may have, a variable has no name or
            value of one, or the config is no JSON.
    """
    check_seconds("ttl_s", ttl_s)
    check_name(name)
    # Now, and not with the first command: what is wrong here is wrong for each.
    check_variables(env)
    check_config(config)


def check_name(name: str | None) -> None:
    """Refuse a name that the command could not use.

    Raises:
        UsageError: A lease may not be called this.
    """
    if name == "":
        raise UsageError("the name of the lease is empty; leave it out, or give one")
    if name is not None and not may_be_called(name):
        raise UsageError(f"the name of the lease is {shown(name)}; expected {RULE}")


def asked(
    environment: str,
    settings: EnvironmentSettings,
    *,
    config: Mapping[str, Any],
    env: Mapping[str, str],
    egress: Egress | None,
    workload: str | None,
    ttl_s: float,
    keep: bool,
    name: str | None,
    **ids: str | None,
) -> LeaseRequest:
    """What `Host.lease` asks for, with fresh ids.

    Args:
        environment: The name that was given.
        settings: What it stands for; config and variables are laid over its own.
        config, env, egress, workload, ttl_s, keep, name: As for `Host.lease`.
        ids: The embedder's: run, tenant, principal, workspace, work_item.
    """
    return LeaseRequest(
        sandbox_id=new_sandbox_id(os.urandom(17)),
        lease_id=new_lease_id(),
        provider=settings.provider,
        environment=environment,
        config=Raw(codec.encode(overridden(settings.config, config))),
        secrets={},
        env={**settings.env, **env},
        egress=egress,
        workload=workload,
        ttl_s=ttl_s,
        keep=keep,
        name=name,
        **ids,
    )


def asked_again(request: LeaseRequest) -> LeaseRequest:
    """The same with ids of its own: one that was sent is never sent in a second create."""
    return msgspec.structs.replace(request, sandbox_id=new_sandbox_id(os.urandom(17)), lease_id=new_lease_id())


def new_lease_id() -> str:
    """A fresh lease id: `le` and 26 base32 characters."""
    return "le" + new_sandbox_id(os.urandom(17))[2:]
