"""A worker without a pipe: bytes of the host in, bytes for it out through a `write` callable.

Owns the provider and the connection's life, from the hello to the end. Above: `pipes`, which brings descriptors and
signals, and `testing`, which brings a host in memory. Below: `Calls`, `Outbox`, `WorkerConnection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from sandport_protocol import codec
from sandport_protocol.envelope import Id
from sandport_protocol.errors import WireError
from sandport_protocol.events import NotificationReceived, ReplyDue, RequestReceived, ViolationFound, WorkerEvent
from sandport_protocol.limits import DEFAULTS, Limits, agree
from sandport_protocol.methods import METHODS
from sandport_protocol.states import DRAINING, SERVING
from sandport_protocol.v1 import (
    CancelParams,
    CreditParams,
    FailedParams,
    InitializeParams,
    InitializeResult,
    ProviderInfo,
    ReadyParams,
    ShutdownParams,
    ShutdownResult,
)
from sandport_protocol.versions import SUPPORTED, pick
from sandport_protocol.worker_connection import WorkerConnection

from . import faults
from .calls import Calls, invalid_params
from .config import schema
from .outbox import Outbox
from .threads import HandlerThreads
from .v1.provider import Provider, Session

_log = logging.getLogger("sandport_sdk")

FINISH_S = 0.5
"""After the host is gone (end of input, SIGTERM), what runs may still finish for so long before it is cancelled."""
CLOSE_S = 5.0
"""Bound of a provider's `close`."""

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
        self._threads = HandlerThreads(self._loop)
        self._calls = Calls(self._loop, self._connection, self._outbox, self._threads)
        self._provider: Provider | None = None
        self._closable = True
        self._preparing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._shutdowns: list[Id] = []
        self._exit_code = ASKED

    # ------------------------------------------------------------ what the transport says

    @property
    def limits(self) -> Limits:
        """The limits in force: this side's own until the hello, then the agreed ones."""
        return self._connection.limits

    def receive(self, data: bytes) -> None:
        """Bytes came in."""
        for event in self._connection.receive(data):
            try:
                self._on_event(event)
            except Exception:  # noqa: BLE001 - a fault of ours costs one message, never the connection
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
                self._calls.take(event)
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
                self._calls.credit(codec.read_as(CreditParams, event.params))
            else:
                self._calls.cancel(codec.read_as(CancelParams, event.params))
        except ValueError as error:
            _log.warning("the host broke a rule of the wire: %s: %s", event.method, error)

    # ------------------------------------------------------------ hello

    def _greet(self, event: RequestReceived) -> None:
        try:
            params = codec.read_as(InitializeParams, event.params)
        except ValueError as error:
            self._calls.fail(event.id, invalid_params("initialize", error))
            return
        try:
            hello = self._hello(params)
        except BaseException as error:  # noqa: BLE001 - whatever an author's __init__ raises, the host gets an answer
            answer = faults.from_exception(error, faults.Circumstances("initialize", False, "no"))
            self._calls.fail(event.id, answer)
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
        self._calls.serve(provider, limits)
        served = [name for name, method in METHODS.items() if method.group == "session" or name in cls.handlers]
        extensions = [name for name in cls.handlers if name not in METHODS]
        self._connection.negotiated((*served, *extensions), limits)
        return InitializeResult(
            protocol_version=version,
            provider=info,
            supported_methods=tuple(served),
            capabilities=cls.capabilities,
            features=tuple(extensions),
            limits=self._own_limits,  # what the host is held to; the agreed ones would promise to read less
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
        self._outbox.send(self._connection.send_notification("ready", ReadyParams()))
        self._calls.begin()

    def _not_ready(self, failure: WireError) -> None:
        note = FailedParams(message=failure.message, condition=failure.condition)
        self._outbox.send(self._connection.send_notification("failed", note))
        self._calls.refuse(failure)
        self._exit_code = NOT_STARTED
        self.drain("the provider could not prepare")

    # ------------------------------------------------------------ the end

    def _shut_down(self, event: RequestReceived) -> None:
        try:
            params = codec.read_as(ShutdownParams, event.params)
        except ValueError as error:
            self._calls.fail(event.id, invalid_params("shutdown", error))
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
        self._calls.cancel_all()
        # Handlers that do not end though cancelled are not waited for any longer than this.
        self._loop.call_later(self.limits.drain_ms / 1000, self._calls.idle.set)

    async def _end(self) -> None:
        try:
            await self._calls.idle.wait()
            if self._timer is not None:
                self._timer.cancel()
            if self._preparing is not None:
                self._preparing.cancel()
                await asyncio.wait([self._preparing], timeout=self.limits.drain_ms / 1000)
            await self._close_provider()
            self._calls.give_up()
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
