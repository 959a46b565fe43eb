"""A measuring process: carries out orders on one kind of subject until its input ends.

`python -m tests.bench.measuring KIND CORES`, started by `order.subject`. One process per variant, so that none has the
other's imports, objects or threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from typing import Protocol, Self

import msgspec

from .machine import stay_on
from .order import Answer, Order


class Measured(Protocol):
    """One variant of what is measured."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def do(self, order: Order) -> tuple[float, ...]:
        """Carry out one order."""


def _kinds() -> dict[str, Callable[[], Measured]]:
    """Each imports only what it needs."""

    def ref() -> Measured:
        from .echo_calls import EchoCalls
        from .ref_pair import RefClient

        return EchoCalls(RefClient)

    def ref_allocator_ready() -> Measured:
        from .echo_calls import EchoCalls
        from .ref_pair import RefClient

        return EchoCalls(lambda: RefClient(allocator_ready=True))

    def sandport() -> Measured:
        from .sandport_calls import SandportCalls

        return SandportCalls()

    def floor_commands() -> Measured:
        from .floor_commands import FloorCommands

        return FloorCommands()

    def sandport_commands() -> Measured:
        from .sandport_commands import SandportCommands

        return SandportCommands()

    def sandport_commands_isolated() -> Measured:
        from .sandport_commands import SandportCommands

        return SandportCommands(isolated=True)

    def sandport_files_by_socket() -> Measured:
        from .sandport_files import SandportFiles

        return SandportFiles(socket=True)

    def sandport_files_by_command() -> Measured:
        from .sandport_files import SandportFiles

        return SandportFiles(socket=False)

    def floor_store() -> Measured:
        from .floor_store import FloorStore

        return FloorStore()

    def sandport_store() -> Measured:
        from .sandport_store import SandportStore

        return SandportStore()

    return {
        "ref": ref,
        "ref, allocator ready": ref_allocator_ready,
        "sandport": sandport,
        "floor commands": floor_commands,
        "sandport commands": sandport_commands,
        "sandport commands, isolated": sandport_commands_isolated,
        "sandport files, socket": sandport_files_by_socket,
        "sandport files, command": sandport_files_by_command,
        "floor store": floor_store,
        "sandport store": sandport_store,
        **_peers(),
    }


def _peers() -> dict[str, Callable[[], Measured]]:
    """Other libraries; these can be had in their own environment only."""

    def peer_mcp() -> Measured:
        from .echo_calls import EchoCalls
        from .peers.mcp_client import McpClient

        return EchoCalls(McpClient)

    def peer_lsp() -> Measured:
        from .echo_calls import EchoCalls
        from .peers.lsp_client import LspClient

        return EchoCalls(LspClient)

    def peer_grpc() -> Measured:
        from .echo_calls import EchoCalls
        from .peers.grpc_client import GrpcClient

        return EchoCalls(GrpcClient)

    return {"peer mcp": peer_mcp, "peer python-lsp-jsonrpc": peer_lsp, "peer grpc.aio": peer_grpc}


async def carry_out(measured: Measured) -> None:
    """Read orders from stdin and answer them on stdout, one after the other."""
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin.buffer)
    decode = msgspec.json.Decoder(Order).decode
    async with contextlib.AsyncExitStack() as stack:
        entered: Measured | None = None
        while line := await orders.readline():
            try:
                if entered is None:
                    entered = await stack.enter_async_context(measured)
                answer = Answer(values=await entered.do(decode(line)))
            except Exception as error:  # noqa: BLE001 - whatever it is, the harness tells it and goes on
                answer = Answer(error=f"{type(error).__name__}: {error}")
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    stay_on(tuple(int(core) for core in sys.argv[2].split(",")))
    asyncio.run(carry_out(_kinds()[sys.argv[1]]()))
