"""The input of a process that is kept open: written in order, answered once the process's pipe took it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os

WIDE_BYTES = 1 << 20
"""How wide the pipe becomes once so much has gone through it."""


class Input:
    """The writing end of a pipe."""

    def __init__(self, fd: int, exited: asyncio.Future[None]) -> None:
        self._fd = fd
        self._exited = exited
        self._turn = asyncio.Lock()
        self._total = 0

    @classmethod
    def open(cls, exited: asyncio.Future[None]) -> tuple[Input, int]:
        """Make the pipe; it, and the reading end.

        Args:
            exited: Done when the process has ended: from then on nobody reads.
        """
        read, write = os.pipe()
        os.set_blocking(write, False)
        return cls(write, exited), read

    async def write(self, data: bytes, *, end: bool) -> int:
        """Write, after everything that was asked before; how many bytes the pipe took.

        Cancel: what the pipe took it has.
        """
        async with self._turn:
            taken = 0
            while self._fd >= 0 and taken < len(data):
                try:
                    size = os.write(self._fd, data[taken : taken + (1 << 16)])
                    taken += size
                    self._count(size)
                except BlockingIOError:
                    if self._exited.done():
                        break
                    await self._room()
                except BrokenPipeError:
                    break
            if end:
                self.close()
            return taken

    async def _room(self) -> None:
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        loop.add_writer(self._fd, lambda: None if room.done() else room.set_result(None))
        try:
            await asyncio.wait((room, self._exited), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._fd >= 0:
                loop.remove_writer(self._fd)

    def close(self) -> None:
        """End it."""
        if self._fd >= 0:
            asyncio.get_running_loop().remove_writer(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _count(self, size: int) -> None:
        before, self._total = self._total, self._total + size
        if before < WIDE_BYTES <= self._total:
            with contextlib.suppress(OSError):  # the user's quota of wide pipes is used up
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, WIDE_BYTES)
