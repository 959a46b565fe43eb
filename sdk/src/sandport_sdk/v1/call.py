"""One call of a host, as its handler sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sandport_protocol.envelope import Id
from sandport_protocol.errors import Cancelled, Dispatched, Internal
from sandport_protocol.v1 import ProgressParams, StreamEnd, StreamName
from sandport_sdk.streams import OutputStream

if TYPE_CHECKING:
    import threading
    from concurrent.futures import Future

    from sandport_sdk.streams import Outlet

_T = TypeVar("_T")


class Cancellation:
    """Whether the host cancelled the call; for tasks and for threads."""

    __slots__ = ("_event", "_loop", "_set", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._set = False
        self._waiting: list[asyncio.Future[None]] = []
        self._event: threading.Event | None = None

    def is_set(self) -> bool:
        """True from the cancel on; may be asked from any thread."""
        return self._set

    async def wait(self) -> None:
        """Return when the call is cancelled; for code in the loop."""
        if not self._set:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            await waiting

    def block(self, timeout_s: float | None = None) -> bool:
        """Wait in a thread until the call is cancelled; False if that did not happen within `timeout_s` seconds."""
        if self._event is None:
            import threading

            self._event = threading.Event()
        # Looked at after the event was put in place: a cancel before that did not see it.
        return self._set or self._event.wait(timeout_s)

    def set(self) -> None:
        """The host cancelled; called by the SDK, in the loop."""
        self._set = True
        if self._event is not None:
            self._event.set()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()


class Call:
    """One request: who asks, how long, whether it was cancelled, and where its live output goes.

    Attributes:
        id: The host's id of the request.
        method: The method's name on the wire.
        dispatched: What an error that the SDK makes for this call (Cancelled, Internal) says of the effect: `no` until
            the handler starts, then `unknown` for methods that change something. Set it when you know better: `no`
            right up to the vendor's call, `yes` once the effect is certain.
        cancelled: Set when the host cancelled. An `async def` handler gets CancelledError besides; a plain `def` one
            must look, or end with `raise_if_cancelled`.
    """

    __slots__ = (
        "id",
        "method",
        "dispatched",
        "cancelled",
        "_outlet",
        "_deadline",
        "_live",
        "_bases",
        "_streams",
        "_begun",
        "_answered",
        "_interrupt",
        "_thread",
        "_runs",
        "_owed",
    )

    def __init__(
        self,
        outlet: Outlet,
        request: Id,
        method: str,
        *,
        deadline: float | None = None,
        live: bool = False,
        bases: dict[StreamName, int] | None = None,
    ) -> None:
        self.id = request
        self.method = method
        self.dispatched: Dispatched = "no"
        self.cancelled = Cancellation(outlet.loop)
        self._outlet = outlet
        self._deadline = deadline
        self._live = live
        self._bases = bases
        self._streams: dict[StreamName, OutputStream] = {}
        self._begun = False
        self._answered = False
        self._interrupt: Callable[[], object] | None = None
        self._thread: int | None = None
        self._runs: list[Future[Any]] = []
        self._owed = False

    def remaining_s(self) -> float | None:
        """Seconds that the host will still wait, from `_meta.deadlineMs`; None where it did not say, never below 0.

        For the time-outs of vendor calls. Only the host decides that a call is over its deadline.
        """
        return None if self._deadline is None else max(0.0, self._deadline - self._outlet.loop.time())

    def raise_if_cancelled(self) -> None:
        """End a handler whose call was cancelled; for plain `def` ones, which nothing interrupts.

        Raises:
            errors.Cancelled: With `dispatched` as it stands in this call.
        """
        if self.cancelled.is_set():
            self._owed = False
            raise Cancelled(f"{self.method} was cancelled", dispatched=self.dispatched)

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the worker's loop and wait for it, from a plain `def` handler's thread.

        `call.run(call.output("stdout", data))` is how such a handler sends live output. A cancel interrupts one wait,
        the present one or the next; what a handler runs after that, to clean up, is left alone.

        Raises:
            errors.Cancelled: The call was cancelled.
            RuntimeError: It was called in the loop itself, where it would wait for ever.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # a thread of its own, as it should be
        else:
            coroutine.close()
            raise RuntimeError("call.run() is for handlers in threads; in the loop, await the coroutine")
        running = asyncio.run_coroutine_threadsafe(coroutine, self._outlet.loop)
        self._runs.append(running)
        if self._owed:
            self._owed = not running.cancel()
        try:
            return running.result()
        except BaseException:
            if running.cancelled():
                self.raise_if_cancelled()
            raise
        finally:
            self._runs.remove(running)

    # ------------------------------------------------------------ live output

    async def output(self, stream: StreamName, data: bytes | bytearray | memoryview) -> None:
        """Send output as it comes, in chunks, under the stream's credit.

        Returns when everything was handed to the pipe. Waits while the host's consumer is behind or the pipe is full:
        stop reading from the process meanwhile, and the process stops in its turn. Once the call is cancelled it waits
        no more, since nobody may be left who takes the bytes.

        Cancel: what was sent stays sent; `sent` says how much.

        Raises:
            errors.Cancelled: The call was cancelled, and there is no room.
            errors.Internal: The call has no live output, was answered already, or the stream has its end mark.
        """
        outlet = self._stream(stream)
        left = memoryview(data).cast("B")
        chunk = self._outlet.limits.chunk_bytes
        while left:
            # Chunk by chunk: each may be the one that fills the pipe.
            if size := min(outlet.room, chunk):
                outlet.send(left[:size])
                left = left[size:]
            else:
                self.raise_if_cancelled()
                await outlet.wait()
                self._refuse_after_answer(stream)

    def try_output(self, stream: StreamName, data: bytes) -> bool:
        """Send output now if all of it fits in `credit_left`; False, and nothing sent, if it does not.

        Raises:
            errors.Internal: As for `output`.
        """
        outlet = self._stream(stream)
        if len(data) > outlet.room:
            return False
        if data:
            outlet.send(memoryview(data))
        return True

    def credit_left(self, stream: StreamName) -> int:
        """Bytes that `try_output` would take now; 0 while the consumer is behind or the pipe to the host is full."""
        return self._stream(stream).room

    def on_credit(self, stream: StreamName, callback: Callable[[], object]) -> None:
        """Call back once in the loop, when `credit_left` is above 0, or the call was cancelled or answered.

        For providers that read pipes with `add_reader`: stop reading when the credit is out, start again here.
        """
        self._stream(stream).when_room(callback)

    async def end(self, stream: StreamName, end: StreamEnd) -> None:
        """Send the end mark of a stream: `seen` (its end of file was read) or `heldOpen` (a descendant holds it).

        Every stream of a call with live output has exactly one, before the result: `stdout` and `stderr`, or `pty`.
        """
        self.send_end(stream, end)

    def send_end(self, stream: StreamName, end: StreamEnd) -> None:
        """`end` for code that has no task."""
        self._stream(stream).send_end(end)

    def sent(self, stream: StreamName) -> int:
        """Bytes of this stream that were sent in this call."""
        outlet = self._streams.get(stream)
        return 0 if outlet is None else outlet.offset - outlet.base

    async def progress(self, message: str = "", *, done: int | None = None, total: int | None = None) -> None:
        """Tell the host how far a long call is; dropped once the call was answered."""
        await self._outlet.outbox.wait()
        if not self._answered:
            params = ProgressParams(id=self.id, message=message, done=done, total=total)
            self._outlet.outbox.send(self._outlet.connection.send_notification("progress", params))

    # ------------------------------------------------------------ for the dispatcher

    def _set_cancelled(self) -> None:
        self.cancelled.set()
        for stream in self._streams.values():
            stream.release()
        # Set first: a thread that begins to wait just now sees it, or is seen below.
        self._owed = True
        for running in list(self._runs):
            if running.cancel():
                self._owed = False

    def _add_credit(self, stream: StreamName, size: int) -> None:
        if self._live and not self._answered:
            self._stream(stream).add_credit(size)

    def _unended(self) -> list[str]:
        """Streams of a live call that lack their end mark."""
        if not self._live:
            return []
        ended = {name for name, stream in self._streams.items() if stream.end is not None}
        used = {name for name, stream in self._streams.items() if stream.offset > stream.base} | ended
        return sorted(({"pty"} if "pty" in used else {"stdout", "stderr"} | used) - ended)

    def _close(self) -> None:
        self._answered = True
        self._interrupt = None
        for stream in self._streams.values():
            stream.release()

    def _stream(self, name: StreamName) -> OutputStream:
        self._refuse_after_answer(name)
        stream = self._streams.get(name)
        if stream is None:
            if not self._live:
                raise Internal(f"{self.method} has no live output here", dispatched="unknown")
            base = self._bases.get(name, 0) if self._bases else 0
            stream = self._streams[name] = OutputStream(self._outlet, self.id, name, base)
        return stream

    def _refuse_after_answer(self, name: StreamName) -> None:
        if self._answered:
            raise Internal(f"output for {name} after {self.method} was answered", dispatched="unknown")
