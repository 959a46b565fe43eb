"""What a command does in a sandbox, whoever leased that: copies in, a program, copies out."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from typing import Literal

from sandport.errors import NotSupported, ProcessNotFound, SandportError, UsageError
from sandport.outcome import Outcome
from sandport.sandbox import INLINE_STDIN_BYTES, Sandbox
from sandport.sync.errors import SyncError, printable
from sandport.sync.result import LACKING, SyncResult

from .copies import lines_of, notices_of
from .listing import put_lines
from .messages import say
from .narrator import Narrator
from .plan import Task
from .report import Phase
from .screen import Screen
from .status import human_bytes
from .streams import Inlet, outlets
from .transfer import Transfer, outside

_MANY_FILES = 5_000
"""Past so many files a smaller selection is worth a thought."""


class Work:
    """A task in a sandbox.

    Args:
        task: What to do.
        narrator: Who is told.
        can_feed: Whether the sandbox runs programs whose input comes bit by bit.
        screen: Where the command runs, if the user's terminal is to be its own.
    """

    def __init__(
        self,
        task: Task,
        narrator: Narrator,
        can_feed: Callable[[], Awaitable[bool]],
        screen: Screen | None = None,
    ) -> None:
        self._task = task
        self._narrator = narrator
        self._report = narrator.report
        self._can_feed = can_feed
        self._screen = screen
        self._outlets = outlets(only_stderr=task.as_json)

    async def whole(self, sandbox: Sandbox) -> None:
        """Do all of it.

        Raises:
            SandportError: The command failed to run.
            OutputFailed: Nobody takes the program's output.
        """
        top = os.fsdecode(sandbox.working_directory)
        for transfer in (*self._task.into, *self._task.out):
            if (why := outside(transfer.remote, top)) is not None:
                self._narrator.failed(UsageError(why), of=transfer)
                return
        for transfer in self._task.into:
            try:
                await self._copy_in(sandbox, transfer)
            except SandportError as error:
                self._narrator.failed(error, of=transfer)
                return
        if self._task.command:
            await self._run(sandbox)
        for transfer in self._task.out:
            try:
                await self._copy_out(sandbox, transfer)
            except SandportError as error:
                # The rest may be there; what is missing decides the exit code unless the program did.
                self._narrator.failed(error, of=transfer)

    # -------------------------------------------------------------- the command

    async def _run(self, sandbox: Sandbox) -> None:
        with self._narrator.phase("command", None):
            outcome = await self._command(sandbox)
        self._report.take(outcome)
        self._narrator.tell(f"{self._task.command[0]} {_how(outcome)}", "command")

    async def _command(self, sandbox: Sandbox) -> Outcome:
        if self._screen is not None:
            return await self._screen.run(sandbox, self._task)
        stdin = self._task.stdin
        if stdin is None:
            return await self._execute(sandbox, b"")
        inlet = Inlet(stdin)
        if _small_file(stdin):
            return await self._execute(sandbox, await _all_of(inlet))
        if await self._can_feed():
            return await self._fed(sandbox, inlet)
        data = await _all_of(inlet, INLINE_STDIN_BYTES)
        return await self._execute(sandbox, data)

    async def _execute(self, sandbox: Sandbox, stdin: bytes) -> Outcome:
        task = self._task
        return await sandbox.execute(
            task.command,
            cwd=task.cwd,
            env=task.env,
            stdin=stdin,
            timeout_s=task.timeout_s,
            output_limit_bytes=0,
            on_output=lambda stream, data: self._outlets[stream].write(data),
        )

    async def _fed(self, sandbox: Sandbox, inlet: Inlet) -> Outcome:
        """Run it with an input that nobody knows the length of, passed on as it comes."""
        task = self._task
        async with sandbox.start(
            task.command, cwd=task.cwd, env=task.env, stdin=True, timeout_s=task.timeout_s, output_limit_bytes=0
        ) as process:
            failure: SandportError | None = None

            async def feed() -> None:
                nonlocal failure
                try:
                    while data := await _next_of(inlet):
                        if await process.stdin.write(data) < len(data):
                            return
                    await process.stdin.close()
                except ProcessNotFound:
                    pass  # it ended before it read everything: its own business, its status says how
                except SandportError as error:
                    failure = error
                    await process.kill()  # it waits for input that does not come any more

            feeding = asyncio.ensure_future(feed())
            try:
                async for stream, data in process.output():
                    await self._outlets[stream].write(data)
                outcome = await process.wait()
            finally:
                feeding.cancel()
                # What it raised besides is said by the program's own end.
                await asyncio.gather(feeding, return_exceptions=True)
            if failure is not None and outcome.ended != "exited":
                raise failure
            return outcome

    # -------------------------------------------------------------- files

    async def _copy_in(self, sandbox: Sandbox, transfer: Transfer) -> None:
        manner = transfer.manner

        async def copy() -> SyncResult:
            return await sandbox.sync_in(
                transfer.local,
                transfer.remote,
                mode=manner.mode,
                exclude=manner.exclude,
                gitignore=manner.gitignore,
                follow_symlinks=manner.follow_symlinks,
                replace=manner.replace,
                delete=manner.delete,
                dry_run=manner.dry_run,
                on_progress=self._narrator.status.progress,
            )

        result = await self._copied("syncIn", f"copying {transfer.local} in", copy)
        self._told("in", transfer, result)
        if self._task.command and result.missing_count:
            first = next((notice.path for notice in result.skipped if notice.kind in LACKING), b"")
            raise SyncError(
                f"{result.missing_count:,} of its files and folders, such as {printable(first)}, cannot be read or "
                "have a reserved name, so the command was not started; see to them, or leave them out with --exclude",
                path=first,
            )
        if result.files > _MANY_FILES and not manner.selects:
            self._narrator.remark(
                f"{transfer.option}: {result.files:,} files; --exclude PATTERN and --gitignore leave out what is not "
                "needed there"
            )

    async def _copy_out(self, sandbox: Sandbox, transfer: Transfer) -> None:
        manner = transfer.manner

        async def copy() -> SyncResult:
            return await sandbox.sync_out(
                transfer.remote,
                transfer.local or ".",
                mode=manner.mode,
                exclude=manner.exclude,
                gitignore=manner.gitignore,
                delete=manner.delete,
                dry_run=manner.dry_run,
                max_bytes=manner.max_bytes,
                max_entries=manner.max_entries,
                on_progress=self._narrator.status.progress,
            )

        self._told("out", transfer, await self._copied("syncOut", f"copying {transfer.remote} out", copy))

    async def _copied(self, phase: Phase, what: str, copy: Callable[[], Awaitable[SyncResult]]) -> SyncResult:
        with self._narrator.phase(phase, what):
            return await copy()

    def _told(self, direction: Literal["in", "out"], transfer: Transfer, result: SyncResult) -> None:
        task, narrator = self._task, self._narrator
        moved = self._report.moved_files(direction, transfer, result)
        if task.command:
            narrator.tell(
                f"{transfer.option}: {result.files:,} files, {human_bytes(result.total_bytes)}",
                "syncIn" if direction == "in" else "syncOut",
            )
        else:
            if not moved.is_whole:
                self._report.incomplete()
            if not task.as_json and task.talk != "quiet":
                put_lines(lines_of(transfer, result, into=direction == "in", verbose=task.talk == "verbose"))
        lacks = moved.lacks if task.command and direction == "out" else None
        # What decides whether the command runs, or what it ends with, is not to be told by its first name alone.
        brief = bool(task.command) and task.talk != "verbose" and lacks is None and not moved.missing
        # What decides the exit code is told to who wants to hear errors only as well.
        tell = narrator.remark if lacks is None else say
        for line in notices_of(result, at_most=1 if brief else 20):
            tell(f"{transfer.option}: {line}")
        if lacks is not None:
            self._report.lacking(transfer.option, lacks)


def _how(outcome: Outcome) -> str:
    if outcome.ended == "exited":
        return f"exited with {outcome.exit_code}"
    if outcome.ended == "signalled":
        return f"was ended by signal {outcome.signal}" + (" (core dumped)" if outcome.core_dumped else "")
    return {"timedOut": "timed out", "outOfMemory": "ran out of memory"}[outcome.ended]


def _small_file(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_size <= INLINE_STDIN_BYTES


async def _next_of(inlet: Inlet) -> bytes:
    """The next bytes of the input; none at its end.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        return await inlet.read()
    except OSError as error:
        raise UsageError(
            f"--stdin: the input cannot be read ({error.strerror or error}); give a file, or an input that is open for "
            "reading"
        ) from error


async def _all_of(inlet: Inlet, ceiling_bytes: int | None = None) -> bytes:
    """Everything up to the end.

    Raises:
        NotSupported: It is more than the ceiling.
        UsageError: It cannot be read.
    """
    pieces: list[bytes] = []
    size = 0
    while data := await _next_of(inlet):
        pieces.append(data)
        size += len(data)
        if ceiling_bytes is not None and size > ceiling_bytes:
            raise NotSupported(
                f"--stdin: this provider has no processes, and takes at most {ceiling_bytes // 1024} KiB of input; "
                "copy a file in with --in instead"
            )
    return b"".join(pieces)
