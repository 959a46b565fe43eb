"""The socket that one archive runs through: counted, half-closed, and given back however the call ends.

Bytes are relayed through one large buffer instead of giving the socket to the program that packs or unpacks: only so
can they be counted, and the end of the archive be seen, and both are what a host believes an answer by.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from sandport_protocol.errors import Detail, Unavailable

BUFFER_BYTES = 1024 * 1024
"""One piece. A pipe holds as much, where the system lets it; a socket brings less at a time."""


class Source(Protocol):
    """Where an archive comes from; a `BulkStream` is one."""

    async def read_into(self, buffer: memoryview) -> int:
        """Read some bytes; how many, 0 at the end of the stream."""
        ...


class Sink(Protocol):
    """Where an archive goes; a `BulkStream` is one."""

    async def write(self, data: memoryview) -> None:
        """Write all of the bytes."""
        ...

    def end(self) -> None:
        """Say that no more follows."""
        ...


class BulkStream:
    """One connection to the socket of a `syncIn` or a `syncOut`.

    Attributes:
        bytes_in: What was read from it so far.
        bytes_out: What was written to it so far.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Use a connected socket that does not block; whoever opened it closes it."""
        self.bytes_in = 0
        self.bytes_out = 0
        self._socket = connection
        self._loop = asyncio.get_running_loop()

    async def read_into(self, buffer: memoryview) -> int:
        """Read some bytes; how many, 0 at the end of the stream.

        Cancel: nothing is lost that was counted.

        Raises:
            Unavailable: The connection broke.
        """
        try:
            size = await self._loop.sock_recv_into(self._socket, buffer)
        except OSError as error:
            raise _broke(error) from error
        self.bytes_in += size
        return size

    async def write(self, data: memoryview) -> None:
        """Write all of the bytes, as the host takes them.

        Cancel: some of them may have gone; what went is counted.

        Raises:
            Unavailable: The host closed the connection.
        """
        at = 0
        while at < len(data):
            try:
                sent = self._socket.send(data[at:])
            except BlockingIOError:
                await ready(self._loop.add_writer, self._loop.remove_writer, self._socket.fileno())
                continue
            except OSError as error:
                raise _broke(error) from error
            at += sent
            self.bytes_out += sent

    def end(self) -> None:
        """No more is written: the host reads the end of the stream.

        Raises:
            Unavailable: The host closed the connection.
        """
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise _broke(error) from error


@contextlib.asynccontextmanager
async def connect(path: str) -> AsyncIterator[BulkStream]:
    """Connect to the socket that a `syncIn` or `syncOut` names; closed when the block is left.

    Args:
        path: `params.socket`.

    Raises:
        Unavailable: It cannot be reached; `dispatched` is `no`, and the host moves the files by a command instead.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        # Of a Unix socket the writing side's buffer is all that is under way; the system gives what its ceiling allows.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        try:
            await asyncio.get_running_loop().sock_connect(connection, path)
        except OSError as error:
            raise Unavailable(
                f"the host's socket cannot be reached from this worker: {error.strerror or error}",
                detail=Detail(field="socket"),
                dispatched="no",
            ) from error
        yield BulkStream(connection)


async def ready(
    watch: Callable[[int, Callable[[], object]], object], forget: Callable[[int], object], descriptor: int
) -> None:
    """Wait until a descriptor can be read, or written: `ready(loop.add_reader, loop.remove_reader, descriptor)`."""
    waiting = asyncio.get_running_loop().create_future()
    watch(descriptor, lambda: None if waiting.done() else waiting.set_result(None))
    try:
        await waiting
    finally:
        forget(descriptor)


def _broke(error: OSError) -> Unavailable:
    why = error.strerror or os.strerror(error.errno or 0)
    return Unavailable(f"the connection to the host's socket broke: {why}", detail=Detail(reason="broken"))
