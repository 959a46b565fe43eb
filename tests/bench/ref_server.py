"""The server of the reference pair: nothing is imported that it does not need, as its start is a floor too."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable

import msgspec

ALLOCATOR_READY = "allocator-ready"
"""An argument: free a buffer larger than a read first, as the product does."""
MORE_THAN_A_READ_BYTES = 512 * 1024


class Echo(msgspec.Struct):
    """Params and result."""

    text: str


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
    if ALLOCATOR_READY in sys.argv:
        bytes(MORE_THAN_A_READ_BYTES)
    asyncio.run(serve())
