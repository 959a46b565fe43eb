"""The worker's side of an init's socket: messages out with descriptors, answers in by callback.

Above: commands and sandboxes. Below: one non-blocking socket in the loop; no task and no thread.
"""

from __future__ import annotations

import asyncio
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

MESSAGE_BYTES = 32 * 1024
"""A longer message is carried by a file in memory: fits any socket's buffer, whatever the machine's setting."""
TERMINAL_SIDES = 2
CONTROL_BYTES = socket.CMSG_SPACE(4 * TERMINAL_SIDES)
REASON_CHARACTERS = 100
HELLO_S = 5.0
"""An init that does not answer for so long is not there for us; a start takes some 30 ms."""


class Owner(Protocol):
    """Who started a command, and hears what becomes of it."""

    def on_started(self, pid: int) -> None:
        """It runs."""

    def on_failed(self, stage: str, number: int) -> None:
        """It was not started: the stage that failed, and the kernel's error number."""

    def on_exit(self, status: int, *, asked: bool) -> None:
        """Its own process ended, with the status that wait gives; `asked` after we had ordered its end."""

    def on_killed(self, answer: str) -> None:
        """A kill is done: `gone`, `signalled`, or `ended` where there was nothing to do."""

    def on_lost(self, reason: str) -> None:
        """The init is gone, and with it everybody's answers."""


class ChannelClosed(Exception):
    """The init is gone or never came; the message says what is known of why."""


class Channel:
    """One connection to one init.

    Attributes:
        pid: The init's process.
        start_ticks: When that started.
        lost_commands: Whether it ended running commands because the worker before us vanished.
        reason: Why the init ended: `destroyed`, `expired`, `orphaned`, `terminated`, or `stopped` where the sandbox's
            files stay; empty where it did not say.
        open: Whether the connection is there.
        on_close: Called once, when it ends.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connected: socket.socket) -> None:
        self.pid = 0
        self.start_ticks = 0
        self.lost_commands = False
        self.reason = ""
        self.open = True
        self.on_close: Callable[[], None] | None = None
        self._loop = loop
        self._socket = connected
        self._fd = connected.fileno()
        self._seq = 0
        self._owners: dict[int, Owner] = {}
        self._signals: dict[int, asyncio.Future[bool]] = {}
        self._terminals: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._ready: asyncio.Future[None] | None = None
        self._announced: list[asyncio.Future[None]] = []
        self._keeping: deque[asyncio.Future[int]] = deque()
        loop.add_reader(self._fd, self._on_readable)

    async def hello(self, token: str, grace_ms: int, *, timeout_s: float | None = None) -> None:
        """Say who we are, and hear who it is.

        Args:
            token: Proves who we are.
            grace_ms: What the sandbox gets after us, should we be the last.
            timeout_s: What it gets to answer; None: `HELLO_S`.

        Raises:
            ChannelClosed: It is gone, or did not answer in time.
        """
        self._send((b"hello", token.encode(), b"%d" % grace_ms))
        self._ready = self._loop.create_future()
        timer = self._loop.call_later(HELLO_S if timeout_s is None else timeout_s, self._close, "it does not answer")
        try:
            await self._ready
        finally:
            timer.cancel()

    async def keep(self, kept: bool) -> None:  # noqa: FBT001
        """Let the sandbox outlive its workers from now on, or no longer.

        Raises:
            ChannelClosed: It is gone.
            OSError: It could not be recorded, so it is as it was.
        """
        answer: asyncio.Future[int] = self._loop.create_future()
        self._send((b"keep", b"%d" % kept))
        self._keeping.append(answer)
        number = await answer
        if number:
            raise OSError(number, os.strerror(number))

    # ------------------------------------------------------------ what to say

    def start(
        self,
        owner: Owner,
        *,
        mark: bytes,
        stdio: bytes,
        fds: tuple[int, ...],
        cwd: bytes,
        argv: tuple[bytes, ...],
        variables: list[bytes],
    ) -> int:
        """Ask for a command to be started; the descriptors are closed here once they are sent.

        Returns:
            Its number on this channel.

        Raises:
            ChannelClosed: The init is gone; the descriptors are closed.
            OSError: There is no room for a message of this length; the descriptors are closed.
        """
        self._seq += 1
        words = (b"start", b"%d" % self._seq, mark, stdio, cwd, b"%d" % len(argv), *argv, *variables)
        self._send(words, fds)
        self._owners[self._seq] = owner
        return self._seq

    def kill(self, seq: int, mark: bytes, *, gently: bool) -> None:
        """Ask for the end of a command's tree; `on_killed` has the answer."""
        self._send((b"kill", b"%d" % seq, mark, b"soon" if gently else b"now"))

    async def signal(self, seq: int, number: int) -> bool:
        """Signal a command's group; whether its own process was there to take it."""
        self._seq += 1
        ref = self._seq
        answer: asyncio.Future[bool] = self._loop.create_future()
        self._signals[ref] = answer
        try:
            self._send((b"signal", b"%d" % seq, b"%d" % number, b"%d" % ref))
            return await answer
        finally:
            self._signals.pop(ref, None)

    async def terminal(self) -> tuple[int, int]:
        """Both sides of a new terminal of the sandbox's own: ours and a command's.

        Raises:
            ChannelClosed: The init is gone.
            OSError: There is none to be had.
        """
        self._seq += 1
        ref = self._seq
        answer: asyncio.Future[tuple[int, int]] = self._loop.create_future()
        self._terminals[ref] = answer
        try:
            self._send((b"terminal", b"%d" % ref))
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _close_all(answer.result())
            raise
        finally:
            self._terminals.pop(ref, None)

    def forget(self, seq: int) -> None:
        """Nobody listens to this command any more."""
        self._owners.pop(seq, None)

    def end(self) -> None:
        """Ask for the end of the sandbox."""
        self._send((b"end",))

    async def announced(self, timeout_s: float) -> bool:
        """Whether the init said within the time that it ends, or has ended."""
        if self.open and not self.reason:
            waiting: asyncio.Future[None] = self._loop.create_future()
            self._announced.append(waiting)
            timer = self._loop.call_later(timeout_s, set_if_waiting, waiting)
            try:
                await waiting
            finally:
                timer.cancel()
        return not self.open or bool(self.reason)

    def close(self) -> None:
        """End the connection; an init without any lives on for one orphan grace."""
        self._close("the worker closed its connection")

    # ------------------------------------------------------------ the socket

    def _send(self, words: tuple[bytes, ...], fds: tuple[int, ...] = ()) -> None:
        if not self.open or self.reason:
            for fd in fds:
                os.close(fd)
            raise ChannelClosed(self.reason or "the connection has ended")
        message = b"\0".join(words)
        if len(message) > MESSAGE_BYTES:
            try:
                fds = (carry(message), *fds)
            except OSError:
                for fd in fds:
                    os.close(fd)
                raise
            message = b"memfd"
        self._unsent.append((message, fds))
        self._flush()
        if not self.open:
            raise ChannelClosed(self.reason or "the connection has ended")

    def _flush(self) -> None:
        while self._unsent:
            message, fds = self._unsent[0]
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
            try:
                self._socket.sendmsg([message], control, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(self._fd, self._on_writable)
                return
            except OSError as error:
                while self.open and self._receive():
                    pass  # The init may have said why before it went.
                self._close(f"the connection broke: {error.strerror}")
                return
            self._unsent.popleft()
            for fd in fds:
                os.close(fd)

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._fd)
        self._flush()

    def _on_readable(self) -> None:
        self._receive()

    def _receive(self) -> bool:
        """Take one message; False where there is none now, or none any more."""
        try:
            message, control, _, _ = self._socket.recvmsg(4096, CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except OSError as error:
            self._close(f"the connection broke: {error.strerror}")
            return False
        if not message:
            self._close("the init ended")
            return False
        fds = _descriptors(control) if control else []
        try:
            self._take(message, fds)
        except (ValueError, IndexError, OverflowError) as error:
            # Commands of the sandbox run beside the init, and could have taken it over.
            self._close(f"the init says what it should not: {error}")
            return False
        finally:
            _close_all(fds)
        return True

    def _take(self, message: bytes, fds: list[int]) -> None:
        """Do what one message says; descriptors that are taken are taken out of the list.

        Raises:
            ValueError: It says nothing that we know.
            IndexError: Likewise.
            OverflowError: Likewise.
        """
        verb, *rest = message.split(b"\0")
        owner = self._owners.get(int(rest[0])) if verb in _ABOUT_COMMANDS else None
        if owner is not None:
            _ABOUT_COMMANDS[verb](owner, rest)
        elif verb == b"terminal":
            self._take_terminal(int(rest[0]), int(rest[1]), fds)
        elif verb == b"signalled":
            answer = self._signals.pop(int(rest[0]), None)
            if answer is not None and not answer.done():
                answer.set_result(rest[1] == b"1")
        elif verb == b"kept":
            if not self._keeping:
                raise ValueError("kept what nobody asked for")
            keeping = self._keeping.popleft()
            if not keeping.done():
                keeping.set_result(int(rest[0]))
        elif verb == b"ready":
            self.pid, self.start_ticks, self.lost_commands = int(rest[0]), int(rest[1]), rest[2] == b"1"
            if self._ready is not None and not self._ready.done():
                self._ready.set_result(None)
        elif verb == b"ending":
            self.reason = rest[0].decode()[:REASON_CHARACTERS]
            self._lose(self.reason)

    def _take_terminal(self, ref: int, number: int, fds: list[int]) -> None:
        made = self._terminals.pop(ref, None)
        if made is None or made.done():
            return
        if number == 0 and len(fds) == TERMINAL_SIDES:
            made.set_result((fds[0], fds[1]))
            fds.clear()
        else:
            made.set_exception(OSError(number, os.strerror(number)))

    def _lose(self, why: str) -> None:
        waiting_for: list[asyncio.Future[Any]] = [
            *self._signals.values(),
            *self._terminals.values(),
            *self._keeping,
        ]
        for answer in waiting_for:
            if not answer.done():
                answer.set_exception(ChannelClosed(why))
        self._keeping.clear()
        owners, self._owners = self._owners, {}
        for owner in owners.values():
            owner.on_lost(why)
        waiting, self._announced = self._announced, []
        for future in waiting:
            set_if_waiting(future)

    def _close(self, why: str) -> None:
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        for _, fds in self._unsent:
            for fd in fds:
                os.close(fd)
        self._unsent.clear()
        why = self.reason or why
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ChannelClosed(why))
        self._lose(why)
        if self.on_close is not None:
            self.on_close()


def _descriptors(control: list[tuple[int, int, bytes]]) -> list[int]:
    found = array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return found.tolist()


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def carry(message: bytes) -> int:
    """A file in memory that holds a message.

    Raises:
        OSError: There is no descriptor or no memory left.
    """
    fd = os.memfd_create("sandport-message", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(message)
    except BaseException:  # whatever it is, the descriptor is nobody else's
        os.close(fd)
        raise
    return fd


def set_if_waiting(future: asyncio.Future[None]) -> None:
    """Set a future that nobody may be waiting for any more."""
    if not future.done():
        future.set_result(None)


_ABOUT_COMMANDS: dict[bytes, Callable[[Owner, list[bytes]], None]] = {
    b"started": lambda owner, rest: owner.on_started(int(rest[1])),
    b"failed": lambda owner, rest: owner.on_failed(rest[1].decode(), int(rest[2])),
    b"exit": lambda owner, rest: owner.on_exit(int(rest[1]), asked=rest[2] == b"1"),
    b"killed": lambda owner, rest: owner.on_killed(rest[1].decode()),
}
