"""The host's side of one `syncIn` or `syncOut`, for tests: a socket in a folder of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from types import TracebackType
from typing import Self

_PIECE_BYTES = 256 * 1024


class ArchiveSocket:
    """A Unix socket on which a test sends one archive to a provider, or takes one from it.

    ```python
    async with ArchiveSocket() as bulk:
        request = host.start("syncIn", types.SyncInParams(sandbox_id=..., socket=bulk.path, path="src"))
        await bulk.send(archive)
        result = await request.result()
    ```

    Attributes:
        path: What `socket` of the params is.
        received: What came so far.
    """

    def __init__(self) -> None:
        self.path = ""
        self.received = bytearray()
        self._folder = ""
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection: socket.socket | None = None

    async def __aenter__(self) -> Self:
        """Make the folder (0700) and listen."""
        self._folder = tempfile.mkdtemp(prefix="sandport-test-")
        self.path = os.path.join(self._folder, "s")
        self._listening.bind(self.path)
        self._listening.listen(1)
        self._listening.setblocking(False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything and remove the folder."""
        self.close()
        self._listening.close()
        os.unlink(self.path)
        os.rmdir(self._folder)

    async def connected(self) -> socket.socket:
        """The connection, once the provider has made it."""
        if self._connection is None:
            self._connection, _ = await asyncio.get_running_loop().sock_accept(self._listening)
            self._connection.setblocking(False)
        return self._connection

    async def send(self, data: bytes, *, end: bool = True) -> int:
        """Send bytes, and the end of the stream after them; how many the provider's side took before it closed.

        Args:
            data: The archive, or a part of it.
            end: Whether no more follows.
        """
        connection, loop = await self.connected(), asyncio.get_running_loop()
        sent = 0
        try:
            while sent < len(data):
                piece = memoryview(data)[sent : sent + _PIECE_BYTES]
                await loop.sock_sendall(connection, piece)
                sent += len(piece)
            if end:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            return sent  # the provider reads no more; its answer says why
        return sent

    async def receive(self) -> bytes:
        """Everything that the provider sends, to the end of the stream."""
        connection, loop = await self.connected(), asyncio.get_running_loop()
        while piece := await loop.sock_recv(connection, _PIECE_BYTES):
            self.received += piece
        return bytes(self.received)

    def close(self) -> None:
        """Break the connection off, as a host does that gives up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
