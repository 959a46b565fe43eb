"""The host's end of mcp: its client, which starts the server and says hello."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters, stdio_client

from tests.bench.peer_calls import only_child

SERVER = Path(__file__).with_name("mcp_server.py")


class McpClient:
    """One server."""

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self.worker_pid = 0

    async def start(self) -> None:
        server = StdioServerParameters(command=sys.executable, args=["-P", str(SERVER)])
        self._client = await self._stack.enter_async_context(Client(stdio_client(server)))
        self.worker_pid = only_child()

    async def echo(self, text: str) -> str:
        answer = await self._client.call_tool("echo", {"text": text})
        return str(answer.content[0].text)

    echo_alone = echo

    async def stop(self) -> None:
        await self._stack.aclose()
