"""A lease request as rows of the journal, and back: what a row holds suffices to use and to end a sandbox."""

from __future__ import annotations

from msgspec import Raw

from sandport.store.records import LeaseRow, SandboxRow
from sandport_protocol import codec
from sandport_protocol.v1 import LeaseResult

from .request import LeaseRequest


def sandbox_row(request: LeaseRequest, *, owner: str) -> SandboxRow:
    """The row of a sandbox that nobody was asked for yet."""
    return SandboxRow(
        id=request.sandbox_id,
        state="intended",
        provider=request.provider,
        environment=request.environment,
        config=bytes(request.config),
        secrets=request.secrets,
        tenant=request.tenant,
        owner=owner,
    )


def lease_row(request: LeaseRequest, *, owner: str) -> LeaseRow:
    """The row of the lease on it."""
    return LeaseRow(
        id=request.lease_id,
        sandbox_id=request.sandbox_id,
        generation=1,
        state="requested",
        environment=request.environment,
        name=request.name,
        kept=request.keep,
        owner=owner,
        run=request.run,
        tenant=request.tenant,
        principal=request.principal,
        workspace=request.workspace,
        work_item=request.work_item,
        workload=request.workload,
        env=request.env,
    )


def request_of(sandbox: SandboxRow, lease: LeaseRow) -> LeaseRequest:
    """What was asked for, as far as it is needed once the sandbox is there."""
    return LeaseRequest(
        sandbox_id=sandbox.id,
        lease_id=lease.id,
        provider=sandbox.provider,
        environment=lease.environment,
        config=Raw(sandbox.config),
        secrets=dict(sandbox.secrets),
        env=dict(lease.env),
        egress=None,
        workload=lease.workload,
        ttl_s=0.0,
        keep=lease.kept,
        name=lease.name,
        run=lease.run,
        tenant=lease.tenant,
        principal=lease.principal,
        workspace=lease.workspace,
        work_item=lease.work_item,
    )


def lease_result(sandbox: SandboxRow) -> LeaseResult:
    """What the provider answered at the acquire.

    Raises:
        ValueError: It has not answered.
    """
    if sandbox.lease_result is None:
        raise ValueError(f"sandbox {sandbox.id} was never leased")
    return codec.read_as(LeaseResult, Raw(sandbox.lease_result))
