"""The standard descriptors: as the caller left them, closed or non-blocking included."""

from __future__ import annotations

import os
import select


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


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, however long that takes.

    Raises:
        OSError: It cannot be written.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            # Somebody who shares the descriptor made it non-blocking; that is theirs to choose, so we wait instead.
            _wait(descriptor, select.POLLOUT)


def read_some(descriptor: int, size: int) -> bytes:
    """Wait for some bytes; none at the end.

    Raises:
        OSError: It cannot be read.
    """
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            _wait(descriptor, select.POLLIN)


def _wait(descriptor: int, event: int) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    poll.poll()
