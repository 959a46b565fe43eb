"""The commands and processes of one sandbox: how many run at once, who is told, and what is ended with its block."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sandport_protocol.v1 import (
    ExecuteParams,
    PtySize,
    SignalProcessParams,
    SignalProcessResult,
    StartProcessParams,
    StartProcessResult,
    StreamName,
)

from .arguments import LONGEST_S
from .closing import finished_within, outliving
from .command import CommandLine
from .errors import NotSupported, SandportError, UsageError
from .execution import OnOutput, executed, fed
from .process import Process
from .spill import STREAMS, captures_of, captures_with_files

if TYPE_CHECKING:
    from .capture import Capture
    from .lease.attachment import Attachment
    from .numbers import Timing
    from .outcome import Outcome
    from .witness import SandboxWitness


class Commands:
    """What runs in one sandbox.

    Args:
        attachment: The sandbox at its provider's workers.
        provider: The provider's name, for messages.
        groups: Answers the optional groups of methods that the sandbox has now.
        max_processes: How many the sandbox runs at once; None for no limit.
        timing: The host's own limits.
        witness: Told of each command and process, but of none that files need.
    """

    def __init__(
        self,
        attachment: Attachment,
        *,
        provider: str,
        groups: Callable[[], Awaitable[frozenset[str]]],
        max_processes: int | None,
        timing: Timing,
        witness: SandboxWitness,
    ) -> None:
        self._attachment = attachment
        self._provider = provider
        self._groups = groups
        self._timing = timing
        self._witness = witness
        # Unique among all that ever attach: another process, or a block after a crash, may have started some too.
        self._process_prefix = f"p{os.urandom(4).hex()}-"
        self._next_process = 0
        # More commands than the sandbox runs at once wait here; one place is kept for files.
        self._places = (
            contextlib.nullcontext() if max_processes is None else asyncio.Semaphore(max(1, max_processes - 1))
        )
        self._place_apart = self._places if max_processes is None or max_processes < 2 else asyncio.Semaphore(1)

    # -------------------------------------------------------------- commands

    async def execute(
        self,
        line: CommandLine,
        *,
        stdin: bytes,
        limit_bytes: int,
        spill_to: str | os.PathLike[str] | None,
        on_output: OnOutput | None,
    ) -> Outcome:
        """`Sandbox.execute`, with as much input as fits in a frame."""
        with contextlib.ExitStack() as files:
            captures, spilled = captures_with_files(files, limit_bytes, spill_to)
            params = _build(ExecuteParams, sandbox_id=self._attachment.id, stdin=stdin, live=True, **line.members())
            # It waits for its turn where the vendor holds the credential back; it is never run again.
            patience_s = LONGEST_S if line.timeout_ms is None else line.timeout_ms / 1000 + self._timing.acquire_s
            async with self._places:
                with self._witness.command(line) as done:
                    outcome = await self._executed(params, line, captures, spilled, on_output, patience_s=patience_s)
                    return done(outcome)

    async def execute_fed(
        self,
        line: CommandLine,
        *,
        stdin: bytes,
        limit_bytes: int,
        spill_to: str | os.PathLike[str] | None,
        on_output: OnOutput | None,
    ) -> Outcome:
        """`Sandbox.execute` with any input, which goes through a process's pipe with back-pressure."""
        with contextlib.ExitStack() as files:
            captures, spilled = captures_with_files(files, limit_bytes, spill_to)
            async with self.started(line, stdin=True, pty=None, captures=captures) as process:
                return await fed(process, stdin, captures, spilled, on_output)

    async def execute_apart(
        self, line: CommandLine, *, stdin: bytes, on_output: OnOutput | None, limit_bytes: int
    ) -> Outcome:
        """`execute` for the host's own use: in the place that is kept for it, and nobody is told."""
        captures = captures_of(STREAMS, limit_bytes)
        params = _build(ExecuteParams, sandbox_id=self._attachment.id, stdin=stdin, live=True, **line.members())
        async with self._place_apart:
            return await self._executed(params, line, captures, {}, on_output, patience_s=LONGEST_S)

    async def _executed(
        self,
        params: ExecuteParams,
        line: CommandLine,
        captures: dict[StreamName, Capture],
        spilled: dict[StreamName, str],
        on_output: OnOutput | None,
        *,
        patience_s: float,
    ) -> Outcome:
        return await self._attachment.limited(
            lambda: executed(self._attachment, params, line, captures, spilled, on_output, timing=self._timing),
            patience_s=patience_s,
            repeats=False,
        )

    # -------------------------------------------------------------- processes

    @contextlib.asynccontextmanager
    async def started(
        self, line: CommandLine, *, stdin: bool, pty: PtySize | None, captures: dict[StreamName, Capture]
    ) -> AsyncIterator[Process]:
        """A process for the length of the block.

        Raises:
            NotSupported: The sandbox has no processes.
        """
        if "process" not in await self._groups():
            raise NotSupported(f"provider {self._provider} has no processes (startProcess); execute() is what it has")
        async with self._places, self._running(line, stdin=stdin, pty=pty, captures=captures) as process:
            self._witness.process(line, process)
            yield process

    @contextlib.asynccontextmanager
    async def started_apart(self, line: CommandLine, *, limit_bytes: int) -> AsyncIterator[Process]:
        """`started` for the host's own use: in the place that is kept for it, and nobody is told."""
        captures = captures_of(STREAMS, limit_bytes)
        async with self._place_apart, self._running(line, stdin=True, pty=None, captures=captures) as process:
            yield process

    @contextlib.asynccontextmanager
    async def _running(
        self, line: CommandLine, *, stdin: bool, pty: PtySize | None, captures: dict[StreamName, Capture]
    ) -> AsyncIterator[Process]:
        self._next_process += 1
        process_id = f"{self._process_prefix}{self._next_process}"
        params = _build(
            StartProcessParams,
            sandbox_id=self._attachment.id,
            process_id=process_id,
            stdin=stdin,
            pty=pty,
            **line.members(),
        )
        try:
            await self._attachment.call("startProcess", params, StartProcessResult, deadline_s=self._timing.call_s)
        except BaseException as error:
            if not isinstance(error, SandportError) or error.dispatched != "no":
                await self._kill_unseen(process_id)
            raise
        process = Process(
            self._attachment,
            process_id,
            (await self._attachment.worker()).client,
            captures=captures,
            timing=self._timing,
            deadline_s=None if line.timeout_ms is None else line.timeout_ms / 1000 + self._timing.command_margin_s,
        )
        try:
            await process.follow()
            yield process
        finally:
            await process.aclose()

    async def _kill_unseen(self, process_id: str) -> None:
        """End a process of which is not known whether it was started; at most the close grace."""
        params = SignalProcessParams(sandbox_id=self._attachment.id, process_id=process_id, kill=True)
        call_s = self._timing.call_s

        async def kill() -> None:
            with contextlib.suppress(SandportError):  # it was not, or its sandbox is gone, whose own end is what holds
                await self._attachment.call("signalProcess", params, SignalProcessResult, deadline_s=call_s)

        await finished_within(outliving(kill()), self._timing.close_grace_s)


def _build(type_: Any, **members: Any) -> Any:
    try:
        return type_(**members)
    except ValueError as error:
        raise UsageError(str(error)) from None
