"""Faults on order: which are due when a call passes a point, and what they do to it.

Above: the provider's methods, which name the points that they pass. Below: the vendor's files, which keep how often
each order happened, so that one that kills its worker does not kill the next one too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Any, TypeVar

from sandport_sdk.config import decode
from sandport_sdk.v1 import errors, types

from . import config as orders
from . import wire
from .errors import BY_NAME
from .journal import SharedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandport_sdk.v1 import Call

    from .config import AnyFault, FakeConfig, Fault
    from .vendor import Vendor

_F = TypeVar("_F", bound="Fault")
LONG_S = 3600.0


class FaultBook:
    """The orders of `faults.json`, and how often each order was passed and happened."""

    def __init__(self, vendor: Vendor) -> None:
        self._vendor = vendor
        self._file = SharedFile(vendor.folder / "faults.json")
        self._passed = SharedFile(vendor.folder / "passed.json")
        self._read: bytes = b""
        self._orders = orders.Orders()
        self._tasks: set[asyncio.Task[None]] = set()

    def ordered(self) -> orders.Orders:
        """What stands in the file.

        Raises:
            ConfigInvalid: It does not fit; `detail.field` has the path.
        """
        content = self._file.read()
        if content != self._read:
            try:
                self._orders = decode(orders.Orders, content)
            except errors.ConfigInvalid as error:
                raise errors.ConfigInvalid(f"faults.json: {error}", detail=error.detail, dispatched="no") from error
            self._read = content
        return self._orders

    def replace(self, said: Mapping[str, object]) -> None:
        """Write the file. For who holds the vendor's lock, and has seen that it fits."""
        self._file.write(said)

    async def due(self, point: str, config: FakeConfig | None, *, sandbox_id: str, method: str) -> list[AnyFault]:
        """The orders that happen now, at this pass of a point; each is counted and journalled before it does."""
        matching = self._matching(point, config, sandbox_id=sandbox_id, method=method)
        if not matching:
            return []
        async with self._vendor.lock.held():
            return self._count(matching, sandbox_id=sandbox_id, method=method)

    def due_here(self, point: str) -> list[AnyFault]:
        """As `due`, for points that belong to no call and code that cannot wait."""
        matching = self._matching(point, None, sandbox_id="", method="")
        if not matching:
            return []
        with self._vendor.lock.held_here():
            return self._count(matching, sandbox_id="", method="")

    def _matching(
        self, point: str, config: FakeConfig | None, *, sandbox_id: str, method: str
    ) -> list[tuple[AnyFault, int]]:
        points = {point}
        if point.endswith((".before", ".before-answer")):
            points.add("call." + point.partition(".")[2])
        in_file = self.ordered()
        sources = [(in_file.faults, in_file.seed)]
        if config is not None:
            sources.append((config.faults, config.seed))
        return [
            (fault, seed)
            for faults, seed in sources
            for fault in faults
            if fault.point in points and fault.only.sandbox_id in ("", sandbox_id) and fault.only.method in ("", method)
        ]

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a task from the collector until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _count(self, matching: Iterable[tuple[AnyFault, int]], *, sandbox_id: str, method: str) -> list[AnyFault]:
        counts = self._passed.read_object()
        due = []
        for fault, seed in matching:
            key = key_of(fault)
            passed, happened = counts.get(key, (0, 0))
            counts[key] = (passed + 1, happened)
            if passed < fault.after or (fault.times and happened >= fault.times):
                continue
            if not comes_up(fault.probability, f"{seed}:{key}:{passed}"):
                continue
            counts[key] = (passed + 1, happened + 1)
            self._vendor.note("fault", point=fault.point, action=action_of(fault), sandboxId=sandbox_id, method=method)
            due.append(fault)
        self._passed.write(counts)
        return due


def key_of(fault: Fault) -> str:
    """What an order's count is kept under."""
    return fault.id or _digest(repr(fault)).hex()


def action_of(fault: Fault) -> str:
    """The order's `action`."""
    return str(fault.__struct_config__.tag)


def comes_up(probability: float, of: str) -> bool:
    """Whether something of this probability happens; always the same for the same text."""
    if probability >= 1:
        return True
    return int.from_bytes(_digest(of), "big") / 2**64 < probability


def _digest(text: str) -> bytes:
    """Eight bytes that are the same on every machine, which `hash` and `random` do not promise."""
    import hashlib  # only where something is ordered

    return hashlib.sha256(text.encode()).digest()[:8]


class Passage:
    """One call on its way through the vendor.

    Attributes:
        config: Of the environment; None where the call does not say.
        effects: Orders that are not for a moment but for something that the call does later.
    """

    def __init__(
        self, vendor: Vendor, book: FaultBook, call: Call, name: str, *, sandbox_id: str, config: FakeConfig | None
    ) -> None:
        self.config = config
        self.effects: list[AnyFault] = []
        self._vendor = vendor
        self._book = book
        self._call = call
        self._name = name
        self._sandbox_id = sandbox_id

    def find(self, kind: type[_F]) -> _F | None:
        """The latest order of this kind that waits to be done, taken off the list."""
        for effect in reversed(self.effects):
            if isinstance(effect, kind):
                self.effects.remove(effect)
                return effect
        return None

    async def at(self, stage: str) -> None:
        """Pass a point; what is due happens.

        Raises:
            WireError: An order says so.
        """
        if self._name != "validate":  # which asks nobody
            await self.vendor_is_up()
        point = f"{self._name}.{stage}"
        for fault in await self._book.due(point, self.config, sandbox_id=self._sandbox_id, method=self._call.method):
            await self._happen(fault, dispatched="no" if stage == "before" else "unknown")

    def answer_again(self, result: object) -> None:
        """Write the answer to the wire once more, after the SDK has written it."""
        message = {"jsonrpc": "2.0", "id": self._call.id, "result": wire.as_json(result)}
        line = json.dumps(message, separators=(",", ":")).encode()
        loop = asyncio.get_running_loop()

        async def write() -> None:
            await asyncio.sleep(0)  # the SDK's frames of this turn go first
            await wire.write_line(line)

        loop.call_soon(lambda: self._book.keep(loop.create_task(write())))

    async def vendor_is_up(self) -> None:
        """Pass on, unless the vendor is down.

        Raises:
            Unavailable: It is.
        """
        if (left_ms := self._vendor.outage_left_ms()) > 0:
            raise errors.Unavailable(
                "the vendor is down", dispatched=self._call.dispatched, retry_after_s=left_ms / 1000
            )

    async def _happen(self, fault: AnyFault, *, dispatched: errors.Dispatched) -> None:
        if isinstance(fault, orders.Late):
            await late(fault, self._vendor)
        elif isinstance(fault, orders.LoseAnswer):
            await lose_answer(self._call, dispatched)
        elif isinstance(fault, orders.Hang):
            await hang()
        elif isinstance(fault, orders.Down):
            await self._vendor.go_down(fault.for_s)
            await self.vendor_is_up()
        elif isinstance(fault, orders.GarbageLine):
            await wire.write_line(fault.text.encode())
        elif (error := ordered_error(fault, dispatched=dispatched)) is not None:
            raise error
        elif not at_once(fault):
            self.effects.append(fault)


async def late(fault: orders.Late, vendor: Vendor) -> None:
    """Wait."""
    if fault.clock == "vendor":
        await vendor.clock.sleep_until(vendor.clock.now_ms() + round(fault.by_s * 1000))
    else:
        await asyncio.sleep(fault.by_s)


async def lose_answer(call: Call, dispatched: errors.Dispatched) -> None:
    """Wait for an answer that does not come, until the host gives up.

    Raises:
        Cancelled: It did.
    """
    try:
        await call.cancelled.wait()
    except asyncio.CancelledError:
        raise errors.Cancelled("the vendor's answer did not come", dispatched=dispatched) from None
    raise errors.Cancelled("the vendor's answer did not come", dispatched=dispatched)


async def hang() -> None:
    """Never end, whoever asks."""
    while True:
        try:
            await asyncio.sleep(LONG_S)
        except asyncio.CancelledError:
            continue


def at_once(fault: AnyFault) -> bool:
    """Do what needs no call and no waiting; False where the order is of another kind."""
    if isinstance(fault, orders.Crash):
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(LONG_S)  # the signal is on its way: not one more line
    elif isinstance(fault, orders.Freeze):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif isinstance(fault, orders.Exit):
        os._exit(fault.code)
    elif isinstance(fault, orders.Print):
        print(fault.text)  # noqa: T201 - that it does not reach the wire is the point of it
    else:
        return False
    return True


def ordered_error(fault: AnyFault, *, dispatched: errors.Dispatched) -> errors.WireError | None:
    """The error that an order asks for; None where it asks for something else."""
    if isinstance(fault, orders.Throttle):
        after_s = None if fault.retry_after_ms is None else fault.retry_after_ms / 1000
        return errors.RateLimited("too many requests", dispatched=dispatched, retry_after_s=after_s)
    if isinstance(fault, orders.Quota):
        return errors.QuotaExceeded("the quota is used up", dispatched=dispatched)
    if isinstance(fault, orders.Error):
        after_s = None if fault.retry_after_ms is None else fault.retry_after_ms / 1000
        return BY_NAME[fault.condition](
            fault.message, dispatched=fault.dispatched or dispatched, retry=fault.retry, retry_after_s=after_s
        )
    return None


def skewed(lease: types.LeaseResult, passage: Passage) -> types.LeaseResult:
    """The lease as a vendor tells it whose clock is wrong, where that was ordered."""
    skew = passage.find(orders.Skew)
    if skew is None or lease.expires_at_ms is None:
        return lease
    members = {name: getattr(lease, name) for name in lease.__struct_fields__}
    return types.LeaseResult(**members | {"expires_at_ms": lease.expires_at_ms + round(skew.by_s * 1000)})


def object_of(params: Any, *names: str) -> dict[str, Any]:
    """The params of an extension, which have these members and no others.

    Raises:
        InvalidParams: They are something else.
    """
    if not isinstance(params, dict) or set(params) - {*names, "_meta"}:
        raise errors.InvalidParams(f"an object with {' and '.join(names)} is wanted", dispatched="no")
    return params
