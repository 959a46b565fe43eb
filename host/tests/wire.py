"""A client with the test at the other end of its pipes: frames are looked at and answers written by hand."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from sandport.worker.client import WorkerClient
from sandport.worker.stderr import Level
from sandport_protocol.capabilities import MANDATORY
from sandport_protocol.codec import encode
from sandport_protocol.limits import Limits
from sandport_protocol.v1 import InitializeParams, PeerInfo

Message = dict[str, Any]


def hello_with(limits: Limits) -> InitializeParams:
    """What a host says first."""
    return InitializeParams(
        protocol_versions=(1,),
        host=PeerInfo(name="test", version="0"),
        store_id="st",
        state_dir="/nowhere",
        limits=limits,
    )


class Pipe(asyncio.WriteTransport):
    """The writing end of a pipe that holds everything, and is full when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


class Wire:
    """A `WorkerClient` that has said hello, and the other end of it."""

    def __init__(self, limits: Limits | None = None, on_late: Callable[[str, Any, Raw | None], None] | None = None):
        self.limits = limits or Limits()
        self.pipe = Pipe()
        self.records: list[tuple[Level, str]] = []
        self.fatal: list[str] = []
        self.wedge: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.client = WorkerClient(
            "scripted",
            limits=self.limits,
            log=lambda level, line: self.records.append((level, line)),
            on_late=on_late or (lambda method, params, result: None),
            on_fatal=self.fatal.append,
            on_wedged=self.wedge.set_result,
        )
        self.client.write_to(self.pipe)
        self._read = 0

    async def greet(self) -> "Wire":
        """Answer the hello, and say that calls are served."""
        greeting = asyncio.ensure_future(self.client.hello(hello_with(self.limits)))
        await turn()
        (hello,) = self.frames()
        self.answer(
            hello["id"],
            {
                "protocolVersion": 1,
                "provider": {"name": "scripted", "version": "0"},
                "supportedMethods": list(MANDATORY),
                "limits": json.loads(encode(self.limits)),
            },
        )
        await greeting
        self.say({"method": "ready", "params": {}})
        await self.client.ready
        assert [frame["method"] for frame in self.frames()] == ["initialized"]
        return self

    def frames(self) -> list[Message]:
        """What the client wrote since the last look."""
        data = bytes(self.pipe.written[self._read :])
        self._read += len(data)
        assert data.endswith(b"\n") or not data, "half a frame"
        return [json.loads(line) for line in data.split(b"\n")[:-1]]

    def say(self, message: Message) -> None:
        self.raw(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def answer(self, request: Any, result: Any) -> None:
        self.say({"id": request, "result": result})

    def refuse(self, request: Any, code: int, message: str = "no", **data: Any) -> None:
        self.say({"id": request, "error": {"code": code, "message": message, "data": data}})

    def raw(self, data: bytes) -> None:
        self.client.data_received(data)


async def turn(count: int = 3) -> None:
    """Let everything that is ready run."""
    for _ in range(count):
        await asyncio.sleep(0)
