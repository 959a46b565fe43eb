"""The live output of one call: chunks under credit, offsets, one end mark a stream.

Above: `Call`. Below: the outbox. A stream's credit is room that exists at the host already, so that a consumer that
stands still holds back its own process and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, cast

from sandport_protocol.envelope import Id
from sandport_protocol.errors import Internal
from sandport_protocol.limits import Limits
from sandport_protocol.v1 import OutputParams, StreamEnd, StreamName

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from sandport_protocol.worker_connection import WorkerConnection

    from .outbox import Outbox

_Callback = Callable[[], object]


class Outlet:
    """What the output of every call of a worker goes through."""

    __slots__ = ("calls", "connection", "limits", "loop", "outbox")

    def __init__(self, loop: AbstractEventLoop, outbox: Outbox, connection: WorkerConnection, calls: Sized) -> None:
        self.loop = loop
        self.outbox = outbox
        self.connection = connection
        self.calls = calls
        """Those that are open; with more than one, small frames are gathered."""
        self.limits: Limits = connection.limits
        """Those in force; agreed in the hello."""


class OutputStream:
    """One stream of one call."""

    __slots__ = ("_callbacks", "_credit", "_outlet", "_request", "base", "end", "name", "offset")

    def __init__(self, outlet: Outlet, request: Id, name: StreamName, base: int) -> None:
        self._outlet = outlet
        self._request = request
        self._credit = outlet.limits.credit_bytes
        self._callbacks: list[_Callback] = []
        self.name = name
        self.base = base
        """Where the host asked to begin."""
        self.offset = base
        """Bytes of the stream before the next piece."""
        self.end: StreamEnd | None = None

    @property
    def room(self) -> int:
        """Bytes that may be sent now; 0 too while the pipe to the host is full."""
        return self._credit if self._outlet.outbox.writable else 0

    def add_credit(self, size: int) -> None:
        """The consumer took bytes."""
        self._credit += size
        self.wake()

    def when_room(self, callback: _Callback) -> None:
        """Call back once, when there is room; in the next turn of the loop where there is some already."""
        if self.room:
            self._outlet.loop.call_soon(callback)
            return
        self._callbacks.append(callback)
        if self._credit:
            self._outlet.outbox.when_writable(self.wake)

    def wake(self) -> None:
        """Tell those who wait that there is room, if there is."""
        if not self._callbacks:
            return
        if self.room:
            self.release()
        elif self._credit:
            self._outlet.outbox.when_writable(self.wake)

    def release(self) -> None:
        """Call everybody back who waits, room or not."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    async def wait(self) -> None:
        """Return when there is room, or when the call was answered."""
        woken = self._outlet.loop.create_future()
        self.when_room(lambda: None if woken.done() else woken.set_result(None))
        await woken

    def send(self, data: memoryview) -> None:
        """Send bytes that fit in the room, in chunks."""
        self._refuse_after_end()
        chunk = self._outlet.limits.chunk_bytes
        for start in range(0, len(data), chunk):
            self._send(data[start : start + chunk], None)

    def send_end(self, end: StreamEnd) -> None:
        """Send the end mark."""
        self._refuse_after_end()
        self.end = end
        self._send(b"", end)
        self.release()

    def _send(self, data: memoryview | bytes, end: StreamEnd | None) -> None:
        outlet = self._outlet
        # The encoder takes a view as it takes bytes, and one copy less.
        piece = cast("bytes", data)
        params = OutputParams(id=self._request, stream=self.name, offset=self.offset, data=piece, end=end)
        self.offset += len(data)
        self._credit -= len(data)
        frame = outlet.connection.send_output(params)
        if len(outlet.calls) > 1:
            outlet.outbox.gather(frame)
        else:
            outlet.outbox.send(frame)

    def _refuse_after_end(self) -> None:
        if self.end is not None:
            raise Internal(f"output for {self.name} after its end mark", dispatched="unknown")
