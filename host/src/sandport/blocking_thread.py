"""An event loop in a thread of its own, and work on it that may be interrupted between any two instructions.

The handler of a signal raises in whoever waits, wherever that is: also between the moment when a block was entered and
the one when its caller has what it gave. So nothing that must be undone is the caller's alone.

- What is begun lives on the loop. The caller only posts (an append to a deque) and waits (one call into C), each of
  which can be done again.
- Whoever is interrupted while something begins or answers cancels it and waits for its end, and is told then. Whoever
  is interrupted while something ends waits on, and is told then. A second interrupt is told at once; the end goes on.
- A block that nobody can leave any more, since the interrupt fell between two of the caller's own instructions, is left
  when it is collected, and at the latest with its host.
- The thread has begun once it took its turn. Who takes that first, it or an interrupted caller, is who decides.

`threading.Event` and `concurrent.futures.Future` are not used to wait: they wait in Python, under a lock that an
interrupt may leave held.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - before what is registered at the end of this file; see there
import contextlib
import os
import sys
import threading
import time
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from .errors import UsageError
from .store.errors import StoreClosed

R = TypeVar("R")
Inside = TypeVar("Inside")

REST_S = 30.0
"""How long work that is left on the loop has to end once its host is closed, and then the thread."""

_LOOK_S = 1.0
"""How often who waits looks up; only what an interrupt, or the end of the thread, cut off is found so."""

_CLOSED = "the host is closed; use it inside of its block, or open another"


class Latch:
    """Opens once."""

    def __init__(self) -> None:
        self.is_open = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let everybody through; a second time does nothing. One thread calls it."""
        if not self.is_open:
            self.is_open = True
            self._lock.release()

    def wait(self, limit_s: float) -> bool:
        """Whether it was open within the limit."""
        limit = time.monotonic() + limit_s
        while not self.is_open and (left_s := limit - time.monotonic()) > 0:
            if self._lock.acquire(timeout=min(left_s, _LOOK_S)):
                self._lock.release()  # for the next; one who is interrupted before this has only itself looked up
        return self.is_open


class Work(Generic[R]):
    """Something that is awaited on the loop. What a method does on the loop and what elsewhere, its first line says."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, R]]) -> None:
        self.over = Latch()
        self._begin = begin
        self._context = copy_context()
        self._task: asyncio.Task[None] | None = None
        self._ended: tuple[R] | BaseException | None = None

    def begin(self) -> asyncio.Task[None] | None:
        """On the loop: begin, unless it was cut before."""
        if self._task is None and not self.over.is_open:
            self._task = asyncio.get_running_loop().create_task(self._run(), context=self._context)
            self._task.add_done_callback(self._done)
        return self._task

    def cut(self) -> None:
        """On the loop: cancel it; what has not begun never will."""
        if self._task is not None:
            self._task.cancel()
        else:
            self.end(asyncio.CancelledError())

    def end(self, how: BaseException) -> None:
        """On the loop, or where there is none: it is over without an answer."""
        if not self.over.is_open:
            if self._ended is None:
                self._ended = how
            self._open()

    def answer(self) -> R:
        """Elsewhere, after its end: what it answered, or raise what it raised."""
        ended, self._ended = self._ended, None  # kept, the error and the frame that raises it would hold each other
        if isinstance(ended, tuple):
            return ended[0]
        if ended is None or isinstance(ended, asyncio.CancelledError):
            # Whoever cuts its own work has something of its own to raise, so it was the end of the host.
            raise UsageError(f"{_CLOSED}; it was closed before this call ended", dispatched="unknown")
        try:
            raise ended
        finally:
            del ended

    async def _run(self) -> None:
        if (sniffio := sys.modules.get("sniffio")) is not None:
            sniffio.current_async_library_cvar.set("asyncio")  # the caller's context may say otherwise
        try:
            self._ended = (await self._begin(),)
        except BaseException as error:  # noqa: BLE001 - answer() raises it; here some would end the loop
            self._ended = error

    def _done(self, _: asyncio.Task[None]) -> None:
        self.end(asyncio.CancelledError())  # only where it was cut before its first step is there nothing else

    def _open(self) -> None:
        self.over.open()


class Stay(Work[bool | None], Generic[Inside]):
    """An asynchronous block that is entered, and left when that is told."""

    inside: Inside

    def __init__(self, block: AbstractAsyncContextManager[Inside]) -> None:
        super().__init__(self._stay)
        self.entered = Latch()
        self._block = block
        self._leave = asyncio.Event()
        self._error: BaseException | None = None

    def leave(self, error: BaseException | None) -> None:
        """On the loop: leave it, with what its caller raised in it; a second time does nothing."""
        if not self._leave.is_set():
            self._error = error
            self._leave.set()

    def outcome(self) -> bool | None:
        """Elsewhere, after its end: what leaving it answered, or raise what it raised."""
        if self._ended is None or isinstance(self._ended, asyncio.CancelledError):
            return None  # it was left before, as with its host
        return self.answer()

    async def _stay(self) -> bool | None:
        self.inside = await self._block.__aenter__()
        self.entered.open()
        try:
            await self._leave.wait()
            error = self._error
        except asyncio.CancelledError as cut:
            error = cut
        try:
            if error is None:
                return await self._block.__aexit__(None, None, None)
            return await self._block.__aexit__(type(error), error, error.__traceback__)
        finally:
            del error, self._error

    def _open(self) -> None:
        super()._open()
        self.entered.open()


class LoopThread:
    """A thread with a loop, for as long as a block that is entered on it.

    Args:
        block: It is entered first; the thread ends after it, and with it what else still waits on its loop.
    """

    def __init__(self, block: AbstractAsyncContextManager[Any]) -> None:
        self.stay: Stay[Any] = Stay(block)
        self._pid = os.getpid()
        self._over = Latch()
        self._turn = [None]
        self._posted: deque[Callable[[], object]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="sandport-blocking", daemon=True)

    # --- elsewhere ---

    def start(self) -> None:
        """Have the thread begin."""
        _END.open.add(self)
        self._thread.start()

    def call_off(self) -> None:
        """Cancel its block; where the thread has not begun, it never will. A second time does nothing more."""
        try:
            self._turn.pop()
        except IndexError:
            self.post(self.stay.cut)
        else:
            self._end(asyncio.CancelledError())

    def finish(self) -> None:
        """Wait until its block is left, and then, not for ever, for the end of the thread."""
        self.until(self.stay.over)
        if not self._over.wait(REST_S):
            warnings.warn(
                f"a thread of sandport.blocking was left behind: what runs on it did not end within {REST_S:g} s",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self._thread.ident is not None:
            self._thread.join(REST_S)

    def refuse(self) -> None:
        """Raise where whoever asks could only wait for ever.

        Raises:
            StoreClosed: This is a child of the process that the host belongs to.
            UsageError: The host is closed, or this is its own thread.
        """
        if self.is_another_process:
            raise StoreClosed("the host belongs to the process that this one was forked from; open a host here")
        self.refuse_itself()
        if self._closed:
            raise UsageError(_CLOSED)

    def refuse_itself(self) -> None:
        """Raise where it is this very thread that would wait.

        Raises:
            UsageError: It is.
        """
        if self._thread.ident == threading.get_ident() and not self._over.is_open:
            raise UsageError(
                "a callback called back into its host, whose thread it holds up: neither would ever go on; hand what "
                "is to be done to another thread, as through a queue.SimpleQueue, and return"
            )

    def has_ended(self, work: Work[Any]) -> bool:
        """Whether it is over; nothing goes on after the thread."""
        return work.over.is_open or self._over.is_open

    @property
    def is_another_process(self) -> bool:
        """Whether this process was forked from the one that has the thread."""
        return os.getpid() != self._pid

    def begin(self, work: Work[Any]) -> None:
        """Have work begun on the loop."""
        self.post(partial(self._begin, work))

    def post(self, call: Callable[[], object]) -> None:
        """Have something called on the loop, in the order of the posts; nothing is where that has ended."""
        if self.is_another_process:
            return
        self._posted.append(call)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._take)

    def until(self, latch: Latch) -> None:
        """Wait for something on the loop, or for the end of the thread."""
        while not (latch.wait(_LOOK_S) or self._over.is_open):
            pass

    def call(self, begin: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """What it answers or raises."""
        self.refuse()
        work = Work(begin)
        try:
            self.begin(work)
            self.until(work.over)
        except BaseException:  # what the handler of a signal raises, whatever it is: nobody waits for the work then
            self.post(work.cut)
            self.until(work.over)
            raise
        return work.answer()

    def abandon(self) -> None:
        """The program ends, and nobody left the block."""
        if self.is_another_process:
            return
        if self._turn:
            self.call_off()
        self.post(partial(self.stay.leave, None))
        self.finish()

    # --- in the thread ---

    def _run(self) -> None:
        try:
            self._turn.pop()
        except IndexError:
            return
        how: BaseException = asyncio.CancelledError()
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - there is no loop, or no more; who waits is told
            how = error
        finally:
            self._end(how)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        stay = self.stay.begin()
        assert stay is not None  # nothing that was posted was taken yet
        self._take()
        await asyncio.wait((stay,))
        self._closed = True
        # These first, and by themselves: what ends them must not be cut together with them.
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=REST_S)

    def _take(self) -> None:
        while self._posted:
            self._posted.popleft()()

    def _begin(self, work: Work[Any]) -> None:
        task = work.begin()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _end(self, how: BaseException) -> None:
        self._closed = True
        self.stay.end(how)
        _END.open.discard(self)
        self._over.open()


class _Block(AbstractContextManager[R], Generic[R]):
    """A block that stands for one on the loop.

    Args:
        thread: Where it is.
        stay: That one.
        mirror: What the caller gets of what that one gives.
    """

    _begun = False  # also where it is collected before it was made

    def __init__(self, thread: LoopThread, stay: Stay[Any], mirror: Callable[[Any, LoopThread], R]) -> None:
        self._thread = thread
        self._stay = stay
        self._mirror = mirror

    @abstractmethod
    def _begin(self) -> None:
        """Have it entered."""

    @abstractmethod
    def _cut(self) -> None:
        """Have it left, or not entered, for nobody will; may be asked again."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait for its end; may be asked again."""

    def __enter__(self) -> R:
        self._thread.refuse()
        if self._begun:
            raise UsageError("a block is entered once; ask for another")
        try:
            self._begun = True
            self._begin()
            self._thread.until(self._stay.entered)
            if self._thread.has_ended(self._stay):
                self._stay.answer()
            return self._mirror(self._stay.inside, self._thread)
        except BaseException:  # an interrupt, or an error of the block: whoever has nothing to leave cannot leave it
            self._cut()
            self._wait()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None:
        if self._thread.is_another_process:
            return None  # it is the parent's to leave
        self._thread.refuse_itself()
        try:
            self._thread.post(partial(self._stay.leave, error))
            self._wait()
        except BaseException:  # an interrupt, perhaps before it was posted; to leave a second time does nothing
            self._thread.post(partial(self._stay.leave, error))
            self._wait()
            raise
        return self._stay.outcome()

    def __del__(self) -> None:
        if self._begun and not self._thread.has_ended(self._stay):
            self._cut()


class Block(_Block[R], Generic[R]):
    """A block on the loop of a host that is open."""

    def __init__(
        self, thread: LoopThread, block: AbstractAsyncContextManager[Any], mirror: Callable[[Any, LoopThread], R]
    ) -> None:
        super().__init__(thread, Stay(block), mirror)

    def _begin(self) -> None:
        self._thread.begin(self._stay)

    def _cut(self) -> None:
        self._thread.post(self._stay.cut)

    def _wait(self) -> None:
        self._thread.until(self._stay.over)


class OwnThread(_Block[R], Generic[R]):
    """A block on a loop in a thread of its own, which begins and ends with it."""

    def __init__(self, block: AbstractAsyncContextManager[Any], mirror: Callable[[Any, LoopThread], R]) -> None:
        thread = LoopThread(block)
        super().__init__(thread, thread.stay, mirror)

    def _begin(self) -> None:
        self._thread.start()

    def _cut(self) -> None:
        self._thread.call_off()

    def _wait(self) -> None:
        self._thread.finish()


class _ProgramEnd:
    """What is still open when the program ends; a program, or a notebook, may leave no block."""

    def __init__(self) -> None:
        self.open: set[LoopThread] = set()

    def __call__(self) -> None:
        for thread in tuple(self.open):
            thread.abandon()


_END = _ProgramEnd()
# What is registered with `atexit` runs after all threads were waited for. This is where the standard library's own
# executors end theirs, too; it is called in the reverse order, so before them, whose module is imported above for that.
threading._register_atexit(_END)  # type: ignore[attr-defined]
