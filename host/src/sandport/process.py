"""A running process in a sandbox, in the style of the standard library's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw, Struct

from sandport_protocol.methods import METHODS
from sandport_protocol.v1 import (
    PtySize,
    SignalProcessParams,
    SignalProcessResult,
    StreamName,
    WaitProcessParams,
    WaitProcessResult,
    WriteProcessParams,
    WriteProcessResult,
)

from .capture import Capture
from .closing import finished_within, outliving
from .errors import ProtocolViolation, SandportError
from .lane import OutputLane
from .outcome import Outcome
from .verdict import outcome_of, with_partial
from .worker.client import WorkerClient
from .worker.open_call import OpenCall

if TYPE_CHECKING:
    from .numbers import Timing

WRITE_BYTES = 256 * 1024
"""One `writeProcess`: four may be open for a process, so up to 1 MiB is under way."""
OPEN_WRITES = 4
"""More than these wait here (PRC-11)."""


class Calls(Protocol):
    """What a process needs of its sandbox."""

    id: str

    async def call(self, method: str, params: Struct, result: type[Any], *, deadline_s: float | None) -> Any:
        """One call in the name of the sandbox."""


class ProcessInput:
    """The input of a process; `write` waits until its pipe took the bytes."""

    def __init__(self, sandbox: Calls, process_id: str) -> None:
        self._sandbox = sandbox
        self._process_id = process_id
        self._ended = False
        self._open_writes = asyncio.Semaphore(OPEN_WRITES)

    async def write(self, data: bytes) -> int:
        """How many bytes the process's pipe took: all of them, or fewer where it closed its input.

        Raises:
            SandportError: The process or its sandbox is gone.

        Repeat: writes the bytes again.
        Cancel: a part may have been written.
        """
        taken = 0
        view = memoryview(data)
        for start in range(0, len(view), WRITE_BYTES):
            piece = bytes(view[start : start + WRITE_BYTES])
            size = await self._write(piece, end=False)
            taken += size
            if size < len(piece):
                break
        return taken

    async def close(self) -> None:
        """End the input: the process reads end of file. A second close does nothing."""
        if not self._ended:
            self._ended = True
            await self._write(b"", end=True)

    async def _write(self, data: bytes, *, end: bool) -> int:
        params = WriteProcessParams(sandbox_id=self._sandbox.id, process_id=self._process_id, data=data, end=end)
        async with self._open_writes:  # whoever waits is served in order
            result: WriteProcessResult = await self._sandbox.call(
                "writeProcess",
                params,
                WriteProcessResult,
                deadline_s=None,  # a process may take its time to read; its end answers an open write
            )
        if result.taken_bytes > len(data):
            raise ProtocolViolation(
                f"the process is said to have taken {result.taken_bytes} bytes of the {len(data)} that were written",
                dispatched="yes",
            )
        return result.taken_bytes


class Process:
    """A process that was started; made by `Sandbox.start`.

    Attributes:
        id: The host's name for it.
        stdin: Its input.
    """

    def __init__(
        self,
        sandbox: Calls,
        process_id: str,
        client: WorkerClient,
        *,
        captures: dict[StreamName, Capture],
        timing: Timing,
        deadline_s: float | None,
    ) -> None:
        self.id = process_id
        self.stdin = ProcessInput(sandbox, process_id)
        self._sandbox = sandbox
        self._client = client
        self._timing = timing
        self._deadline_s = deadline_s
        self._lane = OutputLane(tuple(captures), client.connection.limits.credit_bytes)
        self._captures = captures
        self._call: OpenCall | None = None
        self._iterations = 0
        self._awaited = False
        self._closing = False
        self._ended = False

    async def follow(self) -> None:
        """Begin to follow its output; called once, by the sandbox."""
        params = WaitProcessParams(sandbox_id=self._sandbox.id, process_id=self.id)
        self._call = call = await self._client.begin(
            METHODS["waitProcess"], params, deadline_s=self._deadline_s, sink=self._lane
        )
        self._lane.bind(partial(self._client.give_credit, call))
        call.future.add_done_callback(self._lane.close)

    async def output(self) -> AsyncIterator[tuple[StreamName, bytes]]:
        """Every piece of output as it comes: (`stdout`, `stderr` or `pty`, bytes); ends with the process's streams.

        A consumer that is slow slows the process down; iterated output is not kept for the outcome. What comes after
        an iteration was left is kept for it again, once `wait` is called.

        Raises:
            SandportError: The output was cut, as by a crash of the worker: what came was not all. `partial` counts it.
        """
        self._iterations += 1
        try:
            while (piece := await self._lane.next_piece()) is not None:
                try:
                    yield piece
                finally:
                    self._lane.taken(piece[0], len(piece[1]))  # also where the iteration ends with this piece
            if self._call is not None and self._call.future.done() and not self._call.future.cancelled():
                try:
                    self._call.future.result()  # an end of the iteration is an end of the output, or raises
                except SandportError as error:
                    raise with_partial(error, self._captures) from None
        finally:
            self._iterations -= 1
            self._keep_unless_iterated()

    def when_ended(self, tell: Callable[[Outcome | BaseException], None]) -> None:
        """Have it told once, on the event loop, how the process ended, or why that cannot be known."""
        assert self._call is not None  # follow() came first
        call = self._call

        def ended(future: asyncio.Future[Raw]) -> None:
            try:
                result = self._client.result_of(call, future.result(), WaitProcessResult)
                end: Outcome | BaseException = self._outcome(result)
            except SandportError as error:
                end = with_partial(error, self._captures)
            except asyncio.CancelledError as error:
                end = error
            tell(end)

        call.future.add_done_callback(ended)

    def _keep_unless_iterated(self) -> None:
        if self._closing or (self._awaited and not self._iterations):
            self._lane.divert(lambda stream, data: self._captures[stream].take(data))

    async def wait(self, *, spilled: Mapping[StreamName, str] | None = None) -> Outcome:
        """How it ended. Output that nobody iterates is kept up to the limit and counted.

        Args:
            spilled: Files that have every byte of a stream, for the outcome to name.

        Raises:
            SandportError: The end could not be proven; `partial` has what was received.

        Repeat: answers the same.
        Cancel: the process runs on.
        """
        self._awaited = True
        self._keep_unless_iterated()
        assert self._call is not None  # follow() came first
        call = self._call
        try:
            raw: Raw = await asyncio.shield(call.future)
            result = self._client.result_of(call, raw, WaitProcessResult)
        except SandportError as error:
            raise with_partial(error, self._captures) from None
        self._ended = True
        return self._outcome(result, spilled)

    def _outcome(self, result: WaitProcessResult, spilled: Mapping[StreamName, str] | None = None) -> Outcome:
        return outcome_of(result, self._lane, self._captures, spilled, has_limit=self._deadline_s is not None)

    @property
    def running(self) -> bool:
        """Whether its end has not been told yet."""
        return self._call is not None and not self._call.future.done()

    async def signal(self, number: int) -> bool:
        """Send a signal to the group that was made for it; False where it had ended.

        Args:
            number: As in the standard library's `signal`: `signal.SIGTERM`, 15.

        Raises:
            SandportError: The sandbox or its worker failed; with `dispatched` `unknown` it may have been sent.

        Repeat: sends it again.
        """
        return await self._signal(signal=number)

    async def kill(self) -> bool:
        """End it and all that it started; what that reached is in the outcome's `tree`. False where it had ended.

        Raises:
            SandportError: The sandbox or its worker failed; the end of the block, or of the sandbox, tries again.

        Repeat: False, once it has ended.
        """
        return await self._signal(kill=True)

    async def resize(self, columns: int, rows: int) -> bool:
        """Change the size of its terminal, in characters; False where it had ended.

        Raises:
            SandportError: It has no terminal, or the sandbox or its worker failed.
        """
        return await self._signal(resize=PtySize(columns=columns, rows=rows))

    async def _signal(self, *, signal: int | None = None, kill: bool = False, resize: PtySize | None = None) -> bool:
        result: SignalProcessResult = await self._sandbox.call(
            "signalProcess",
            SignalProcessParams(
                sandbox_id=self._sandbox.id, process_id=self.id, signal=signal, kill=kill, resize=resize
            ),
            SignalProcessResult,
            deadline_s=self._timing.call_s,
        )
        return result.delivered

    async def aclose(self) -> None:
        """End it unless its end is known, and wait for that; at most the close grace."""
        call = self._call
        if self._ended or (call is not None and call.future.done() and call.future.exception() is None):
            return
        await finished_within(outliving(self._end()), self._timing.close_grace_s)

    async def _end(self) -> None:
        self._closing = True
        self._keep_unless_iterated()
        with contextlib.suppress(SandportError):  # it is gone, or its sandbox is, whose own end is what holds
            await self.kill()
            if self.running:
                await self.wait()
