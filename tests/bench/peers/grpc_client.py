"""The host's end of grpc.aio: the ceilings of both ends are off, or 16 MiB would be refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile

import grpc
from google.protobuf.wrappers_pb2 import StringValue

from . import grpc_server
from .grpc_server import NO_CEILING


class GrpcClient:
    """One server."""

    worker_pid = 0

    async def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            grpc_server.__file__,
            f"{self._folder.name}/s",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.worker_pid = self._process.pid
        assert self._process.stdout is not None
        path = (await self._process.stdout.readline()).decode().strip()
        self._channel = grpc.aio.insecure_channel(f"unix:{path}", options=NO_CEILING)
        self._echo = self._channel.unary_unary(
            "/bench.Echo/Echo",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=StringValue.FromString,
        )

    async def echo(self, text: str) -> str:
        answer = await self._echo(StringValue(value=text))
        return str(answer.value)

    echo_alone = echo

    async def stop(self) -> None:
        assert self._process.stdin is not None
        await self._channel.close()
        self._process.stdin.close()
        await self._process.wait()
        self._folder.cleanup()
