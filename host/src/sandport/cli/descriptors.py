"""The standard descriptors: as the caller left them, closed or non-blocking included."""

from __future__ import annotations

import errno
import os
import select
from types import FrameType


def fill_closed() -> None:
    """Put something harmless on each of 0, 1 and 2 that is closed.

    Otherwise the next pipe or socket would get that number, and a program's output would be written into it. The
    stand-in is opened for reading: an output that the caller closed still answers every write with an error.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one, since those below it are taken.
            os.open(os.devnull, os.O_RDONLY)
            os.set_inheritable(descriptor, True)


class Unread(OSError):
    """After a signal nobody took anything of what was being written, for as long as that is waited for."""

    def __init__(self) -> None:
        super().__init__(errno.ETIMEDOUT, "nobody reads it")


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however long that takes; after a signal, in the main thread, as long as somebody reads.

    Raises:
        OSError: It cannot be written.
    """
    view = memoryview(data)
    while view:
        view = view[_write(descriptor, view) :]


def is_writing(frame: FrameType) -> bool:
    """Whether a thread is at this moment in a write that may wait, so that a signal's handler may raise `Unread`."""
    return frame.f_code is _write.__code__


def _write(descriptor: int, view: memoryview) -> int:
    """One write; nothing in here needs an end in order, since a signal's handler may raise at any point."""
    while True:
        try:
            return os.write(descriptor, view)
        except BlockingIOError:
            # Somebody who shares the descriptor made it non-blocking; that is theirs to choose, so we wait instead.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def read_some(descriptor: int, size: int) -> bytes:
    """Wait for some bytes; none at the end.

    Raises:
        OSError: It cannot be read.
    """
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll()
