"""The host's end of python-lsp-jsonrpc: a thread reads, as the server of that name has it; whoever calls may block."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from pylsp_jsonrpc.endpoint import Endpoint
from pylsp_jsonrpc.streams import JsonRpcStreamReader, JsonRpcStreamWriter

SERVER = Path(__file__).with_name("lsp_server.py")


class LspClient:
    """One server."""

    worker_pid = 0

    async def start(self) -> None:
        command = [sys.executable, "-P", str(SERVER)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220 - as it is used
        self.worker_pid = self._process.pid
        self._endpoint = Endpoint({}, JsonRpcStreamWriter(self._process.stdin).write)
        listen = JsonRpcStreamReader(self._process.stdout).listen
        self._reader = threading.Thread(target=listen, args=(self._endpoint.consume,), daemon=True)
        self._reader.start()

    async def echo(self, text: str) -> str:
        answer = await asyncio.wrap_future(self._endpoint.request("echo", {"text": text}))
        return str(answer["text"])

    async def echo_alone(self, text: str) -> str:
        """With nothing else to do the caller blocks, which is this library's shortest way."""
        return str(self._endpoint.request("echo", {"text": text}).result()["text"])

    async def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        await asyncio.to_thread(self._process.wait)
        self._reader.join()
        self._process.stdout.close()
