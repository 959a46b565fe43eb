"""Our own stdin, stdout and stderr as the program's: bytes as they are, each descriptor served by a thread.

A thread may wait for ever on a pager that does not read, or a terminal where nobody types; the event loop must not,
or Ctrl-C would find nobody at home. The descriptors are shared with whoever started us, so they are never made
non-blocking.
"""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from .descriptors import read_some, write_all
from .failures import OutputFailed

READ_BYTES = 256 * 1024

_Q = TypeVar("_Q")
_A = TypeVar("_A")


class _Thread(ABC, Generic[_Q, _A]):
    """Does one blocking thing after another, away from the loop; what is cancelled is left to finish or to wait."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._orders: SimpleQueue[tuple[_Q, asyncio.AbstractEventLoop, asyncio.Future[_A]]] = SimpleQueue()
        self._started = False

    @abstractmethod
    def work(self, order: _Q) -> _A:
        """Do one thing; it may block, and only OSError is told to whoever asked."""

    async def ask(self, order: _Q) -> _A:
        if not self._started:
            self._started = True
            # Daemonic: one that waits for ever must not keep the process.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_A] = loop.create_future()
        self._orders.put((order, loop, answer))
        return await answer

    def _run(self) -> None:
        while True:
            order, loop, answer = self._orders.get()
            try:
                result = self.work(order)
                tell = partial(_succeed, answer, result)
            except OSError as error:
                tell = partial(_fail, answer, error)
            try:
                loop.call_soon_threadsafe(tell)
            except RuntimeError:
                # The loop is closed: the command is over and nobody waits any more.
                return


def _succeed(answer: asyncio.Future[_A], value: _A) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: asyncio.Future[_A], error: OSError) -> None:
    if not answer.done():
        answer.set_exception(error)


class Outlet(_Thread[bytes, None]):
    """One descriptor that takes a stream of the program."""

    def __init__(self, descriptor: int, stream: str) -> None:
        super().__init__(f"sandport-{stream}")
        self._descriptor = descriptor
        self._stream = stream

    def work(self, order: bytes) -> None:
        """Write all of it, however long that takes."""
        write_all(self._descriptor, order)

    async def write(self, data: bytes) -> None:
        """Return when the descriptor has taken everything: that is the back-pressure.

        Raises:
            OutputFailed: It cannot be written, or nobody reads it any more.
        """
        try:
            await self.ask(data)
        except OSError as error:
            raise OutputFailed(self._stream, error) from error


class Inlet(_Thread[int, bytes]):
    """A descriptor that gives the program its input."""

    def __init__(self, descriptor: int) -> None:
        super().__init__("sandport-stdin")
        self._descriptor = descriptor

    def work(self, order: int) -> bytes:
        """Wait for some bytes; none at the end."""
        return read_some(self._descriptor, order)

    async def read(self) -> bytes:
        """The next bytes; none at the end.

        Raises:
            OSError: It cannot be read.
        """
        return await self.ask(READ_BYTES)


def outlets(*, only_stderr: bool) -> dict[str, Outlet]:
    """Where each stream of the program goes.

    Args:
        only_stderr: Our stdout belongs to something else.
    """
    if only_stderr or os.path.sameopenfile(1, 2):
        # One descriptor, or two to the same file: one thread keeps the order in which the pieces came.
        one = Outlet(2, "output")
        return {"stdout": one, "stderr": one}
    return {"stdout": Outlet(1, "stdout"), "stderr": Outlet(2, "stderr")}
