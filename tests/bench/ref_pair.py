"""The floor of a call: the least that a JSON-RPC pair over pipes can do with the same loop and the same codec.

Protocol callbacks, one task for each request in the server, a dict of futures in the client; no deadline, no cancel,
no typed error, no ceiling. As a program it is the server.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec


class Echo(msgspec.Struct):
    """Params and result."""

    text: str


class Ask(msgspec.Struct):
    """A request as the client writes it."""

    id: int
    method: str
    params: Echo
    jsonrpc: str = "2.0"


class Asked(msgspec.Struct):
    """A request as the server reads it."""

    id: int
    method: str
    params: msgspec.Raw
    jsonrpc: str = "2.0"


class Answer(msgspec.Struct):
    """An answer as the server writes it."""

    id: int
    result: Echo
    jsonrpc: str = "2.0"


class Answered(msgspec.Struct):
    """An answer as the client reads it."""

    id: int
    result: msgspec.Raw
    jsonrpc: str = "2.0"


class Lines(asyncio.Protocol):
    """Cuts what comes into lines; the pieces of a long one are joined once."""

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._take = take
        self._ended = ended
        self._pieces: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        if b"\n" not in data:
            self._pieces.append(data)
            return
        self._pieces.append(data)
        *lines, rest = b"".join(self._pieces).split(b"\n")
        self._pieces = [rest] if rest else []
        for line in lines:
            self._take(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()


class Floor(asyncio.BaseProtocol):
    """What a write pipe wants for a protocol where nobody heeds its back-pressure."""

    def pause_writing(self) -> None:
        """Nothing waits here: what does not fit is buffered by the transport."""

    def resume_writing(self) -> None:
        """See above."""


class RefClient:
    """The host's end."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Answered).decode
        self._decode_echo = msgspec.json.Decoder(Echo).decode
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._last_id = 0

    async def start(self) -> None:
        """Spawn the server and connect to it; it may not have come up yet."""
        self._loop = asyncio.get_running_loop()
        self._process = spawn_server()
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

    async def stop(self) -> None:
        """End the server."""
        self._writer.close()
        await self._loop.run_in_executor(None, self._process.wait)
        self._reader.close()


def spawn_server() -> subprocess.Popen[bytes]:
    """The server's process, with unbuffered pipes."""
    command = [sys.executable, "-P", str(Path(__file__))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd="/")


async def serve() -> None:
    """The worker's end, until its input ends."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    decode = msgspec.json.Decoder(Asked).decode
    decode_echo = msgspec.json.Decoder(Echo).decode
    encode = msgspec.json.Encoder().encode
    tasks: set[asyncio.Task[None]] = set()
    writer, _ = await loop.connect_write_pipe(Floor, os.fdopen(1, "wb", 0))

    async def handle(params: Echo) -> Echo:
        return params

    async def run(request: Asked) -> None:
        result = await handle(decode_echo(request.params))
        writer.write(encode(Answer(request.id, result)) + b"\n")

    def take(line: bytes) -> None:
        task = loop.create_task(run(decode(line)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await loop.connect_read_pipe(lambda: Lines(take, lambda: ended.set_result(None)), os.fdopen(0, "rb", 0))
    await ended


if __name__ == "__main__":
    asyncio.run(serve())
