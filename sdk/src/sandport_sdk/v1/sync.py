"""Moving files for the group `sync`: the host's socket on one side, a program in the sandbox on the other.

Not imported with `sandport_sdk.v1`: a provider that serves the group says `from sandport_sdk.v1 import sync`. Where a
sandbox has a shell and a tar, and the provider can run a program there with descriptors of its own, this is all of it:

```python
async def sync_in(self, params, call):
    return await sync.unpack(params, self._run(params.sandbox_id, sync.tar_in(params.path)))

async def sync_out(self, params, call):
    return await sync.pack(params, self._run(params.sandbox_id, sync.tar_out(params.path)))

def _run(self, sandbox_id, argv):
    return sync.program(["docker", "exec", "-i", self._container(sandbox_id), *argv])
```

Anything else (an upload over HTTP) uses `connect` and reads or writes the stream itself; `ArchiveEnd` then tells
whether the archive that passed by was whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from sandport_protocol.errors import CommandNotExecutable, CommandNotFound, Detail, ProtocolViolation, Unavailable
from sandport_protocol.octets import Octets
from sandport_protocol.octets import pack as as_octets
from sandport_protocol.v1 import SyncInParams, SyncInResult, SyncOutParams, SyncOutResult
from sandport_sdk.archive_end import ArchiveEnd
from sandport_sdk.bulk import BUFFER_BYTES, BulkStream, Sink, Source, connect, ready
from sandport_sdk.tar_scripts import Said, pack_failure, tar_in, tar_out, unpack_failure

__all__ = [
    "unpack",
    "pack",
    "unpack_from",
    "pack_to",
    "program",
    "tar_in",
    "tar_out",
    "connect",
    "BulkStream",
    "Source",
    "Sink",
    "Running",
    "Start",
    "ArchiveEnd",
]

SAID_BYTES = 16 * 1024
"""Of what a program writes to stderr, so much is kept."""


class Running(Protocol):
    """A program that runs in the sandbox."""

    async def wait(self) -> int:
        """Its exit code once it has ended; below 0, the signal that ended it. Raises what else became of it."""
        ...

    async def kill(self) -> None:
        """End it, with what it started; nothing where it has ended."""
        ...


Start = Callable[[int, int, int], Awaitable[Running]]
"""Starts a program with these descriptors as its stdin, stdout and stderr, which belong to the caller again afterwards.
Raises an error of the wire where it does not start; a cancel leaves nothing running."""


async def unpack(params: SyncInParams, start: Start) -> SyncInResult:
    """Do a whole `syncIn`: connect, let a program unpack the archive, count it, and see that all of it came.

    Args:
        params: Of the call.
        start: Starts the program in the sandbox; its input is the archive. See `tar_in` and `program`.

    Returns:
        The answer: the program ended well, so everything is in place.

    Raises:
        errors.Unavailable: The socket cannot be reached (`dispatched` `no`), or broke.
        errors.ProtocolViolation: The archive was cut, or is none; `detail.reason` is `cut` or `malformed`.
        errors.WireError: What the program said: QuotaExceeded for a full disk, PathRefused, CommandNotFound, ...

    Cancel: the program is killed; what was unpacked stays.
    """
    async with connect(params.socket) as stream:
        notes = await unpack_from(stream, start, path=params.path)
        return SyncInResult(bytes=stream.bytes_in, notes=notes)


async def pack(params: SyncOutParams, start: Start) -> SyncOutResult:
    """Do a whole `syncOut`: connect, let a program pack, count, and see that its archive is whole.

    Args:
        params: Of the call.
        start: Starts the program in the sandbox; its output is the archive. See `tar_out` and `program`.

    Returns:
        The answer; in `notes` what the program said of files that were left out, or changed.

    Raises:
        errors.Unavailable: The socket cannot be reached (`dispatched` `no`), or the stream was cut on its way.
        errors.WireError: What the program said: PathNotFound, PathRefused, CommandNotFound, ...

    Cancel: the program is killed and the stream breaks off.
    """
    async with connect(params.socket) as stream:
        notes = await pack_to(start, stream, path=params.path)
        return SyncOutResult(bytes=stream.bytes_out, notes=notes)


async def unpack_from(source: Source, start: Start, *, path: Octets) -> tuple[str, ...]:
    """As `unpack`, from a stream of any kind; what the program said.

    Args:
        source: What is read to its end.
        start: Starts the program.
        path: Of the call, for errors.
    """
    end = ArchiveEnd()
    async with _running(start, feeds=True) as work:
        feeding = asyncio.ensure_future(_feed(source, work.pipe, end))
        ending = asyncio.ensure_future(work.program.wait())
        try:
            await asyncio.wait((feeding, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending.done() and not feeding.done() and (ending.exception() or ending.result() or not end.is_complete):
                feeding.cancel()  # nobody is left to unpack what still comes
                came_to_its_end = False
            else:
                came_to_its_end = await feeding
            said = work.said(await ending)
        finally:
            await _settled(feeding, ending)
    if came_to_its_end and not end.is_complete and end.fault is None:
        why = "the stream ended before the archive did: its end mark is missing"
        raise ProtocolViolation(why, detail=Detail(reason="cut"))
    if end.fault is None and (failure := unpack_failure(said, path)) is not None:
        raise failure
    if not end.is_complete:
        why = f"what came is no archive: {end.fault or 'the program that unpacks took less than all of it'}"
        raise ProtocolViolation(why, detail=Detail(reason="malformed"))
    return said.notes


async def pack_to(start: Start, sink: Sink, *, path: Octets) -> tuple[str, ...]:
    """As `pack`, to a sink of any kind, which is ended when the archive was whole; what the program said.

    Args:
        start: Starts the program.
        sink: What takes the archive.
        path: Of the call, for errors.
    """
    end = ArchiveEnd()
    async with _running(start, feeds=False) as work:
        draining = asyncio.ensure_future(_drain(work.pipe, sink, end))
        ending = asyncio.ensure_future(work.program.wait())
        try:
            await asyncio.wait((draining, ending), return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await draining
            said = work.said(await ending)
            # Before the rest of what it packed is sent: the host may be in no hurry to take what is not the whole.
            if (failure := pack_failure(said, path)) is not None:
                raise failure
            await draining
        finally:
            await _settled(draining, ending)
    if not end.is_complete:
        why = f"the archive was cut on its way out of the sandbox: {end.fault or 'its end mark is missing'}"
        raise Unavailable(why, detail=Detail(reason="cut"))
    sink.end()
    return said.notes


def program(
    argv: Sequence[str | bytes],
    *,
    cwd: str | bytes | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> Start:
    """Starts a program on this machine, such as a vendor's command that reaches into the sandbox.

    It is in a session of its own; a kill reaches its group.

    Args:
        argv: The program and its arguments.
        cwd: Where it runs; where this worker does by default.
        env: All of its environment; this worker's by default.
    """

    async def start(stdin: int, stdout: int, stderr: int) -> Running:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CommandNotFound(
                f"there is no program {error.filename!r}", detail=Detail(path=as_octets(argv[0])), dispatched="no"
            ) from error
        except OSError as error:
            raise CommandNotExecutable(
                f"{argv[0]!r} cannot be run: {error.strerror}", detail=Detail(path=as_octets(argv[0])), dispatched="no"
            ) from error
        return _OnThisMachine(process)

    return start


class _OnThisMachine:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def wait(self) -> int:
        return await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now, and its group with it
                os.killpg(self._process.pid, signal.SIGKILL)


# ------------------------------------------------------------------ a program at work


class _Work:
    """A program that runs, our end of its pipe, and the beginning of what it says."""

    def __init__(self, program: Running, pipe: _Pipe, errors: int) -> None:
        self.program = program
        self.pipe = pipe
        self._errors = errors
        self._text = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(errors, self._listen)

    def said(self, status: int) -> Said:
        """What it said, once it has ended."""
        self._listen()
        return Said(status, self._text.decode("utf-8", "backslashreplace"))

    def close(self) -> None:
        self._loop.remove_reader(self._errors)
        self.pipe.close()

    def _listen(self) -> None:
        while True:
            try:
                piece = os.read(self._errors, SAID_BYTES)
            except BlockingIOError:
                return
            if not piece:
                self._loop.remove_reader(self._errors)
                return
            self._text += piece[: SAID_BYTES - len(self._text)]


class _Pipe:
    """Our end of a pipe, which does not block."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._is_open = True
        self._loop = asyncio.get_running_loop()

    async def write(self, data: memoryview) -> None:
        """Write all of it; raises BrokenPipeError where nobody reads any more."""
        at = 0
        while at < len(data):
            try:
                at += os.write(self.descriptor, data[at:])
            except BlockingIOError:
                await ready(self._loop.add_writer, self._loop.remove_writer, self.descriptor)

    async def read_into(self, buffer: memoryview) -> int:
        """Read what is there; 0 at the end."""
        while True:
            try:
                return os.readv(self.descriptor, [buffer])
            except BlockingIOError:
                await ready(self._loop.add_reader, self._loop.remove_reader, self.descriptor)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self.descriptor)


@contextlib.asynccontextmanager
async def _running(start: Start, *, feeds: bool) -> AsyncIterator[_Work]:
    """A program with a pipe to its input, or from its output; killed where the block is left by an exception."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        null = _kept(theirs, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = _Pipe(write if feeds else read)
        ours.callback(pipe.close)
        their_end = _kept(theirs, read if feeds else write)
        errors, their_errors = os.pipe2(os.O_CLOEXEC)
        _kept(ours, errors)
        _kept(theirs, their_errors)
        for descriptor in (pipe.descriptor, errors):
            os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):  # the user's share of pipe memory is used up: slower, not wrong
            fcntl.fcntl(pipe.descriptor, fcntl.F_SETPIPE_SZ, BUFFER_BYTES)
        running = await start(*((their_end, null) if feeds else (null, their_end)), their_errors)
        theirs.close()
        work = _Work(running, pipe, errors)
        ours.callback(work.close)
        try:
            yield work
        except BaseException:
            await running.kill()
            # In every case: what it was told to do must not go on once the call was answered.
            with contextlib.suppress(Exception):
                await asyncio.shield(running.wait())
            raise


def _kept(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


async def _feed(source: Source, pipe: _Pipe, end: ArchiveEnd) -> bool:
    """Move all of a stream into a pipe; whether it came to its end, or else nobody reads the pipe any more."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    is_read = True
    while size := await source.read_into(buffer):
        piece = buffer[:size]
        end.feed(piece)
        if is_read:
            try:
                await pipe.write(piece)
            except BrokenPipeError:
                if not end.is_complete:
                    return False
                is_read = False  # what follows the end mark is counted and belongs to nobody
        await asyncio.sleep(0)  # a stream that always has something must not keep the loop to itself
    pipe.close()
    return True


async def _drain(pipe: _Pipe, sink: Sink, end: ArchiveEnd) -> None:
    """Move everything that comes out of a pipe into a sink."""
    buffer = memoryview(bytearray(BUFFER_BYTES))
    while size := await pipe.read_into(buffer):
        piece = buffer[:size]
        end.feed(piece)
        await sink.write(piece)
        await asyncio.sleep(0)


async def _settled(*futures: asyncio.Future[Any]) -> None:
    """Nothing of these goes on; what became of them was told already, or is told by what is raised now."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
