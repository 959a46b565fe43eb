"""The host's end of a `syncIn` or `syncOut`: a Unix socket for one call, served by a thread of its own."""

from __future__ import annotations

import os
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_LONGEST_PATH_BYTES = 107
_PIECE_BYTES = 1 << 18
_TICK_S = 0.05
"""How often a thread that waits for a worker looks whether anybody still waits for it."""


def folder_for_sockets() -> Path:
    """A new folder that nobody else may enter, whose name leaves room for a socket's."""
    made = Path(tempfile.mkdtemp(prefix="kit-"))
    if len(os.fsencode(made)) + len("/socket") <= _LONGEST_PATH_BYTES:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix="kit-", dir="/tmp"))  # a name that fits; mkdtemp makes it ours


class Door:
    """A socket on which one worker is expected; a context manager, whose end closes it.

    Attributes:
        path: Where it is.
        moved_bytes: How much has gone through it.
        connected: Set once the worker has connected.
        over: Set once nothing goes through it any more.
        broken: Whether the worker closed it before everything had gone through.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._folder = folder_for_sockets()
        self.path = str(self._folder / "socket")
        self._timeout_s = timeout_s
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(4)
        self._given_up = threading.Event()
        self.moved_bytes = 0
        self.connected = threading.Event()
        self.over = threading.Event()
        self.broken = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._given_up.set()
        self._thread.join()
        self._listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def connections(self) -> int:
        """How often the worker has connected; asked once, after its answer."""
        count = int(self.connected.is_set())
        self._listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
                count += 1
        return count

    def settled(self) -> bool:
        """Wait until nothing goes through any more; False where that takes too long."""
        return self.over.wait(self._timeout_s)

    def _run(self) -> None:
        try:
            if not self.until_possible(self._listener, to_write=False):
                return
            connection, _ = self._listener.accept()
            with connection:
                connection.setblocking(False)
                self.connected.set()
                self.serve(connection)
        finally:
            self.over.set()

    def serve(self, connection: socket.socket) -> None:
        """Move what is to be moved."""
        raise NotImplementedError

    def wait_for(self, gate: threading.Event) -> bool:
        """Wait until a gate is open; False where nobody waits for us any more."""
        while not gate.wait(_TICK_S):
            if self._given_up.is_set():
                return False
        return True

    def until_possible(self, connection: socket.socket, *, to_write: bool) -> bool:
        """Wait until a connection can be used; False where nobody waits for us any more."""
        poll = select.poll()
        poll.register(connection, select.POLLOUT if to_write else select.POLLIN)
        while not poll.poll(_TICK_S * 1_000):
            if self._given_up.is_set():
                return False
        return True


class Feed(Door):
    """The socket of a `syncIn`: whoever connects is given an archive, and then its end.

    Args:
        pieces: What to send; an event among the pieces is waited for.
        timeout_s: How long the worker may take.

    Attributes:
        said: What the worker wrote, who should write nothing.
    """

    def __init__(self, pieces: Iterable[bytes | threading.Event], *, timeout_s: float) -> None:
        super().__init__(timeout_s=timeout_s)
        self._pieces = pieces
        self.said = b""

    def serve(self, connection: socket.socket) -> None:
        """Send everything."""
        try:
            for piece in self._pieces:
                if isinstance(piece, threading.Event):
                    if not self.wait_for(piece):
                        return
                elif not self._send(connection, piece):
                    return
            connection.shutdown(socket.SHUT_WR)
            while self.until_possible(connection, to_write=False):
                if not (said := connection.recv(_PIECE_BYTES)):
                    return
                self.said += said
        except ConnectionError:
            self.broken = True

    def _send(self, connection: socket.socket, piece: bytes) -> bool:
        left = memoryview(piece)
        while left:
            if not self.until_possible(connection, to_write=True):
                return False
            try:
                sent = connection.send(left)
            except BlockingIOError:  # there was room for less than a piece
                continue
            left = left[sent:]
            self.moved_bytes += sent
        return True


class Drain(Door):
    """The socket of a `syncOut`: takes what whoever connects sends, until its end.

    Args:
        timeout_s: How long the worker may take.
        gate: Read no more than `free` bytes before this is set; None for no such gate.
        free: How many bytes are read before the gate.
        most: Close the connection after so many bytes.
        keep: Whether `data` is wanted; else bytes are only counted.

    Attributes:
        data: What came.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        gate: threading.Event | None = None,
        free: int = 0,
        most: int | None = None,
        keep: bool = True,
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        self._gate, self._free, self._most, self._keep = gate, free, most, keep
        self.data = bytearray()

    def serve(self, connection: socket.socket) -> None:
        """Take everything."""
        try:
            while self._most is None or self.moved_bytes < self._most:
                if self._gate is not None and self.moved_bytes >= self._free and not self.wait_for(self._gate):
                    return
                if not self.until_possible(connection, to_write=False):
                    return
                piece = connection.recv(_PIECE_BYTES)
                if not piece:
                    return
                self.moved_bytes += len(piece)
                if self._keep:
                    self.data += piece
        except ConnectionError:
            self.broken = True
