"""The log of a worker: its stderr, read by a thread so that no worker ever waits for it."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import selectors
import termios
import threading
import time
from collections import deque
from typing import IO

from .masking import Masker

_PIECE_BYTES = 1 << 16
_KEPT_BYTES = 1 << 16
_LOOK_S = 0.0002
"""Between two looks into a pipe that should become empty."""
_CATCH_UP_S = 2.0


class WorkerLog:
    """Keeps the end of what comes out of a pipe.

    Args:
        pipe: The reading end; closed by `close`.
        masker: Takes secrets out of what is shown.
        filling_bytes: How many bytes at the begin are none of the worker's.

    Attributes:
        total_bytes: Everything that came, kept or not.
    """

    def __init__(self, pipe: IO[bytes], masker: Masker, *, filling_bytes: int = 0) -> None:
        self.total_bytes = 0
        self._pipe = pipe
        self._masker = masker
        self._filling_bytes = filling_bytes
        self._kept: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="a worker's stderr", daemon=True)

    @property
    def begun(self) -> bool:
        """Whether it is read."""
        return self._reader.ident is not None

    def begin(self) -> None:
        """Read it from now on."""
        self._reader.start()

    def wait_end(self, timeout_s: float) -> None:
        """Wait until everybody who could write to it has closed it, or the time is over."""
        if self.begun:
            self._reader.join(timeout_s)

    def text(self) -> str:
        """The end of what was written until now, secrets masked."""
        deadline = time.monotonic() + _CATCH_UP_S
        while True:
            with self._lock:
                if not self._reader.is_alive() or not bytes_in(self._pipe) or time.monotonic() > deadline:
                    shown = self._masker.octets(b"".join(self._kept))
                    return shown[-_KEPT_BYTES:].decode("utf-8", "backslashreplace")
            time.sleep(_LOOK_S)

    def close(self, timeout_s: float) -> None:
        """Wait for the end, and close our side; who holds the other for longer writes to nobody in a thread of ours."""
        self.wait_end(timeout_s)
        if not self._reader.is_alive():
            self._pipe.close()

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._pipe, selectors.EVENT_READ)
            while selector.select():
                # Under the lock, so that what is no longer in the pipe is kept for whoever asks.
                with self._lock:
                    data = os.read(self._pipe.fileno(), _PIECE_BYTES)
                    if not data:
                        return
                    self._keep(data)

    def _keep(self, data: bytes) -> None:
        data, self._filling_bytes = data[self._filling_bytes :], max(0, self._filling_bytes - len(data))
        self.total_bytes += len(data)
        self._kept.append(data)
        while sum(map(len, self._kept)) - len(self._kept[0]) > _KEPT_BYTES + self._masker.longest:
            self._kept.popleft()


def bytes_in(pipe: IO[bytes]) -> int:
    """How much was written into a pipe and not read yet; 0 where the machine cannot tell."""
    left = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, left)
    return left[0]


def full_pipe() -> tuple[tuple[IO[bytes], IO[bytes]], int]:
    """A pipe without room, its reading end first, and how many bytes are in it."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    filled = 0
    for size in (_PIECE_BYTES, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                filled += os.write(write_end, b"\n" * size)
    os.set_blocking(write_end, True)
    return (os.fdopen(read_end, "rb", 0), os.fdopen(write_end, "wb", 0)), filled
