"""A host in memory, for the tests of a provider's author: no process, no pipe, the real protocol.

```python
async with HostInMemory(MyProvider, state_dir=tmp_path) as host:
    lease = await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=new_id(), ttl_ms=60_000))
    request = host.start("execute", types.ExecuteParams(sandbox_id=..., argv=("true",), live=True))
    outcome = await request.result()
    assert request.stdout == b""
```
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from msgspec import Raw, Struct

from sandport_protocol import codec
from sandport_protocol.errors import CONDITIONS, Internal, WireError, from_wire
from sandport_protocol.events import HelloReceived, HostEvent, NotificationReceived, RequestEnded, ViolationFound
from sandport_protocol.host_connection import HostConnection
from sandport_protocol.limits import DEFAULTS, Limits
from sandport_protocol.methods import METHODS
from sandport_protocol.octets import Octets
from sandport_protocol.v1 import (
    FailedParams,
    InitializeParams,
    InitializeResult,
    OutputParams,
    PeerInfo,
    ProgressParams,
    ShutdownParams,
    StreamEnd,
    StreamName,
    SyncInParams,
    SyncInResult,
    SyncOutParams,
    SyncOutResult,
    new_sandbox_id,
)
from sandport_protocol.versions import SUPPORTED

from .archive_end import ArchiveEnd
from .archive_socket import ArchiveSocket
from .dispatch import Dispatcher
from .v1.provider import Provider

__all__ = ["ArchiveSocket", "CreditMode", "HostInMemory", "Request", "new_id"]

_T = TypeVar("_T")

CreditMode = Literal["automatic", "manual"]
"""Whether the host takes live output at once, or only what a test asks for with `Request.give_credit`."""


def new_id() -> str:
    """A fresh sandbox id."""
    return new_sandbox_id(os.urandom(17))


class Request:
    """One call, from its start to its one outcome.

    Attributes:
        id: The request's id.
        method: The method's name on the wire.
        pieces: Every piece of live output in the order in which it came, end marks included.
        progress: Every report of progress, in order.
    """

    def __init__(self, host: HostInMemory, request_id: int, method: str) -> None:
        self._host = host
        self._outcome: asyncio.Future[RequestEnded] = asyncio.get_running_loop().create_future()
        self.id = request_id
        self.method = method
        self.pieces: list[OutputParams] = []
        self.progress: list[ProgressParams] = []
        self._news = asyncio.Event()

    @property
    def stdout(self) -> bytes:
        """What came from stdout so far."""
        return self.data("stdout")

    @property
    def stderr(self) -> bytes:
        """What came from stderr so far."""
        return self.data("stderr")

    @property
    def ended(self) -> bool:
        """Whether the outcome is there."""
        return self._outcome.done()

    def data(self, stream: StreamName) -> bytes:
        """What came from one stream so far."""
        return b"".join(piece.data for piece in self.pieces if piece.stream == stream)

    def end_of(self, stream: StreamName) -> StreamEnd | None:
        """The end mark of one stream; None where none came."""
        return next((piece.end for piece in self.pieces if piece.stream == stream and piece.end), None)

    async def received(self, stream: StreamName, size: int) -> bytes:
        """What came from one stream, once it is at least `size` bytes.

        Raises:
            EOFError: The stream or the call ended before.
        """
        while len(self.data(stream)) < size:
            if self.ended or self.end_of(stream) is not None:
                raise EOFError(f"{stream} of {self.method} has {len(self.data(stream))} bytes, not {size}")
            self._news.clear()
            await self._news.wait()
        return self.data(stream)

    async def result(self) -> Any:
        """The result, as the struct of its method (any JSON for an extension).

        Raises:
            errors.WireError: The call failed; the class says how.
            AssertionError: The result does not fit the method: a fault of the provider.
        """
        ended = await self._outcome
        if ended.error is not None:
            raise from_wire(ended.error)
        if ended.result is None:
            raise Internal(f"{self.method}: the worker ended before it answered", dispatched="unknown")
        return _as_result(self.method, ended.result)

    def cancel(self) -> None:
        """Interrupt the handler; `result` then says what became of the call."""
        self._host._write(self._host.connection.send_cancel(self.id, "cancelled"))

    def give_credit(self, stream: StreamName, size: int) -> None:
        """Let the provider send so many more bytes."""
        self._host._write(self._host.connection.send_credit(self.id, stream, size))

    def _on_end(self, event: RequestEnded) -> None:
        if not self._outcome.done():
            self._outcome.set_result(event)
        self._news.set()


class HostInMemory:
    """Speaks with a provider as a host does. Use it with `async with`; leaving shuts the provider down.

    Attributes:
        connection: The host's side of the protocol.
        hello: What the provider said of itself.
        violations: Rules that the worker broke; leaving raises AssertionError where there are any.
    """

    def __init__(
        self,
        provider: type[Provider],
        *,
        state_dir: str | os.PathLike[str] = os.devnull,
        store_id: str = "store-in-memory",
        limits: Limits = DEFAULTS,
        credit: CreditMode = "automatic",
        drain_s: float = 5.0,
    ) -> None:
        """Prepare a host; nothing runs before `async with`.

        Args:
            provider: The class to serve.
            state_dir: The provider's directory, such as a test's temporary one; not created.
            store_id: The id of the host's store.
            limits: What the host offers; small ones show how a provider behaves at them.
            credit: Whether live output is taken at once or only as `Request.give_credit` says.
            drain_s: What running calls get to finish when the host leaves, in seconds.
        """
        self._class = provider
        self._credit = credit
        self._drain_s = drain_s
        self._offer = InitializeParams(
            protocol_versions=SUPPORTED,
            host=PeerInfo(name="host-in-memory", version="1"),
            store_id=store_id,
            state_dir=os.fspath(state_dir),
            limits=limits,
        )
        self.connection = HostConnection(limits)
        self.violations: list[str] = []
        self._requests: dict[int, Request] = {}
        self._worker: Dispatcher | None = None
        self._to_host: list[bytes] = []
        self._ready: asyncio.Future[None] | None = None

    async def __aenter__(self) -> Self:
        """Say the hello and wait until the provider is ready.

        Raises:
            errors.WireError: The provider refused the hello, or could not prepare.
        """
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        self._worker = Dispatcher(self._class, self._from_worker)
        hello = self._send("initialize", self._offer)
        await hello._outcome
        if self.connection.hello is None:
            await self._stop()
            await hello.result()
        self._write(self.connection.send_initialized())
        try:
            await self._ready
        except WireError:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut the provider down: running calls finish or are cancelled, then its `close` runs.

        Raises:
            AssertionError: The worker broke rules of the wire, and nothing else went wrong.
        """
        await self._stop()
        if error is None and self.violations:
            raise AssertionError("the worker broke rules of the wire: " + "; ".join(self.violations))

    @property
    def hello(self) -> InitializeResult:
        """What the provider said of itself."""
        assert self.connection.hello is not None, "there is no hello before `async with`"
        return self.connection.hello

    def start(self, method: str, params: Struct | Mapping[str, Any] | None = None) -> Request:
        """Send a call and come back at once; params are the method's struct or a mapping as on the wire."""
        if isinstance(params, Struct | Raw):
            return self._send(method, params)
        return self._send(method, Raw(codec.encode({} if params is None else params)))

    async def call(self, method: str, params: Struct | Mapping[str, Any] | None = None) -> Any:
        """Send a call and wait for its result.

        Raises:
            errors.WireError: The call failed; the class says how.
        """
        return await self.start(method, params).result()

    async def sync_in(self, sandbox_id: str, path: Octets, archive: bytes) -> SyncInResult:
        """Send an archive through a socket and wait for the result; `ArchiveSocket` does it step by step.

        Raises:
            errors.WireError: The call failed; the class says how.
            AssertionError: `bytes` is not what was sent.
        """
        async with ArchiveSocket() as bulk:
            request = self.start("syncIn", SyncInParams(sandbox_id=sandbox_id, socket=bulk.path, path=path))
            result: SyncInResult
            result, _ = await _beside(request, bulk.send(archive))
            assert result.bytes == len(archive), f"bytes is {result.bytes}, {len(archive)} were sent"
            return result

    async def sync_out(self, sandbox_id: str, path: Octets) -> tuple[SyncOutResult, bytes]:
        """Take an archive through a socket: the result, and what came.

        Raises:
            errors.WireError: The call failed; the class says how.
            AssertionError: `bytes` is not what came, or the archive has no end mark.
        """
        async with ArchiveSocket() as bulk:
            request = self.start("syncOut", SyncOutParams(sandbox_id=sandbox_id, socket=bulk.path, path=path))
            result: SyncOutResult
            result, archive = await _beside(request, bulk.receive())
            assert result.bytes == len(archive), f"bytes is {result.bytes}, {len(archive)} came"
            end = ArchiveEnd()
            end.feed(memoryview(archive))
            assert end.is_complete, "the archive has no end mark"
            return result, archive

    async def end_input(self) -> int:
        """Go away without a word, as a host does that died; the exit code of the worker."""
        assert self._worker is not None
        self._worker.finish("end of input")
        return await self._worker.ended

    # ------------------------------------------------------------ inside

    async def _stop(self) -> None:
        worker = self._worker
        assert worker is not None
        if not worker.ended.done():
            self._send("shutdown", ShutdownParams(drain_ms=round(self._drain_s * 1000)))
        await worker.ended
        self._deliver()
        for event in self.connection.crash():
            self._on_event(event)

    def _send(self, method: str, params: Struct | Raw) -> Request:
        request_id, frame = self.connection.send_request(method, params)
        request = self._requests[request_id] = Request(self, request_id, method)
        self._write(frame)
        return request

    def _write(self, frame: bytes) -> None:
        assert self._worker is not None
        if frame:
            self._worker.receive(frame)

    def _from_worker(self, data: bytes) -> None:
        # Never from inside the provider's own call, as it would not happen over a pipe either.
        if not self._to_host:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._to_host.append(data)

    def _deliver(self) -> None:
        chunks, self._to_host = self._to_host, []
        for chunk in chunks:
            for event in self.connection.receive(chunk):
                self._on_event(event)

    def _on_event(self, event: HostEvent) -> None:
        if isinstance(event, RequestEnded):
            self._requests[_number(event.id)]._on_end(event)
        elif isinstance(event, HelloReceived):
            ended = RequestEnded(event.id, "initialize", "result", Raw(codec.encode(event.hello)))
            self._requests[_number(event.id)]._on_end(ended)
        elif isinstance(event, NotificationReceived):
            self._on_note(event)
        elif isinstance(event, ViolationFound):
            self.violations.append(f"{event.rule}: {event.sample!r}")

    def _on_note(self, event: NotificationReceived) -> None:
        assert self._ready is not None
        if event.method == "ready":
            self._ready.set_result(None)
        elif event.method == "failed":
            failed = codec.read_as(FailedParams, event.params)
            kind = next((kind for kind in CONDITIONS if kind.__name__ == failed.condition), Internal)
            self._ready.set_exception(kind(failed.message, dispatched="no"))
        elif event.method == "output":
            self._on_output(codec.read_as(OutputParams, event.params))
        elif event.method == "progress":
            report = codec.read_as(ProgressParams, event.params)
            self._requests[_number(report.id)].progress.append(report)

    def _on_output(self, piece: OutputParams) -> None:
        request = self._requests[_number(piece.id)]
        request.pieces.append(piece)
        request._news.set()
        if self._credit == "automatic" and piece.data:
            request.give_credit(piece.stream, len(piece.data))


async def _beside(request: Request, moving: Coroutine[Any, Any, _T]) -> tuple[Any, _T]:
    """The result of a call and what moved meanwhile; the call's error where it fails, whatever moved until then."""
    task = asyncio.ensure_future(moving)
    try:
        result = await request.result()
        return result, await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # its end says nothing that the call's does not


def _number(request_id: int | str) -> int:
    assert isinstance(request_id, int), "this host's ids are integers"
    return request_id


def _as_result(method: str, raw: Raw) -> Any:
    wanted = METHODS[method].result if method in METHODS else object
    try:
        return codec.read_as(wanted, raw)
    except ValueError as error:
        raise AssertionError(f"the result of {method} does not fit the method: {error}") from error
