"""Getting a sandbox, and never losing one on the way.

The id is minted here and sent once. Whatever happens between the request and its answer (a cancel, a crash, an answer
that comes late or never), what may exist is ended: by its id through a list where the handle is not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio.lowlevel
from msgspec import Raw

from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import (
    AcquireLeaseParams,
    AttachLeaseParams,
    AttachLeaseResult,
    DestroyLeaseParams,
    DestroyLeaseResult,
    Egress,
    LeaseResult,
    ListLeasesParams,
    ListLeasesResult,
)

from .closing import finished_within
from .errors import LeaseNotFound, NotSupported, ProtocolViolation, SandportError
from .lease_request import LeaseRequest
from .log import Log
from .numbers import Timing
from .sandbox import Sandbox, Workers
from .worker.client import WorkerClient
from .worker.lifetime import Worker
from .worker.open_call import OpenCall


async def acquire(request: LeaseRequest, workers: Workers, *, timing: Timing, log: Log) -> Sandbox:
    """A new sandbox, leased.

    Raises:
        SandportError: There is none; what was created on the way is gone, or reported in the log.

    Cancel: waits, shielded and bounded, until what was asked for is gone again.
    """
    await anyio.lowlevel.checkpoint_if_cancelled()
    worker = await workers.worker()
    params = AcquireLeaseParams(
        sandbox_id=request.sandbox_id,
        config=request.config,
        secrets=request.secrets,
        egress=request.egress,
        workload=request.workload,
        ttl_ms=round(request.ttl_s * 1000),
    )
    client = worker.client
    call = await client.begin(METHODS["acquireLease"], params, deadline_s=timing.acquire_s)
    try:
        raw = await call.future
    except asyncio.CancelledError:
        await _undone(_settle_and_undo(client, call, params, workers, timing=timing, log=log), params, timing, log)
        raise
    except SandportError as error:
        if error.dispatched != "no":
            await _undone(_undo(params, workers, timing=timing, log=log), params, timing, log)
        raise
    try:
        lease = client.result_of(call, raw, LeaseResult)
        _check_egress(request, lease)
    except (ProtocolViolation, NotSupported):
        await _undone(_undo(params, workers, timing=timing, log=log), params, timing, log)
        raise
    return Sandbox(request, lease, worker, workers, timing=timing, log=log)


def _check_egress(request: LeaseRequest, lease: LeaseResult) -> None:
    wanted = request.egress
    if wanted is not None and lease.egress != wanted:
        raise NotSupported(
            f"provider {request.provider} was asked to enforce {_words(wanted)} and enforces {_words(lease.egress)}; "
            "the sandbox was destroyed"
        )


def _words(egress: Egress | None) -> str:
    if egress is None:
        return "nothing that it says"
    return f"egress {egress.mode}" + "".join(f" {item}" for item in (*egress.hosts, *egress.cidrs))


async def _undone(undoing: Coroutine[Any, Any, None], params: AcquireLeaseParams, timing: Timing, log: Log) -> None:
    """Wait for the undoing, whatever cancels the caller, at most the close grace; it then goes on alone."""
    task = asyncio.ensure_future(undoing)
    if not await finished_within(task, timing.close_grace_s):
        log("error", "a sandbox may be left: it is still being looked for", sandbox=params.sandbox_id)


async def _settle_and_undo(
    client: WorkerClient, call: OpenCall, params: AcquireLeaseParams, workers: Workers, *, timing: Timing, log: Log
) -> None:
    settled = await client.settle(call)
    if isinstance(settled, Raw) or settled.dispatched != "no":
        await _undo(params, workers, timing=timing, log=log)


async def _undo(params: AcquireLeaseParams, workers: Workers, *, timing: Timing, log: Log) -> None:
    """End whatever this acquire may have created; loud where it fails."""
    try:
        await end_by_id(params, await workers.worker(), timing=timing)
    except SandportError as error:
        log("error", f"a sandbox may be left: {error}", sandbox=params.sandbox_id)


async def end_by_id(params: AcquireLeaseParams, worker: Worker, *, timing: Timing) -> None:
    """Destroy every sandbox that the vendor lists under the id of this create.

    Repeat: finds nothing the second time.
    """
    cursor: str | None = None
    while True:
        page = await worker.client.call(
            METHODS["listLeases"],
            ListLeasesParams(config=params.config, secrets=params.secrets, sandbox_id=params.sandbox_id, cursor=cursor),
            ListLeasesResult,
            deadline_s=timing.call_s,
        )
        for listed in page.leases:
            if listed.sandbox_id == params.sandbox_id:
                await _attach_and_destroy(params, worker, listed.handle, timing=timing)
        cursor = page.next_cursor
        if cursor is None:
            return


async def _attach_and_destroy(params: AcquireLeaseParams, worker: Worker, handle: str, *, timing: Timing) -> None:
    attached = await worker.client.call(
        METHODS["attachLease"],
        AttachLeaseParams(sandbox_id=params.sandbox_id, handle=handle, config=params.config, secrets=params.secrets),
        AttachLeaseResult,
        deadline_s=timing.call_s,
    )
    if attached.state == "gone":
        return
    try:
        await worker.client.call(
            METHODS["destroyLease"],
            DestroyLeaseParams(sandbox_id=params.sandbox_id),
            DestroyLeaseResult,
            deadline_s=timing.destroy_s,
        )
    except LeaseNotFound:
        return  # somebody else, or its own end, was faster
