"""A worker without a pipe: bytes of the host in, bytes for it out through a `write` callable.

Owns the provider and its calls: one task (or one thread's turn) for each, one answer for each. Above: `worker`, which
brings descriptors and signals, and `testing`, which brings a host in memory. Below: `WorkerConnection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from sandport_protocol import codec
from sandport_protocol.envelope import Id
from sandport_protocol.errors import Detail, Internal, InvalidParams, WireError
from sandport_protocol.events import NotificationReceived, ReplyDue, RequestReceived, ViolationFound, WorkerEvent
from sandport_protocol.limits import DEFAULTS, Limits, agree
from sandport_protocol.methods import METHODS
from sandport_protocol.states import DRAINING, SERVING
from sandport_protocol.v1 import (
    CancelParams,
    CreditParams,
    ExecuteParams,
    FailedParams,
    InitializeParams,
    InitializeResult,
    Meta,
    Params,
    ProviderInfo,
    ReadyParams,
    ShutdownParams,
    ShutdownResult,
    WaitProcessParams,
)
from sandport_protocol.versions import SUPPORTED, pick
from sandport_protocol.worker_connection import WorkerConnection

from . import faults, results
from .config import schema
from .logs import current_request
from .outbox import Outbox
from .streams import Outlet
from .threads import HandlerThreads
from .v1.call import Call
from .v1.provider import Handler, Provider, Session

if TYPE_CHECKING:
    from concurrent.futures import Future

_log = logging.getLogger("sandport_sdk")

FINISH_S = 0.5
"""After the host is gone (end of input, SIGTERM), what runs may still finish for so long before it is cancelled."""
CLOSE_S = 5.0
"""Bound of a provider's `close`."""

_UNTOUCHED = frozenset({"validateConfig", "probe", "listLeases"})
"""Methods that change nothing: whatever becomes of them, no effect was dispatched."""

ASKED, NOT_STARTED, HOST_BROKE_PROTOCOL = 0, 1, 2
"""Exit codes of a worker: it was asked to end or its host is gone; it could not start; it could not go on reading."""


class Dispatcher:
    """Serves one connection, from the hello to the end.

    Must be made in a running loop, and used in it.

    Attributes:
        ended: The exit code, once everything is over and answered; what was written may still be in the transport.
    """

    def __init__(
        self,
        provider_class: type[Provider],
        write: Callable[[bytes], object],
        *,
        limits: Limits = DEFAULTS,
        on_hello: Callable[[], object] = lambda: None,
    ) -> None:
        """Be ready for a hello.

        Args:
            provider_class: What is served.
            write: Takes what goes to the host, and never blocks.
            limits: What this side can keep.
            on_hello: Called once, when the limits in force are known.

        Raises:
            TypeError: The class is abstract.
        """
        if provider_class.abstract:
            raise TypeError(f"{provider_class.__qualname__} is abstract; serve a class that is derived from it")
        self._on_hello = on_hello
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._class = provider_class
        self._own_limits = limits
        self._connection = WorkerConnection(limits)
        self._outbox = Outbox(self._loop, write)
        self._calls: dict[Id, Call] = {}
        self._outlet = Outlet(self._loop, self._outbox, self._connection, self._calls)
        self._threads = HandlerThreads(self._loop)
        self._provider: Provider | None = None
        self._closable = True
        self._handlers: dict[str, tuple[Handler, Callable[..., Any]]] = {}
        self._ready = False
        self._waiting: list[tuple[Call, Handler, Any]] = []
        self._preparing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None
        self._shutdowns: list[Id] = []
        self._exit_code = ASKED

    # ------------------------------------------------------------ what the transport says

    @property
    def limits(self) -> Limits:
        """The limits in force: this side's own until the hello, then the agreed ones."""
        return self._connection.limits

    @property
    def threads_running(self) -> bool:
        """Whether some handler still runs in a thread."""
        return self._threads.running > 0

    def receive(self, data: bytes) -> None:
        """Bytes came in."""
        for event in self._connection.receive(data):
            try:
                self._on_event(event)
            except Exception as error:  # noqa: BLE001 - a fault here costs one message, never the connection
                if isinstance(event, RequestReceived) and (call := self._calls.get(event.id)) is not None:
                    self._raised(call, error)
                else:
                    _log.exception("a message could not be handled")

    def pause_writing(self) -> None:
        """The transport's buffer is full: hold live output back."""
        self._outbox.pause()

    def resume_writing(self) -> None:
        """The transport has room again."""
        self._outbox.resume()

    def finish(self, why: str) -> None:
        """The host is gone or wants the worker gone: let what runs finish for a moment, cancel it, close, end."""
        if self._ending is None:
            _log.debug("ending: %s", why)
        self._connection.close()
        self._end_within(FINISH_S)

    def drain(self, why: str) -> None:
        """As `finish`, but the host still listens: what it asks meanwhile is refused instead of left unread."""
        if self._connection.phase == SERVING:
            # What a shutdown does to the connection, without one.
            self._connection.phase = DRAINING
        if self._connection.phase == DRAINING:
            self._end_within(FINISH_S)
        else:
            self.finish(why)

    # ------------------------------------------------------------ events

    def _on_event(self, event: WorkerEvent) -> None:
        kind = event.__class__
        if kind is RequestReceived:
            assert isinstance(event, RequestReceived)
            if event.method == "initialize":
                self._greet(event)
            elif event.method == "shutdown":
                self._shut_down(event)
            else:
                self._call(event)
        elif kind is ReplyDue:
            assert isinstance(event, ReplyDue)
            self._outbox.send(event.frame)
        elif kind is NotificationReceived:
            assert isinstance(event, NotificationReceived)
            self._note(event)
        else:
            assert isinstance(event, ViolationFound)
            _log.warning("the host broke a rule of the wire: %s; it sent %r", event.rule, event.sample)
            if event.fatal:
                self._exit_code = HOST_BROKE_PROTOCOL
                self.finish("the host broke the protocol")

    def _note(self, event: NotificationReceived) -> None:
        if event.method == "initialized":
            self._prepare()
            return
        try:
            if event.method == "credit":
                credit = codec.read_as(CreditParams, event.params)
                if (call := self._calls.get(credit.id)) is not None:
                    call._add_credit(credit.stream, credit.bytes)
            else:
                cancel = codec.read_as(CancelParams, event.params)
                if (call := self._calls.get(cancel.id)) is not None:
                    self._cancel(call)
        except ValueError as error:
            _log.warning("the host broke a rule of the wire: %s: %s", event.method, error)

    # ------------------------------------------------------------ hello

    def _greet(self, event: RequestReceived) -> None:
        try:
            hello = self._hello(codec.read_as(InitializeParams, event.params))
        except WireError as error:
            self._fail(event.id, error)
        except ValueError as error:
            self._fail(event.id, _invalid("initialize", error))
        except BaseException as error:  # noqa: BLE001 - whatever an author's __init__ raises, the host gets an answer
            self._fail(event.id, faults.from_exception(error, faults.Circumstances("initialize", False, "no")))
        else:
            self._outbox.send(self._connection.send_result(event.id, hello))
            self._on_hello()

    def _hello(self, params: InitializeParams) -> InitializeResult:
        cls = self._class
        version = pick(params.protocol_versions, SUPPORTED, worker_name=cls.name)
        limits = agree(params.limits, self._own_limits)
        info = ProviderInfo(
            name=cls.name,
            version=cls.version,
            display_name=cls.display_name or cls.name,
            config_schema=schema(cls.Config),
        )
        provider = cls(Session(params.store_id, params.state_dir, host=params.host, limits=limits))
        self._provider = provider
        self._handlers = {
            name: (handler, getattr(provider, handler.attribute)) for name, handler in cls.handlers.items()
        }
        served = [name for name, method in METHODS.items() if method.group == "session" or name in cls.handlers]
        extensions = [name for name in cls.handlers if name not in METHODS]
        self._connection.negotiated((*served, *extensions), limits)
        self._outlet.limits = limits
        return InitializeResult(
            protocol_version=version,
            provider=info,
            supported_methods=tuple(served),
            capabilities=cls.capabilities,
            features=tuple(extensions),
            limits=limits,
            wants_env=cls.wants_env,
        )

    def _prepare(self) -> None:
        if self._provider is None or self._provider.prepare is None:
            self._now_ready()
        else:
            self._preparing = self._loop.create_task(self._run_prepare(self._provider.prepare))

    async def _run_prepare(self, prepare: Callable[[], Any]) -> None:
        try:
            await self._either(prepare)
        except asyncio.CancelledError:
            # The worker ends before it was ready. A thread cannot be interrupted: what it works on is left to it.
            self._closable = iscoroutinefunction(prepare)
        except BaseException as error:  # noqa: BLE001 - whatever it raises, the host is told
            failure = faults.from_exception(error, faults.Circumstances("prepare", False, "no"))
            self._not_ready(failure)
        else:
            self._now_ready()
        finally:
            self._preparing = None

    async def _either(self, function: Callable[[], Any]) -> None:
        """Run a `prepare` or a `close`, whichever kind it is."""
        if iscoroutinefunction(function):
            await function()
        else:
            await asyncio.wrap_future(self._threads.submit(function), loop=self._loop)

    def _now_ready(self) -> None:
        self._ready = True
        self._outbox.send(self._connection.send_notification("ready", ReadyParams()))
        waiting, self._waiting = self._waiting, []
        for call, handler, params in waiting:
            if not call._answered:
                self._start(call, handler, params)

    def _not_ready(self, failure: WireError) -> None:
        note = FailedParams(message=failure.message, condition=failure.condition)
        self._outbox.send(self._connection.send_notification("failed", note))
        waiting, self._waiting = self._waiting, []
        for call, _, _ in waiting:
            if not call._answered:
                self._end_call(call, failure)
        self._exit_code = NOT_STARTED
        self.drain("the provider could not prepare")

    # ------------------------------------------------------------ calls

    def _call(self, event: RequestReceived) -> None:
        handler, _ = self._handlers[event.method]
        try:
            params = codec.read_as(handler.params, event.params)
        except ValueError as error:
            self._fail(event.id, _invalid(event.method, error))
            return
        call = self._new_call(event.id, event.method, params)
        self._calls[event.id] = call
        if self._ready:
            self._start(call, handler, params)
        else:
            self._waiting.append((call, handler, params))

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

    def _start(self, call: Call, handler: Handler, params: Any) -> None:
        function = self._handlers[handler.name][1]
        if not handler.threaded:
            call._interrupt = self._loop.create_task(self._in_task(call, handler, function, params)).cancel
            return
        try:
            future = self._threads.submit(self._in_thread, call, function, params)
        except RuntimeError as error:
            self._raised(call, error)  # no more threads are to be had
            return
        call._interrupt = future.cancel
        future.add_done_callback(lambda done: self._threads.report(self._after_thread, call, handler, done))

    async def _in_task(self, call: Call, handler: Handler, function: Callable[..., Any], params: Any) -> None:
        current_request.set(call.id)
        _begin(call)
        try:
            result = await function(params, call)
        except BaseException as error:  # noqa: BLE001 - every way out of a handler is an answer, SystemExit included
            self._raised(call, error)
        else:
            self._returned(call, handler, result)

    @staticmethod
    def _in_thread(call: Call, function: Callable[..., Any], params: Any) -> Any:
        current_request.set(call.id)
        _begin(call)
        return function(params, call)

    def _after_thread(self, call: Call, handler: Handler, done: Future[Any]) -> None:
        if done.cancelled():
            return  # it had not begun, and was answered when it was cancelled
        error = done.exception()
        if error is None:
            self._returned(call, handler, done.result())
        else:
            self._raised(call, error)

    def _cancel(self, call: Call) -> None:
        call._set_cancelled()
        interrupt, call._interrupt = call._interrupt, None
        if not call._begun and (interrupt is None or interrupt()):
            circumstances = faults.Circumstances(call.method, True, "no")
            self._end_call(call, faults.from_exception(asyncio.CancelledError(), circumstances))
        elif interrupt is not None:
            interrupt()

    def _returned(self, call: Call, handler: Handler, result: Any) -> None:
        try:
            results.check(call.method, handler.result, result, call._unended())
            frame = self._connection.send_result(call.id, result)
        except Exception as error:  # noqa: BLE001 - an object that is no result must not leave the call without one
            self._raised(call, error)
            return
        self._settle(call)
        self._answer(frame)

    def _raised(self, call: Call, error: BaseException) -> None:
        if call._answered:
            return
        circumstances = faults.Circumstances(call.method, call.cancelled.is_set(), call.dispatched)
        token = current_request.set(call.id)
        try:
            answer = faults.from_exception(error, circumstances)
        finally:
            current_request.reset(token)
        self._end_call(call, answer)

    def _end_call(self, call: Call, error: WireError) -> None:
        self._settle(call)
        self._fail(call.id, error)

    def _settle(self, call: Call) -> None:
        del self._calls[call.id]
        call._close()
        if not self._calls:
            self._idle.set()

    def _fail(self, request: Id, error: WireError) -> None:
        try:
            frame = self._connection.send_error(request, error.to_wire())
        except Exception as fault:  # noqa: BLE001 - an error that cannot be encoded is still an error
            _log.exception("an error cannot be told to the host as it is")
            said = faults.describe(error)
            plain = Internal(f"{said} (and {faults.describe(fault)})", dispatched=error.dispatched)
            frame = self._connection.send_error(request, plain.to_wire())
        self._answer(frame)

    def _answer(self, frame: bytes) -> None:
        if self._calls:
            self._outbox.gather(frame)
        else:
            self._outbox.send(frame)

    # ------------------------------------------------------------ the end

    def _shut_down(self, event: RequestReceived) -> None:
        try:
            params = codec.read_as(ShutdownParams, event.params)
        except ValueError as error:
            self._fail(event.id, _invalid("shutdown", error))
            return
        self._shutdowns.append(event.id)
        self._end_within(max(0, params.drain_ms) / 1000)

    def _end_within(self, finish_s: float) -> None:
        """End when nothing runs any more; cancel what still runs after so many seconds. A shorter time wins."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        elif self._timer is None or self._timer.when() <= self._loop.time() + finish_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(finish_s, self._cancel_all)

    def _cancel_all(self) -> None:
        self._timer = None
        for call in list(self._calls.values()):
            self._cancel(call)
        self._loop.call_later(self.limits.drain_ms / 1000, self._idle.set)

    async def _end(self) -> None:
        try:
            if self._calls:
                self._idle.clear()
                await self._idle.wait()
            if self._timer is not None:
                self._timer.cancel()
            if self._preparing is not None:
                self._preparing.cancel()
                await asyncio.wait([self._preparing], timeout=self.limits.drain_ms / 1000)
            await self._close_provider()
            for call in list(self._calls.values()):
                _log.error("%s (request %r) did not end though it was cancelled", call.method, call.id)
                self._raised(call, asyncio.CancelledError())
            for request in self._shutdowns:
                self._outbox.send(self._connection.send_result(request, ShutdownResult()))
            self._outbox.flush()
        finally:
            self._connection.close()
            self._threads.stop()
            self.ended.set_result(self._exit_code)

    async def _close_provider(self) -> None:
        provider = self._provider
        if provider is None or provider.close is None or not self._closable:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._either(provider.close)
        except TimeoutError:
            _log.exception("close() of the provider did not end within %s s", CLOSE_S)
        except BaseException:  # noqa: BLE001 - the worker ends all the same, and the log says why close() failed
            _log.exception("close() of the provider failed")


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


def _invalid(method: str, error: ValueError) -> InvalidParams:
    text = str(error)
    _, at, place = text.rpartition(" - at `$")
    field = place.rstrip("`").lstrip(".") if at else None
    return InvalidParams(f"{method}: {text}", detail=Detail(field=field or None))
