"""One output stream of a command: read as it comes; kept head and tail, or sent on to whoever follows it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from sandport_sdk.v1 import errors, types

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandport_sdk.v1 import Call

PIECE_BYTES = 1 << 16
DRAIN_S = 0.25
"""How long a stream is read on after the command's end: what it left may hold the stream, and write for ever."""
UNWANTED_PAUSE_S = 0.01
"""Between two reads of what is thrown away: no program is a load on the worker by that."""


class Kept:
    """The head and the tail of a stream that nobody follows, within a limit; everything is counted."""

    def __init__(self, limit_bytes: int) -> None:
        self._head, self._head_bytes = bytearray(), limit_bytes - limit_bytes // 2
        self._tail, self._tail_bytes = bytearray(), limit_bytes // 2
        self._total = 0

    def add(self, data: bytes) -> None:
        """More of it."""
        self._total += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    def told(self) -> errors.Kept:
        """What there is, as results and errors have it."""
        head, tail = bytes(self._head), bytes(self._tail[max(0, len(self._tail) - self._tail_bytes) :])
        dropped = self._total - len(head) - len(tail)
        if not dropped:
            head, tail = head + tail, b""
        return errors.Kept(total_bytes=self._total, data=head, tail=tail, dropped_bytes=dropped)


class Stream:
    """One pipe, from the side that reads.

    Attributes:
        total: Bytes that were read.
        end: `seen` once its end of file was read.
    """

    def __init__(self, name: types.StreamName, *, window_bytes: int, keep: Kept | None = None) -> None:
        """Prepare.

        Args:
            name: Its name on the wire.
            window_bytes: How far reading runs ahead of who follows it.
            keep: What keeps it; None where it is followed.
        """
        self.name = name
        self.total = 0
        self.end: types.StreamEnd = "heldOpen"
        self._cut_bytes: int | None = None
        self._keep = keep
        self._window = window_bytes
        self._held = bytearray()
        self._start = 0
        """The offset of the first byte in `_held`."""
        self._sent = 0
        """Up to here somebody has had it."""
        self._closed = False
        self._begun = asyncio.Event()
        self._ready = asyncio.Event()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._fd = -1
        self._pump: asyncio.Task[None] | None = None

    def open(self) -> int:
        """Make its pipe; the end for the command. Nothing is read before `begin`.

        Raises:
            OSError: There are no descriptors left.
        """
        self._fd, write = os.pipe()
        os.set_blocking(self._fd, False)
        return write

    def begin(self, *, cut_bytes: int | None) -> None:
        """Begin to read.

        Args:
            cut_bytes: An ordered fault: what comes after so many bytes is lost on its way.
        """
        self._cut_bytes = cut_bytes
        self._pump = asyncio.create_task(self._read())
        self._begun.set()

    async def drain(self) -> None:
        """After the command's end: read what was written, a moment long, whoever takes it or still writes.

        From then on the stream is over; what a descendant still writes is read and thrown away.
        """
        await self._begun.wait()
        assert self._pump is not None  # it was begun
        await asyncio.wait((self._pump,), timeout=DRAIN_S)
        if not self._closed:
            self._take_written()
        self.give_up()

    def give_up(self) -> None:
        """The stream is over, whatever is still to come: nobody wants it."""
        self._closed = True
        self._news.set()
        self._room.set()

    def when_quiet(self, callback: Callable[[], object]) -> None:
        """Call back once nothing holds its other end any more."""
        assert self._pump is not None  # it was begun
        self._pump.add_done_callback(lambda pump: callback())

    def close(self) -> None:
        """Give the pipe back."""
        self._closed = True
        self._news.set()
        if self._pump is not None:
            self._pump.cancel()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def _read(self) -> None:
        while data := await self._next():
            if self._closed:
                await asyncio.sleep(UNWANTED_PAUSE_S)
                continue
            self._take(data)
            while self._keep is None and self.total - self._sent >= self._window and not self._closed:
                self._room.clear()
                await self._room.wait()
        self._close_pipe()
        if not self._closed:
            self.end = "seen"
        self._closed = True
        self._news.set()

    async def _next(self) -> bytes:
        """What comes next; nothing at the end of file."""
        while True:
            self._ready.clear()
            asyncio.get_running_loop().add_reader(self._fd, self._on_readable)
            await self._ready.wait()
            with contextlib.suppress(BlockingIOError):  # `drain` was there first
                return os.read(self._fd, PIECE_BYTES)

    def _on_readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        self._ready.set()

    def _take(self, data: bytes) -> None:
        self.total += len(data)
        if self._keep is not None:
            self._keep.add(self._kept_part(data))
            return
        self._held += data
        self._news.set()

    def _take_written(self) -> None:
        """Read all that is in the pipe, past any window: what the command wrote is there, and nothing after it counts.

        The end of file is looked for too: nobody may have had room for what came before it.
        """
        with contextlib.suppress(BlockingIOError):  # nothing is there, or nothing more, and somebody may write yet
            data = os.read(self._fd, fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ))
            self._take(data)
            if not data or not os.read(self._fd, 1):
                self.end = "seen"

    def _kept_part(self, data: bytes) -> bytes:
        if self._cut_bytes is None:
            return data
        return data[: max(0, self._cut_bytes - (self.total - len(data)))]

    # ------------------------------------------------------------ following

    def check_offset(self, offset: int) -> None:
        """Refuse an offset that cannot be followed from.

        Raises:
            OutputGap: What it names is no longer kept.
            InvalidParams: It was never written.
        """
        why = f"{self.name} is kept from {self._start} to {self.total}; {offset} is not within"
        if offset < self._start:
            raise errors.OutputGap(why, dispatched="no")
        if offset > self.total:
            raise errors.InvalidParams(why, detail=errors.Detail(field="fromOffset"), dispatched="no")

    async def follow(self, call: Call, offset: int, ended: set[str]) -> None:
        """Send everything from an offset on, and the end mark once the stream is over.

        Raises:
            Cancelled: The host takes nothing, and gave up.
        """
        while True:
            self._news.clear()
            while (offset < self.total) and (part := self._sendable(offset)):
                await call.output(self.name, part)
                offset += len(part)
                self._had(offset)
            if self._cut_bytes is not None and offset >= self._cut_bytes:
                self._had(self.total)
                offset = self.total
            if self._closed and offset >= self.total:
                break
            await self._news.wait()
        ended.add(self.name)
        await call.end(self.name, self.told_end)

    @property
    def told_end(self) -> types.StreamEnd:
        """The end mark: of a stream that was cut, nobody has seen the end."""
        return "heldOpen" if self.was_cut else self.end

    @property
    def was_cut(self) -> bool:
        """Whether the ordered fault took something."""
        return self._cut_bytes is not None and self.total > self._cut_bytes

    def _sendable(self, offset: int) -> bytes:
        stop = self.total if self._cut_bytes is None else min(self.total, self._cut_bytes)
        stop = min(stop, offset + PIECE_BYTES)
        return bytes(self._held[offset - self._start : max(offset, stop) - self._start])

    def _had(self, offset: int) -> None:
        if offset > self._sent:
            self._sent = offset
            self._room.set()
        # The newest of what was sent stays, for who follows again; the rest makes room.
        surplus = min(self._sent, self.total - self._window) - self._start
        if surplus > 0:
            del self._held[:surplus]
            self._start += surplus

    def kept(self) -> errors.Kept:
        """What was read of a stream that is not followed."""
        return self._keep.told() if self._keep is not None else errors.Kept()
