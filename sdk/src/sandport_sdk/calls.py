"""The open calls of a worker: one task, or one thread's turn, for each, and exactly one answer.

Above: the dispatcher, which knows the connection's life. Below: handlers, the outbox, `WorkerConnection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

from sandport_protocol import codec
from sandport_protocol.envelope import Id
from sandport_protocol.errors import Detail, Internal, InvalidParams, WireError
from sandport_protocol.events import RequestReceived
from sandport_protocol.v1 import CancelParams, CreditParams, ExecuteParams, Meta, Params, WaitProcessParams

from . import faults, results
from .held_loop import LoopWatch, home_of, place_of
from .logs import current_request
from .streams import Outlet
from .v1.call import Call
from .v1.provider import Handler, Provider

if TYPE_CHECKING:
    from concurrent.futures import Future

    from sandport_protocol.limits import Limits
    from sandport_protocol.worker_connection import WorkerConnection

    from .outbox import Outbox
    from .threads import HandlerThreads

_log = logging.getLogger("sandport_sdk")

_UNTOUCHED = frozenset({"validateConfig", "probe", "listLeases"})
"""Methods that change nothing: whatever becomes of them, no effect was dispatched."""


DEAF_S = 1.0
"""After a cancel, a handler in a thread that still runs is said to."""


class _Bound(NamedTuple):
    handler: Handler
    function: Callable[..., Any]


class Calls:
    """Takes requests, runs their handlers once the provider is ready, and answers.

    Attributes:
        idle: Set while no call is open.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, connection: WorkerConnection, outbox: Outbox, threads: HandlerThreads
    ) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self._loop = loop
        self._connection = connection
        self._outbox = outbox
        self._threads = threads
        self._open: dict[Id, Call] = {}
        self._outlet = Outlet(loop, outbox, connection, self._open)
        self._watch = LoopWatch(loop, self._open)
        self._served: dict[str, _Bound] = {}
        self._waiting: list[tuple[Call, _Bound, Any]] | None = []
        """Calls that came before the provider was ready; None from then on."""

    def __len__(self) -> int:
        return len(self._open)

    # ------------------------------------------------------------ the provider's state

    def serve(self, provider: Provider, limits: Limits) -> None:
        """The hello was said: these handlers, under these limits."""
        self._served = {
            name: _Bound(handler, getattr(provider, handler.attribute)) for name, handler in provider.handlers.items()
        }
        self._outlet.limits = limits
        self._watch.home = home_of(type(provider))

    def begin(self) -> None:
        """The provider is ready: start what waited, and from now on what comes."""
        waiting, self._waiting = self._waiting or [], None
        for call, bound, params in waiting:
            if not call._answered:
                self._start(call, bound, params)

    def refuse(self, failure: WireError) -> None:
        """The provider will never be ready: answer what waited with the reason."""
        for call, _, _ in self._waiting or ():
            if not call._answered:
                self._end(call, failure)

    # ------------------------------------------------------------ what the host says

    def take(self, event: RequestReceived) -> None:
        """A request for a method that is served."""
        bound = self._served[event.method]
        try:
            params = codec.read_as(bound.handler.params, event.params)
        except ValueError as error:
            self.fail(event.id, invalid_params(event.method, error))
            return
        call = self._new_call(event.id, event.method, params)
        self._open[event.id] = call
        self.idle.clear()
        if self._waiting is None:
            self._start(call, bound, params)
        else:
            self._waiting.append((call, bound, params))

    def credit(self, params: CreditParams) -> None:
        """Room for more output of one call; nothing where it is over."""
        if (call := self._open.get(params.id)) is not None:
            call._add_credit(params.stream, params.bytes)

    def cancel(self, params: CancelParams) -> None:
        """Interrupt one call; nothing where it is over."""
        if (call := self._open.get(params.id)) is not None:
            self._cancel(call)

    # ------------------------------------------------------------ the end

    def cancel_all(self) -> None:
        """Interrupt every call."""
        for call in list(self._open.values()):
            self._cancel(call)

    def give_up(self) -> None:
        """Answer calls whose handlers did not end though cancelled: the process ends next, and they with it."""
        self._watch.stop()
        for call in list(self._open.values()):
            place = None if call._thread is None else place_of(call._thread, self._watch.home)
            where = f"; it is at {place}" if place else ""
            _log.error("%s (request %r) did not end though it was cancelled%s", call.method, call.id, where)
            self._raised(call, asyncio.CancelledError())

    # ------------------------------------------------------------ answers

    def fail(self, request: Id, error: WireError) -> None:
        """Answer a request with an error, which may itself be something that no line can hold."""
        try:
            frame = self._connection.send_error(request, error.to_wire())
        except Exception as fault:  # noqa: BLE001 - an error that cannot be encoded is still an error
            _log.exception("an error cannot be told to the host as it is")
            said = f"{faults.describe(error)} (and {faults.describe(fault)})"
            frame = self._connection.send_error(request, Internal(said, dispatched=error.dispatched).to_wire())
        self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        if self._open:
            self._outbox.gather(frame)
        else:
            self._outbox.send(frame)

    def _end(self, call: Call, error: WireError) -> None:
        self._settle(call)
        self.fail(call.id, error)

    def _settle(self, call: Call) -> None:
        del self._open[call.id]
        call._close()
        if not self._open:
            self.idle.set()

    # ------------------------------------------------------------ handlers

    def _new_call(self, request: Id, method: str, params: Any) -> Call:
        kind = params.__class__
        meta = params.meta if isinstance(params, Params) else _meta_of(params)
        deadline = None
        if meta is not None and meta.deadline_ms is not None:
            deadline = self._loop.time() + meta.deadline_ms / 1000
        if kind is ExecuteParams:
            return Call(self._outlet, request, method, deadline=deadline, live=params.live)
        if kind is WaitProcessParams:
            bases = {start.stream: start.offset for start in params.from_offset}
            return Call(self._outlet, request, method, deadline=deadline, live=True, bases=bases)
        return Call(self._outlet, request, method, deadline=deadline)

    def _start(self, call: Call, bound: _Bound, params: Any) -> None:
        if not bound.handler.threaded:
            if self._watch.asleep:
                self._watch.wake()
            call._interrupt = self._loop.create_task(self._in_task(call, bound, params), name=call.method).cancel
            return
        try:
            future = self._threads.submit(_in_thread, call, bound.function, params)
        except RuntimeError as error:
            self._raised(call, error)  # no more threads are to be had
            return
        call._interrupt = future.cancel
        future.add_done_callback(lambda done: self._threads.report(self._after_thread, call, bound, done))

    async def _in_task(self, call: Call, bound: _Bound, params: Any) -> None:
        current_request.set(call.id)
        _begin(call)
        try:
            result = await bound.function(params, call)
        except BaseException as error:  # noqa: BLE001 - every way out of a handler is an answer, SystemExit included
            self._raised(call, error)
        else:
            self._returned(call, bound, result)

    def _after_thread(self, call: Call, bound: _Bound, done: Future[Any]) -> None:
        if done.cancelled():
            return  # it had not begun, and was answered when it was cancelled
        error = done.exception()
        if error is None:
            self._returned(call, bound, done.result())
        else:
            self._raised(call, error)

    def _cancel(self, call: Call) -> None:
        if call.cancelled.is_set():
            return  # once is enough: a second interruption would hit what the handler does about the first
        call._set_cancelled()
        # None: it waits for the provider to be ready. True: its task is interrupted, or its turn in a thread given up.
        interrupted = call._interrupt is None or call._interrupt()
        if interrupted and not call._begun:
            circumstances = faults.Circumstances(call.method, True, "no")
            self._end(call, faults.from_exception(asyncio.CancelledError(), circumstances))
        elif call._thread is not None:
            self._loop.call_later(DEAF_S, self._say_where, call)

    def _say_where(self, call: Call) -> None:
        """Tell the author what nobody can interrupt."""
        if call._answered or call._thread is None:
            return
        place = place_of(call._thread, self._watch.home) or "an unknown place"
        token = current_request.set(call.id)
        _log.warning(
            "%s was cancelled %g s ago and goes on, at %s: nothing interrupts a plain def; let it look at "
            "call.cancelled, and give what it waits for a limit of its own",
            call.method,
            DEAF_S,
            place,
        )
        current_request.reset(token)

    def _returned(self, call: Call, bound: _Bound, result: Any) -> None:
        if call._answered:
            return
        try:
            results.check(call.method, bound.handler.result, result, call._unended())
            frame = self._frame(call, result)
        except Exception as error:  # noqa: BLE001 - an object that is no result must not leave the call without one
            self._raised(call, error)
            return
        self._settle(call)
        self._answer(frame)

    def _frame(self, call: Call, result: Any) -> bytes:
        try:
            return self._connection.send_result(call.id, result)
        except (TypeError, ValueError) as error:  # half a character, say, or a key that is no text
            raise Internal(f"{call.method}: {error}", dispatched="yes") from error

    def _raised(self, call: Call, error: BaseException) -> None:
        if call._answered:
            return
        circumstances = faults.Circumstances(call.method, call.cancelled.is_set(), call.dispatched)
        token = current_request.set(call.id)
        try:
            answer = faults.from_exception(error, circumstances)
        finally:
            current_request.reset(token)
        self._end(call, answer)


def invalid_params(method: str, error: ValueError) -> InvalidParams:
    """The error for params that do not fit; its detail has the path of the member, where the decoder named one."""
    text = str(error)
    _, at, place = text.rpartition(" - at `$")
    field = place.rstrip("`").lstrip(".") if at else None
    return InvalidParams(f"{method}: {text}", detail=Detail(field=field or None))


def _in_thread(call: Call, function: Callable[..., Any], params: Any) -> Any:
    current_request.set(call.id)
    call._thread = get_ident()
    _begin(call)
    return function(params, call)


def _begin(call: Call) -> None:
    call._begun = True
    if call.method not in _UNTOUCHED:
        call.dispatched = "unknown"


def _meta_of(params: object) -> Meta | None:
    """The advice in the params of an extension, which are any JSON; nothing where it does not fit."""
    if not isinstance(params, dict) or "_meta" not in params:
        return None
    try:
        return codec.read_as(Meta, codec.encode(params["_meta"]))
    except ValueError:
        return None
