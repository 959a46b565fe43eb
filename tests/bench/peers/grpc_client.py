"""The host's end of grpc.aio: the ceilings of both ends are off, or 16 MiB would be refused."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
from google.protobuf.wrappers_pb2 import StringValue

SERVER = Path(__file__).with_name("grpc_server.py")
NO_CEILING = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class GrpcClient:
    """One server."""

    worker_pid = 0

    async def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            str(SERVER),
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
