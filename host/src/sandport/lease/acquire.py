"""Getting a sandbox, and never losing one on the way.

```text
intended --worker is there--> creating --answered--> leased
    |                            |----- refused, dispatched no ------------> gone
    |--no worker, cancelled----->|----- anything else: doubtful, cleaned up
```

Each arrow is in the journal before what follows it is done: whoever finds the row knows what may exist.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio.lowlevel
import msgspec
from msgspec import Raw

from sandport.errors import NotSupported, ProtocolViolation, SandportError
from sandport.numbers import Timing
from sandport.store.records import Ref
from sandport.store.store import Store
from sandport.witness import NO_LEASE_WITNESS, LeaseWitness
from sandport.worker.client import WorkerClient
from sandport.worker.lifetime import Worker
from sandport.worker.open_call import OpenCall
from sandport_protocol import codec
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import AcquireLeaseParams, Egress, LeaseResult

from .attachment import Workers
from .request import LeaseRequest

HARD_END_S = 5.0
"""Where nobody else ends a sandbox at its time, the host's row says when, so long after what was asked for."""


def believed(lease: LeaseResult, now_ms: int, *, otherwise_ms: int | None) -> LeaseResult:
    """A lease whose end can be true.

    A sandbox that is there, and has ended by what its vendor says, has a vendor whose clock is slow: taken at its word,
    every command would be refused, and what lives would be cleaned up.

    Args:
        lease: As the provider answered it, for a sandbox that is there.
        now_ms: This machine's clock.
        otherwise_ms: The end by this machine's clock, which stands where the vendor's cannot be true.
    """
    if lease.expires_at_ms is None or lease.expires_at_ms > now_ms:
        return lease
    return msgspec.structs.replace(lease, expires_at_ms=otherwise_ms)


class Acquired:
    """A sandbox that is there and in the journal."""

    def __init__(self, lease: LeaseResult, worker: Worker) -> None:
        self.lease = lease
        self.worker = worker


class Acquiring:
    """One acquire, as far as it came; whoever gives it up asks `doubt` what may exist.

    Args:
        request: What is asked for; its rows are in the journal.
        store: The journal.
        instance: Whose lease it is.
        now_ms: The host's clock.
        on_open: Told when the create is sent: until the worker has answered it, it may still happen.
        witness: Told when the sandbox is there.
    """

    def __init__(
        self,
        request: LeaseRequest,
        store: Store,
        instance: str,
        *,
        timing: Timing,
        now_ms: Callable[[], int],
        on_open: Callable[[WorkerClient, OpenCall], None],
        witness: LeaseWitness = NO_LEASE_WITNESS,
    ) -> None:
        self._request = request
        self._store = store
        self._instance = instance
        self._timing = timing
        self._now_ms = now_ms
        self._on_open = on_open
        self._witness = witness
        self.ref = Ref(request.sandbox_id, 1)
        self.maybe_created = False
        """The create may have been sent, and was not refused: a sandbox may exist."""
        self._client: WorkerClient | None = None
        self._call: OpenCall | None = None

    async def whole(self, workers: Workers) -> Acquired:
        """Get the sandbox.

        Raises:
            SandportError: There is none, or `maybe_created` says that there may be.

        Cancel: leaves what it had begun to whoever asks `settle` and `maybe_created`.
        """
        request = self._request
        await anyio.lowlevel.checkpoint_if_cancelled()
        worker = await workers.worker()
        await self._store.creating(
            self.ref,
            by=self._instance,
            provider_version=worker.hello.provider.version,
            settle_ms=worker.hello.capabilities.create_settle_ms,
        )
        params = AcquireLeaseParams(
            sandbox_id=request.sandbox_id,
            config=request.config,
            secrets=request.secrets,
            egress=request.egress,
            workload=request.workload,
            ttl_ms=round(request.ttl_s * 1000),
            keep=request.keep,
        )
        client = self._client = worker.client
        call = await client.begin(METHODS["acquireLease"], params, deadline_s=self._timing.acquire_s)
        self._call = call
        self.maybe_created = True
        self._on_open(client, call)
        try:
            raw = await call.future
        except SandportError as error:
            self.maybe_created = error.dispatched != "no"
            raise
        lease = await self._note(client.result_of(call, raw, LeaseResult))
        _check_egress(request, lease)
        return Acquired(lease, worker)

    async def _note(self, lease: LeaseResult) -> LeaseResult:
        now_ms = self._now_ms()
        lease = believed(lease, now_ms, otherwise_ms=now_ms + round(self._request.ttl_s * 1000))
        expires_at_ms = lease.expires_at_ms
        if expires_at_ms is None:
            expires_at_ms = now_ms + round((self._request.ttl_s + HARD_END_S) * 1000)
        await self._store.created(
            self.ref,
            self._request.lease_id,
            by=self._instance,
            handle=lease.handle,
            lease_result=codec.encode(lease),
            expires_at_ms=expires_at_ms,
        )
        self._witness.started(self._request, expires_at_ms)
        return lease

    async def settle(self) -> None:
        """After a cancel: tell the worker, and learn what became of the create; at most the cancel grace."""
        if self._client is None or self._call is None or not self.maybe_created:
            return
        if self._call.future.done() and not self._call.future.cancelled():
            return
        settled = await self._client.settle(self._call)
        if isinstance(settled, Raw):
            try:
                await self._note(self._client.result_of(self._call, settled, LeaseResult))
            except ProtocolViolation:
                return  # it exists, and is found by its id
        else:
            self.maybe_created = settled.dispatched != "no"


def _check_egress(request: LeaseRequest, lease: LeaseResult) -> None:
    wanted = request.egress
    if wanted is not None and lease.egress != wanted:
        raise NotSupported(
            f"provider {request.provider} was asked to enforce {_words(wanted)} and enforces {_words(lease.egress)}; "
            "the sandbox was destroyed\nask for what it enforces, or choose a provider that enforces this"
        )


def _words(egress: Egress | None) -> str:
    if egress is None:
        return "nothing that it says"
    return f"egress {egress.mode}" + "".join(f" {item}" for item in (*egress.hosts, *egress.cidrs))
