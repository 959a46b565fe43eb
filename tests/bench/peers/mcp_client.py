"""The host's end of mcp: its client, which starts the server and says hello."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters, stdio_client

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


def only_child() -> int:
    """The process that a library started and does not name; 0 where there is no /proc or there are several."""
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if len(children) == 1 else 0
