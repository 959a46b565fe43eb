"""A program of a sandbox on the user's terminal: keys in, output out, the size as it changes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Iterator

import anyio

from sandport.errors import NotSupported, ProcessNotFound
from sandport.outcome import Outcome
from sandport.process import Process
from sandport.sandbox import Sandbox

from .escape import Escape
from .failures import OutputFailed
from .plan import Task
from .records import Records
from .streams import Outlet
from .terminal import WIPED, Terminal

_KEYS_BYTES = 64 * 1024
"""So much is read ahead of a program that does not read; what was typed past it waits in the terminal."""
_WIPE_S = 0.5


class Screen:
    """The user's terminal, lent to one program.

    Args:
        terminal: Where keys come from; what is shown goes to stdout.
        records: The log, which is silent meanwhile: it would write into what the program draws.
    """

    def __init__(self, terminal: Terminal, records: Records) -> None:
        self._terminal = terminal
        self._records = records
        self._outlet = Outlet(1, "terminal")
        self.keeps_size = False
        """The provider would not tell the program that the size had changed."""

    def give_back(self) -> None:
        """The terminal as it was, at once."""
        self._terminal.restore()

    async def run(self, sandbox: Sandbox, task: Task) -> Outcome:
        """Run the command of the task to its end.

        Raises:
            SandportError: As `Sandbox.start` and `Process.wait`.
            OutputFailed: The terminal went away.

        Cancel: the program is killed; the terminal is as it was before that is waited for.
        """
        changed = asyncio.Event()
        with _noticing(self._terminal, changed):
            size = self._terminal.size()
            async with sandbox.start(
                task.command,
                cwd=task.cwd,
                env=task.env,
                stdin=True,
                pty=size,
                timeout_s=task.timeout_s,
                output_limit_bytes=0,
            ) as process:
                with self._records.held(), self._terminal.raw():
                    return await self._shown(process, size, changed)

    async def _shown(self, process: Process, size: tuple[int, int], changed: asyncio.Event) -> Outcome:
        beside = [asyncio.ensure_future(self._type(process)), asyncio.ensure_future(self._fit(process, size, changed))]
        showing = asyncio.ensure_future(self._show(process))
        try:
            waited = {showing, *beside}
            while not showing.done():
                done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                # The end of what is typed, or of sizes, is none of the program's; their failure is.
                if failed := next((one.exception() for one in done if one is not showing and one.exception()), None):
                    raise failed
            outcome = showing.result()
            if outcome.ended != "exited":
                await self._wipe()
            return outcome
        except BaseException:  # a cancel too: whoever leaves gets a terminal that can be read
            await self._wipe()
            raise
        finally:
            for one in (showing, *beside):
                one.cancel()
            await asyncio.gather(showing, *beside, return_exceptions=True)

    async def _show(self, process: Process) -> Outcome:
        async for _, data in process.output():
            await self._outlet.write(data)
        return await process.wait()

    async def _wipe(self) -> None:
        """A program that was cut off has left the terminal as it needed it."""
        with anyio.move_on_after(_WIPE_S, shield=True), contextlib.suppress(OutputFailed):  # nobody looks any more
            await self._outlet.write(WIPED)

    async def _fit(self, process: Process, size: tuple[int, int], changed: asyncio.Event) -> None:
        while True:
            # It may have changed while the program was started.
            if (now := self._terminal.size()) != size:
                size = now
                try:
                    await process.resize(*size)
                except NotSupported:
                    self.keeps_size = True
                    return
                except ProcessNotFound:
                    return  # it has just ended
            await changed.wait()
            changed.clear()

    async def _type(self, process: Process) -> None:
        async for data in _keys(self._terminal.descriptor):
            try:
                taken = await process.stdin.write(data)
            except ProcessNotFound:
                taken = 0  # it has just ended
            if taken < len(data):
                return


@contextlib.contextmanager
def _noticing(terminal: Terminal, changed: asyncio.Event) -> Iterator[None]:
    """Tell of each new size; and be raw again after a stop, during which the size may have changed as well."""
    loop = asyncio.get_running_loop()

    def resumed() -> None:
        terminal.again()
        changed.set()

    loop.add_signal_handler(signal.SIGWINCH, changed.set)
    loop.add_signal_handler(signal.SIGCONT, resumed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_signal_handler(signal.SIGCONT)


async def _keys(descriptor: int) -> AsyncIterator[bytes]:
    """What is typed, as it comes; also read while the one who takes it is at work, or the way out would be blocked.

    No thread: one that waits for a key would still swallow it after the program's end.
    """
    loop = asyncio.get_running_loop()
    escape = Escape()
    typed: deque[bytes] = deque()
    came = asyncio.Event()
    gone = False

    def read() -> None:
        nonlocal gone
        try:
            data = os.read(descriptor, 4096)
        except OSError:
            # The other end of the terminal is closed: the same as its end.
            data = b""
        if passed := escape.passed(data):
            typed.append(passed)
        gone = not data
        if gone or escape.wanted or sum(map(len, typed)) >= _KEYS_BYTES:
            loop.remove_reader(descriptor)
        if escape.wanted:
            # As Ctrl-C does elsewhere: what there is to be cleaned up is, and a second one leaves at once.
            signal.raise_signal(signal.SIGINT)
        came.set()

    loop.add_reader(descriptor, read)
    try:
        while True:
            while typed:
                data = b"".join(typed)
                typed.clear()
                if not gone and not escape.wanted:
                    loop.add_reader(descriptor, read)
                yield data
            if gone:
                raise OutputFailed("the terminal", BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
            await came.wait()
            came.clear()
    finally:
        loop.remove_reader(descriptor)
