"""One sandbox that this host holds a lease on: commands, processes, files.

Why so long: it is the whole of what an embedder does with a sandbox, each call with its promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import anyio.lowlevel
import msgspec
from msgspec import Raw, Struct

from sandport_protocol import codec
from sandport_protocol.methods import METHODS
from sandport_protocol.octets import unpack
from sandport_protocol.v1 import (
    ExecuteParams,
    ExecuteResult,
    LeaseResult,
    PtySize,
    SignalProcessParams,
    SignalProcessResult,
    StartProcessParams,
    StartProcessResult,
    StreamName,
)

from .capture import Capture
from .closing import finished, finished_within
from .command import LONGEST_S, SHELL, TERMINAL, Argument, CommandLine, command_line
from .errors import (
    LeaseLost,
    LeaseNotFound,
    NotAttached,
    NotSupported,
    ProcessNotFound,
    ProtocolViolation,
    SandportError,
    UsageError,
)
from .files import READ_BYTES, Choice, Files, OnProgress
from .lane import OutputLane
from .lease.attachment import Attachment
from .lease.request import LeaseRequest
from .numbers import Timing
from .outcome import Outcome
from .process import Process
from .store.records import Ref
from .verdict import outcome_of, with_partial
from .witness import NO_SANDBOX_WITNESS, SandboxWitness
from .worker.client import WorkerClient

if TYPE_CHECKING:
    from .sync import HostPath, SyncResult

OUTPUT_LIMIT_BYTES = 8 * 1024 * 1024
"""Kept of each stream unless the caller says otherwise: more than a log that a person reads, less than hurts."""
INLINE_STDIN_BYTES = 1024 * 1024
"""Input up to so much travels with `execute`; more of it goes through a process's pipe with back-pressure."""
_LATE_S = 1.0
"""A command that ended by itself so long after its time-out was not held to it."""
OnOutput = Callable[[StreamName, bytes], Awaitable[None] | None]
"""Given each piece of output, with the stream that it is from; awaited where it returns an awaitable."""
_STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


class Tenure(Protocol):
    """What a sandbox needs of the lease on it."""

    lease_id: str
    kept: bool
    ref: Ref

    async def keep(self, name: str | None) -> None:
        """Let it outlive its block."""

    async def end(self, reason: str) -> bool:
        """End the lease, and the sandbox with it; whether that is confirmed."""

    async def release(self) -> None:
        """Its block is over, and it is kept."""


class Sandbox:
    """A leased sandbox; made by `Host.lease` and usable until that block ends.

    Attributes:
        id: The sandbox id, which is also on the vendor's resource.
        lease_id: The lease's, by which it is found again where it is kept.
        lease: What the provider answered at the acquire.
        provider: The name of the provider that it is from.
        ref: Which generation of it is leased.
        attachment: The sandbox at its provider's workers, for the host's own use.
        witness: Told of commands and processes, likewise.
    """

    def __init__(
        self,
        request: LeaseRequest,
        lease: LeaseResult,
        attachment: Attachment,
        tenure: Tenure,
        *,
        timing: Timing,
        witness: SandboxWitness = NO_SANDBOX_WITNESS,
    ) -> None:
        self.id = request.sandbox_id
        self.lease_id = tenure.lease_id
        self.lease = lease
        self.provider = request.provider
        self._env = request.env
        self.attachment = attachment
        self.witness = witness
        self.ref = tenure.ref
        self._tenure = tenure
        self._timing = timing
        # Unique among all that ever attach: another process, or a block after a crash, may have started some too.
        self._process_prefix = f"p{os.urandom(4).hex()}-"
        self._next_process = 0
        # More commands than the sandbox runs at once wait here; one place is kept for files.
        places = lease.max_processes
        self._places = contextlib.nullcontext() if places is None else asyncio.Semaphore(max(1, places - 1))
        self._place_apart = self._places if places is None or places < 2 else asyncio.Semaphore(1)
        self._files = Files(self, timing)

    @property
    def working_directory(self) -> bytes:
        """Absolute path, in the sandbox, of the directory that relative paths start from."""
        return unpack(self.lease.working_directory)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the sandbox ends by itself; None where nobody ends it."""
        expires = self.lease.expires_at_ms
        return None if expires is None else expires / 1000 - time.time()

    # -------------------------------------------------------------- commands

    async def execute(
        self,
        argv: Sequence[Argument] | None = None,
        *,
        shell: str | bytes | None = None,
        cwd: Argument | None = None,
        env: Mapping[str, str | bytes] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
        spill_to: str | os.PathLike[str] | None = None,
        on_output: OnOutput | None = None,
    ) -> Outcome:
        """Run a command to its end.

        Args:
            argv: Program and arguments; no shell is involved.
            shell: Text for the sandbox's shell, instead of argv.
            cwd: Absolute, or relative to the working directory (the default).
            env: Added to the sandbox's own variables.
            user: Whom to run as, where the provider can.
            stdin: All of its input; empty and ended by default.
            timeout_s: After this the command and what it started is killed, and the outcome says `timedOut`.
            output_limit_bytes: Kept of each stream in memory, half head and half tail; the rest is counted.
            spill_to: A directory on this machine that gets every byte, in the files `stdout` and `stderr`.
            on_output: Called with each piece as it comes, and awaited where it returns an awaitable: a slow one slows
                the command down, nothing else.

        Returns:
            How it ended, proven; a non-zero exit code is a result, not an error.

        Raises:
            CommandNotFound, CommandNotExecutable, PathNotFound: Nothing ran.
            SandboxLost, WorkerCrashed, ProtocolViolation: What ran cannot be told; `partial` has what was received.
            UsageError: The call makes no sense; nothing was sent.

        Waits while as many commands run as the sandbox can run at once; `timeout_s` counts from the start.

        Repeat: runs the command again; never done by the host itself.
        Cancel: kills the command and what it started, then returns within the close grace.
        """
        line = command_line(argv, shell=shell, cwd=cwd, env=self._env | dict(env or {}), user=user, timeout_s=timeout_s)
        self._refuse_outliving(line, timeout_s)
        if len(stdin) > INLINE_STDIN_BYTES:
            return await self._execute_with_pipe(line, stdin, output_limit_bytes, spill_to, on_output)
        with contextlib.ExitStack() as files:
            captures, spilled = _captures(files, output_limit_bytes, spill_to)
            params = _build(ExecuteParams, sandbox_id=self.id, stdin=stdin, live=True, **line.members())
            # It waits for its turn where the vendor holds the credential back; it is never run again.
            patience_s = LONGEST_S if timeout_s is None else timeout_s + self._timing.acquire_s
            async with self._places:
                with self.witness.command(line) as done:
                    outcome = await self.attachment.limited(
                        lambda: self._execute(params, line, captures, spilled, on_output),
                        patience_s=patience_s,
                        repeats=False,
                    )
                    return done(outcome)

    async def _execute(
        self,
        params: ExecuteParams,
        line: CommandLine,
        captures: dict[StreamName, Capture],
        spilled: dict[StreamName, str],
        on_output: OnOutput | None,
    ) -> Outcome:
        deadline_s = None if line.timeout_ms is None else line.timeout_ms / 1000 + self._timing.command_margin_s

        def keep(stream: StreamName, data: bytes) -> None:
            captures[stream].take(data)

        await anyio.lowlevel.checkpoint_if_cancelled()
        for attempt in (1, 2):
            client = (await self.attachment.worker()).client
            lane = OutputLane(_STREAMS, client.connection.limits.credit_bytes, None if on_output else keep)
            call = await client.begin(METHODS["execute"], params, deadline_s=deadline_s, sink=lane)
            lane.bind(partial(client.give_credit, call))
            call.future.add_done_callback(lane.close)
            try:
                if on_output is None:
                    raw = await call.future
                else:
                    patience_s = self._timing.close_grace_s
                    raw = await _pumped(call.future, lane, captures, on_output, patience_s=patience_s)
            except BaseException as error:
                if not call.future.done() or call.future.cancelled():
                    # Cancelled, or the consumer of the output failed: the command must not run on.
                    await finished(client.settle(call))
                    raise
                if error is not call.future.exception():
                    raise
                if isinstance(error, NotAttached) and error.dispatched == "no" and attempt == 1:
                    # Nothing ran: the one error after which an execute is sent again.
                    self.attachment.detach()
                    continue
                lane.divert(keep)
                if isinstance(error, LeaseNotFound):
                    self.attachment.lose("its sandbox is gone")
                    words = f"the lease on {self.id} was lost: {error}; take a new lease"
                    lost = LeaseLost(words, dispatched=error.dispatched)
                    raise with_partial(lost, captures) from None
                if isinstance(error, SandportError):
                    raise with_partial(error, captures) from None
                raise
            try:
                outcome = outcome_of(client.result_of(call, raw, ExecuteResult), lane, captures, spilled)
            except ProtocolViolation as error:
                raise with_partial(error, captures) from None
            return _held_to(outcome, line)
        raise AssertionError("unreachable: the second attempt returns or raises")

    async def _execute_with_pipe(
        self,
        line: CommandLine,
        stdin: bytes,
        output_limit_bytes: int,
        spill_to: str | os.PathLike[str] | None,
        on_output: OnOutput | None,
    ) -> Outcome:
        with contextlib.ExitStack() as files:
            captures, spilled = _captures(files, output_limit_bytes, spill_to)
            async with self._started(line, stdin=True, pty=None, captures=captures) as process:
                failure: SandportError | None = None

                async def feed() -> None:
                    nonlocal failure
                    try:
                        await process.stdin.write(stdin)
                        await process.stdin.close()
                    except ProcessNotFound:
                        pass  # it ended before it read everything: its own business, its status says how
                    except SandportError as error:
                        failure = error
                        await process.kill()  # it waits for input that does not come any more

                feeding = asyncio.ensure_future(feed())
                try:
                    if on_output is not None:
                        async for stream, data in process.output():
                            await _hand_on(on_output, captures, stream, data)
                    outcome = await process.wait(spilled=spilled)
                finally:
                    feeding.cancel()
                    await asyncio.wait((feeding,))
                    if not feeding.cancelled():
                        feeding.exception()  # seen: `failure` has it, or the process's own end tells it
                if failure is not None and outcome.ended != "exited":
                    raise with_partial(failure, captures)
                return outcome

    @contextlib.asynccontextmanager
    async def start(
        self,
        argv: Sequence[Argument] | None = None,
        *,
        shell: str | bytes | None = None,
        cwd: Argument | None = None,
        env: Mapping[str, str | bytes] | None = None,
        user: str | None = None,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
        timeout_s: float | None = None,
        output_limit_bytes: int = OUTPUT_LIMIT_BYTES,
    ) -> AsyncIterator[Process]:
        """A process, for the length of the block: write to it, iterate its output, signal it, wait for it.

        Args:
            argv, shell, cwd, env, user, timeout_s, output_limit_bytes: As in `execute`.
            stdin: Keep its input open for `process.stdin`; else it is empty and ended.
            pty: Columns and rows of a terminal for it; its output is then one stream.

        Raises:
            NotSupported: The provider has no processes, only commands.

        Cancel: the process is killed as at the end of the block.
        """
        line = command_line(argv, shell=shell, cwd=cwd, env=self._env | dict(env or {}), user=user, timeout_s=timeout_s)
        self._refuse_outliving(line, timeout_s)
        _check_limit(output_limit_bytes)
        names: tuple[StreamName, ...] = ("pty",) if pty else _STREAMS
        captures = {name: Capture(output_limit_bytes) for name in names}
        size = None if pty is None else PtySize(columns=pty[0], rows=pty[1])
        async with self._started(line, stdin=stdin, pty=size, captures=captures) as process:
            yield process

    @contextlib.asynccontextmanager
    async def shell(
        self,
        argv: Sequence[Argument] = SHELL,
        *,
        size: tuple[int, int] = (80, 24),
        cwd: Argument | None = None,
        env: Mapping[str, str | bytes] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Process]:
        """A shell with a terminal, for the length of the block: what `sandport shell` opens, for a terminal of yours.

        Write keys to `process.stdin` as they come (a Ctrl-C is the byte 3), show what `process.output()` gives, and
        call `process.resize` when the size changes. The shell is gone at the end of the block.

        Args:
            argv: The program; by default bash, or sh where that is not there.
            size: Columns and rows.
            cwd, user, timeout_s: As in `execute`.
            env: Added to the sandbox's own variables; `TERM` is `xterm-256color` unless it is given here.

        Raises:
            NotSupported: The provider has no processes, or no terminals.
            CommandNotFound, CommandNotExecutable, PathNotFound: Nothing ran.

        Cancel: the shell is killed as at the end of the block.
        """
        if not (await self.attachment.worker()).hello.capabilities.pty:
            raise NotSupported(
                f"provider {self.provider} has no terminals (capabilities.pty); start() and execute() are what it has",
                dispatched="no",
            )
        told = {"TERM": TERMINAL} | dict(env or {})
        async with self.start(argv, stdin=True, pty=size, cwd=cwd, env=told, user=user, timeout_s=timeout_s) as process:
            yield process

    @contextlib.asynccontextmanager
    async def _started(
        self, line: CommandLine, *, stdin: bool, pty: PtySize | None, captures: dict[StreamName, Capture]
    ) -> AsyncIterator[Process]:
        worker = await self.attachment.worker()
        if "process" not in worker.groups or "process" in self.lease.without:
            raise NotSupported(f"provider {self.provider} has no processes (startProcess); execute() is what it has")
        async with self._places, self._running(line, stdin=stdin, pty=pty, captures=captures) as process:
            self.witness.process(line, process)
            yield process

    @contextlib.asynccontextmanager
    async def _running(
        self, line: CommandLine, *, stdin: bool, pty: PtySize | None, captures: dict[StreamName, Capture]
    ) -> AsyncIterator[Process]:
        self._next_process += 1
        process_id = f"{self._process_prefix}{self._next_process}"
        params = _build(
            StartProcessParams, sandbox_id=self.id, process_id=process_id, stdin=stdin, pty=pty, **line.members()
        )
        try:
            await self.call("startProcess", params, StartProcessResult, deadline_s=self._timing.call_s)
        except BaseException as error:
            if not isinstance(error, SandportError) or error.dispatched != "no":
                await self._kill_unseen(process_id)
            raise
        process = Process(
            self,
            process_id,
            (await self.attachment.worker()).client,
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
        params = SignalProcessParams(sandbox_id=self.id, process_id=process_id, kill=True)

        async def kill() -> None:
            with contextlib.suppress(SandportError):  # it was not, or its sandbox is gone, whose own end is what holds
                await self.call("signalProcess", params, SignalProcessResult, deadline_s=self._timing.call_s)

        await finished_within(asyncio.ensure_future(kill()), self._timing.close_grace_s)

    def _refuse_lost(self) -> None:
        if (lost := self.attachment.lost) is not None:
            raise LeaseLost(f"the lease on {self.id} is over: {lost}; take a new lease", dispatched="no")

    def _refuse_outliving(self, line: CommandLine, timeout_s: float | None) -> None:
        self._refuse_lost()
        remaining_s = self.remaining_s
        if remaining_s is not None and timeout_s is not None and timeout_s > remaining_s:
            raise UsageError(
                f"{line.name()}: timeout_s {timeout_s:g} outlasts the lease, which ends in "
                f"{max(remaining_s, 0):.0f} s; lease with a larger ttl_s"
            )

    # -------------------------------------------------------------- files

    async def sync_in(
        self,
        local: HostPath,
        remote: Argument = ".",
        *,
        mode: int | None = None,
        exclude: Sequence[str] = (),
        gitignore: bool = False,
        follow_symlinks: bool = False,
        replace: bool = False,
        delete: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> SyncResult:
        """Copy a file or a tree of this machine into the sandbox: content, modes, times, links, names of any bytes.

        It goes the best way that the provider has: directly into a directory of this machine, over a socket, or over a
        command. Options, results and errors are the same. By the last two the sandbox needs sh, tar, mv, mkdir, rm and
        chmod (find and xargs for `delete` and `dry_run`); a tar that keeps less than nanoseconds, or no times of links
        (BusyBox), loses those.

        Args:
            local: A file or a directory; the contents of a directory become contents of `remote`. Links in it stay
                links.
            remote: In or below the working directory: a directory, or the file's new name. Made with its parents; a
                directory that is there keeps its own mode.
            mode: Permission bits for a single file in place of its own, e.g. 0o600; never wider on the way.
            exclude: What is left out, in gitignore's patterns, relative to `local`.
            gitignore: Leave out what the tree's own `.gitignore` files say as well.
            follow_symlinks: Copy what links lead to in their place.
            replace: Destroy what is at `remote`, then put the new in its place.
            delete: Remove from `remote` what `local` has not, but nothing that is left out.
            dry_run: Write nothing; the result says what would have been done.
            on_progress: Told how far it is, in files and bytes, from another thread, at most ten times a second.

        Returns:
            What was written, and what was left out and why.

        Raises:
            SyncError: The message names the path and what to do; what is in place is whole. Its kinds:
                SourceMissingError, TargetBusyError, SpaceExhaustedError and others, see `sandport.errors`.
            PathOutsideRoot: `remote` is absolute and not below the working directory.
            UsageError: The options make no sense together, or with what is there; nothing was written.
            SandportError: The sandbox or its worker failed.

        Repeat: writes the same files again.
        Cancel: files that are complete stay, the one that was being written does not appear; returns within the close
        grace.

        Where this process is killed, what it staged (`.sandport-` and 16 digits, beside its place) goes with the
        sandbox, or with the next copy into the same directory; where the sandbox's own tools stage, only after a day.
        """
        self._refuse_lost()
        choice = Choice(exclude=_patterns(exclude), gitignore=gitignore, follow_symlinks=follow_symlinks, delete=delete)
        with _sense():
            return await self._files.sync_in(
                local, os.fsencode(remote), mode=mode, choice=choice, replace=replace, dry_run=dry_run, tell=on_progress
            )

    async def sync_out(
        self,
        remote: Argument,
        local: HostPath,
        *,
        mode: int | None = None,
        exclude: Sequence[str] = (),
        gitignore: bool = False,
        delete: bool = False,
        dry_run: bool = False,
        max_bytes: int | None = None,
        max_entries: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> SyncResult:
        """Copy a file or a tree of the sandbox to this machine; files are replaced whole.

        Nothing here is deleted unless `delete` asks for it, and whatever the sandbox sends, nothing outside of `local`
        is written. The ways are those of `sync_in`; what comes as an archive is staged whole beside `local` first, so
        past a ceiling, or where it was cut, nothing is written.

        Args:
            remote: In or below the working directory. Links in it are resolved as long as they stay below.
            local: The target on this machine; made with its parents.
            mode: Permission bits for a single file in place of its own.
            exclude: What is left out, in gitignore's patterns, relative to `remote`.
            gitignore: Leave out what the tree's own `.gitignore` files say as well.
            delete: Remove from `local` what `remote` has not, but nothing that is left out. Refused for `/`, the home
                directory, what lies above the current directory, and the root of a git work tree.
            dry_run: Write nothing; the result says what would have been done.
            max_bytes, max_entries: Ceilings on what is taken; 8 GiB and 1,000,000 by default.
            on_progress: As in `sync_in`; where an archive comes, bytes so far and no totals until it is whole.

        Returns:
            What was written; links that lead out of the tree are in `refused` and were not.

        Raises:
            SyncError: As `sync_in`; SourceMissingError where there is nothing at `remote`, TooLargeError past a
                ceiling, UnsafeTargetError where `delete` is refused.
            PathOutsideRoot: `remote` is absolute and not below the working directory.
            UsageError: The options make no sense together, or with what is there; nothing was written.
            SandportError: The sandbox or its worker failed.

        Repeat: writes the same files again.
        Cancel: files that are complete stay, the one that was being written does not appear; returns within the close
        grace.

        Where this process is killed, what it staged (`.sandport-` and 16 digits, beside its place) goes with the next
        copy into the same directory.
        """
        self._refuse_lost()
        choice = Choice(exclude=_patterns(exclude), gitignore=gitignore, delete=delete)
        with _sense():
            return await self._files.sync_out(
                os.fsencode(remote),
                local,
                mode=mode,
                choice=choice,
                dry_run=dry_run,
                max_bytes=max_bytes,
                max_entries=max_entries,
                tell=on_progress,
            )

    async def read_bytes(self, remote: Argument, *, max_bytes: int = READ_BYTES) -> bytes:
        """The content of one file of the sandbox.

        Args:
            remote: In or below the working directory; links in it are resolved as long as they stay below.
            max_bytes: How much is taken at most; 64 MiB by default.

        Raises:
            SyncError: SourceMissingError where there is nothing, TooLargeError where it is larger, or it is a
                directory or cannot be read.
            SandportError: The sandbox or its worker failed.

        Repeat: reads again.
        Cancel: nothing is left.
        """
        self._refuse_lost()
        return await self._files.read_bytes(os.fsencode(remote), max_bytes=max_bytes)

    async def write_bytes(self, remote: Argument, data: bytes | bytearray | memoryview, *, mode: int = 0o644) -> None:
        """Make a file in the sandbox; one that is there is replaced whole.

        Args:
            remote: In or below the working directory; directories on the way are made.
            data: Its content.
            mode: Its permission bits, which are never wider on the way.

        Raises:
            SyncError: TargetBusyError where a directory has that name, and others; the file is as it was.
            SandportError: The sandbox or its worker failed.

        Repeat: writes it again.
        Cancel: the file is as it was, or has all of `data`.
        """
        self._refuse_lost()
        await self._files.write_bytes(os.fsencode(remote), data, mode=mode)

    async def run_apart(
        self, argv: list[Argument], *, stdin: bytes = b"", on_output: OnOutput | None = None, limit_bytes: int
    ) -> Outcome:
        """`execute` for the host's own use: in the place that is kept for it, with as much input as fits in a frame."""
        line = command_line(argv, shell=None, cwd=None, env=self._env, user=None, timeout_s=None)
        self._refuse_outliving(line, None)
        captures, spilled = _captures(contextlib.ExitStack(), limit_bytes, None)
        params = _build(ExecuteParams, sandbox_id=self.id, stdin=stdin, live=True, **line.members())
        async with self._place_apart:
            return await self.attachment.limited(
                lambda: self._execute(params, line, captures, spilled, on_output), patience_s=LONGEST_S, repeats=False
            )

    @contextlib.asynccontextmanager
    async def start_apart(self, argv: list[Argument], *, limit_bytes: int) -> AsyncIterator[Process]:
        """`start` for the host's own use, with an open input."""
        line = command_line(argv, shell=None, cwd=None, env=self._env, user=None, timeout_s=None)
        self._refuse_outliving(line, None)
        captures: dict[StreamName, Capture] = {name: Capture(limit_bytes) for name in _STREAMS}
        async with self._place_apart, self._running(line, stdin=True, pty=None, captures=captures) as process:
            yield process

    async def client(self) -> WorkerClient:
        """The worker that serves now, with this sandbox attached to it."""
        return (await self.attachment.worker()).client

    async def groups(self) -> frozenset[str]:
        """The optional groups of methods that this sandbox has."""
        return (await self.attachment.worker()).groups - frozenset(self.lease.without)

    # -------------------------------------------------------------- calls

    async def call(self, method: str, params: Struct, result: type[Any], *, deadline_s: float | None) -> Any:
        """One call in the name of this sandbox; attaches first where the worker does not know it yet."""
        return await self.attachment.call(method, params, result, deadline_s=deadline_s)

    # -------------------------------------------------------------- the end

    async def keep(self, name: str | None = None) -> None:
        """Let the sandbox outlive the block and this process; `Host.attach` finds it again by the lease's id.

        It still ends at `Host.end_lease`, or when its time is over.

        Args:
            name: Another way to find it; no other lease that has not ended may have it.

        Raises:
            NotAuthorised: A plugin refuses; nothing was changed.
            NameTaken: Another lease has the name; nothing was changed.
            LeaseLost: The lease has ended.
            InUse: Another process holds it, as where it was attached; that one alone can keep it.

        Repeat: changes the name.
        Cancel: it is kept, or is not; `kept` says which.
        """
        await self._tenure.keep(name)

    def request_destroy(self) -> None:
        """Ask for the end without waiting for anything: for a host that leaves at once."""
        self.attachment.request_destroy()

    @property
    def kept(self) -> bool:
        """Whether it outlives its block."""
        return self._tenure.kept

    async def leave(self) -> None:
        """Its block is over: let it go where it is kept, else end it."""
        if self._tenure.kept:
            await self._tenure.release()
        else:
            await self._tenure.end("its block is over")

    async def destroy(self) -> bool:
        """End the sandbox and everything in it; True once that is confirmed. Bounded by the close grace.

        What is not confirmed by then is retried by this host, or the next one of the same store, until it is.

        Repeat: confirms again.
        Cancel: goes on to the end or the bound; the cancel is raised then.
        """
        return await self._tenure.end("ended by its holder")


def _build(type_: Any, **members: Any) -> Any:
    try:
        return type_(**members)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _check_limit(limit_bytes: int) -> None:
    if limit_bytes < 0:
        raise UsageError(f"output_limit_bytes is {limit_bytes}; give 0 to keep nothing and count all, or more")


def _patterns(exclude: Sequence[str]) -> tuple[str, ...]:
    if isinstance(exclude, str):  # each of its letters would be a pattern
        raise UsageError(f"exclude is a list of patterns, not one string; write [{exclude!r}]")
    return tuple(exclude)


@contextlib.contextmanager
def _sense() -> Iterator[None]:
    """Options that contradict each other, or what is there, are a wrong use like any other."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def _captures(
    files: contextlib.ExitStack, limit_bytes: int, spill_to: str | os.PathLike[str] | None
) -> tuple[dict[StreamName, Capture], dict[StreamName, str]]:
    """A capture for each stream, and the files that take every byte."""
    spilled: dict[StreamName, str] = {}
    spills: dict[StreamName, BinaryIO] = {}
    _check_limit(limit_bytes)
    if spill_to is not None:
        try:
            os.makedirs(spill_to, exist_ok=True)
            for name in _STREAMS:
                spilled[name] = os.path.join(spill_to, name)
                spills[name] = files.enter_context(open(spilled[name], "wb"))  # noqa: SIM115 - the stack closes it
        except OSError as error:
            raise UsageError(
                f"spill_to {error.filename}: {error.strerror}; name a folder that can be written"
            ) from error
    return {name: Capture(limit_bytes, spills.get(name)) for name in _STREAMS}, spilled


async def _hand_on(on_output: OnOutput, captures: dict[StreamName, Capture], stream: StreamName, data: bytes) -> None:
    captures[stream].take(data)
    waiting = on_output(stream, data)
    if inspect.isawaitable(waiting):
        await waiting


def _held_to(outcome: Outcome, line: CommandLine) -> Outcome:
    """The outcome, with a note where the provider let the command run on past its time-out."""
    if line.timeout_ms is None or outcome.ended == "timedOut":
        return outcome
    if outcome.duration_s <= line.timeout_ms / 1000 + _LATE_S:
        return outcome
    limit_s = line.timeout_ms / 1000
    note = f"it ran for {outcome.duration_s:.1f} s: the provider does not keep the time-out of {limit_s:g} s"
    return msgspec.structs.replace(outcome, notes=(*outcome.notes, note))


def _timed_out(raw: Raw) -> bool:
    """Whether a result says so; one that cannot be read is judged where it is read for good."""
    try:
        return codec.read_as(ExecuteResult, raw).ended == "timedOut"
    except ValueError:
        return False


async def _pumped(
    future: asyncio.Future[Any],
    lane: OutputLane,
    captures: dict[StreamName, Capture],
    on_output: OnOutput,
    *,
    patience_s: float,
) -> Any:
    """The result of a call whose output goes to a consumer; both are done when this returns.

    A consumer that stalls is waited for as long as the command itself is; one that stalls beyond a time-out only for
    `patience_s`: what it did not take is counted as dropped.
    """

    async def pump() -> None:
        while (piece := await lane.next_piece()) is not None:
            await _hand_on(on_output, captures, *piece)
            lane.taken(piece[0], len(piece[1]))

    pumping = asyncio.ensure_future(pump())
    try:
        await asyncio.wait((future, pumping), return_when=asyncio.FIRST_COMPLETED)
        if pumping.done() and pumping.exception() is not None:
            pumping.result()
        raw = await future
        await asyncio.wait((pumping,), timeout=patience_s if _timed_out(raw) else None)
        if pumping.done():
            pumping.result()
    finally:
        pumping.cancel()
        await asyncio.gather(pumping, return_exceptions=True)
    return raw
