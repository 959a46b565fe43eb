"""Archives in and out of one sandbox: a tar below the sandbox's guard, and what was ordered of the stream.

Above: the provider's `syncIn` and `syncOut`. Below: the SDK's `sync`, which moves the bytes, and the guard, which ends
the tar with the sandbox or with this worker as it ends a command.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from sandport_sdk.v1 import errors, sync, types

from . import config as orders
from .hostile import hostile_archive

if TYPE_CHECKING:
    from .faults import Passage
    from .sandbox import Sandbox
    from .starter import Program

_SLOW_PIECES_PER_S = 20


class Guarded:
    """A program below a guard, as the SDK wants one."""

    def __init__(self, program: Program) -> None:
        self._program = program

    async def wait(self) -> int:
        """Its exit code, or less than 0.

        Raises:
            SandboxLost: The sandbox ended.
        """
        status = await asyncio.shield(self._program.status)
        if status is None:
            raise errors.SandboxLost("the sandbox ended while files were moved", dispatched="unknown")
        return os.waitstatus_to_exitcode(status)

    async def kill(self) -> None:
        """Kill its group."""
        await self._program.signal(signal.SIGKILL)


class _Source:
    """The host's stream, less what was ordered."""

    def __init__(self, stream: sync.BulkStream, cut: orders.Truncate | None, slow: orders.SlowStream | None) -> None:
        self._stream = stream
        self._cut = cut
        self._slow = slow

    async def read_into(self, buffer: memoryview) -> int:
        """Read some bytes; 0 at the end, and where it was cut."""
        room = buffer[: await _slowed(self._slow, len(buffer))]
        if self._cut is not None:
            room = room[: max(0, self._cut.keep_bytes - self._stream.bytes_in)]
            if not room:
                _break_off(self._cut)
                return 0
        return await self._stream.read_into(room)


class _Sink:
    """The host's stream, less what was ordered.

    Attributes:
        offered: What should have gone through it.
    """

    def __init__(self, stream: sync.BulkStream, cut: orders.Truncate | None, slow: orders.SlowStream | None) -> None:
        self.offered = 0
        self._stream = stream
        self._cut = cut
        self._slow = slow

    async def write(self, data: memoryview) -> None:
        """Write the bytes, as far as they are not lost on order."""
        self.offered += len(data)
        if self._cut is not None:
            data = data[: max(0, self._cut.keep_bytes - self._stream.bytes_out)]
        at = 0
        while at < len(data):
            piece = data[at : at + await _slowed(self._slow, len(data) - at)]
            await self._stream.write(piece)
            at += len(piece)
        if self._cut is not None and self._stream.bytes_out >= self._cut.keep_bytes:
            _break_off(self._cut)

    def end(self) -> None:
        """No more follows."""
        self._stream.end()


def _break_off(cut: orders.Truncate) -> None:
    if cut.tell == "error":
        raise errors.Unavailable("the way to the sandbox was cut while files were moved", dispatched="unknown")


async def _slowed(slow: orders.SlowStream | None, size: int) -> int:
    """How much goes at once; waited for before."""
    if slow is None:
        return size
    await asyncio.sleep(1 / _SLOW_PIECES_PER_S)
    return min(size, max(1, slow.bytes_per_s // _SLOW_PIECES_PER_S))


async def unpack(params: types.SyncInParams, sandbox: Sandbox, passage: Passage) -> types.SyncInResult:
    """Unpack what the host sends, with what was ordered of it."""
    cut = passage.find(orders.Truncate)
    async with sync.connect(params.socket) as stream:
        source = _Source(stream, cut, passage.find(orders.SlowStream))
        try:
            notes = await sync.unpack_from(source, _start(sandbox, sync.tar_in(params.path)), path=params.path)
        except errors.ProtocolViolation:
            if cut is None or cut.tell == "error":
                raise
            if cut.tell == "lie":
                await _read_away(stream)
            notes = ()
        return types.SyncInResult(bytes=stream.bytes_in, notes=notes)


async def pack(params: types.SyncOutParams, sandbox: Sandbox, passage: Passage) -> types.SyncOutResult:
    """Send what is at a path, or what was ordered instead."""
    cut = passage.find(orders.Truncate)
    hostile = passage.find(orders.HostileArchive)
    async with sync.connect(params.socket) as stream:
        sink = _Sink(stream, cut, passage.find(orders.SlowStream))
        if hostile is not None:
            await sink.write(memoryview(hostile_archive(hostile.members)))
            sink.end()
            return types.SyncOutResult(bytes=stream.bytes_out)
        notes = await sync.pack_to(_start(sandbox, sync.tar_out(params.path)), sink, path=params.path)
        lying = cut is not None and cut.tell == "lie"
        return types.SyncOutResult(bytes=sink.offered if lying else stream.bytes_out, notes=notes)


def _start(sandbox: Sandbox, argv: tuple[bytes, ...]) -> sync.Start:
    async def start(stdin: int, stdout: int, stderr: int) -> sync.Running:
        return Guarded(await sandbox.start_program(argv, (stdin, stdout, stderr)))

    return start


async def _read_away(stream: sync.BulkStream) -> None:
    buffer = memoryview(bytearray(256 * 1024))
    while await stream.read_into(buffer):
        pass
