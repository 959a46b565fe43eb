"""The floor of a call: the least that a JSON-RPC pair over pipes can do with the same loop and the same codec.

Protocol callbacks, one task for each request in the server, a dict of futures in the client; no deadline, no cancel,
no typed error, no ceiling. This is the host's end; `ref_server` is the other.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import msgspec

from . import ref_server
from .ref_server import Echo, Floor, Lines


class Ask(msgspec.Struct):
    """A request as the client writes it."""

    id: int
    method: str
    params: Echo
    jsonrpc: str = "2.0"


class Answered(msgspec.Struct):
    """An answer as the client reads it."""

    id: int
    result: msgspec.Raw
    jsonrpc: str = "2.0"


class RefClient:
    """The host's end.

    Args:
        allocator_ready: Spare both ends the mapping of memory for each read, which is a trap and no floor.
    """

    def __init__(self, *, allocator_ready: bool = False) -> None:
        self._arguments = (ref_server.ALLOCATOR_READY,) if allocator_ready else ()
        if allocator_ready:
            bytes(ref_server.MORE_THAN_A_READ_BYTES)
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Answered).decode
        self._decode_echo = msgspec.json.Decoder(Echo).decode
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_id = 0

    async def start(self) -> None:
        """Spawn the server and connect to it; it may not have come up yet."""
        self._loop = asyncio.get_running_loop()
        self._process = spawn_server(*self._arguments)
        self.worker_pid = self._process.pid
        self._writer, _ = await self._loop.connect_write_pipe(Floor, self._process.stdin)
        self._reader, _ = await self._loop.connect_read_pipe(
            lambda: Lines(self._take, lambda: None), self._process.stdout
        )

    def _take(self, line: bytes) -> None:
        answer = self._decode(line)
        self._waiting.pop(answer.id).set_result(answer.result)

    async def echo(self, text: str) -> str:
        """One call."""
        self._last_id += 1
        future = self._waiting[self._last_id] = self._loop.create_future()
        self._writer.write(self._encode(Ask(self._last_id, "echo", Echo(text))) + b"\n")
        return self._decode_echo(await future).text

    echo_alone = echo

    async def stop(self) -> None:
        """End the server."""
        self._writer.close()
        await self._loop.run_in_executor(None, self._process.wait)
        self._reader.close()


def spawn_server(*arguments: str) -> subprocess.Popen[bytes]:
    """The server's process, with unbuffered pipes."""
    command = [sys.executable, "-P", ref_server.__file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd="/")
