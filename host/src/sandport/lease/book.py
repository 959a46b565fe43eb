"""All that one host does with leases: gets them, finds them again, ends them, and cleans up after the dead.

Owns: the tasks of endings and undoings, which outlive whoever asked for them; the loop of the clean-up. Above: `Host`.
Below: the store, and the workers of the providers.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from sandport.clock import Clock
from sandport.closing import finished, finished_within, outliving
from sandport.errors import LeaseLost, SandportError
from sandport.log import LEASE_NOTE, Log
from sandport.numbers import Timing
from sandport.rate_limits import RateLimits, key_of
from sandport.sandbox import Sandbox
from sandport.store.errors import InUse, Stale, StoreUnusable
from sandport.store.records import Leased, Ref, SandboxRow
from sandport.store.states import CLEANED
from sandport.store.store import Store
from sandport.witness import NO_LEASE_WITNESS, LeaseWitness
from sandport.worker.client import WorkerClient
from sandport.worker.lifetime import Worker
from sandport.worker.open_call import OpenCall
from sandport_protocol.v1 import LeaseResult

from .acquire import Acquiring, believed
from .attachment import Attachment, Workers
from .clean_up import Attempted, CleanUp, OnDone, WorkersOf
from .deaths import Deaths
from .delays import Delays
from .listing import listed
from .recovery import IsRunLive, Recovery
from .request import LeaseRequest, asked_again
from .rows import lease_result, lease_row, request_of, sandbox_row
from .tenure import Tenure

START_AHEAD_S = 60.0
"""At its start a host also tries what is due that soon: who starts anew after a failure wants it seen to."""


class Book:
    """The leases of one host.

    Args:
        store: The journal.
        instance: This host's id among those of the store.
        deaths: Who knows which other hosts are dead.
        workers_of: Where a provider's worker comes from.
        is_run_live: The embedder's word on the runs of dead hosts.
        witness: Told what becomes of leases, and what is done in their sandboxes.
        state: The folder of the host's state, which no copy empties.
    """

    def __init__(
        self,
        store: Store,
        instance: str,
        deaths: Deaths,
        workers_of: WorkersOf,
        *,
        is_run_live: IsRunLive | None,
        timing: Timing,
        delays: Delays,
        clock: Clock,
        log: Log,
        witness: LeaseWitness = NO_LEASE_WITNESS,
        state: bytes | None = None,
    ) -> None:
        self.store = store
        self._state = state
        self._witness = witness
        self._instance = instance
        self._workers_of = workers_of
        self._timing = timing
        self._delays = delays
        self._clock = clock
        self._log = log
        self._creates: dict[str, tuple[WorkerClient, OpenCall]] = {}
        self._held: dict[Attachment, Ref] = {}
        """What the blocks of this host hold."""
        self._tasks: set[asyncio.Task[bool]] = set()
        self._nudged = asyncio.Event()
        self._sweeping = asyncio.Lock()
        self._passes: set[asyncio.Task[tuple[Attempted, ...]]] = set()
        """Passes of the clean-up that are under way; no two of them are at the same sandbox."""
        self.limits = RateLimits(timing.rate_limit)
        self.passed = asyncio.Event()
        """The first pass of the clean-up is over."""
        self.clean_up = CleanUp(
            store,
            instance,
            workers_of,
            still_creating=self._still_creating,
            limits=self.limits,
            timing=timing,
            delays=delays,
            clock=clock,
            log=log,
            draw=random.Random(),
            witness=witness,
        )
        self._recovery = Recovery(
            store, instance, deaths, is_run_live=is_run_live, patience_s=timing.embedder_s, log=log
        )

    def _spawn(self, work: Coroutine[Any, Any, bool], name: str) -> asyncio.Task[bool]:
        task = outliving(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[bool]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("critical", f"{task.get_name()} failed: {error!r}")

    # -------------------------------------------------------------- getting

    async def acquire(self, request: LeaseRequest, workers: Workers, *, at_once: int | None = None) -> Sandbox:
        """A new sandbox, leased; waits and asks again where the vendor says that it is asked too much.

        Args:
            request: What is asked for. Each repeat has ids of its own.
            workers: The provider's.
            at_once: How many creates of one credential go side by side; by default the vendor teaches it.

        Raises:
            SandportError: There is none; what was created on the way is gone, or is being ended.

        Cancel: waits, bounded by the close grace, until what was asked for is gone again.
        """
        asked = 0

        async def attempt(_: float) -> Sandbox:
            nonlocal asked
            asked += 1
            return await self._acquire(request if asked == 1 else asked_again(request), workers)

        key = key_of(request.provider, request.tenant, request.secrets)
        patience_s = self._timing.acquire_s
        return await self.limits.call(key, attempt, deadline_s=patience_s, creates=True, at_most=at_once)

    async def _acquire(self, request: LeaseRequest, workers: Workers) -> Sandbox:
        acquiring = Acquiring(
            request,
            self.store,
            self._instance,
            timing=self._timing,
            now_ms=self._clock.now_ms,
            on_open=lambda client, call: self._creates.update({request.sandbox_id: (client, call)}),
            witness=self._witness,
        )
        self._witness.asked(request)
        try:
            await self.store.request(
                sandbox_row(request, owner=self._instance), lease_row(request, owner=self._instance)
            )
            acquired = await acquiring.whole(workers)
        except BaseException as error:
            await self._given_up(acquiring, request, error)
            raise
        self._creates.pop(request.sandbox_id, None)
        for note in acquired.lease.notes:
            # Such as that nothing isolates the sandbox: whoever never reads the lease's notes hears it all the same.
            self._log("warning", LEASE_NOTE, note=note, provider=request.provider, sandbox=request.sandbox_id)
        attachment = self._attachment(request, acquired.lease.handle, workers, worker=acquired.worker)
        tenure = self._tenure(acquiring.ref, request, attachment)
        return self._sandbox(request, acquired.lease, attachment, tenure)

    @contextlib.contextmanager
    def holding(self, sandbox: Sandbox, on_lost: Callable[[str], None] | None = None) -> Iterator[None]:
        """For the block, notice when another process ends the lease.

        Args:
            sandbox: What is held.
            on_lost: Told why, once, when the sandbox is there no more, or is another's.
        """
        sandbox.attachment.on_lost = sandbox.witness.on_lost(on_lost)
        self._held[sandbox.attachment] = sandbox.ref
        try:
            yield
        finally:
            sandbox.attachment.on_lost = None
            del self._held[sandbox.attachment]

    async def _check_held(self) -> None:
        for attachment, ref in tuple(self._held.items()):
            if attachment.lost is None and attachment in self._held:
                row = await self.store.sandbox(ref.sandbox_id)
                if row is None or row.generation != ref.generation or row.state != "leased":
                    attachment.lose("another process ended it")

    def _sandbox(self, request: LeaseRequest, lease: LeaseResult, attachment: Attachment, tenure: Tenure) -> Sandbox:
        witness = self._witness.sandbox(request)
        return Sandbox(request, lease, attachment, tenure, timing=self._timing, witness=witness, state=self._state)

    def _tenure(self, ref: Ref, request: LeaseRequest, attachment: Attachment) -> Tenure:
        return Tenure(
            ref,
            request,
            attachment,
            store=self.store,
            instance=self._instance,
            clean_up=self.clean_up,
            spawn=self._spawn,
            timing=self._timing,
            log=self._log.bind(sandbox=request.sandbox_id),
            witness=self._witness,
        )

    def _still_creating(self, sandbox_id: str) -> bool:
        create = self._creates.get(sandbox_id)
        if create is None:
            return False
        client, call = create
        if client.is_open(call):
            return True
        del self._creates[sandbox_id]
        return False

    async def _given_up(self, acquiring: Acquiring, request: LeaseRequest, error: BaseException) -> None:
        reason = "was cancelled" if isinstance(error, asyncio.CancelledError) else f"failed: {error}"
        undoing = self._spawn(self._undo(acquiring, request, reason), f"sandport undo {request.sandbox_id}")
        if not await finished_within(undoing, self._timing.close_grace_s):
            self._log("error", "a sandbox may be left: it is still being looked for", sandbox=request.sandbox_id)

    async def _undo(self, acquiring: Acquiring, request: LeaseRequest, reason: str) -> bool:
        """End whatever this acquire may have created; loud where it fails."""
        try:
            await acquiring.settle()
            with self.clean_up.holding(request.sandbox_id):
                undone = await self._undo_row(acquiring, request, reason)
            self._witness.undone(request)
            return undone
        except StoreUnusable as error:
            self._log("error", f"the journal cannot be written: {error}", sandbox=request.sandbox_id)
            self.clean_up.owed[request.sandbox_id] = reason
            return await self._undo_unwritten(acquiring, request)
        except Stale as stale:
            self._log("warning", f"another process ends the sandbox: {stale}", sandbox=request.sandbox_id)
            return False
        finally:
            self._still_creating(request.sandbox_id)  # forgets a create that is over

    async def _undo_row(self, acquiring: Acquiring, request: LeaseRequest, reason: str) -> bool:
        row = await self.store.sandbox(request.sandbox_id)
        if row is None or row.state == "gone":
            return True
        row = await self.clean_up.begin_end(row, reason, never_made=not acquiring.maybe_created)
        if row is None:
            return True
        attempted = await self.clean_up.settle(row)
        if attempted.end == "later":
            self._log("warning", f"a sandbox may be left, and is looked for: {attempted.detail}", sandbox=row.id)
            self.nudge()
        return attempted.end == "gone"

    async def _undo_unwritten(self, acquiring: Acquiring, request: LeaseRequest) -> bool:
        """The journal cannot be written now: clean-up does it once it can, but why wait for it."""
        if not acquiring.maybe_created:
            return True
        try:
            workers = self._workers_of(request.provider, request.tenant)
            for one in await listed(
                request.provider,
                workers,
                config=request.config,
                secrets=request.secrets,
                tenant=request.tenant,
                sandbox_id=request.sandbox_id,
                limits=self.limits,
                timing=self._timing,
            ):
                await self._attachment(request, one.handle, workers).destroy()
        except SandportError as error:
            self._log("error", f"a sandbox may be left: {error}", sandbox=request.sandbox_id)
            return False
        return True

    def _attachment(
        self,
        request: LeaseRequest,
        handle: str,
        workers: Workers,
        *,
        worker: Worker | None = None,
        keep: bool | None = None,
    ) -> Attachment:
        return Attachment(
            request.provider,
            request.sandbox_id,
            handle,
            config=request.config,
            secrets=request.secrets,
            tenant=request.tenant,
            workers=workers,
            worker=worker,
            keep=keep,
            limits=self.limits,
            timing=self._timing,
            log=self._log.bind(sandbox=request.sandbox_id),
        )

    def late(self, sandbox_id: str) -> None:
        """A create succeeded after its caller was told otherwise: end it now, and not at the next look."""
        self._log("warning", "a create succeeded after its lease was given up", sandbox=sandbox_id)
        self._spawn(self._end_late(sandbox_id), f"sandport late {sandbox_id}")

    async def _end_late(self, sandbox_id: str) -> bool:
        try:
            row = await self.store.sandbox(sandbox_id)
            if row is None or row.state != "doubtful":
                return True  # whoever is at it finds it in the vendor's list
            return (await self.clean_up.attempt(row)).end == "gone"
        except StoreUnusable as error:
            self._log("error", f"a sandbox may be left: {error}", sandbox=sandbox_id)
            return False

    # -------------------------------------------------------------- finding again

    @contextlib.asynccontextmanager
    async def attached(self, which: str) -> AsyncIterator[Sandbox]:
        """A lease that is there already, for the length of the block; its end leaves it as it was."""
        lease_id = (await self.store.lease(which)).id
        leased: Leased | None = None

        async def use() -> Leased:
            nonlocal leased
            leased = await self.store.use(lease_id, by=self._instance)
            return leased

        try:
            # To its end: a use that a cancel left behind would protect the lease for as long as this process lives.
            yield await self._found(await finished(use()))
        except Stale as stale:
            if leased is not None:
                raise
            words = f"lease {lease_id} cannot be used: {_how_over(stale)}; take a new one"
            raise LeaseLost(words, dispatched="no") from None
        finally:
            if leased is not None:
                await finished(self.store.unuse(lease_id, by=self._instance))

    async def _found(self, leased: Leased) -> Sandbox:
        request = request_of(leased.sandbox, leased.lease)
        workers = self._workers_of(leased.sandbox.provider, leased.sandbox.tenant)
        assert leased.sandbox.handle is not None  # an active lease has one
        # Said again, where it is kept: whoever kept it may have died before the provider heard of it.
        keep = True if leased.lease.kept else None
        attachment = self._attachment(request, leased.sandbox.handle, workers, keep=keep)
        try:
            await attachment.worker()
        except LeaseLost:
            # The provider has said that it is gone: so is the lease.
            await self.end(leased.lease.id, reason="its sandbox is gone", force=True)
            raise
        tenure = self._tenure(leased.sandbox.ref, request, attachment)
        lease = believed(
            attachment.lease or lease_result(leased.sandbox),
            self._clock.now_ms(),
            otherwise_ms=leased.sandbox.expires_at_ms,
        )
        return self._sandbox(request, lease, attachment, tenure)

    # -------------------------------------------------------------- ending

    async def end(self, which: str, *, reason: str, force: bool) -> Attempted:
        """End a lease of this store, and its sandbox.

        Raises:
            LeaseUnknown: There is none of this id or name.
            InUse: Another process uses it, and `force` would end it all the same; or it is still being created.
            StoreUnusable: The journal cannot be written; nothing was done.

        Repeat: what is gone is gone.
        """
        leased = await self.store.leased(which)
        row = leased.sandbox
        if row.state == "gone" or leased.lease.generation != row.generation:
            return Attempted(row.id, row.provider, "gone", leased.lease.reason)
        dead = (await self._recovery.sort()).dead
        if row.state in ("ending", "doubtful"):
            return await self.clean_up.attempt(row, dead=dead)
        if row.state in ("intended", "creating"):
            if row.owner is None or row.owner in dead:
                return await self.clean_up.attempt(row, dead=dead)
            # What it will come to, only whoever creates it learns.
            uses = await self.store.uses(leased.lease.id)
            message = (
                f"sandbox {row.id} is still being created by {row.owner}, and only that one learns what it comes"
                " to; wait for it, or end that process: the next clean-up then ends the sandbox"
            )
            raise InUse(message, uses=uses, row=row)
        with self.clean_up.holding(row.id):
            try:
                row = await self.store.ending(row.ref, by=self._instance, reason=reason, force=force, dead=dead)
            except Stale as stale:
                if stale.row is not None and stale.row.state == "gone":
                    return Attempted(row.id, row.provider, "gone", "another process ended it")
                if stale.row is not None and stale.row.state == "ending":
                    return await self.clean_up.attempt(stale.row, dead=dead)
                raise
            return await self.clean_up.settle(row)

    async def forget(self, sandbox_id: str, *, reason: str) -> None:
        """Take a sandbox for gone although nobody confirmed it.

        Raises:
            Stale: There is no such sandbox, or it is gone.
            StoreUnusable: The journal cannot be written; nothing was done.
        """
        await self.store.forget(sandbox_id, by=self._instance, reason=reason)
        row = await self.store.sandbox(sandbox_id)
        if row is not None:
            await self._witness.row_ended(row, confirmed=False)

    # -------------------------------------------------------------- clean-up

    async def sweep(self, *, ahead_s: float = 0.0, on_done: OnDone | None = None) -> tuple[Attempted, ...]:
        """Look after the dead, then try once to end what is due.

        Args:
            ahead_s: Also what was tried, failed, and is due within so many seconds.
            on_done: Told as it goes on.

        Raises:
            StoreUnusable: The journal cannot be read or written.
        """
        async with self._sweeping:
            while self._passes:  # whoever asks for a pass is told of one that began after that
                await asyncio.wait(self._passes)
            begun = await self._begun(ahead_s, on_done)
        return await begun

    async def _begun(self, ahead_s: float, on_done: OnDone | None) -> asyncio.Task[tuple[Attempted, ...]]:
        """Find out what is due, and begin to end it."""
        await self.clean_up.write_owed()
        found = await self._recovery.sort()
        for sandbox_id in found.spared:
            self._spawn(self._keep_going(sandbox_id), f"sandport keep {sandbox_id}")
        rows = {row.id: row for row in await self.clean_up.due(dead=found.dead) if row.id not in found.spared}
        until_ms = self._clock.now_ms() + ahead_s * 1000
        waiting = await self.store.sandboxes(states=CLEANED, owners=(None,)) if ahead_s else ()
        rows |= {row.id: row for row in waiting if row.due_at_ms <= until_ms}
        rows |= {row.id: row for row in await self._outlived()}

        async def whole() -> tuple[Attempted, ...]:
            attempted = await self.clean_up.once(rows.values(), dead=found.dead, on_done=on_done)
            if found.dead:
                await self._recovery.clear()
            return attempted

        begun = outliving(whole(), name="sandport pass")
        self._passes.add(begun)
        begun.add_done_callback(self._passes.discard)
        return begun

    async def _outlived(self) -> list[SandboxRow]:
        """What this host took over for a run that lives, whose time is over, and which no block of it holds."""
        held = {ref.sandbox_id for ref in self._held.values()}
        now_ms = self._clock.now_ms()
        return [
            row
            for row in await self.store.sandboxes(states={"leased"}, owners={self._instance})
            if row.id not in held and row.expires_at_ms is not None and row.expires_at_ms < now_ms
        ]

    async def _keep_going(self, sandbox_id: str) -> bool:
        """Its owner may have died between its own word that it keeps a sandbox and the provider's."""
        try:
            leased = await self.store.leased(sandbox_id)
            handle = leased.sandbox.handle
            if not leased.lease.kept or leased.lease.state != "active" or handle is None:
                return False
            workers = self._workers_of(leased.sandbox.provider, leased.sandbox.tenant)
            await self._attachment(request_of(leased.sandbox, leased.lease), handle, workers, keep=True).worker()
        except SandportError as error:
            self._log("warning", f"the provider may not know that the sandbox is kept: {error}", sandbox=sandbox_id)
            return False
        return True

    async def run(self) -> None:
        """Clean up until cancelled: what is due, when it is due, and what others leave.

        A pass that takes long, because one vendor does, goes on beside the next one.
        """
        ahead_s = START_AHEAD_S
        mine: set[asyncio.Task[tuple[Attempted, ...]]] = set()
        try:
            while True:
                try:
                    async with self._sweeping:
                        begun = await self._begun(ahead_s, None)
                    if ahead_s:  # the first one
                        begun.add_done_callback(lambda _: self.passed.set())
                    mine.add(begun)
                    await asyncio.wait((begun,), timeout=self._delays.look_s)
                    for over in [one for one in mine if one.done()]:
                        mine.discard(over)
                        over.result()
                    await self._check_held()
                    ahead_s = 0.0
                    wait_s = await self._wait_s()
                except StoreUnusable as error:
                    self._log("error", f"clean-up cannot go on now: {error}")
                    wait_s = self._delays.look_s
                    self.passed.set()
                await self._wait(wait_s)
        finally:
            for one in mine:
                one.cancel()
            await asyncio.gather(*mine, return_exceptions=True)

    def nudge(self) -> None:
        """Have the clean-up look now."""
        self._nudged.set()

    async def _wait_s(self) -> float:
        due_ms = await self.store.next_due_ms()
        if due_ms is None:
            return self._delays.look_s
        # Never at once: what is due and not ours to end, or waits for its place, would be looked at without a pause.
        least_s = 1.0 if self.clean_up.waiting else 0.05
        return min(self._delays.look_s, max(least_s, (due_ms - self._clock.now_ms()) / 1000))

    async def _wait(self, wait_s: float) -> None:
        waits = [asyncio.ensure_future(self._clock.sleep(wait_s)), asyncio.ensure_future(self._nudged.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in waits:
                waiting.cancel()
            await asyncio.wait(waits)
        self._nudged.clear()

    async def finish(self, limit_s: float | None = None) -> bool:
        """Wait for the endings that are under way; whether all are over."""
        while self._tasks:
            _, pending = await asyncio.wait(set(self._tasks), timeout=limit_s)
            if pending:
                return False
        return True


def _how_over(stale: Stale) -> str:
    if stale.lease is not None and stale.lease.state == "ended":
        return f"it has ended ({stale.lease.reason})" if stale.lease.reason else "it has ended"
    return str(stale)
