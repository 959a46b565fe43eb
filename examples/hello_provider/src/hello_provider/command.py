"""One command: its two streams, its time limit, and its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import tempfile
from typing import BinaryIO

from sandport_sdk.v1 import Call, Octets, errors, machine, types, unpack

from .errors import not_begun

SHELL = "/bin/sh"
PIECE_BYTES = 1 << 16
DRAIN_S = 0.25
"""How long a stream is read on after the command's end: what it left may hold the stream, and write for ever."""
STALLED_S = 5.0
"""How long a host that takes no output keeps a killed command from its answer."""


class Output:
    """One stream: read as it comes, and sent on or kept.

    Attributes:
        total: Bytes that were read.
    """

    def __init__(self, name: types.StreamName, call: Call | None, keep_bytes: int) -> None:
        """Prepare.

        Args:
            name: Its name on the wire.
            call: Where it goes; None to keep it.
            keep_bytes: How much of it is kept, half of that head and half tail.
        """
        self.name = name
        self.total = 0
        self._call = call
        self._head, self._head_bytes = bytearray(), keep_bytes - keep_bytes // 2
        self._tail, self._tail_bytes = bytearray(), keep_bytes // 2
        self._fd = -1
        self._ready = asyncio.Event()
        self._rest: bytes | None = None
        """What was read last of all; None until then."""
        self._seen_end = False
        self._pump: asyncio.Task[None] | None = None

    async def open(self) -> int:
        """Make its pipe and begin to read; the end for the command."""
        self._fd, write = os.pipe()
        os.set_blocking(self._fd, False)
        self._pump = asyncio.create_task(self._read())
        return write

    async def drain(self, patience_s: float | None) -> None:
        """Read what was written, once the command has ended; the moment for that is the same for a flood as for none.

        Args:
            patience_s: How long a host is waited for that takes none of it; None for as long as it likes.
        """
        assert self._pump is not None  # it was opened
        await asyncio.wait((self._pump,), timeout=DRAIN_S)
        if not self._pump.done():
            self._rest = self._read_written()
            self._ready.set()
            await asyncio.wait((self._pump,), timeout=patience_s)
        if not self._pump.done():
            self._pump.cancel()
            await asyncio.wait((self._pump,))
        if not self._pump.cancelled():
            self._pump.result()

    def close(self) -> None:
        """Give the pipe back."""
        if self._pump is not None:
            self._pump.cancel()
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    async def _read(self) -> None:
        while data := await self._next():
            if self._call is None:
                self._keep(data)
                continue
            try:
                # Waits while the host has no room; the pipe fills, and the command waits too.
                await self._call.output(self.name, data)
            except errors.Cancelled:
                return

    async def _next(self) -> bytes:
        """What comes next; nothing at the end."""
        if self._rest is None:
            self._ready.clear()
            asyncio.get_running_loop().add_reader(self._fd, self._on_readable)
            await self._ready.wait()
        if self._rest is not None:
            data, self._rest = self._rest, b""
            return data
        data = os.read(self._fd, PIECE_BYTES)
        self._seen_end = not data
        self.total += len(data)
        return data

    def _on_readable(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        self._ready.set()

    def _read_written(self) -> bytes:
        """All that is in the pipe: what the command wrote is there by now, and what comes later is not its own."""
        data = b""
        with contextlib.suppress(BlockingIOError):  # nothing is there, or nothing more, and somebody may write yet
            data = os.read(self._fd, fcntl.fcntl(self._fd, fcntl.F_GETPIPE_SZ))
            self._seen_end = not data or not os.read(self._fd, 1)
        self.total += len(data)
        return data

    def _keep(self, data: bytes) -> None:
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: len(self._tail) - self._tail_bytes]

    @property
    def end(self) -> types.StreamEnd:
        """`seen` once its end of file was read, and all before it is where it belongs."""
        return "seen" if self._seen_end and not self.unsent else "heldOpen"

    @property
    def unsent(self) -> int:
        """Bytes of a live stream that the host did not take."""
        return 0 if self._call is None else self.total - self._call.sent(self.name)

    def kept(self) -> errors.Kept:
        """What was read of a stream that is not live."""
        head, tail = bytes(self._head), bytes(self._tail[max(0, len(self._tail) - self._tail_bytes) :])
        dropped = self.total - len(head) - len(tail)
        if not dropped:
            head, tail = head + tail, b""
        return errors.Kept(total_bytes=self.total, data=head, tail=tail, dropped_bytes=dropped)

    def result(self) -> types.StreamResult:
        """What became of it."""
        if self._call is not None:
            return types.StreamResult(total_bytes=self.total - self.unsent, dropped_bytes=self.unsent, end=self.end)
        kept = self.kept()
        return types.StreamResult(
            total_bytes=kept.total_bytes, end=self.end, data=kept.data, tail=kept.tail, dropped_bytes=kept.dropped_bytes
        )


class Command:
    """One `execute`."""

    def __init__(self, params: types.ExecuteParams, call: Call, *, sandbox: machine.Sandbox, path: str) -> None:
        self._params = params
        self._call = call
        self._sandbox = sandbox
        self._path = path
        self._process: machine.Process | None = None
        self._timed_out = False
        self._cancelled = False
        self._over = asyncio.Event()
        live = call if params.live else None
        self._stdout = Output("stdout", live, params.output_limit_bytes)
        self._stderr = Output("stderr", live, params.output_limit_bytes)

    async def run(self) -> types.ExecuteResult:
        """Run it to its end.

        Raises:
            WireError: It did not start, or was cancelled, or its sandbox ended.
        """
        began = asyncio.get_running_loop().time()
        try:
            self._process = await self._start()
            if self._cancelled:
                self._process.signal(signal.SIGKILL)  # there was nothing to kill when it was told
            code = await self._wait(self._process)
            # From a command that was killed, only for as long as the host takes it.
            await self._drain(STALLED_S if self._timed_out or self._cancelled else None)
            return await self._answer(code, duration_s=asyncio.get_running_loop().time() - began)
        except errors.SandboxLost as lost:
            await self._drain(STALLED_S)
            lost.partial = self._partial()
            raise
        finally:
            self._stdout.close()
            self._stderr.close()
            self._over.set()

    async def cancel(self) -> None:
        """Kill its group, and return once it has ended; nothing happens where it had ended by itself."""
        self._cancelled = True
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
        await self._over.wait()

    # ------------------------------------------------------------ begin

    async def _start(self) -> machine.Process:
        params = self._params
        argv: tuple[Octets, ...] = (SHELL, "-c", params.shell or "") if params.argv is None else params.argv
        words = [unpack(word) for word in argv]
        with contextlib.ExitStack() as theirs:
            try:
                stdin = theirs.enter_context(_file_with(params.stdin))
                stdout = theirs.enter_context(os.fdopen(await self._stdout.open(), "wb"))
                stderr = theirs.enter_context(os.fdopen(await self._stderr.open(), "wb"))
            except OSError as error:
                raise not_begun(error) from error
            streams = (stdin.fileno(), stdout.fileno(), stderr.fileno())
            return await self._sandbox.start(words, *streams, cwd=unpack(params.cwd or ""), env=self._variables())

    def _variables(self) -> dict[bytes, bytes]:
        home = os.fsencode(self._sandbox.files)
        variables = {b"PATH": os.fsencode(self._path), b"HOME": home, b"LANG": b"C.UTF-8"}
        return variables | {name.encode(): unpack(value) for name, value in self._params.env.items()}

    # ------------------------------------------------------------ end

    async def _wait(self, process: machine.Process) -> int:
        timeout_ms = self._params.timeout_ms
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                return await process.wait()
        except TimeoutError:
            self._timed_out = True
            process.signal(signal.SIGKILL)
            return await process.wait()

    async def _drain(self, patience_s: float | None) -> None:
        await asyncio.gather(self._stdout.drain(patience_s), self._stderr.drain(patience_s))

    async def _answer(self, code: int, *, duration_s: float) -> types.ExecuteResult:
        outputs = (self._stdout, self._stderr)
        # What has an exit code has ended by itself, just before our signal: then that is what happened.
        killed = code < 0 and (self._timed_out or self._cancelled)
        cut = not killed and any(output.unsent for output in outputs)
        if cut or (killed and self._cancelled):
            raise errors.Cancelled("the command was cancelled", dispatched="unknown", partial=self._partial())
        if self._params.live:
            for output in outputs:
                await self._call.end(output.name, output.end)
        ended: types.Ended = "exited" if code >= 0 else "timedOut" if killed else "signalled"
        return types.ExecuteResult(
            ended=ended,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            tree="signalled" if killed else None,
            stdout=self._stdout.result(),
            stderr=self._stderr.result(),
            duration_ms=round(duration_s * 1000),
        )

    def _partial(self) -> errors.Partial | None:
        """What it had produced; nothing where that was sent."""
        return None if self._params.live else errors.Partial(stdout=self._stdout.kept(), stderr=self._stderr.kept())


def _file_with(data: bytes) -> BinaryIO:
    """A file that holds a command's whole input: the command reads it when it likes, and nobody has to feed it."""
    if not data:
        return open(os.devnull, "rb")
    file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(data)
    file.seek(0)
    return file
