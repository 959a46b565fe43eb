# ruff: noqa: D102 - `store.Store` says what each method does
"""A store in one SQLite file, for all processes of one machine.

Every method is an operation of `changes` or `queries`, run by `writer` in a thread of its own. The driver is the
standard library's: a hop to a thread for each statement, as others do it, costs more than all statements of a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from sandport.clock import Clock, SystemClock

from .errors import StoreUnusable
from .records import Leased, LeaseRow, Receipt, Ref, SandboxRow, SandboxState, Use, What
from .store import NOBODY, Store

if TYPE_CHECKING:
    from sqlite3 import Connection

    from .writer import Writer

_P = ParamSpec("_P")
_T = TypeVar("_T")

KEPT_GONE_MS = 30 * 24 * 3600 * 1000
"""How long the rows and receipts of gone sandboxes are kept."""


class SqliteStore(Store):
    """A store in a file; `open` makes one.

    It belongs to the event loop and to the process that opened it.
    """

    def __init__(self, writer: Writer, clock: Clock, path: Path, store_id: str) -> None:
        from . import changes, queries

        self._writer = writer
        self._clock = clock
        self._changes = changes
        self._queries = queries
        self._path = path
        self._store_id = store_id

    @classmethod
    async def open(
        cls,
        path: str | Path,
        *,
        clock: Clock | None = None,
        store_id: str | None = None,
        keep_gone_ms: int | None = KEPT_GONE_MS,
        patience_s: float = 20.0,
    ) -> Self:
        """Open a store, and make it where there is none; the caller must `aclose` it.

        Args:
            path: The file; its folder exists. Two files beside it (`-wal`, `-shm`) belong to it.
            clock: What the times in the rows are taken from.
            store_id: The id that it must have, and that a new one gets; by default a new one is minted.
            keep_gone_ms: For how long rows and receipts of gone sandboxes are kept; some hundreds of older ones are
                dropped at each start, in the background. None keeps them for ever.
            patience_s: How long an operation waits for other processes that write at this moment.

        Raises:
            StoreUnusable: The file, its folder or its disk does not do what a store needs; the message says what to do.
            StoreTooNew: A newer Sandport wrote it.

        Cancel: leaves the file as it was, or made and empty.
        """
        from . import file
        from .writer import Writer

        where, time = Path(path), clock or SystemClock()

        def explain(error: Any, maybe_done: bool) -> Any:  # noqa: FBT001 - the writer passes it by place
            return file.explain(where, error, maybe_done=maybe_done)

        writer = Writer(
            lambda: file.connect(where, store_id=store_id, now_ms=time.now_ms(), patience_s=patience_s), explain
        )
        try:
            minted = await writer.submit(
                lambda db: db.execute("SELECT store_id FROM store").fetchone()[0], writes=False
            )
        except BaseException as error:
            # Whatever it was, a cancel too: nobody has the store who would close it, and its thread holds the file.
            try:
                await asyncio.shield(asyncio.ensure_future(writer.aclose()))
            except StoreUnusable as problem:
                error.add_note(f"and then: {problem}")
            raise
        store = cls(writer, time, where, minted)
        if keep_gone_ms is not None:
            older = time.now_ms() - keep_gone_ms
            pruning = writer.submit(lambda db: store._changes.prune(db, 0, older), writes=True)
            pruning.add_done_callback(_retrieve)
        return store

    @property
    def store_id(self) -> str:
        """The store's own id."""
        return self._store_id

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    async def aclose(self) -> None:
        await self._writer.aclose()

    # --- getting a sandbox ---

    async def request(self, sandbox: SandboxRow, lease: LeaseRow) -> None:
        await self._change(self._changes.request, sandbox, lease)

    async def creating(self, ref: Ref, *, by: str, provider_version: str, settle_ms: int) -> None:
        await self._change(self._changes.creating, ref, by, provider_version, settle_ms)

    async def created(
        self,
        ref: Ref,
        lease_id: str,
        *,
        by: str,
        handle: str,
        lease_result: bytes,
        expires_at_ms: int | None = None,
    ) -> None:
        await self._change(self._changes.created, ref, lease_id, by, handle, lease_result, expires_at_ms)

    async def refused(self, ref: Ref, lease_id: str, *, by: str, reason: str) -> None:
        await self._change(self._changes.refused, ref, lease_id, by, reason)

    async def doubtful(self, ref: Ref, *, by: str, reason: str) -> None:
        await self._change(self._changes.doubtful, ref, by, reason)

    async def rest(self, ref: Ref, lease_id: str, *, by: str, reason: str) -> None:
        await self._change(self._changes.rest, ref, lease_id, by, reason)

    async def reuse(self, ref: Ref, lease: LeaseRow, *, by: str) -> SandboxRow:
        return await self._change(self._changes.reuse, ref, lease, by)

    # --- ending it ---

    async def ending(
        self, ref: Ref, *, by: str, reason: str, force: bool = False, dead: Collection[str] = NOBODY
    ) -> SandboxRow:
        return await self._change(self._changes.ending, ref, by, reason, force=force, dead=dead)

    async def gone(self, ref: Ref, *, by: str, what: What = "destroyed", detail: str = "") -> None:
        await self._change(self._changes.gone, ref, by, what, detail)

    async def seen(self, ref: Ref, *, by: str, handle: str | None = None) -> None:
        await self._change(self._changes.seen, ref, by, handle)

    async def failed(self, ref: Ref, *, by: str, error: str, due_at_ms: int, counts: bool = True) -> None:
        await self._change(self._changes.failed, ref, by, error, due_at_ms, counts=counts)

    async def claim(self, ref: Ref, *, by: str, dead: Collection[str] = NOBODY) -> SandboxRow:
        return await self._change(self._changes.claim, ref, by, dead)

    async def forget(self, sandbox_id: str, *, by: str, reason: str) -> None:
        await self._change(self._changes.forget, sandbox_id, by, reason)

    # --- using a lease ---

    async def use(self, lease_id: str, *, by: str) -> Leased:
        return await self._change(self._changes.use, lease_id, by)

    async def unuse(self, lease_id: str, *, by: str) -> None:
        await self._change(self._changes.unuse, lease_id, by)

    async def unuse_all(self, instances: Collection[str]) -> int:
        return await self._change(self._changes.unuse_all, instances)

    async def keep(self, lease_id: str, *, by: str, name: str | None = None, kept: bool = True) -> LeaseRow:
        return await self._change(self._changes.keep, lease_id, by, name, kept=kept)

    async def release(self, lease_id: str, *, by: str) -> None:
        await self._change(self._changes.release, lease_id, by)

    # --- reading ---

    async def sandbox(self, sandbox_id: str) -> SandboxRow | None:
        return await self._read(self._queries.sandbox, sandbox_id)

    async def lease(self, which: str) -> LeaseRow:
        return await self._read(self._queries.lease, which)

    async def leased(self, which: str) -> Leased:
        return await self._read(self._queries.leased, which)

    async def sandboxes(
        self, *, states: Collection[SandboxState] | None = None, owners: Collection[str | None] | None = None
    ) -> list[SandboxRow]:
        return await self._read(self._queries.sandboxes, states, owners)

    async def leases(self, *, ended: bool = False) -> list[LeaseRow]:
        return await self._read(self._queries.leases, ended=ended)

    async def uses(self, lease_id: str | None = None) -> list[Use]:
        return await self._read(self._queries.uses, lease_id)

    async def receipts(self, sandbox_id: str) -> list[Receipt]:
        return await self._read(self._queries.receipts, sandbox_id)

    async def work(self, now_ms: int, *, by: str, dead: Collection[str] = NOBODY) -> list[SandboxRow]:
        return await self._read(self._queries.work, now_ms, by, dead)

    async def next_due_ms(self) -> int | None:
        return await self._read(self._queries.next_due_ms)

    async def owners(self) -> frozenset[str]:
        return await self._read(self._queries.owners)

    async def counts(self) -> dict[SandboxState, int]:
        return await self._read(self._queries.counts)

    # --- upkeep ---

    async def prune(self, older_than_ms: int) -> int:
        pruned = 0
        while True:
            dropped = await self._change(self._changes.prune, older_than_ms)
            pruned += dropped
            if dropped < self._changes.MOST_PRUNED:
                return pruned

    # --- the way to the thread ---

    async def _change(
        self,
        operation: Callable[Concatenate[Connection, int, _P], _T],
        *arguments: _P.args,
        **options: _P.kwargs,
    ) -> _T:
        now_ms = self._clock.now_ms
        result: _T = await self._writer.submit(lambda db: operation(db, now_ms(), *arguments, **options), writes=True)
        return result

    async def _read(
        self, operation: Callable[Concatenate[Connection, _P], _T], *arguments: _P.args, **options: _P.kwargs
    ) -> _T:
        result: _T = await self._writer.submit(lambda db: operation(db, *arguments, **options), writes=False)
        return result


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Nobody waits for it; the next operation says what is wrong with the store."""
    if not future.cancelled():
        future.exception()
