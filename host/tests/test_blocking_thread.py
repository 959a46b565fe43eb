"""Blocks on a loop in another thread, and an interrupt at every instruction of whoever enters, waits for or leaves one.

What an interrupt left behind was a lease that nobody ended and a program that never ended, since `with` had not entered
what was entered on the loop (agronholm/anyio: `BlockingPortal.wrap_async_context_manager`).
"""

import asyncio
import contextlib
import gc
import signal
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Any, Self

import pytest

from sandport import blocking_thread
from sandport.blocking_thread import Block, LoopThread, OwnThread
from sandport.errors import UsageError

PATIENCE_S = 30.0


class Places:
    """Blocks, and which of them are entered and not left."""

    def __init__(self) -> None:
        self.held: list[str] = []
        self.left: list[tuple[str, str]] = []

    @contextlib.asynccontextmanager
    async def place(self, name: str) -> AsyncIterator[str]:
        """A block that takes a few turns of the loop to enter and to leave."""
        await asyncio.sleep(0)
        self.held.append(name)
        why = ""
        try:
            await asyncio.sleep(0)
            yield name
        except BaseException as error:
            why = type(error).__name__
            raise
        finally:
            try:
                await asyncio.sleep(0)
            finally:  # a call may be cut while it leaves, too
                self.held.remove(name)
                self.left.append((name, why))

    async def work(self) -> int:
        """A call that takes a few turns, and is one of those that are held while it does."""
        async with self.place("call"):
            return 7


def thread_of(name: str, thread: LoopThread) -> LoopThread:
    return thread


def until(holds: Callable[[], bool]) -> None:
    """Wait for what another thread does; the bound ends a hang."""
    limit = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < limit, "it did not come to it"
        time.sleep(0.001)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sandport-blocking"]


def collected(frame: FrameType | None) -> bool:
    """Whether this is the end of an object: an interrupt there is printed and lost, as everything that it raises."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


class Interrupt:
    """Raises at one of the instructions that the calling thread runs in the module, as the handler of a signal does."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.fired = ""

    def __enter__(self) -> Self:
        self._was = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._was)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != blocking_thread.__file__ or collected(frame):
            return None
        if event == "call":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        if event in ("call", "opcode"):
            self.left -= 1
            if self.left < 0 and not self.fired:
                self.fired = f"{frame.f_code.co_qualname}:{frame.f_lineno} {event}"
                raise KeyboardInterrupt
        return self._trace


def go_through(places: Places) -> None:
    with OwnThread(places.place("host"), thread_of) as thread, Block(thread, places.place("lease"), thread_of):
        assert thread.call(places.work) == 7


@pytest.mark.slow
def test_an_interrupt_at_any_instruction_leaves_every_block_and_ends_the_thread() -> None:
    at = 0
    while True:
        places = Places()
        interrupt = Interrupt(at)
        came = False
        try:
            with interrupt:
                go_through(places)
        except KeyboardInterrupt:
            came = True
        assert came == bool(interrupt.fired), interrupt.fired
        until(lambda: not threads())
        assert places.held == [], interrupt.fired
        assert not blocking_thread._END.open, interrupt.fired
        if not came:
            break
        at += 1
    assert at > 500  # it went through all of it


def test_an_interrupt_at_any_instruction_leaves_the_block_also_where_its_host_stays_open() -> None:
    at = 0
    with OwnThread(Places().place("host"), thread_of) as thread:
        while True:
            places = Places()
            interrupt = Interrupt(at)
            try:
                with interrupt, Block(thread, places.place("lease"), thread_of):
                    thread.call(places.work)
            except KeyboardInterrupt:
                pass
            until(lambda: not places.held)  # noqa: B023 - it is called at once
            assert thread.call(places.work) == 7, interrupt.fired
            if not interrupt.fired:
                break
            at += 1
    assert at > 200


class Stage:
    """A host, and work on it that interrupts whoever waits for it once it has come so far."""

    def __init__(self, places: Places, thread: LoopThread) -> None:
        self.places = places
        self.thread = thread

    def _interrupt(self) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    async def call(self) -> None:
        """A call that does not end."""
        async with self.places.place("it"):
            self._interrupt()
            await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def does_not_enter(self) -> AsyncIterator[None]:
        """A block that is not entered."""
        async with self.places.place("it"):
            self._interrupt()
            await asyncio.Event().wait()
            yield

    @contextlib.asynccontextmanager
    async def takes_its_time(self) -> AsyncIterator[None]:
        """A block that takes a while to leave."""
        async with self.places.place("it"):
            yield
            self._interrupt()
            for _ in range(1000):
                await asyncio.sleep(0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    places = Places()
    was = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with OwnThread(places.place("host"), thread_of) as thread:
            yield Stage(places, thread)
    finally:
        signal.signal(signal.SIGUSR1, was)


def test_a_call_that_is_interrupted_is_cancelled_and_its_end_waited_for(stage: Stage) -> None:
    with pytest.raises(KeyboardInterrupt):
        stage.thread.call(stage.call)
    assert (stage.places.held, stage.places.left) == (["host"], [("it", "CancelledError")])


def test_a_block_that_is_interrupted_while_it_is_entered_is_cancelled_and_its_end_waited_for(stage: Stage) -> None:
    with pytest.raises(KeyboardInterrupt), Block(stage.thread, stage.does_not_enter(), thread_of):
        pytest.fail("it was entered")
    assert (stage.places.held, stage.places.left) == (["host"], [("it", "CancelledError")])


def test_a_block_that_is_interrupted_while_it_is_left_goes_on_and_is_waited_for(stage: Stage) -> None:
    block = Block(stage.thread, stage.takes_its_time(), thread_of)
    block.__enter__()
    with pytest.raises(KeyboardInterrupt):
        block.__exit__(None, None, None)
    assert (stage.places.held, stage.places.left) == (["host"], [("it", "")])


def test_what_is_left_on_the_loop_is_cancelled_before_the_thread_ends() -> None:
    places = Places()
    kept: list[object] = []
    with OwnThread(places.place("host"), thread_of) as thread:
        block = Block(thread, places.place("lease"), thread_of)
        kept.append(block)
        block.__enter__()
        assert places.held == ["host", "lease"]
    assert places.left == [("host", ""), ("lease", "CancelledError")]
    assert threads() == []
    assert not block.__exit__(None, None, None)  # it was left with its host


def test_who_waits_in_another_thread_is_told_that_the_host_was_closed() -> None:
    places = Places()
    told: list[BaseException] = []
    waits = threading.Event()

    async def forever() -> None:
        waits.set()
        await asyncio.Event().wait()

    def ask(thread: LoopThread) -> None:
        with pytest.raises(UsageError, match="the host is closed") as error:
            thread.call(forever)
        told.append(error.value)

    with OwnThread(places.place("host"), thread_of) as thread:
        asks = threading.Thread(target=ask, args=(thread,))
        asks.start()
        assert waits.wait(PATIENCE_S)
    asks.join(PATIENCE_S)
    assert [error.dispatched for error in told if isinstance(error, UsageError)] == ["unknown"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError])
def test_whatever_is_raised_on_the_loop_is_raised_at_the_caller_and_the_loop_goes_on(kind: type[BaseException]) -> None:
    async def raises() -> None:
        raise kind("told")

    places = Places()
    with OwnThread(places.place("host"), thread_of) as thread:
        with pytest.raises(kind, match="told"):
            thread.call(raises)
        assert thread.call(places.work) == 7
        with pytest.raises(kind, match="inside"), Block(thread, places.place("lease"), thread_of):
            raise kind("inside")
    assert places.left == [("call", ""), ("lease", kind.__name__), ("host", "")]


def test_a_callback_that_ends_the_loop_leaves_nobody_waiting() -> None:
    async def ends() -> None:
        asyncio.get_running_loop().call_soon(sys.exit, "by a callback")
        await asyncio.Event().wait()

    places = Places()
    ended = pytest.raises(UsageError, match="closed before this call ended")
    with ended, OwnThread(places.place("host"), thread_of) as thread:
        thread.call(ends)
    assert places.held == []
    assert threads() == []


def test_an_error_holds_nothing_of_the_call_that_raised_it() -> None:
    class Held:
        pass

    async def raises() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        raise ValueError

    seen: list[weakref.ref[Held]] = []
    gc.disable()  # what is not let go by the count of its references would be by the collector
    try:
        with OwnThread(Places().place("host"), thread_of) as thread:
            with contextlib.suppress(ValueError):
                thread.call(raises)
            until(lambda: seen[0]() is None)
    finally:
        gc.enable()


def test_a_block_is_entered_once() -> None:
    with OwnThread(Places().place("host"), thread_of) as thread:
        block = Block(thread, Places().place("lease"), thread_of)
        with block:
            pass
        with pytest.raises(UsageError, match="entered once"), block:
            pytest.fail("it was entered again")
