"""The vendor: sandboxes as records on a disk that every worker sees, a clock, limits, and a journal.

It knows nothing of calls and of the wire. Each change is journalled before it is made and made by replacing a file, so
a worker may be killed between any two lines. Who reads a record past its expiry finds nothing: the vendor ended it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Literal

from sandport_sdk.v1 import Config, errors

from .clock import VendorClock
from .errors import sandbox_failed
from .journal import Journal, Lock, SharedFile, replace, try_lock
from .starter import end_guards, look_for_losses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from .config import FakeConfig


class Setup(Config, frozen=True, kw_only=True):
    """`vendor.json`: what is true of the vendor before any call."""

    create_settle_ms: int = 0
    """How long a create can take to appear in a list, as the hello declares it."""


class Record(Config, frozen=True, kw_only=True):
    """One sandbox, as the vendor knows it."""

    sandbox_id: str
    store_id: str
    state: Literal["creating", "ready", "ending", "gone"]
    """`gone`: only stale lists show it."""
    created_at_ms: int
    expires_at_ms: int
    listed_from_ms: int = 0
    hidden: Literal["lists", "everything"] = "lists"
    """Until then: from lists, or also from who asks for it."""
    listed_until_ms: int = 0
    """Of one that is gone."""
    keep: bool = False
    egress: str = "all"
    workload: str = ""
    requests_per_s: int = 0
    """Of the environment that it was made for; calls that name the sandbox alone are held to it."""


class Vendor:
    """One vendor, which is one folder."""

    def __init__(self, folder: Path, *, store_id: str = "") -> None:
        self.folder = folder
        self.clock = VendorClock(folder)
        self.lock = Lock(folder)
        self.journal = Journal(folder)
        self._store_id = store_id
        self._outage = SharedFile(folder / "outage.json")
        self._rate = SharedFile(folder / "rate.json")

    @property
    def is_there(self) -> bool:
        """Whether its folder is there; without, there is nothing to journal and nothing to order."""
        return os.path.isdir(self.folder)

    def note(self, what: str, **facts: object) -> None:
        """Write to the journal."""
        self.journal.write(what, self.clock.now_ms(), **facts)

    def files(self, sandbox_id: str) -> Path:
        """A sandbox's working directory."""
        return self.folder / "files" / sandbox_id

    def guards(self, sandbox_id: str) -> Path:
        """Where the guards of a sandbox have their files."""
        return self.folder / "guards" / sandbox_id

    def record_path(self, sandbox_id: str) -> Path:
        """Where its record is."""
        return self.folder / "sandboxes" / f"{sandbox_id}.json"

    # ------------------------------------------------------------ records

    def read(self, sandbox_id: str) -> Record | None:
        """A record, whatever its state and whosever it is; None where there is none."""
        try:
            return _decoded(self.record_path(sandbox_id).read_bytes())
        except FileNotFoundError:
            return None

    def records(self) -> list[Record]:
        """Every record, by id."""
        try:
            names = sorted(name for name in os.listdir(self.folder / "sandboxes") if name.startswith("sp"))
        except FileNotFoundError:
            return []
        found = (self.read(name.removesuffix(".json")) for name in names)
        return [record for record in found if record is not None]

    def is_live(self, record: Record) -> bool:
        """Whether a sandbox is there, by the vendor's clock, and of this store."""
        there = record.state != "gone" and record.expires_at_ms > self.clock.now_ms()
        return there and record.store_id == self._store_id

    async def find(self, sandbox_id: str) -> Record | None:
        """A sandbox of this store that is there; one whose time is over is ended first."""
        record = self.read(sandbox_id)
        if record is None or record.store_id != self._store_id:
            return None
        if self.is_live(record):
            hidden = record.hidden == "everything" and record.listed_from_ms > self.clock.now_ms()
            return None if hidden else record
        if record.state != "gone":
            await self.end(record, why="expired")
        return None

    async def end_expired(self) -> None:
        """End every sandbox of this store whose time is over."""
        for record in self.records():
            if record.store_id == self._store_id and record.state != "gone" and not self.is_live(record):
                await self.end(record, why="expired")

    def listed(self) -> list[Record]:
        """What a list shows: not what is too new for it, and for a while what is gone."""
        now_ms = self.clock.now_ms()
        return [
            record
            for record in self.records()
            if record.store_id == self._store_id
            and (
                (self.is_live(record) and record.listed_from_ms <= now_ms)
                or (record.state == "gone" and record.listed_until_ms > now_ms)
            )
        ]

    # ------------------------------------------------------------ creating

    async def create(
        self,
        sandbox_id: str,
        config: FakeConfig,
        *,
        ttl_ms: int,
        keep: bool,
        egress: str,
        workload: str,
        deadline_ms: int | None,
    ) -> Record:
        """Write the record of a new sandbox.

        Raises:
            InvalidParams: The id was used before.
            QuotaExceeded: There are as many as there may be.
        """
        async with self.lock.held():
            if self.read(sandbox_id) is not None:
                self.note("create refused", sandboxId=sandbox_id)
                raise errors.InvalidParams(
                    f"there is a sandbox {sandbox_id} already; an id serves one create",
                    detail=errors.Detail(field="sandboxId"),
                    dispatched="no",
                )
            if config.max_sandboxes and sum(map(self.is_live, self.records())) >= config.max_sandboxes:
                raise errors.QuotaExceeded(f"there are {config.max_sandboxes} sandboxes already", dispatched="no")
            now_ms = self.clock.now_ms()
            record = Record(
                sandbox_id=sandbox_id,
                store_id=self._store_id,
                state="creating",
                created_at_ms=now_ms,
                expires_at_ms=now_ms + ttl_ms,
                listed_from_ms=now_ms + round(1000 * config.list_delay_s),
                keep=keep,
                egress=egress,
                workload=workload,
                requests_per_s=config.requests_per_s,
            )
            self.note(
                "create",
                sandboxId=sandbox_id,
                storeId=self._store_id,
                ttlMs=ttl_ms,
                egress=egress,
                keep=keep,
                deadlineMs=deadline_ms,
            )
            try:
                self.record_path(sandbox_id).parent.mkdir(mode=0o700, exist_ok=True)
                self._write(record)
            except OSError as error:
                raise sandbox_failed(error, dispatched="no") from error
            return record

    def make_files(self, record: Record) -> None:
        """Make the working directory.

        Raises:
            WireError: The machine does not let us.
        """
        try:
            self.files(record.sandbox_id).mkdir(mode=0o700, parents=True)
            self.guards(record.sandbox_id).mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise sandbox_failed(error, dispatched="unknown") from error

    async def change(self, sandbox_id: str, **members: object) -> Record | None:
        """Write a record anew with other members; None where it is there no more, or ends."""
        async with self.lock.held():
            record = self.read(sandbox_id)
            if record is None or record.state in ("ending", "gone"):
                return None
            changed = Record(**{**_members(record), **members})
            self._write(changed)
            return changed

    @contextlib.asynccontextmanager
    async def create_slot(self, limit: int) -> AsyncIterator[None]:
        """One of so many creates that may run at a time, over all workers.

        Raises:
            RateLimited: As many run.
        """
        if not limit:
            yield
            return
        folder = self.folder / "creates"
        folder.mkdir(mode=0o700, exist_ok=True)
        for number in range(limit):
            fd = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if try_lock(fd):
                    yield
                    return
            finally:
                os.close(fd)
        raise errors.RateLimited(f"{limit} creates run already", dispatched="no", retry_after_s=0.1)

    # ------------------------------------------------------------ ending

    async def begin_end(self, sandbox_id: str, *, why: str) -> Record | None:
        """Mark a sandbox as one that ends, and end what runs in it; None where it is not there.

        Raises:
            Unavailable: Something does not end; a repeat goes on with it.
        """
        async with self.lock.held():
            record = self.read(sandbox_id)
            if record is None or record.state == "gone":
                return None
            if record.state != "ending":
                self.note("destroy" if why == "destroyed" else why, sandboxId=sandbox_id)
                self._write(Record(**{**_members(record), "state": "ending"}))
        await end_guards(self.guards(sandbox_id))
        return record

    async def end(self, record: Record, *, why: str, stale_s: float = 0.0) -> None:
        """End a sandbox and everything of it."""
        if await self.begin_end(record.sandbox_id, why=why) is not None:
            await self.finish_end(record.sandbox_id, stale_s=stale_s)

    async def finish_end(self, sandbox_id: str, *, stale_s: float) -> None:
        """Remove what is left of a sandbox that ends.

        Raises:
            WireError: Its files cannot be removed.
        """
        await self.remove_files(sandbox_id)
        async with self.lock.held():
            record = self.read(sandbox_id)
            if record is None or record.state == "gone":
                return
            self.note("destroyed", sandboxId=sandbox_id)
            if stale_s:
                until_ms = self.clock.now_ms() + round(stale_s * 1000)
                gone = {"state": "gone", "listed_until_ms": until_ms}
                self._write(Record(**{**_members(record), **gone}))
            else:
                path = self.record_path(sandbox_id)
                path.unlink(missing_ok=True)
                for half_written in path.parent.glob(f".{path.name}.*"):  # by a worker that was killed over it
                    half_written.unlink(missing_ok=True)

    async def remove_files(self, sandbox_id: str) -> None:
        """Remove the working directory, whatever is in it."""
        for folder in (self.files(sandbox_id), self.guards(sandbox_id)):
            await asyncio.to_thread(_remove, folder)

    async def lost_processes(self, sandbox_id: str) -> bool:
        """Whether something that ran in a sandbox went with its worker."""
        return await look_for_losses(self.guards(sandbox_id))

    # ------------------------------------------------------------ limits

    def outage_left_ms(self) -> int:
        """For how long the vendor is still down; not above 0 where it is up."""
        until_ms: int = self._outage.read_object().get("untilMs", 0)
        return until_ms - self.clock.now_ms() if until_ms else 0

    async def go_down(self, for_s: float) -> None:
        """Be down from now on."""
        async with self.lock.held():
            self._outage.write({"untilMs": self.clock.now_ms() + round(for_s * 1000)})

    async def admit(self, requests_per_s: int) -> None:
        """Count one request.

        Raises:
            RateLimited: There were too many in this second.
        """
        if not requests_per_s:
            return
        async with self.lock.held():
            second, into_ms = divmod(self.clock.now_ms(), 1000)
            said = self._rate.read_object()
            count: int = said["count"] if said.get("second") == second else 0
            if count >= requests_per_s:
                raise errors.RateLimited(
                    f"{count} requests in one second", dispatched="no", retry_after_s=(1000 - into_ms) / 1000
                )
            self._rate.write({"second": second, "count": count + 1})

    def _write(self, record: Record) -> None:
        replace(self.record_path(record.sandbox_id), json.dumps(_members(record)).encode())


def _members(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _decoded(content: bytes) -> Record:
    return Record(**json.loads(content))


def _remove(folder: Path) -> None:
    import shutil  # not at each start of a worker: it brings every kind of archive with it
    import subprocess

    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        # Folders that nobody may enter, or deeper than a path can be: the programs for it know how.
        script = 'chmod -R u+rwX -- "$0"; exec rm -rf -- "$0"'
        words = ("/bin/sh", "-c", script, folder)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if os.path.lexists(folder):
            why = done.stderr.decode(errors="replace").strip()
            raise errors.Unavailable(f"the sandbox's files cannot be removed: {why}", dispatched="yes") from None
