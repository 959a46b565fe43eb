"""One sandbox that this host holds a lease on: what an embedder does with it, each call with its promises.

`commands` and `files` hold what is behind the calls.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from sandport_protocol.octets import unpack
from sandport_protocol.v1 import LeaseResult, PtySize, StreamName

from .arguments import AMOUNT, COUNT, FLAG, hold, hold_to
from .command import SHELL, TERMINAL, Argument, CommandLine, command_line
from .commands import Commands
from .errors import LeaseLost, NotSupported, UsageError
from .execution import OnOutput
from .files import READ_BYTES, Choice, Files, OnProgress
from .lease.attachment import Attachment
from .lease.request import LeaseRequest, check_name
from .numbers import Timing
from .outcome import Outcome
from .process import Process
from .spill import STREAMS, captures_of
from .store.records import Ref
from .witness import NO_SANDBOX_WITNESS, SandboxWitness
from .worker.client import WorkerClient

if TYPE_CHECKING:
    from .sync import HostPath, SyncResult

__all__ = ["INLINE_STDIN_BYTES", "OUTPUT_LIMIT_BYTES", "OnOutput", "Sandbox", "Tenure"]

OUTPUT_LIMIT_BYTES = 8 * 1024 * 1024
"""Kept of each stream unless the caller says otherwise: more than a log that a person reads, less than hurts."""
INLINE_STDIN_BYTES = 1024 * 1024
"""Input up to so much travels with `execute`; more of it goes through a process's pipe with back-pressure."""


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
        state: bytes | None = None,
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
        self._commands = Commands(
            attachment,
            provider=request.provider,
            groups=self.groups,
            max_processes=lease.max_processes,
            timing=timing,
            witness=witness,
        )
        self._files = Files(self, timing, state=state)

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
            timeout_s: After this the command and what it started is killed, and the outcome says `timedOut`. It bounds
                the command, not the call, which also waits for `on_output` to take what came: up to the close grace
                longer for one that awaits, and without a bound for one that blocks.
            output_limit_bytes: Kept of each stream in memory, half head and half tail; the rest is counted.
            spill_to: A directory on this machine that gets every byte, in the files `stdout` and `stderr`.
            on_output: Called with each piece as it comes, and awaited where it returns an awaitable: a slow one slows
                the command down, nothing else. What it raises is raised here as it is, and the command is killed.

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
        hold(stdin=stdin, output_limit_bytes=output_limit_bytes, spill_to=spill_to, on_output=on_output)
        line = self._line(argv, shell=shell, cwd=cwd, env=env, user=user, timeout_s=timeout_s)
        stdin = bytes(stdin)
        run = self._commands.execute if len(stdin) <= INLINE_STDIN_BYTES else self._commands.execute_fed
        return await run(line, stdin=stdin, limit_bytes=output_limit_bytes, spill_to=spill_to, on_output=on_output)

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
            UsageError: The call makes no sense; nothing was sent.
            NotSupported: The provider has no processes, only commands.

        Cancel: the process is killed as at the end of the block.
        """
        hold(pty=pty, output_limit_bytes=output_limit_bytes)
        hold_to(FLAG, stdin=stdin)
        line = self._line(argv, shell=shell, cwd=cwd, env=env, user=user, timeout_s=timeout_s)
        streams: tuple[StreamName, ...] = ("pty",) if pty else STREAMS
        captures = captures_of(streams, output_limit_bytes)
        size = None if pty is None else PtySize(columns=pty[0], rows=pty[1])
        async with self._commands.started(line, stdin=stdin, pty=size, captures=captures) as process:
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
        hold(argv=argv, size=size, cwd=cwd, env=env, user=user, timeout_s=timeout_s)
        if not (await self.attachment.worker()).hello.capabilities.pty:
            raise NotSupported(
                f"provider {self.provider} has no terminals (capabilities.pty); start() and execute() are what it has",
                dispatched="no",
            )
        told = {"TERM": TERMINAL} | dict(env or {})
        async with self.start(argv, stdin=True, pty=size, cwd=cwd, env=told, user=user, timeout_s=timeout_s) as process:
            yield process

    def _refuse_lost(self) -> None:
        if (lost := self.attachment.lost) is not None:
            raise LeaseLost(f"the lease on {self.id} is over: {lost}; take a new lease", dispatched="no")

    def _line(
        self,
        argv: Sequence[Argument] | None,
        *,
        shell: str | bytes | None = None,
        cwd: Argument | None = None,
        env: Mapping[str, str | bytes] | None = None,
        user: str | None = None,
        timeout_s: float | None = None,
    ) -> CommandLine:
        """A command as the wire has it, once its arguments are held to their types and the lease is seen to last."""
        hold(argv=argv, shell=shell, cwd=cwd, env=env, user=user, timeout_s=timeout_s)
        line = command_line(argv, shell=shell, cwd=cwd, env=self._env | dict(env or {}), user=user, timeout_s=timeout_s)
        self._refuse_lost()
        remaining_s = self.remaining_s
        if remaining_s is not None and timeout_s is not None and timeout_s > remaining_s:
            raise UsageError(
                f"{line.name()}: timeout_s {timeout_s:g} outlasts the lease, which ends in "
                f"{max(remaining_s, 0):.0f} s; lease with a larger ttl_s"
            )
        return line

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
        exclude = _patterns(exclude)
        hold(
            local=local,
            remote=remote,
            mode=mode,
            exclude=exclude,
            gitignore=gitignore,
            follow_symlinks=follow_symlinks,
            replace=replace,
            delete=delete,
            dry_run=dry_run,
            on_progress=on_progress,
        )
        self._refuse_lost()
        choice = Choice(exclude=exclude, gitignore=gitignore, follow_symlinks=follow_symlinks, delete=delete)
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
                directory, the current directory, the running Python (its virtual environment, too), the host's state,
                what holds one of them, and the root of a git work tree.
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
        exclude = _patterns(exclude)
        hold(
            remote=remote,
            local=local,
            mode=mode,
            exclude=exclude,
            gitignore=gitignore,
            delete=delete,
            dry_run=dry_run,
            max_bytes=max_bytes,
            max_entries=max_entries,
            on_progress=on_progress,
        )
        self._refuse_lost()
        choice = Choice(exclude=exclude, gitignore=gitignore, delete=delete)
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
            UsageError: An argument is of the wrong type; nothing was sent.
            SandportError: The sandbox or its worker failed.

        Repeat: reads again.
        Cancel: nothing is left.
        """
        hold(remote=remote)
        hold_to(AMOUNT, max_bytes=max_bytes)
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
            UsageError: An argument is of the wrong type; nothing was sent.
            SandportError: The sandbox or its worker failed.

        Repeat: writes it again.
        Cancel: the file is as it was, or has all of `data`.
        """
        hold(remote=remote, data=data)
        hold_to(COUNT, mode=mode)
        if isinstance(data, memoryview):
            data = bytes(data)  # it may have items of any size, with gaps between them
        self._refuse_lost()
        await self._files.write_bytes(os.fsencode(remote), data, mode=mode)

    async def run_apart(
        self, argv: list[Argument], *, stdin: bytes = b"", on_output: OnOutput | None = None, limit_bytes: int
    ) -> Outcome:
        """`execute` for the host's own use: in the place that is kept for it, with as much input as fits in a frame."""
        return await self._commands.execute_apart(
            self._line(argv), stdin=stdin, on_output=on_output, limit_bytes=limit_bytes
        )

    @contextlib.asynccontextmanager
    async def start_apart(self, argv: list[Argument], *, limit_bytes: int) -> AsyncIterator[Process]:
        """`start` for the host's own use, with an open input."""
        async with self._commands.started_apart(self._line(argv), limit_bytes=limit_bytes) as process:
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
            name: Another way to find it; as in `Host.lease`.

        Raises:
            UsageError: A lease may not be called this; nothing was changed.
            NotAuthorised: A plugin refuses; nothing was changed.
            NameTaken: Another lease has the name; nothing was changed.
            LeaseLost: The lease has ended.
            InUse: Another process holds it, as where it was attached; that one alone can keep it.

        Repeat: changes the name.
        Cancel: it is kept, or is not; `kept` says which.
        """
        hold(name=name)
        check_name(name)
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


def _patterns(exclude: Sequence[str]) -> tuple[str, ...]:
    if isinstance(exclude, str):  # each of its letters would be a pattern
        raise UsageError(f"exclude is a list of patterns, not one string; write [{exclude!r}]")
    hold(exclude=exclude)
    return tuple(exclude)


@contextlib.contextmanager
def _sense() -> Iterator[None]:
    """Options that contradict each other, or what is there, are a wrong use like any other."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error
