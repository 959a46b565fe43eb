"""A provider whose handlers do what they are told, one order at a time: answer, fail, write, hang, ignore a cancel."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from sandport_protocol import codec
from sandport_protocol.errors import Cancelled, Internal, Unavailable
from sandport_protocol.v1 import (
    AcquireLeaseParams,
    AttachLeaseParams,
    AttachLeaseResult,
    DestroyLeaseParams,
    DestroyLeaseResult,
    ExecuteParams,
    ExecuteResult,
    LeaseResult,
    ListLeasesParams,
    ListLeasesResult,
    ProbeCheck,
    ProbeParams,
    ProbeResult,
    StreamName,
    StreamResult,
    new_sandbox_id,
)
from sandport_sdk.v1.call import Call
from sandport_sdk.v1.provider import Provider

Policy = Literal["obey", "finish", "ignore"]
"""What a handler does about a cancel: ends with it, comes to its result in spite of it, or goes on."""
STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
SANDBOX = new_sandbox_id(bytes(17))


class Order(Struct, frozen=True):
    """What a handler is told to do next."""

    what: str
    """`output`, `pump` (output from a task of its own), `end`, `return`, `return early` (without end marks),
    `unavailable`, `fault`, `exit`."""
    stream: StreamName = "stdout"
    size: int = 0


def content(number: int, stream: str, start: int, size: int) -> bytes:
    """The output of one call: no other has the same."""
    return bytes((number * 31 + (97 if stream == "stderr" else 0) + at) % 251 for at in range(start, start + size))


class Handler:
    """One call in the worker."""

    def __init__(self, number: int, policy: Policy) -> None:
        self.number = number
        self.policy = policy
        self.orders: deque[Order] = deque()
        self.call: Call | None = None
        self.cancels = 0
        self.ended = ""
        """How: `returned`, or what it raised."""
        self.process_is_gone = False
        self.writes: StreamName | None = None
        """The stream that it writes to just now, waiting for room perhaps."""
        self.pumps: dict[StreamName, asyncio.Task[None]] = {}
        """Its tasks that write, by stream; it does not wait for them."""
        self._waiting: asyncio.Future[None] | None = None

    @property
    def runs(self) -> bool:
        """It has begun and not ended."""
        return self.call is not None and not self.ended

    def tell(self, order: Order) -> None:
        """Do this next."""
        self.orders.append(order)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def run(self, call: Call) -> None:
        """Follow orders until one of them ends it."""
        self.call = call
        while True:
            try:
                if await self._follow(await self._next()):
                    self.ended = "returned"
                    return
            except asyncio.CancelledError:
                self.cancels += 1
                if self.policy == "finish" and not self.process_is_gone:
                    self._end_streams()
                    self.ended = "returned"
                    return
                if self.policy == "obey" or self.process_is_gone:
                    self.ended = "cancelled"
                    raise
            except BaseException as error:
                self.ended = type(error).__name__
                raise

    async def _next(self) -> Order:
        while not self.orders:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self.orders.popleft()

    async def _follow(self, order: Order) -> bool:
        call = self.call
        assert call is not None
        match order.what:
            case "output" if self._may_write(order.stream):
                data = content(self.number, order.stream, call.sent(order.stream), order.size)
                self.writes = order.stream
                try:
                    await call.output(order.stream, data)
                finally:
                    self.writes = None
            case "pump" if self._may_write(order.stream):
                data = content(self.number, order.stream, call.sent(order.stream), order.size)
                self.pumps[order.stream] = asyncio.create_task(self._pump(order.stream, data))
                await asyncio.sleep(0)  # it begins
            case "end" if self._may_write(order.stream):
                await call.end(order.stream, "seen")
            case "return":
                self._end_streams()
                return True
            case "return early":
                return True
            case "unavailable":
                raise Unavailable("the vendor is away")
            case "fault":
                raise ValueError("a fault of the provider")
            case "exit":
                raise SystemExit(3)
        return False

    async def _pump(self, stream: StreamName, data: bytes) -> None:
        assert self.call is not None
        with contextlib.suppress(Cancelled, Internal):  # the call was cancelled, or answered meanwhile
            await self.call.output(stream, data)

    def _may_write(self, stream: StreamName) -> bool:
        call, pump = self.call, self.pumps.get(stream)
        if pump is not None and not pump.done():
            return False  # two writers would mix what they write
        return call is not None and call.method == "execute" and stream in call._unended()

    def _end_streams(self) -> None:
        for stream in STREAMS:
            if self._may_write(stream) and self.call is not None:
                self.call.send_end(stream, "seen")


class Desk:
    """Every handler of a worker, by the number in its params; `on_begin` is told when one begins."""

    def __init__(self, on_begin: Callable[[int], object]) -> None:
        self._on_begin = on_begin
        self.handlers: dict[int, Handler] = {}
        self.prepared: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, number: int, call: Call) -> Handler:
        """One call, to its end."""
        handler = self.handlers[number]
        assert handler.call is None, f"call {number} is served twice"
        self._on_begin(number)
        await handler.run(call)
        return handler


def provider_of(desk: Desk) -> type[Provider]:
    """The provider that this desk gives orders to."""

    class Scripted(Provider):
        name = "scripted"
        version = "0"

        async def prepare(self) -> None:
            await desk.prepared

        async def probe(self, params: ProbeParams, call: Call) -> ProbeResult:
            number: int = codec.read_as(dict[str, Any], params.config)["of"]
            await desk.serve(number, call)
            return ProbeResult(checks=(ProbeCheck(name=str(number), ok=True),))

        async def acquire_lease(self, params: AcquireLeaseParams, call: Call) -> LeaseResult:
            await desk.serve(int(params.workload or 0), call)
            return LeaseResult(handle=str(params.workload), working_directory="/")

        async def attach_lease(self, params: AttachLeaseParams, call: Call) -> AttachLeaseResult:
            return AttachLeaseResult(state="gone")

        async def list_leases(self, params: ListLeasesParams, call: Call) -> ListLeasesResult:
            return ListLeasesResult()

        async def destroy_lease(self, params: DestroyLeaseParams, call: Call) -> DestroyLeaseResult:
            return DestroyLeaseResult(state="gone")

        async def execute(self, params: ExecuteParams, call: Call) -> ExecuteResult:
            assert params.argv is not None
            number = int(str(params.argv[0]))
            await desk.serve(number, call)
            out, err = (StreamResult(total_bytes=call.sent(stream)) for stream in STREAMS)
            return ExecuteResult(ended="exited", exit_code=0, duration_ms=number, stdout=out, stderr=err)

    return Scripted


def params_of(method: str, number: int, padding: int) -> Struct:
    """Params that carry the number."""
    if method == "execute":
        words = (str(number), *(("x" * padding,) if padding else ()))
        return ExecuteParams(sandbox_id=SANDBOX, argv=words, live=True)
    if method == "acquireLease":
        return AcquireLeaseParams(sandbox_id=SANDBOX, workload=str(number), ttl_ms=1000, config=_padded(padding))
    return ProbeParams(config=Raw(codec.encode({"of": number, "padding": "x" * padding})))


def _padded(size: int) -> Raw:
    return Raw(msgspec.json.encode({"padding": "x" * size}))


def number_in(result: object) -> int:
    """The number that a result carries."""
    if isinstance(result, ExecuteResult):
        return result.duration_ms
    if isinstance(result, LeaseResult):
        return int(result.handle)
    assert isinstance(result, ProbeResult)
    return int(result.checks[0].name)
