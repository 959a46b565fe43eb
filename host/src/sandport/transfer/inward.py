"""Into a sandbox: packed on this machine, staged beside its place over there, put in place by renames.

A socket and a command differ in how the archive gets into the scratch, and in nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sandport.apart import apart
from sandport.closing import finished, finished_within, outliving
from sandport.errors import LeaseLost, SandportError, WireError
from sandport.outcome import Outcome
from sandport.sync.copy import Account, Bounds
from sandport.sync.entries import RESERVED_PREFIX
from sandport.sync.errors import SyncError, printable
from sandport.sync.local import open_host_source
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths
from sandport.sync.pack import pack_file, pack_tree
from sandport.sync.paths import split_destination
from sandport.sync.result import SyncResult
from sandport.sync.scratch import scratch_name
from sandport.sync.selection import Selection
from sandport.sync.tar_format import Dialect
from sandport.sync.tar_write import Sink, TarWriter
from sandport.transfer import by_socket, script
from sandport.transfer.deletion import Deletion, Listing, Obstacles, list_far
from sandport.transfer.handover import Handover
from sandport.transfer.shell import Shell, unreachable
from sandport.transfer.thread import in_a_thread
from sandport.transfer.told import failure_of, of_worker, told_by
from sandport.transfer.tree_archive import TREE, Survey, TreeArchive

if TYPE_CHECKING:
    from sandport.sync import HostPath
    from sandport.transfer.choice import Choice, OnProgress
    from sandport.transfer.far import Far

__all__ = ["Staging", "deliver", "sync_in", "tidied"]

_CHUNK_BYTES = 4 << 20
"""Of an archive, for a provider that takes input only whole: few enough commands, little enough memory."""


class Staging(msgspec.Struct, frozen=True, kw_only=True):
    """Where something goes, and the texts that bring it there.

    Attributes:
        names: The target's path below the working directory.
        shown: How messages call it.
        whole: From a scratch, the text that takes everything from its input.
        place: From a scratch, the text that makes the place and says where it is.
        unpack: From a scratch and that place, the text that unpacks what came in chunks.
        finish: From a scratch and the first line of that answer, the text that ends it.
    """

    names: list[bytes]
    shown: bytes
    whole: Callable[[bytes], str]
    place: Callable[[bytes], str]
    unpack: Callable[[bytes, bytes], str]
    finish: Callable[[bytes, bytes], str]


class _Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is copied: an open file or directory of this machine."""

    fd: int
    is_tree: bool
    path: bytes
    mode: int | None
    selection: Selection | None
    follow_symlinks: bool
    extra: dict[bytes, bytes] = {}
    """What the archive tells the far side beside."""


async def sync_in(
    far: Far,
    local: HostPath,
    destination: bytes,
    *,
    mode: int | None,
    choice: Choice,
    replace: bool,
    dry_run: bool,
    tell: OnProgress | None,
) -> SyncResult:
    """`Sandbox.sync_in` for a sandbox that is not a directory of this machine."""
    if mode is not None and not 0 <= mode <= 0o777:
        raise ValueError(f"mode {mode} is not a set of permission bits; write it in octal, such as 0o600 or 0o755")
    if replace and choice.delete:
        raise ValueError("replace removes all that delete would; ask for one of them")
    path = os.fsencode(local)
    names = split_destination(destination)
    selection = choice.selection(above=True)
    fd, is_tree = await asyncio.to_thread(open_host_source, path)
    try:
        if is_tree and mode is not None:
            raise ValueError(
                f"mode is for a single file, but {printable(path)} is a directory; its files keep their own"
            )
        source = _Source(
            fd=fd,
            is_tree=is_tree,
            path=path,
            mode=mode,
            selection=selection,
            follow_symlinks=choice.follow_symlinks,
        )
        dialect = await far.dialect()
        staging = _staging(source, names, destination, far.extract_options, replace=replace)
        deletion: Deletion | None = None
        if dry_run or (is_tree and choice.delete):
            plan = _Plan(far, staging, source, base_inside=destination.endswith(b"/"), replace=replace)
            surveyed, deletion = await plan.made(tell if dry_run else None, delete=choice.delete)
            if dry_run:
                return surveyed if deletion is None else await asyncio.to_thread(deletion.told_in, surveyed)
        if deletion is None:
            return await _deliver_source(far, staging, source, dialect, tell)
        # It may be of a million names, which holds up an event loop for a second.
        extra = await asyncio.to_thread(deletion.members)
        source = msgspec.structs.replace(source, extra=extra)
        return await asyncio.to_thread(deletion.told_in, await _deliver_source(far, staging, source, dialect, tell))
    finally:
        os.close(fd)


def _staging(source: _Source, names: list[bytes], destination: bytes, options: str, *, replace: bool) -> Staging:
    unpack = partial(script.unpack_chunks, options=options)
    shown = b"/".join(names) or b"."
    if source.is_tree:
        tree = partial(script.place_tree, names=names, options=options, replace=replace)
        return Staging(
            names=names,
            shown=shown,
            whole=partial(tree, unpack=True),
            place=partial(tree, unpack=False),
            unpack=unpack,
            finish=lambda scratch, loose: script.finish_tree(scratch, names, options, replace=replace, loose=loose),
        )
    base, inside = os.path.basename(source.path), destination.endswith(b"/")
    name = base if inside or not names else names[-1]
    if name.startswith(RESERVED_PREFIX):
        raise SyncError(
            f"{printable(name)} is refused: names that begin with .sandport- are reserved; choose another name",
            path=name,
        )
    file = partial(script.place_file, names=names, options=options, base=base, inside=inside, replace=replace)
    return Staging(
        names=names,
        shown=shown,
        whole=partial(file, unpack=True),
        place=partial(file, unpack=False),
        unpack=unpack,
        finish=lambda scratch, loose: script.finish_file(
            scratch, names, base=base, inside=inside, replace=replace, loose=loose
        ),
    )


def _pack(source: _Source, writer: TarWriter, meter: Meter, account: Account | None = None) -> SyncResult:
    if not source.is_tree:
        os.lseek(source.fd, 0, os.SEEK_SET)
        return pack_file(source.fd, b"f", writer, mode=source.mode, meter=meter, path=source.path)
    return pack_tree(
        source.fd,
        writer,
        prefix=TREE,
        with_top=True,
        meter=meter,
        bounds=Bounds(),
        account=account,
        selection=source.selection,
        follow_symlinks=source.follow_symlinks,
    )


def _write(source: _Source, sink: Sink, outer: Dialect, inner: Dialect, meter: Meter, tell: _Count) -> SyncResult:
    if not source.is_tree:
        writer = TarWriter(sink, dialect=outer)
        tell(lambda: writer.bytes_written)
        return _pack(source, writer, meter)
    with TreeArchive(sink, dialect=outer, inner=inner, extra=source.extra) as archive:
        tell(lambda: archive.bytes_written)
        return _pack(source, archive, meter)


_Count = Callable[[Callable[[], int]], None]


class _Plan:
    """What a copy would do, by the names and sizes of the source and a listing of the target."""

    def __init__(self, far: Far, staging: Staging, source: _Source, *, base_inside: bool, replace: bool) -> None:
        self._far = far
        self._staging = staging
        self._source = source
        self._base_inside = base_inside
        self._replace = replace

    async def made(self, tell: OnProgress | None, *, delete: bool) -> tuple[SyncResult, Deletion | None]:
        """The result of a copy that is not made, and what it would delete.

        Raises:
            SyncError: What can be foreseen.
        """
        source, shell, names = self._source, self._far.shell, self._staging.names
        listing: Listing | None = None
        if not source.is_tree:
            scratch = scratch_name()
            base = os.path.basename(source.path)
            text = script.look_at_file(scratch, names, base=base, inside=self._base_inside, replace=self._replace)
            await shell.ask(text, scratch, self._staging.shown)
        elif not self._replace:
            listing = await list_far(shell, names, delete=delete)
        known, spared = KnownPaths(), KnownPaths()

        def survey(stop: threading.Event) -> SyncResult:
            obstacles = Obstacles(listing, b"/".join(names)) if listing is not None and not delete else None
            return _pack(source, Survey(known, obstacles), Meter(stop.is_set, tell), Account(spared))

        surveyed = await _in_thread(survey)
        if listing is None or not delete:
            return surveyed, None
        top = b"/".join(names)
        deletion = await asyncio.to_thread(Deletion, listing, known, spared, source.selection, top=top)
        return surveyed, deletion


# ------------------------------------------------------------------ the ways


async def _deliver_source(
    far: Far, staging: Staging, source: _Source, inner: Dialect, tell: OnProgress | None
) -> SyncResult:
    if far.has_socket:
        try:
            return await _by_socket(far, staging, source, inner, tell)
        except SandportError as error:
            if not unreachable(error):
                raise
    stop = threading.Event()
    meter = Meter(stop.is_set, tell)
    return await deliver(far, staging, lambda sink: _write(source, sink, inner, inner, meter, lambda count: None), stop)


async def _by_socket(
    far: Far, staging: Staging, source: _Source, inner: Dialect, tell: OnProgress | None
) -> SyncResult:
    scratch = scratch_name()
    stop = threading.Event()
    meter = Meter(stop.is_set, tell)
    results: list[SyncResult] = []

    def pack_into(line: by_socket.Line) -> int:
        def count(moved: Callable[[], int]) -> None:
            line.count = moved

        results.append(_write(source, line, Dialect.PAX, inner, meter, count))
        return line.count()

    async with tidied(far, scratch, staging.names):
        loose, where = await _placed(far.shell, staging, scratch)
        try:
            await by_socket.send(far.commands, os.path.join(where, scratch), pack_into, far.patience)
        except WireError as error:
            told = of_worker(error, staging.shown)
            if told is error:
                raise
            raise told from error
        finally:
            stop.set()
        await far.shell.ask(staging.finish(scratch, loose), scratch, staging.shown)
    return results[0]


async def _placed(shell: Shell, staging: Staging, scratch: bytes) -> tuple[bytes, bytes]:
    """Make the place; what `finish` wants, and the directory that the scratch is in."""
    loose, _, where = (await shell.ask(staging.place(scratch), scratch, staging.shown)).partition(b"\n")
    return loose, where


async def deliver(far: Far, staging: Staging, write: Callable[[Sink], SyncResult], stop: threading.Event) -> SyncResult:
    """Bring something into the sandbox over a command's input.

    Args:
        far: The sandbox.
        staging: Where to.
        write: Writes it, in a thread of its own.
        stop: Looked at by `write`.

    Raises:
        SyncError: What `write` raised, or the sandbox said.

    Cancel: both sides are ended and tidied up.
    """
    scratch = scratch_name()
    handover = Handover()

    def work() -> SyncResult:
        try:
            result = write(handover)
        except BaseException as error:
            handover.fail(error)
            raise
        handover.finish()
        return result

    async with tidied(far, scratch, staging.names):
        writing = apart(work, name="sandport-transfer")
        try:
            if await far.has_processes():
                outcome = await far.shell.pour(staging.whole(scratch), handover.pieces())
            else:
                outcome = await _in_chunks(far, staging, scratch, handover.pieces())
            told = told_by(outcome, scratch)
            if told is not None:
                raise failure_of(outcome, told, staging.shown)
            # The last piece was taken, so the thread is at its end; unless the sandbox says that it is done and is not.
            await asyncio.wait((writing,), timeout=far.patience.close_s)
            if not writing.done():
                raise SyncError(
                    f"the sandbox ended the copy to {printable(staging.shown)} before it had all of it; copy again",
                    path=staging.shown,
                )
            return writing.result()
        finally:
            stop.set()
            handover.abort()
            # It ends with its next piece; the descriptor that it reads from must stay open until then.
            await finished(_over(writing))


async def _over(working: asyncio.Future[SyncResult]) -> None:
    await asyncio.wait((working,))
    if not working.cancelled():
        working.exception()  # seen: what decided is raised already


async def _in_chunks(far: Far, staging: Staging, scratch: bytes, pieces: AsyncIterator[bytes | memoryview]) -> Outcome:
    """For a provider without processes: one command for each chunk of the archive, then one that unpacks it."""
    shell = far.shell
    most = min(_CHUNK_BYTES, await shell.piece_bytes())
    loose, where = await _placed(shell, staging, scratch)
    chunk = bytearray()
    text = script.stage_chunk(scratch, where)
    async for piece in pieces:
        view = memoryview(piece)
        while view:
            room = most - len(chunk)
            chunk += view[:room]
            view = view[room:]
            if len(chunk) == most:
                await shell.ask(text, scratch, staging.shown, stdin=bytes(chunk))
                chunk.clear()
    await shell.ask(text, scratch, staging.shown, stdin=bytes(chunk))
    await shell.ask(staging.unpack(scratch, where), scratch, staging.shown)
    return await shell.run(staging.finish(scratch, loose))


@contextlib.asynccontextmanager
async def tidied(far: Far, scratch: bytes, names: list[bytes]) -> AsyncIterator[None]:
    """Where the block fails or is cancelled, nothing of the scratch stays in the sandbox; the first error stays it."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, LeaseLost):
            await _tidy(far, scratch, names, error)
        raise


async def _tidy(far: Far, scratch: bytes, names: list[bytes], cause: BaseException) -> None:
    cleaning = outliving(far.shell.run(script.clean_up(scratch, names)))
    shown = printable(b"/".join((*names[:-1], scratch)))
    try:
        if not await finished_within(cleaning, far.patience.close_s / 2):
            cleaning.cancel()
            cause.add_note(f"could not remove {shown} in the sandbox in time")
        elif (problem := cleaning.exception()) is not None:
            cause.add_note(f"could not remove {shown} in the sandbox: {problem}")
    except asyncio.CancelledError:
        # One more cancel while this one is seen to: it waited for its end, and the first error is the one to tell.
        if not isinstance(cause, asyncio.CancelledError):
            raise


async def _in_thread(work: Callable[[threading.Event], SyncResult]) -> SyncResult:
    stop = threading.Event()
    return await in_a_thread(lambda: work(stop), stop)
