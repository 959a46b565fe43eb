"""The worker's two pipes, its signals and its watches around a `Dispatcher`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sandport_protocol.slices import Slices

from .dispatch import Dispatcher
from .memory import MemoryTrimmer
from .parent import ParentWatch, SilenceWatch
from .signals import Termination
from .stdio import StdioUnusable

if TYPE_CHECKING:
    from typing import BinaryIO

    from .v1.provider import Provider

FLUSH_S = 2.0
"""At the end, the host may take so long to read what was answered."""
HIGH_WATER_BYTES = 256 * 1024
"""In the transport's buffer; from there on live output waits."""
FAR_BEHIND_BYTES = 64 * 1024 * 1024
"""Of answers that the host has not read; from there on no more of its requests are read."""
_STRAGGLERS_S = 0.05


class _Pipes(asyncio.Protocol):
    """Both directions; asyncio calls it for the one and for the other."""

    def __init__(self, provider_class: type[Provider]) -> None:
        self._loop = asyncio.get_running_loop()
        self.dispatcher = Dispatcher(provider_class, self._write, on_hello=self._on_hello)
        self.silence = SilenceWatch(self._loop, self._silence_s, self._on_silence)
        self.memory = MemoryTrimmer(self._loop)
        self.reader: asyncio.ReadTransport | None = None
        self.writer: asyncio.WriteTransport | None = None
        self.flushed: asyncio.Future[None] = self._loop.create_future()
        self._held_back = False
        self.slices = Slices(self._give)

    # reading

    def data_received(self, data: bytes) -> None:
        self.silence.heard = self._loop.time()
        self.dispatcher.receive(data)
        self.memory.count(len(data))
        if self.writer is not None:
            behind = self.slices.pending_bytes + self.writer.get_write_buffer_size()
            if behind > FAR_BEHIND_BYTES:
                self._hold_back()

    def eof_received(self) -> None:
        self.dispatcher.finish("end of input")

    def connection_lost(self, exc: Exception | None) -> None:
        self.dispatcher.finish(f"nothing more can be read ({exc})")

    # writing

    def pause_writing(self) -> None:
        self.slices.pause()
        self.dispatcher.pause_writing()

    def resume_writing(self) -> None:
        if not self.slices.resume():
            return
        if self._held_back and self.reader is not None:
            self._held_back = False
            self.reader.resume_reading()
        self.dispatcher.resume_writing()

    def write_lost(self) -> None:
        """The host reads no more: nothing that is still to come could reach it."""
        self.slices.drop()
        if not self.flushed.done():
            self.flushed.set_result(None)
        self.dispatcher.finish("the host closed its end")

    def _write(self, frame: bytes) -> None:
        self.slices.write(frame)
        self.memory.count(len(frame))

    def _give(self, data: bytes | memoryview) -> None:
        assert self.writer is not None  # it is there before anything is read
        if self.writer.is_closing():
            self.slices.drop()  # also in the middle of a frame: asyncio would warn of each slice
        else:
            self.writer.write(data)

    def _hold_back(self) -> None:
        if not self._held_back and self.reader is not None:
            self._held_back = True
            self.reader.pause_reading()

    # watches

    def _silence_s(self) -> float:
        return self.dispatcher.limits.host_silence_ms / 1000

    def _on_hello(self) -> None:
        self.silence.restart()

    def _on_silence(self) -> None:
        self.dispatcher.finish(f"nothing heard for {self._silence_s()} s")


class _WriteSide(asyncio.BaseProtocol):
    """The callbacks of the pipe that leads to the host."""

    def __init__(self, pipes: _Pipes) -> None:
        self._pipes = pipes

    def pause_writing(self) -> None:
        self._pipes.pause_writing()

    def resume_writing(self) -> None:
        self._pipes.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipes.write_lost()


async def serve_pipes(provider_class: type[Provider], wire: tuple[BinaryIO, BinaryIO], parent: int) -> int:
    """Serve until the end; the exit code. Everything answered was handed to the kernel, or the host did not read it.

    Args:
        provider_class: What is served.
        wire: Opened files of the wire, read and write; closed at the end.
        parent: The process that started this one.

    Raises:
        StdioUnusable: The descriptors are no pipes.
    """
    loop = asyncio.get_running_loop()
    pipes = _Pipes(provider_class)
    try:
        writer, _ = await loop.connect_write_pipe(lambda: _WriteSide(pipes), wire[1])
        writer.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        pipes.writer = writer
        pipes.reader, _ = await loop.connect_read_pipe(lambda: pipes, wire[0])
    except ValueError as error:
        raise StdioUnusable(f"stdin and stdout must be pipes: {error}") from None
    watch = ParentWatch(loop, parent, lambda: pipes.dispatcher.finish("the parent process is gone"))
    termination = Termination(loop, lambda: pipes.dispatcher.drain("SIGTERM"))
    code = await pipes.dispatcher.ended
    watch.stop()
    pipes.silence.stop()
    pipes.slices.finish()
    writer.close()
    await asyncio.wait([pipes.flushed], timeout=FLUSH_S)
    await _end_stragglers()
    termination.stop()
    return code


async def _end_stragglers() -> None:
    """Tasks that the provider left behind: interrupted, so that each ends as it would in any program."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_STRAGGLERS_S)
