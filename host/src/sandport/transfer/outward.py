"""Out of a sandbox: the archive whole on the target's file system first, then looked at, then unpacked.

A socket and a command differ in how the archive comes, and in nothing else. What the sandbox sends is an enemy's until
`sandport.sync.unpack` has looked at all of it; before that nothing of the target is touched or made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from sandport.errors import WireError
from sandport.outcome import Outcome
from sandport.sync.copy import Account, Bounds, LinkRule
from sandport.sync.entries import RESERVED_PREFIX
from sandport.sync.errors import SyncError, failure, printable
from sandport.sync.ledger import Ledger
from sandport.sync.local import open_host_target
from sandport.sync.meter import Meter
from sandport.sync.mirror import KnownPaths, Mirror
from sandport.sync.protection import Protection
from sandport.sync.rehearsal import RehearsalTree
from sandport.sync.result import SkipKind, SyncProgress, SyncResult
from sandport.sync.scratch import scratch_name
from sandport.sync.selection import Selection
from sandport.sync.special import refuse_special
from sandport.sync.spool import Spool
from sandport.sync.target import TargetTree
from sandport.sync.unpack import inspect, unpack, unpack_file
from sandport.transfer import by_socket, script
from sandport.transfer.shell import stalled, unreachable
from sandport.transfer.tar_words import notices_in
from sandport.transfer.thread import in_a_thread
from sandport.transfer.told import failure_of, of_worker, told_by

if TYPE_CHECKING:
    from sandport.sync import HostPath
    from sandport.transfer.choice import Choice, OnProgress
    from sandport.transfer.far import Far

__all__ = ["sync_out"]

_HEADERS_BYTES: Final = 4096
"""Of an archive, for each entry: a header, and a long name or a time before it."""

_SLACK_BYTES: Final = 1 << 20

_BATCH_BYTES: Final = 1 << 20
"""Written to the disk at once, off the event loop."""

_LONGEST_HEAD_BYTES: Final = 64 << 10
_TELL_EVERY_S: Final = 0.1


async def sync_out(
    far: Far,
    source: bytes,
    local: HostPath,
    *,
    mode: int | None,
    choice: Choice,
    dry_run: bool,
    max_bytes: int,
    max_entries: int,
    tell: OnProgress | None,
) -> SyncResult:
    """`Sandbox.sync_out` for a sandbox that is not a directory of this machine."""
    if mode is not None and not 0 <= mode <= 0o777:
        raise ValueError(f"mode {mode} is not a set of permission bits; write it in octal, such as 0o600 or 0o755")
    target = os.fsencode(local)
    refuse_special(target, shown=target)
    await far.dialect()
    selection = choice.selection(above=False)
    account = Account(KnownPaths() if choice.delete else None)
    heard = _Heard()
    with _spool_for(target, max_bytes + max_entries * _HEADERS_BYTES + _SLACK_BYTES) as spool:
        intake = _Intake(source, spool, mode, tell)
        if not (far.has_socket and await _by_socket(far, source, intake, heard, delete=choice.delete)):
            await _by_command(far, source, intake, heard)
        landing = _Landing(
            spool=spool,
            source=source,
            target=target,
            name=intake.name,
            mode=mode,
            selection=selection,
            account=account,
            heard=heard,
            delete=choice.delete,
            protect=choice.protect,
            state=choice.state,
            dry_run=dry_run,
            # The top of the tree is a member of its archive and no name in it.
            bounds=Bounds(LinkRule.INSIDE, max_bytes, max_entries + 1),
        )
        stop = threading.Event()
        return await in_a_thread(lambda: landing.run(Meter(stop.is_set, None), tell), stop)


def _spool_for(target: bytes, max_bytes: int) -> Spool:
    """A spool on the target's file system; nothing on the way to the target is made."""
    place = os.path.abspath(target)
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    try:
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise failure(error, place, "write into") from error
    try:
        return Spool.beside(fd, max_bytes=max_bytes)
    finally:
        os.close(fd)


# ------------------------------------------------------------------ what comes


class _Intake:
    """What comes from the sandbox: what the source is, then its archive.

    Attributes:
        name: The source's own name where it is a file; None for a directory. Known once `head` has returned.
        size_bytes: How much of the archive has come.
    """

    def __init__(self, source: bytes, spool: Spool, mode: int | None, tell: OnProgress | None) -> None:
        self.name: bytes | None = None
        self.size_bytes = 0
        self._source = source
        self._spool = spool
        self._mode = mode
        self._tell = tell
        self._next_s = 0.0

    def head(self, said: bytes) -> int | None:
        """Take in what the source is; how many bytes of `said` that was, or None where it goes on.

        Raises:
            SyncError: It is not what a script of ours says.
            ValueError: A mode is for a single file.
        """
        line, mark, rest = said.partition(b"\n")
        words = line.split(b" ")
        if mark and line == b"d":
            if self._mode is not None:
                raise ValueError(
                    f"mode is for a single file, but {printable(self._source)} is a directory; its files keep their own"
                )
            return len(line) + 1
        if mark and len(words) == 2 and words[0] == b"f" and words[1].isdigit() and len(words[1]) < 6:
            size = int(words[1])
            if len(rest) >= size:
                self.name = _checked_name(rest[:size])
                return len(line) + 1 + size
        elif mark or len(said) > _LONGEST_HEAD_BYTES:
            raise SyncError(
                f"the sandbox's shell did not say what {printable(self._source)} is; nothing was written",
                path=self._source,
            )
        return None

    def take(self, piece: bytes | memoryview) -> None:
        """Keep a piece of the archive; blocks on the disk.

        Raises:
            SyncError: It is past the ceiling, or the disk is full.
        """
        self._spool.write(piece)
        self.size_bytes += len(piece)
        if self._tell is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _TELL_EVERY_S
            self._tell(SyncProgress(files_done=0, files_total=0, bytes_done=self.size_bytes, bytes_total=0))


class _Heard(Ledger):
    """What the sandbox's tar says, until it is known which of it was wanted: it is not told what is left out."""

    def __init__(self) -> None:
        super().__init__()
        self._said: list[tuple[bytes, str, SkipKind | None]] = []

    def skip(self, path: bytes, reason: str, kind: SkipKind) -> None:
        """Note what cannot be copied."""
        self._said.append((path, reason, kind))

    def change(self, path: bytes, reason: str) -> None:
        """Note what was changed while it was read."""
        self._said.append((path, reason, None))

    def tell(self, account: Account, selection: Selection | None) -> None:
        """Note all of it where it belongs, but for what a selection that has learned all there is leaves out."""
        for path, reason, kind in self._said:
            # Whether it is a directory, nobody says: one that cannot be opened is told of in the words for a file.
            if selection is not None and any(selection.matches(path, directory) for directory in (False, True)):
                continue
            if kind is None:
                account.change(path, reason)
            else:
                account.skip(path, reason, kind)


def _checked_name(name: bytes) -> bytes:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name:
        raise SyncError(f"the sandbox calls the file {printable(name)}, which is no name; nothing was written")
    if name.startswith(RESERVED_PREFIX):
        raise SyncError(
            f"{printable(name)} is refused: names that begin with .sandport- are reserved; choose another name",
            path=name,
        )
    return name


async def _by_socket(far: Far, source: bytes, intake: _Intake, heard: _Heard, *, delete: bool) -> bool:
    """Have it through a socket; False where the worker cannot reach one, and nothing has come."""
    scratch = scratch_name()
    said = await far.shell.ask(script.find_source(scratch, source), scratch, source)
    size = intake.head(said)
    if size is None:
        raise SyncError(f"the sandbox's shell did not say what {printable(source)} is", path=source)
    try:
        notes = await by_socket.receive(far.commands, said[size:], intake.take, far.patience)
    except WireError as error:
        if unreachable(error) and not intake.size_bytes:
            return False
        told = of_worker(error, source)
        if told is error:
            raise
        raise told from error
    if notes and delete:
        raise SyncError(
            f"the sandbox did not send everything, so nothing was deleted ({notes[0]}); copy without delete",
            path=source,
        )
    for note in notes:
        if not notices_in(note.encode(), heard):
            heard.change(b"", note)
    return True


async def _by_command(far: Far, source: bytes, intake: _Intake, heard: _Heard) -> None:
    """Have it through a command's output."""
    scratch = scratch_name()
    head: bytearray | None = bytearray()
    batch: list[bytes] = []
    batched = 0

    def write(pieces: list[bytes]) -> None:
        for piece in pieces:
            intake.take(piece)

    async def flush() -> None:
        nonlocal batched
        pieces = batch.copy()
        batch.clear()
        batched = 0
        # A cancel waits for it: the spool must stay what it is until then.
        await in_a_thread(lambda: write(pieces), threading.Event())

    async def take(stream: str, data: bytes) -> None:
        nonlocal head, batched
        if stream != "stdout":
            return
        if head is not None:
            head += data
            size = intake.head(bytes(head))
            if size is None:
                return
            data, head = bytes(head[size:]), None
        batch.append(data)
        batched += len(data)
        if batched >= _BATCH_BYTES:
            await flush()

    running = asyncio.ensure_future(far.shell.run(script.send(scratch, source, far.create_options), on_output=take))
    outcome = await _while_it_moves(running, lambda: intake.size_bytes + batched, far.patience.stall_s)
    await flush()
    told = told_by(outcome, scratch)
    said = told.said if told is not None else bytes(outcome.stderr)
    understood = notices_in(said, heard) and not outcome.stderr.dropped_bytes
    if told is not None and not (told.kind == "tar" and understood):
        raise failure_of(outcome, told, source)
    if head is not None:
        raise SyncError(f"the sandbox sent nothing of {printable(source)}; nothing was written", path=source)


async def _while_it_moves(running: asyncio.Task[Outcome], count: Callable[[], int], stall_s: float) -> Outcome:
    """The end of a task, unless nothing moves for too long."""
    try:
        last = -1
        while True:
            await asyncio.wait((running,), timeout=stall_s)
            if running.done():
                return running.result()
            if count() == last:
                raise stalled("the sandbox sent nothing", stall_s)
            last = count()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait((running,))


# ------------------------------------------------------------------ where it goes


class _Landing:
    """A whole archive on its way into the target; blocking."""

    def __init__(
        self,
        *,
        spool: Spool,
        source: bytes,
        target: bytes,
        name: bytes | None,
        mode: int | None,
        selection: Selection | None,
        account: Account,
        heard: _Heard,
        delete: bool,
        protect: Sequence[bytes],
        state: bytes | None,
        dry_run: bool,
        bounds: Bounds,
    ) -> None:
        self._spool = spool
        self._source = source
        self._target = target
        self._name = name
        self._mode = mode
        self._selection = selection
        self._account = account
        self._heard = heard
        self._delete = delete
        self._protect = protect
        self._state = state
        self._dry_run = dry_run
        self._bounds = bounds

    def run(self, meter: Meter, tell: OnProgress | None) -> SyncResult:
        """Look at all of it, then write it."""
        result = self._write(meter)
        if tell is not None:
            size, files = result.total_bytes, result.files
            tell(SyncProgress(files_done=files, files_total=files, bytes_done=size, bytes_total=size))
        return result

    def _write(self, meter: Meter) -> SyncResult:
        fd, account = self._spool.fd, self._account
        inspection = None
        if self._name is None:
            inspection = inspect(fd, bounds=self._bounds, selection=self._selection, poll=meter.poll)
        self._heard.tell(account, self._selection)
        mirror = None
        if self._delete:
            mirror = Mirror(
                removed=account.delete,
                poll=meter.poll,
                selection=self._selection,
                protection=Protection(sources=self._protect, state=self._state, this_machine=True),
                rehearsal=self._dry_run,
            )
        with contextlib.ExitStack() as stack:
            place = open_host_target(self._target, self._name, make=not self._dry_run)
            tree: TargetTree | RehearsalTree
            spares = mirror is None or inspection is None
            if place.fd is not None:
                stack.callback(os.close, place.fd)
            if place.fd is None or self._dry_run:
                tree = RehearsalTree(place.fd, label=place.label, mirror=mirror, spares=spares)
            else:
                tree = TargetTree(place.fd, label=place.label, mirror=mirror, spares=spares)
            if inspection is None:
                assert self._name is not None  # no directory, so it has a name
                return unpack_file(
                    fd,
                    tree,
                    place.name or self._name,
                    path=self._source,
                    mode=self._mode,
                    meter=meter,
                    account=account,
                    max_bytes=self._bounds.max_bytes,
                )
            return unpack(
                fd,
                tree,
                place.name,
                inspection=inspection,
                meter=meter,
                bounds=self._bounds,
                account=account,
                mirror=mirror,
                selection=self._selection,
            )
