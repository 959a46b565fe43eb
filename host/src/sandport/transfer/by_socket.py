"""An archive over a Unix socket of this side's: one connection of one worker, watched together with its call.

Whichever of the two fails first decides, and the other is ended. The socket stands in a folder that only this user may
enter, made for one call and gone after it; where this process is killed before, the next one's call removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from sandport.apart import apart
from sandport.closing import finished
from sandport.errors import ProtocolViolation, SandportError, Unavailable
from sandport.sync.descent import OPEN_DIRECTORY
from sandport.sync.scratch import clear, hold
from sandport.transfer.patience import Patience
from sandport.transfer.shell import Commands, stalled
from sandport_protocol.octets import pack
from sandport_protocol.v1 import (
    SOCKET_PATH_BYTES,
    SyncInParams,
    SyncInResult,
    SyncOutParams,
    SyncOutResult,
)

__all__ = ["Line", "receive", "send"]

_LOOKS: Final = 8
"""How often, in the time that a stream may stand still, somebody looks whether it does."""

_PIECE_BYTES: Final = 1 << 20

_FOLDER: Final = re.compile(rb"sandport-socket-[a-z0-9_]{8}")
_FOLDER_TRIES: Final = 8
"""A new folder is taken for left over only by who looks in the moment before it is locked."""


class Line:
    """This side's end of the connection, for the thread that uses it.

    Attributes:
        moved_bytes: How much has passed so far.
        ended: Whether the other side can know that nothing more is sent.
        count: Tells that where the kernel moves bytes past this object.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._connection = connection
        self.moved_bytes = 0
        self.ended = False
        self.count: Callable[[], int] = lambda: self.moved_bytes

    def fileno(self) -> int:
        """The descriptor."""
        return self._connection.fileno()

    def write(self, data: bytes | memoryview, /) -> None:
        """Send all of it."""
        self._connection.sendall(data)
        self.moved_bytes += len(data)

    def read_into(self, buffer: memoryview) -> int:
        """Receive some bytes; 0 at the end."""
        size = self._connection.recv_into(buffer)
        self.moved_bytes += size
        return size

    def end(self) -> None:
        """Nothing more is sent."""
        self.ended = True
        self._connection.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Break it off; whoever waits in it goes on with an error. From any thread."""
        with contextlib.suppress(OSError):  # it is broken off already
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the descriptor back; nobody may use it any more."""
        self._connection.close()


async def send(commands: Commands, path: bytes, pack_into: Callable[[Line], int], patience: Patience) -> None:
    """Have the worker unpack below a path what `pack_into` writes.

    Args:
        commands: The sandbox.
        path: Below its working directory.
        pack_into: Writes the archive, in a thread of its own, and says how many bytes it was; stopped by an error of
            the connection.
        patience: The bounds.

    Raises:
        Unavailable: The worker could not come to the socket; with `dispatched` no nothing has happened.
        ProtocolViolation: What the worker says is not what was sent.
        SandportError: What the worker said, or `pack_into` raised.

    Cancel: breaks the stream off, waits for the worker's answer at most its cancel grace.
    """

    def work(line: Line) -> int:
        size = pack_into(line)
        line.end()
        return size

    async with _meeting() as (name, listener):
        call = asyncio.ensure_future(
            commands.call(
                "syncIn",
                SyncInParams(sandbox_id=commands.id, socket=name, path=pack(path)),
                SyncInResult,
                deadline_s=None,
            )
        )
        await _Exchange(name, listener, call, patience, "syncIn").run(work, may_answer_early=False)


async def receive(
    commands: Commands, path: bytes, take: Callable[[memoryview], None], patience: Patience
) -> tuple[str, ...]:
    """Have the worker send an archive of a path; what it has to say of it.

    Args:
        commands: The sandbox.
        path: Absolute.
        take: Takes each piece, in a thread of its own; what it raises ends the transfer.
        patience: The bounds.

    Raises, Cancel: As `send`.
    """

    def work(line: Line) -> int:
        total = 0
        buffer = memoryview(bytearray(_PIECE_BYTES))
        while size := line.read_into(buffer):
            take(buffer[:size])
            total += size
        return total

    async with _meeting() as (name, listener):
        call: asyncio.Future[SyncOutResult] = asyncio.ensure_future(
            commands.call(
                "syncOut",
                SyncOutParams(sandbox_id=commands.id, socket=name, path=pack(path)),
                SyncOutResult,
                deadline_s=None,
            )
        )
        await _Exchange(name, listener, call, patience, "syncOut").run(work, may_answer_early=True)
        return call.result().notes


@contextlib.asynccontextmanager
async def _meeting() -> AsyncIterator[tuple[str, socket.socket]]:
    """A socket that listens, in a folder of its own."""
    folder, held = _short_folder()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            name = os.path.join(folder, "s")
            listener.bind(name)
            os.chmod(name, 0o600)
            listener.listen(1)
            listener.setblocking(False)
            yield name, listener
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _short_folder() -> tuple[str, int]:
    """A folder for this user alone whose path leaves room for a socket's name, and what holds it until it is closed."""
    for where in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        folder = os.path.join(where, "sandport-socket-01234567")
        try:
            if len(folder.encode()) + 2 > SOCKET_PATH_BYTES:
                continue
        except UnicodeEncodeError:
            continue  # a folder with other bytes cannot be named to a worker
        _clear_left_over(where)
        for _ in range(_FOLDER_TRIES):
            folder = tempfile.mkdtemp(prefix="sandport-socket-", dir=where)
            try:
                os.chmod(folder, 0o700)  # whatever the umask takes
                fd = os.open(folder, OPEN_DIRECTORY)
                try:
                    return folder, hold(fd, os.fsencode(folder), None)
                finally:
                    os.close(fd)
            except (FileExistsError, FileNotFoundError):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(folder)  # another host took it for left over
    raise Unavailable("no temporary folder has a path short enough for a socket; set TMPDIR to /tmp", dispatched="no")


def _clear_left_over(where: str) -> None:
    """Remove the folders of hosts that were killed before a worker came to their sockets."""
    with contextlib.suppress(OSError):  # what cannot be opened is no place to clear
        fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            clear(fd, {os.geteuid()}, form=_FOLDER)
        finally:
            os.close(fd)


class _Exchange:
    """One call, one connection, one thread."""

    def __init__(
        self,
        name: str,
        listener: socket.socket,
        call: asyncio.Future[SyncInResult] | asyncio.Future[SyncOutResult],
        patience: Patience,
        method: str,
    ) -> None:
        self._name = name
        self._listener = listener
        self._call = call
        self._patience = patience
        self._method = method
        self._line: Line | None = None

    async def run(self, work: Callable[[Line], int], *, may_answer_early: bool) -> None:
        stream: asyncio.Future[int] | None = None
        try:
            line = await self._connected(may_answer_early=may_answer_early)
            stream = apart(lambda: work(line), name="sandport-transfer")
            moved_bytes = await self._streamed(line, stream, may_answer_early=may_answer_early)
            await self._settled(moved_bytes)
        finally:
            await finished(self._end(self._line, stream))

    async def _connected(self, *, may_answer_early: bool) -> Line:
        """The one connection; nobody else gets one after it."""
        loop = asyncio.get_running_loop()
        came: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._listener, lambda: None if came.done() else came.set_result(None))
        try:
            await asyncio.wait(
                (came, self._call), timeout=self._patience.connect_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            loop.remove_reader(self._listener)
        if came.done():
            self._line = Line(self._listener.accept()[0])
            return self._line
        if self._call.done():
            self._call.result()
            if may_answer_early:
                # It may have connected, sent all and answered before this side looked.
                with contextlib.suppress(BlockingIOError):
                    self._line = Line(self._listener.accept()[0])
                    return self._line
            raise self._lie("it answered and had not come to the socket")
        raise Unavailable(
            f"the worker did not come to the socket of {self._method} for {self._patience.connect_s:g} s",
            dispatched="unknown",
        )

    async def _streamed(self, line: Line, stream: asyncio.Future[int], *, may_answer_early: bool) -> int:
        """How many bytes passed, once all of them have."""
        self._listener.close()
        # Nobody needs it any more; so a host that is killed over a long transfer leaves nothing there either.
        shutil.rmtree(os.path.dirname(self._name), ignore_errors=True)
        looks_s = self._patience.stall_s / _LOOKS
        still, last = 0, -1
        waiting: set[asyncio.Future[Any]] = {stream, self._call}
        while not stream.done():
            await asyncio.wait(waiting, timeout=looks_s, return_when=asyncio.FIRST_COMPLETED)
            if stream.done():
                break
            if self._call.done():
                self._call.result()
                if not may_answer_early and not line.ended:
                    raise self._lie("it answered before it had read everything")
                waiting.discard(self._call)
            moved = line.count()
            still = still + 1 if moved == last else 0
            last = moved
            if still >= _LOOKS:
                raise stalled("no byte moved between this machine and the sandbox", self._patience.stall_s)
        error = stream.exception()
        if isinstance(error, OSError) and not isinstance(error, SandportError):
            await self._broken(error)
        return stream.result()

    async def _broken(self, error: OSError) -> None:
        """The worker closed its end early: its answer says why, if one comes."""
        await asyncio.wait((self._call,), timeout=self._patience.close_s / 2)
        if self._call.done():
            self._call.result()
        raise self._lie(f"it closed the socket before it had everything ({error.strerror or error})") from error

    async def _settled(self, moved_bytes: int) -> None:
        """Hold the answer against what passed."""
        await asyncio.wait((self._call,), timeout=self._patience.settle_s)
        if not self._call.done():
            raise stalled(f"the worker did not answer {self._method} after the last byte", self._patience.settle_s)
        told = self._call.result().bytes
        if told != moved_bytes:
            raise self._lie(f"it tells of {told} bytes, and {moved_bytes} passed")

    async def _end(self, line: Line | None, stream: asyncio.Future[int] | None) -> None:
        """End what still goes on, and wait for it."""
        # Who waits in the queue of the listener must learn that nobody comes.
        self._listener.close()
        self._call.cancel()
        if line is not None:
            line.cut()
        # The call bounds itself by its cancel grace. The thread ends with the connection that it works with; what else
        # it works with is the caller's, and must stay what it is until then.
        await asyncio.wait((self._call,), timeout=self._patience.close_s)
        if stream is not None:
            await asyncio.wait((stream,))
        for future in (self._call, stream):
            if future is not None and future.done() and not future.cancelled():
                future.exception()  # seen: what decided is raised already
        if line is not None:
            line.close()

    def _lie(self, what: str) -> ProtocolViolation:
        return ProtocolViolation(f"the worker's {self._method} cannot be believed: {what}", dispatched="unknown")
