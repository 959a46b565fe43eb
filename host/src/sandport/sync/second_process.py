"""A second process for a copy of many small files, because two threads of one interpreter are slower than one.

It is the program in `small_files`: started while the copy goes on, told to come only when it is ready, and handed open
directories, never paths, so that what may be read and written there is what this process was about to read and write.
It owns nothing and decides nothing. Whatever happens to it, it can be ended at once, and what it left undone or
half-done is removed and copied by this process.

It cannot outlive this one: it ends when its socket does, and when its parent is another one.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

from sandport.sync.processors import processors
from sandport.sync.small_files import CHUNK_FILES, PROGRAM, READY, Making

__all__ = ["Answer", "SecondProcess"]

_PATIENCE_S: Final = 2.0
"""How long to wait for the last few small files once this process has nothing left to do. Who takes longer is ended,
and nothing is lost: this process copies them."""

_ENVIRONMENT: Final = ("LD_LIBRARY_PATH",)
_POLL_EVERY_S: Final = 0.05
_ANSWER_BYTES: Final = 64 << 10

_INTERPRETER: Final = re.compile(r"python[0-9.]*t?")


class Answer(NamedTuple):
    """What became of the files that the second process took.

    `undone` are places in the stretch; `odd` are such places with what `Making.odd` says of them.
    """

    files: int
    total_bytes: int
    undone: tuple[int, ...]
    odd: tuple[tuple[int, int], ...]


class SecondProcess:
    """One that is running. `end` it in any case."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, tokens: tuple[int, int]) -> None:
        self.pid = process.pid
        self._process = process
        self._channel = channel
        self._tokens = tokens
        self._is_ready = False
        self._is_over = False

    @classmethod
    def start(cls, *, processor_count: int | None = None) -> Self | None:
        """Start one; it will be ready in some milliseconds.

        Args:
            processor_count: How many processors there are for this process and what it starts; by default as many as
                it may use now. On one, a second process would only take turns with this one.

        Returns:
            None where there is no processor for it, no interpreter to run it, or the system refuses.
        """
        program = _program()
        if program is None or (processors() if processor_count is None else processor_count) < 2:
            return None
        with contextlib.ExitStack() as stack:
            try:
                near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.callback(far.close)
                undo = stack.enter_context(contextlib.ExitStack())
                undo.callback(near.close)
                tokens = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                undo.callback(os.close, tokens[0])
                undo.callback(os.close, tokens[1])
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", program],
                    stdin=far.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    # It needs nothing of what may be secret here; an interpreter may be found by its library's path.
                    env={name: value for name in _ENVIRONMENT if (value := os.environ.get(name)) is not None},
                    # What a terminal sends goes to this process, which then sees to that one.
                    start_new_session=True,
                )
            except OSError:
                # Too many processes or descriptors, or no right to start any: the copy goes on without it.
                return None
            undo.pop_all()
        return cls(process, near, tokens)

    def is_ready(self) -> bool:
        """Whether it takes work now. Costs a call of the system until it is."""
        if self._is_over or self._is_ready:
            return self._is_ready
        try:
            said = self._channel.recv(len(READY), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            said = b""
        if said != READY:
            # It has ended already, or it is another program than it should be.
            self.end()
            return False
        self._is_ready = True
        return True

    def give(self, names: Sequence[bytes], source_fd: int, target_fd: int, most_bytes: int, making: Making) -> None:
        """Offer it the files of a stretch; `claim` then says what is this process's.

        Raises:
            OSError: It cannot be reached.
        """
        chunks = -(-len(names) // CHUNK_FILES)
        os.write(self._tokens[1], bytes(range(chunks)))
        user, group = making.owner or (0, 0)
        numbers = b"%d %d %d %d %d" % (making.now_ns, most_bytes, making.owner is not None, user, group)
        socket.send_fds(self._channel, [b"\0".join((numbers, *names))], [source_fd, target_fd, self._tokens[0]])

    def claim(self) -> range | None:
        """Take the next chunk of the stretch, as places in it; None if all are taken."""
        try:
            token = os.read(self._tokens[0], 1)
        except BlockingIOError:
            return None
        first = token[0] * CHUNK_FILES
        return range(first, first + CHUNK_FILES)

    def answer(self, poll: Callable[[], None]) -> Answer | None:
        """Wait until it is done with what it took.

        Args:
            poll: Called meanwhile; may raise to stop.

        Returns:
            None if it gave none, and is ended.
        """
        deadline_s = time.monotonic() + _PATIENCE_S
        self._channel.settimeout(_POLL_EVERY_S)
        while True:
            try:
                message = self._channel.recv(_ANSWER_BYTES)
            except TimeoutError:
                poll()
                if time.monotonic() < deadline_s:
                    continue
                message = b""
            except OSError:
                message = b""
            break
        answer = _answer_in(message)
        if answer is None:
            self.end()
        return answer

    def end(self) -> None:
        """End it, and return once it has ended. What it was at may be half-done.

        A call of the system that cannot be interrupted holds this up, just as it would if it were this process's own.
        """
        if self._is_over:
            return
        self._is_over = True
        self._is_ready = False
        self._channel.close()
        for fd in self._tokens:
            os.close(fd)
        self._process.kill()
        self._process.wait()


def _answer_in(message: bytes) -> Answer | None:
    lines = message.split(b"\n")
    if len(lines) != len(Answer._fields) - 1:
        return None
    (files, total_bytes), undone, odd = (tuple(map(int, line.split())) for line in lines)
    return Answer(files, total_bytes, undone, tuple(zip(odd[::2], odd[1::2], strict=True)))


def _program() -> str | None:
    """The program's file, if this process is an interpreter that could run it."""
    if sys.platform != "linux" or getattr(sys, "frozen", False):
        return None
    # Where Python is a part of another program, that program must not be started in its place.
    if not sys.executable or not _INTERPRETER.fullmatch(os.path.basename(sys.executable)):
        return None
    # In an archive of modules it is no file.
    return PROGRAM if os.path.isfile(PROGRAM) else None
