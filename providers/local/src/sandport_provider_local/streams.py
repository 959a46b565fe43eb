"""The standard streams of a command: pipes in the loop, read as far as somebody takes what is read.

Above: `Command`. Below: non-blocking descriptors, `add_reader` and `add_writer`; no task and no thread.

Where nobody reads live, an output is read to its end and the first and the last bytes are kept. A process's output is
read as far as its follower has credit; without a follower, as far as the replay window goes (the agreed credit), then
the pipe fills and the program waits in its write. What was sent stays in the window until newer bytes need its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from sandport_sdk.v1 import errors, types

if TYPE_CHECKING:
    from sandport_sdk.v1 import Call

CHUNK_BYTES = 128 * 1024
PIPE_BYTES = 1024 * 1024
"""What a pipe is widened to once it was seen full; best effort, a user has a quota for that."""
FULL_BYTES = 64 * 1024
HELD_STREAMS = 128
"""Held-open streams of one sandbox that are read on; each costs a descriptor."""
HELD_PAUSE_S = 0.01
"""Between two reads of one of them: some 6 MB/s, and no load that a program could put on the worker."""
TERMINAL_PAUSE_S = 0.05
"""Before a terminal whose other side is closed is looked at again."""
OPEN_WRITES = 4
"""Writes to one process that may wait at once."""


class Ends:
    """The first and the last bytes of an output, and how many there were."""

    def __init__(self, limit_bytes: int) -> None:
        self.total_bytes = 0
        self._tail_bytes = limit_bytes // 2
        self._head_bytes = limit_bytes - self._tail_bytes
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._in_tail = 0

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data and self._tail_bytes:
            self._tail.append(data)
            self._in_tail += len(data)
            while self._in_tail - len(self._tail[0]) >= self._tail_bytes:
                self._in_tail -= len(self._tail.popleft())

    def kept(self) -> tuple[bytes, bytes, int]:
        """The head (or everything), the tail, and how many bytes between them were dropped."""
        tail = b"".join(self._tail)[-self._tail_bytes :] if self._tail else b""
        dropped = self.total_bytes - len(self._head) - len(tail)
        return (bytes(self._head), tail, dropped) if dropped else (bytes(self._head) + tail, b"", 0)


class Window:
    """The newest bytes of an output, from `base` to `end`: what is not sent yet, and behind it as much as has room."""

    def __init__(self, keep_bytes: int) -> None:
        self.base = 0
        self._keep_bytes = keep_bytes
        self._bytes = bytearray()

    @property
    def end(self) -> int:
        """The offset after the newest byte."""
        return self.base + len(self._bytes)

    def add(self, data: bytes, *, sent: int) -> None:
        """Take the next bytes; what was sent (before the offset `sent`) may go for it."""
        if not self._keep_bytes and sent == self.end + len(data):
            self._bytes.clear()
            self.base = sent
            return
        self._bytes += data
        self.trim(sent=sent)

    def trim(self, *, sent: int, keep_bytes: int | None = None) -> None:
        """Forget old bytes that were sent, down to so many (as many as it keeps, unless told otherwise)."""
        keep_bytes = self._keep_bytes if keep_bytes is None else keep_bytes
        size = min(len(self._bytes) - keep_bytes, sent - self.base)
        if size > 0:
            del self._bytes[:size]
            self.base += size

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from an offset that is in the window."""
        start = offset - self.base
        return bytes(self._bytes[start : start + size])


class Follower:
    """One call that takes a process's output as it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Call, outputs: int) -> None:
        self.call = call
        self.done: asyncio.Future[None] = loop.create_future()
        self._left = outputs

    def stream_ended(self) -> None:
        """One stream was sent to its end."""
        self._left -= 1
        if not self._left and not self.done.done():
            self.done.set_result(None)


class Output:
    """One output stream of a command, from its pipe or terminal to whoever takes it.

    Attributes:
        end: None while it is read; then whether its end was seen, or something else still holds it open.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: types.StreamName,
        fd: int,
        sink: Ends | Window,
        on_end: Callable[[], None],
        held: HeldOpen,
        *,
        credit_bytes: int = 0,
    ) -> None:
        self.name: types.StreamName = name
        self.end: types.StreamEnd | None = None
        self.ends = sink if isinstance(sink, Ends) else None
        self.window = sink if isinstance(sink, Window) else Window(0)
        self.sent = 0
        self._cut = False
        self._loop = loop
        self._fd = fd
        self._on_end = on_end
        self._held = held
        self._credit_bytes = credit_bytes
        self._follower: Follower | None = None
        self._reading = False
        self._wide = name == "pty"
        self._over = False
        """The command has ended."""
        self._begun = False
        os.set_blocking(fd, False)

    def begin(self) -> None:
        """Read from now on."""
        self._begun = True
        self._resume()

    @property
    def total_bytes(self) -> int:
        """Everything that was read."""
        return self.ends.total_bytes if self.ends is not None else self.window.end

    # ------------------------------------------------------------ following

    def offset_from(self, offset: int) -> int:
        """The offset, if it can be followed from there.

        Raises:
            OutputGap: What comes there is not kept any more.
            InvalidParams: The program has not written so much.
        """
        if offset < self.window.base:
            raise errors.OutputGap(
                f"{self.name} is kept from byte {self.window.base} on, byte {offset} was asked for",
                detail=errors.Detail(field="fromOffset", limit=self.window.base),
            )
        if offset > self.window.end:
            raise errors.InvalidParams(
                f"{self.name} has {self.window.end} bytes so far, byte {offset} was asked for", dispatched="no"
            )
        return offset

    def follow(self, follower: Follower, offset: int) -> None:
        """Send to this call from an offset that `offset_from` let pass; `deliver` begins."""
        self.sent = offset
        self._cut = False  # An earlier follower may have left the rest, which is kept for the next.
        self._follower = follower

    def unfollow(self) -> None:
        """Nobody takes the output any more; the window fills."""
        self._follower = None
        self._resume()

    def deliver(self) -> None:
        """Send what is kept and not sent, as far as the credit goes; then read on, or send the end mark."""
        follower = self._follower
        if follower is None or follower.done.done():
            return
        call = follower.call
        while self.sent < self.window.end:
            room = call.credit_left(self.name)
            if room <= 0:
                call.on_credit(self.name, self.deliver)
                return
            piece = self.window.read(self.sent, min(room, CHUNK_BYTES))
            call.try_output(self.name, piece)
            self.sent += len(piece)
        self.window.trim(sent=self.sent)
        if self.end is None:
            self._resume()
        else:
            self._follower = None
            call.send_end(self.name, self.end)
            follower.stream_ended()

    # ------------------------------------------------------------ reading

    def _resume(self) -> None:
        if self._begun and not self._reading and self.end is None:
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def _room(self) -> int:
        """How much may be read now."""
        if self.ends is not None:
            return CHUNK_BYTES
        if self._follower is None:
            return self._credit_bytes - (self.window.end - self.sent)
        if self.sent < self.window.end:
            return 0
        return self._follower.call.credit_left(self.name)

    def _on_readable(self) -> None:
        room = self._room()
        if room > 0:
            self._read(min(room, CHUNK_BYTES))
            return
        self._pause()
        if self._follower is not None:
            self._follower.call.on_credit(self.name, self.deliver)

    def _read(self, size: int) -> int:
        """Read once; the number of bytes, 0 where there is nothing now, or the end was seen and `end` is set."""
        try:
            data = os.read(self._fd, size)
        except BlockingIOError:
            return 0
        except OSError:
            # A terminal says so while nobody has its other side open. That may change as long as the command runs, and
            # closing ours now would hang up on a program that has closed its streams and is about to exit.
            if not self._over:
                self._pause()
                self._loop.call_later(TERMINAL_PAUSE_S, self._resume)
                return 0
            data = b""
        if not data:
            self._finish("seen")
            return 0
        if not self._wide and len(data) >= FULL_BYTES:
            self._widen()
        if self.ends is not None:
            self.ends.add(data)
            return len(data)
        follower = self._follower
        if follower is not None and self.sent == self.window.end:
            if follower.call.try_output(self.name, data):
                self.sent += len(data)
            else:
                follower.call.on_credit(self.name, self.deliver)
        self.window.add(data, sent=self.sent)
        return len(data)

    def _widen(self) -> None:
        self._wide = True
        with contextlib.suppress(OSError):  # The user's quota of wide pipes is used up; this one stays as it is.
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    # ------------------------------------------------------------ the end

    def read_written(self) -> None:
        """Read what the command had written when it ended, whoever may still write; past any window, once."""
        self._over = True
        left = PIPE_BYTES
        first = True
        while self.end is None and left > 0:
            size = self._read(min(left, CHUNK_BYTES))
            if not size:
                return
            if first:
                first = False
                left = PIPE_BYTES if self.name == "pty" else readable_bytes(self._fd)
            else:
                left -= size
        if left <= 0 and self.name != "pty" and not readable_bytes(self._fd):
            self._read(1)  # The end of file takes no room, so a follower without credit is no reason not to see it.

    def hold(self) -> None:
        """Stop reading for the command: what is there now is still its own, then something else holds the stream."""
        self.read_written()
        if self.end is None:
            self._finish("heldOpen")

    def cut(self) -> None:
        """Nobody takes what is left: end the stream for its follower where it was sent to."""
        follower, self._follower = self._follower, None
        if follower is not None and not follower.done.done():
            self._cut = True
            follower.call.send_end(self.name, "heldOpen")
            follower.stream_ended()

    def drop(self) -> None:
        """Close, with nobody to tell."""
        self._on_end = _nothing
        self._follower = None
        if self.end is None:
            self._pause()
            self.end = "heldOpen"
            os.close(self._fd)

    def _finish(self, end: types.StreamEnd) -> None:
        self._pause()
        self.end = end
        if end == "heldOpen":
            self._held.take(self._fd)
        else:
            os.close(self._fd)
        self._on_end()
        self.deliver()

    # ------------------------------------------------------------ what became of it

    def result(self) -> types.StreamResult:
        """What the result of the command says."""
        end = self.end or "heldOpen"
        if self._cut:
            unsent = self.window.end - self.sent
            return types.StreamResult(total_bytes=self.sent, dropped_bytes=unsent, end="heldOpen")
        if self.ends is None:
            return types.StreamResult(total_bytes=self.total_bytes, end=end)
        data, tail, dropped = self.ends.kept()
        return types.StreamResult(total_bytes=self.total_bytes, end=end, data=data, tail=tail, dropped_bytes=dropped)

    def kept(self) -> errors.Kept:
        """What an error of the command says."""
        if self.ends is None:
            return errors.Kept(total_bytes=self.total_bytes)
        data, tail, dropped = self.ends.kept()
        return errors.Kept(total_bytes=self.total_bytes, data=data, tail=tail, dropped_bytes=dropped)

    @property
    def retained_bytes(self) -> int:
        """What is in memory of it."""
        return self.window.end - self.window.base

    def forget(self) -> None:
        """Free what is in memory, sent or not."""
        self.window.trim(sent=self.window.end, keep_bytes=0)

    def resize(self, size: types.PtySize) -> bool:
        """Give the terminal another size; False where it is closed."""
        if self.end is not None:
            return False
        set_size(self._fd, size)
        return True


class HeldOpen:
    """Streams of commands that ended, held open by what they left running: read slowly and thrown away.

    Closed, they would kill a server that was started in the background with its next line of log; unread, they would
    stop it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[int, asyncio.TimerHandle | None] = {}

    def take(self, fd: int) -> None:
        """Read this descriptor to its end; where there are too many, the oldest is closed."""
        if len(self._timers) >= HELD_STREAMS:
            self._close(next(iter(self._timers)))
        self._timers[fd] = None
        self._loop.add_reader(fd, self._on_readable, fd)

    def _on_readable(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        try:
            ended = not os.read(fd, FULL_BYTES)
        except BlockingIOError:
            ended = False
        except OSError:  # A terminal without another side.
            ended = True
        if ended:
            self._close(fd)
        else:
            self._timers[fd] = self._loop.call_later(HELD_PAUSE_S, self._loop.add_reader, fd, self._on_readable, fd)

    def _close(self, fd: int) -> None:
        timer = self._timers.pop(fd)
        if timer is not None:
            timer.cancel()
        self._loop.remove_reader(fd)
        os.close(fd)

    def close(self) -> None:
        """Close them all."""
        for fd in list(self._timers):
            self._close(fd)


class Input:
    """The standard input of a process: pieces in order, each answered when the pipe took it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fd: int, *, terminal: bool = False) -> None:
        self._loop = loop
        self._fd = fd
        self._terminal = terminal
        self._queue: deque[tuple[memoryview, asyncio.Future[int] | None]] = deque()
        self._taken = 0
        self._total = 0
        self._wide = terminal
        self._ending = False
        self.closed = False
        os.set_blocking(fd, False)

    def send(self, data: bytes, *, end: bool) -> None:
        """Write without an answer."""
        self._add(data, None, end=end)

    async def write(self, data: bytes, *, end: bool) -> int:
        """Write; how many bytes the pipe took: all, or less where the process closed its input.

        Raises:
            Overloaded: Four writes wait already.
        """
        if len(self._queue) >= OPEN_WRITES:
            raise errors.Overloaded(
                f"{OPEN_WRITES} writes to this process are open", detail=errors.Detail(limit=OPEN_WRITES)
            )
        if self.closed or self._ending:
            return 0
        answer: asyncio.Future[int] = self._loop.create_future()
        self._add(data, answer, end=end)
        return await answer

    def _add(self, data: bytes, answer: asyncio.Future[int] | None, *, end: bool) -> None:
        idle = not self._queue
        self._queue.append((memoryview(data), answer))
        if end:
            self._ending = True
            if self._terminal:
                # A terminal has no end of file but the character for it, which ends a line before it ends the input.
                self._queue.append((memoryview(end_of_file(self._fd) * 2), None))
        if idle:
            self._on_writable()

    def _on_writable(self) -> None:
        while self._queue:
            data, answer = self._queue[0]
            try:
                size = os.write(self._fd, data[self._taken :]) if len(data) else 0
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._on_writable)
                return
            except OSError:  # The process closed its input.
                self.close()
                return
            self._taken += size
            self._total += size
            if not self._wide and self._total >= PIPE_BYTES:
                # Who has read so much reads more: a wider pipe saves both sides most of their waking up.
                self._wide = True
                with contextlib.suppress(OSError):  # The user's quota of wide pipes is used up.
                    fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            if self._taken < len(data):
                continue
            self._queue.popleft()
            self._taken = 0
            if answer is not None and not answer.done():
                answer.set_result(len(data))
        self._loop.remove_writer(self._fd)
        if self._ending:
            self.close()

    def close(self) -> None:
        """Take no more; writes that wait are answered with what was taken."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_writer(self._fd)
        os.close(self._fd)
        for _, answer in self._queue:
            if answer is not None and not answer.done():
                answer.set_result(self._taken)
            self._taken = 0
        self._queue.clear()


def readable_bytes(fd: int) -> int:
    """What a pipe holds."""
    return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])


def end_of_file(fd: int) -> bytes:
    """The character that ends a terminal's input."""
    character = termios.tcgetattr(fd)[6][termios.VEOF]
    return bytes(character)


def set_size(fd: int, size: types.PtySize) -> None:
    """Give a terminal its size; its foreground group hears of it.

    Raises:
        OSError: It is gone.
    """
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def _nothing() -> None:
    return
