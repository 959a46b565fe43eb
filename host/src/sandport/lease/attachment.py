"""One sandbox at the workers of its provider: attached where the serving one does not know it, and destroyed.

A sandbox outlives the worker that created it. Whoever wants something of it, a block or the clean-up, goes through
here: the worker may be another one at each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar

import anyio.lowlevel
from msgspec import Raw, Struct

from sandport.arguments import LONGEST_S
from sandport.errors import (
    LeaseLost,
    LeaseNotFound,
    NotAttached,
    SandportError,
    Unavailable,
    WorkerCrashed,
    WorkerWedged,
)
from sandport.log import Log
from sandport.numbers import Timing
from sandport.rate_limits import RateLimits, key_of
from sandport.worker.lifetime import Worker
from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import (
    AttachLeaseParams,
    AttachLeaseResult,
    DestroyLeaseParams,
    DestroyLeaseResult,
    LeaseResult,
)

_T = TypeVar("_T")
DESTROY_TRIES = 3
"""Destroying is repeatable: a worker that crashes over it is replaced so often before somebody else's turn comes."""


class Workers(Protocol):
    """Where the worker of a sandbox's provider comes from."""

    async def worker(self) -> Worker:
        """The one that serves now, started if need be."""


class Attachment:
    """A sandbox, by its handle.

    Args:
        provider: The provider's name.
        sandbox_id: The id on the vendor's resource.
        handle: The provider's name for it.
        config: The provider's config, as at the create.
        secrets: Likewise.
        tenant: Whose it is.
        workers: Where its worker comes from.
        worker: The one that knows it already, if one does.
        limits: What holds back the calls of a credential whose vendor says so.
        keep: Told at an attach: whether it outlives its workers; None leaves that as it is.

    Attributes:
        lost: Why nothing can be asked of it any more; None while it can.
        on_lost: Told so, once, unless whoever holds it ended it.
        lease: What the last attach answered; None before the first.
    """

    def __init__(
        self,
        provider: str,
        sandbox_id: str,
        handle: str,
        *,
        config: Raw,
        secrets: dict[str, str],
        tenant: str | None,
        workers: Workers,
        worker: Worker | None = None,
        limits: RateLimits,
        keep: bool | None = None,
        timing: Timing,
        log: Log,
    ) -> None:
        self.id = sandbox_id
        # Once, and not for each command: it is a digest of the secrets.
        self._credential = key_of(provider, tenant, secrets)
        self.handle = handle
        self.keep = keep
        self._keep_told = keep is None
        self.lost: str | None = None
        self.on_lost: Callable[[str], None] | None = None
        self.lease: LeaseResult | None = None
        self._config = config
        self._secrets = secrets
        self._workers = workers
        self._limits = limits
        self._attached_to = worker
        self._attaching = asyncio.Lock()
        self._timing = timing
        self._log = log

    async def worker(self) -> Worker:
        """The worker that serves now, with this sandbox attached to it.

        Raises:
            LeaseLost: The sandbox is gone.
            Unavailable: Whether it is there cannot be told now.
        """
        worker = self._attached_to
        if worker is not None and worker.usable:
            return worker
        async with self._attaching:
            worker = await self._workers.worker()
            if self._attached_to is not worker:
                await self._attach(worker)
            return worker

    async def limited(self, attempt: Callable[[], Awaitable[_T]], *, patience_s: float, repeats: bool = True) -> _T:
        """The result of a call that goes to the vendor, held back and repeated as the vendor asks.

        Args:
            attempt: Makes the call; repeated only where the vendor refused it for its rate and nothing happened.
            patience_s: No turn and no repeat comes later than this.
            repeats: Whether it may be made again at all.
        """
        return await self._limits.call(self._credential, lambda _: attempt(), deadline_s=patience_s, repeats=repeats)

    def detach(self) -> None:
        """Attach again before the next call: the worker said that it does not know the sandbox."""
        self._attached_to = None

    async def set_keep(self, keep: bool) -> None:  # noqa: FBT001 - the one thing that it sets
        """Tell the provider whether the sandbox outlives its workers. Repeat: says it again."""
        self.keep = keep
        self._keep_told = False
        async with self._attaching:
            await self._attach(await self._workers.worker())

    async def confirm_keep(self) -> None:
        """Tell the provider again what it may not have heard of `set_keep`; nothing where it has."""
        if self.keep is not None and not self._keep_told:
            await self.set_keep(self.keep)

    async def _attach(self, worker: Worker) -> None:
        params = AttachLeaseParams(
            sandbox_id=self.id, handle=self.handle, config=self._config, secrets=self._secrets, keep=self.keep
        )
        answer = await self.limited(
            lambda: worker.client.call(
                METHODS["attachLease"], params, AttachLeaseResult, deadline_s=self._timing.call_s
            ),
            patience_s=self._timing.call_s,
        )
        if answer.state == "gone":
            self.lose("its sandbox is gone")
            raise LeaseLost(f"the lease on {self.id} was lost: {self.lost}; take a new lease")
        if answer.state == "unreachable":
            raise Unavailable(f"sandbox {self.id} cannot be reached now; try again later", dispatched="no")
        if answer.processes_lost:
            self._log("warning", "the sandbox was re-attached; its files are there, what ran in it is not")
        self.lease = answer.lease or self.lease
        self._attached_to = worker
        self._keep_told = True

    def lose(self, why: str) -> None:
        """Note that the sandbox is there no more."""
        if self.lost is None:
            self.lost = why
            if self.on_lost is not None:
                try:
                    self.on_lost(why)
                except Exception as error:  # noqa: BLE001 - the embedder's; what noticed the loss has more to do
                    self._log("error", f"on_lost failed: {error!r}")

    async def call(self, method: str, params: Struct, result: type[Any], *, deadline_s: float | None) -> Any:
        """One call in the name of this sandbox; attaches first where the worker does not know it yet.

        Raises:
            LeaseLost: The sandbox is gone.
            SandportError: What the worker answered, or became of it.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        for attempt in (1, 2):
            client = (await self.worker()).client
            try:
                return await self.limited(
                    lambda client=client: client.call(METHODS[method], params, result, deadline_s=deadline_s),  # type: ignore[misc]
                    patience_s=LONGEST_S if deadline_s is None else deadline_s,
                    repeats=METHODS[method].repeatable,
                )
            except NotAttached as error:
                self.detach()
                if attempt == 2 or error.dispatched != "no":
                    raise
            except LeaseNotFound as error:
                self.lose("its sandbox is gone")
                words = f"the lease on {self.id} was lost: {error}; take a new lease"
                raise LeaseLost(words, dispatched=error.dispatched) from None
        raise AssertionError("unreachable: the second attempt returns or raises")

    # -------------------------------------------------------------- the end

    def request_destroy(self) -> None:
        """Ask for the end without waiting for anything: for a host that leaves at once."""
        worker = self._attached_to
        if worker is not None and worker.usable and self.lost is None:
            worker.client.send_and_forget(METHODS["destroyLease"], DestroyLeaseParams(sandbox_id=self.id))

    async def destroy(self) -> Literal["destroyed", "gone"]:
        """End the sandbox and everything in it; the provider has confirmed it when this returns.

        Raises:
            SandportError: Nothing is confirmed; a repeat may be.

        Repeat: confirms again.
        Cancel: the worker goes on with it for its cancel grace.
        """
        if self.lost is not None:
            return "gone"
        self.on_lost = None
        if self._attached_to is not None:
            await self._attached_to.prove_alive()
        failure: SandportError | None = None
        for _ in range(DESTROY_TRIES):
            try:
                result = await self._destroy()
            except LeaseLost:
                return "gone"
            except (WorkerCrashed, WorkerWedged) as error:
                failure = error
                continue
            self.lose("it was destroyed")
            return result.state
        assert failure is not None  # the loop ran
        raise failure

    async def _destroy(self) -> DestroyLeaseResult:
        params, deadline_s = DestroyLeaseParams(sandbox_id=self.id), self._timing.destroy_s
        try:
            await self.worker()
        except Unavailable:
            # One that was half made, or half ended, cannot be attached, and may be ended all the same: the worker has
            # the config now. Where it cannot either, it says so.
            client = (await self._workers.worker()).client
            return await self.limited(
                lambda: client.call(METHODS["destroyLease"], params, DestroyLeaseResult, deadline_s=deadline_s),
                patience_s=deadline_s,
            )
        result: DestroyLeaseResult = await self.call("destroyLease", params, DestroyLeaseResult, deadline_s=deadline_s)
        return result
