"""The sandbox's own shell: a script to its end, its input poured in or its output taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, cast

from msgspec import Struct

from sandport.command import Argument
from sandport.errors import CommandNotFound, PathNotFound, ProcessNotFound, Unavailable
from sandport.execution import OnOutput
from sandport.outcome import Outcome
from sandport.process import Process
from sandport.sync.errors import SyncError
from sandport.transfer.patience import Patience
from sandport.transfer.told import STDERR_BYTES, failure_of, told_by
from sandport.worker.client import WorkerClient
from sandport.worker.open_call import OpenCall
from sandport_protocol.methods import METHODS
from sandport_protocol.octets import unpack
from sandport_protocol.v1 import LeaseResult, WriteProcessParams, WriteProcessResult

__all__ = ["Commands", "Shell", "stalled", "unreachable"]

_PIECE_BYTES: Final = 256 << 10
"""In one frame: measured the cheapest; larger ones cost both sides fresh pages, smaller ones calls."""

_IN_FLIGHT: Final = 4
"""PRC-11: so many writes of one process may be open."""

_FRAME_MARGIN_BYTES: Final = 256 * 1024
"""Of a frame, for what stands in it beside the bytes."""


class Commands(Protocol):
    """What files need of a sandbox: commands in the place that is kept for them, and calls."""

    id: str
    lease: LeaseResult

    async def run_apart(
        self, argv: list[Argument], *, stdin: bytes = b"", on_output: OnOutput | None = None, limit_bytes: int
    ) -> Outcome:
        """Run a command to its end."""

    def start_apart(self, argv: list[Argument], *, limit_bytes: int) -> AbstractAsyncContextManager[Process]:
        """A process with an open input."""

    async def client(self) -> WorkerClient:
        """The worker that serves now."""

    async def groups(self) -> frozenset[str]:
        """The optional groups of methods that this sandbox has."""

    async def call(self, method: str, params: Struct, result: type[Any], *, deadline_s: float | None) -> Any:
        """One call in the name of the sandbox."""


class Shell:
    """Runs scripts.

    Args:
        commands: The sandbox.
        patience: How long it may do nothing.
    """

    def __init__(self, commands: Commands, patience: Patience) -> None:
        self._commands = commands
        self._patience = patience

    def _argv(self, text: str) -> list[Argument]:
        shell = self._commands.lease.shell
        return [unpack(shell) if shell is not None else b"sh", b"-c", text]

    async def run(
        self, text: str, *, stdin: bytes = b"", on_output: OnOutput | None = None, limit_bytes: int = STDERR_BYTES
    ) -> Outcome:
        """The end of a script, which may be a failure.

        Raises:
            SyncError: There is no shell to run it.
            SandportError: What became of it cannot be told.

        Repeat: runs it again.
        Cancel: kills it.
        """
        try:
            return await self._commands.run_apart(
                self._argv(text), stdin=stdin, on_output=on_output, limit_bytes=limit_bytes
            )
        except (CommandNotFound, PathNotFound) as error:
            raise _no_shell(error) from None

    async def ask(self, text: str, scratch: bytes, path: bytes, *, stdin: bytes = b"") -> bytes:
        """What a script wrote to its stdout.

        Raises:
            SyncError: It failed, or it wrote more than a script of ours does.
        """
        outcome = await self.run(text, stdin=stdin)
        told = told_by(outcome, scratch)
        if told is not None:
            raise failure_of(outcome, told, path)
        return bytes(outcome.stdout)

    async def piece_bytes(self) -> int:
        """How many bytes of input fit in one frame."""
        frame_bytes = (await self._commands.client()).connection.limits.frame_bytes
        return max(1024, (frame_bytes - _FRAME_MARGIN_BYTES) * 3 // 4)

    async def pour(self, text: str, pieces: AsyncIterator[bytes | memoryview]) -> Outcome:
        """The end of a script whose input comes in pieces, through a process.

        A script that ends before it has taken everything is not an error here: its end says why. Whoever makes the
        pieces is to be stopped then.

        Raises:
            SyncError: There is no shell, or nothing was taken for too long.
            SandportError: What became of it cannot be told.

        Cancel: kills it.
        """
        piece_bytes = min(_PIECE_BYTES, await self.piece_bytes())
        try:
            async with self._commands.start_apart(self._argv(text), limit_bytes=STDERR_BYTES) as process:
                client = await self._commands.client()
                waiting = asyncio.ensure_future(process.wait())
                writing = asyncio.ensure_future(
                    _Writer(client, self._commands.id, process.id, self._patience).write(pieces, piece_bytes)
                )
                try:
                    await asyncio.wait((waiting, writing), return_when=asyncio.FIRST_COMPLETED)
                    if writing.done():
                        writing.result()
                        await asyncio.wait((waiting,), timeout=self._patience.settle_s)
                        if not waiting.done():
                            raise stalled("the sandbox did not finish", self._patience.settle_s)
                    return waiting.result()
                finally:
                    for task in (waiting, writing):
                        task.cancel()
                    await asyncio.gather(waiting, writing, return_exceptions=True)
        except (CommandNotFound, PathNotFound) as error:
            raise _no_shell(error) from None


class _Writer:
    """The input of one process, some pieces of it on the way at once."""

    def __init__(self, client: WorkerClient, sandbox_id: str, process_id: str, patience: Patience) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self._process_id = process_id
        self._patience = patience
        self._open: deque[tuple[OpenCall, int]] = deque()

    async def write(self, pieces: AsyncIterator[bytes | memoryview], piece_bytes: int) -> None:
        """Write all of it and its end; stops where the process takes no more."""
        try:
            async for piece in pieces:
                view = memoryview(piece)
                for start in range(0, len(view), piece_bytes):
                    if len(self._open) == _IN_FLIGHT and not await self._taken():
                        return
                    await self._send(view[start : start + piece_bytes], end=False)
            while self._open:
                if not await self._taken():
                    return
            await self._send(b"", end=True)
            await self._taken()
        except ProcessNotFound:
            return  # it has ended, and its end says why

    async def _send(self, data: bytes | memoryview, *, end: bool) -> None:
        params = WriteProcessParams(
            sandbox_id=self._sandbox_id,
            process_id=self._process_id,
            data=cast(bytes, data),  # the codec takes any buffer; making it bytes would be one copy more
            end=end,
        )
        # Past the attachment: another worker would not know the process, and the order must stay.
        call = await self._client.begin(METHODS["writeProcess"], params, deadline_s=None)
        self._open.append((call, len(data)))

    async def _taken(self) -> bool:
        """Whether the oldest of the open writes was taken whole."""
        call, size = self._open.popleft()
        await asyncio.wait((call.future,), timeout=self._patience.stall_s)
        if not call.future.done():
            raise stalled("the sandbox took no bytes", self._patience.stall_s)
        result = self._client.result_of(call, call.future.result(), WriteProcessResult)
        return result.taken_bytes == size


def stalled(what: str, limit_s: float) -> SyncError:
    """The error for a sandbox that does nothing."""
    return SyncError(f"{what} for {limit_s:g} s; look at what runs in it, then copy again")


def _no_shell(error: Exception) -> SyncError:
    return SyncError(
        f"the sandbox has no shell to run, which moving files needs ({error}); install one in the sandbox's image, or "
        "use a provider that moves files itself"
    )


def unreachable(error: Exception) -> bool:
    """Whether a worker could not even begin: another way may be tried."""
    return isinstance(error, Unavailable) and error.dispatched == "no"
