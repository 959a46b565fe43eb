"""The bytes of one big file by two threads: while one of them writes, the other reads.

The kernel lets one writer at a time into a file, and its own copy of a piece holds the file for the reading too. Two
threads that each read a block into memory of their own, and then write it, keep the writing busy all the time; on two
processors that is as fast as writing alone, and needs no mapping that a truncated file could turn into a signal.

It is not for file systems that can share blocks, or that have the copy made by a server: there the kernel's way copies
nothing at all. So only those that are known to do neither are taken.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from sandport.sync.kernel_copy import BLOCK_BYTES, PIECE_BYTES
from sandport.sync.processors import processors

__all__ = ["PAIR_FROM_BYTES", "PairCopy"]

PAIR_FROM_BYTES: Final = 16 << 20
"""Below, a thread costs more than it saves."""

_COPYING_KINDS: Final = frozenset({b"ext2", b"ext3", b"ext4", b"tmpfs"})
"""File systems that have no other way than to copy, on this machine."""


class PairCopy:
    """Copies ranges of big files in a pair of threads, where that is the better way.

    Args:
        processor_count: How many processors there are for the two threads; by default as many as this process may use
            when it is first asked.
    """

    def __init__(self, *, processor_count: int | None = None) -> None:
        self._processor_count = processor_count
        self._judged: dict[tuple[int, int], bool] = {}

    def suits(self, source_fd: int, target_fd: int, size_bytes: int) -> bool:
        """Tell whether so many bytes of one file should go into another one in this way."""
        if size_bytes < PAIR_FROM_BYTES:
            return False
        devices = os.fstat(source_fd).st_dev, os.fstat(target_fd).st_dev
        if devices not in self._judged:
            count = processors() if self._processor_count is None else self._processor_count
            self._judged[devices] = count > 1 and _kinds_of(devices) <= _COPYING_KINDS
        return self._judged[devices]

    def copy(self, source_fd: int, target_fd: int, start: int, end: int, advance: Callable[[int], None]) -> int:
        """Copy a range of one file to the same place in another.

        Args:
            source_fd, target_fd: The files.
            start, end: The range.
            advance: Told of each piece, in bytes, by the calling thread; may raise to stop.

        Returns:
            Where the source ended, at most `end`. The target holds nothing behind that.

        Raises:
            OSError: As the system said, to whichever of the two threads.
        """
        work = _Work(start, end)
        other = _Other(work, source_fd, target_fd)
        try:
            other.start()
            _move(work, source_fd, target_fd, lambda copied: advance(copied + work.collect()))
        finally:
            work.stop()
            other.join()
        if other.error is not None:
            raise other.error
        advance(work.collect())
        if work.end < end:
            os.ftruncate(target_fd, work.end)
        return work.end


class _Work:
    """What is still to be copied, for both threads."""

    def __init__(self, start: int, end: int) -> None:
        self.end = end
        self._next = start
        self._changed = threading.Condition()
        self._copied = 0

    def take(self) -> tuple[int, int] | None:
        """The next block, as where it is and how long it is; None if there is none."""
        with self._changed:
            position = self._next
            size_bytes = min(BLOCK_BYTES, self.end - position)
            if size_bytes <= 0:
                return None
            self._next += size_bytes
            return position, size_bytes

    def cut(self, end: int) -> None:
        """The source ends here already."""
        with self._changed:
            self.end = min(self.end, end)

    def stop(self) -> None:
        """Give out no more blocks."""
        with self._changed:
            self._next = max(self._next, self.end)
            self._changed.notify()

    def note(self, copied: int) -> None:
        """The other thread copied so many bytes; it waits here while too many of them are not collected."""
        with self._changed:
            self._copied += copied
            while self._copied >= PIECE_BYTES and self._next < self.end:
                self._changed.wait()

    def collect(self) -> int:
        """How many bytes were noted since the last time."""
        with self._changed:
            copied, self._copied = self._copied, 0
            self._changed.notify()
            return copied


class _Other:
    """The second thread. Its descriptors are its own, so whatever cuts the first one short, it writes nowhere else."""

    def __init__(self, work: _Work, source_fd: int, target_fd: int) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._source_fd = source_fd
        self._target_fd = target_fd
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        try:
            source_fd = os.dup(self._source_fd)
        except OSError:  # No descriptor is free; the first one does it all.
            return
        try:
            target_fd = os.dup(self._target_fd)
        except OSError:
            os.close(source_fd)
            return
        thread = threading.Thread(target=self._run, args=(source_fd, target_fd), name="sandport-copy")
        try:
            thread.start()
        except RuntimeError:
            # This process may start no more of them; the first one does it all.
            os.close(source_fd)
            os.close(target_fd)
        else:
            self._thread = thread

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _run(self, source_fd: int, target_fd: int) -> None:
        try:
            _move(self._work, source_fd, target_fd, self._work.note)
        except BaseException as error:  # noqa: BLE001 - it is raised where the copy was asked for
            self.error = error
            self._work.stop()
        finally:
            os.close(source_fd)
            os.close(target_fd)


def _move(work: _Work, source_fd: int, target_fd: int, told: Callable[[int], None]) -> None:
    memory = memoryview(bytearray(BLOCK_BYTES))
    while (taken := work.take()) is not None:
        position, size_bytes = taken
        block = memory[:size_bytes]
        got = 0
        while got < size_bytes and (more := os.preadv(source_fd, [block[got:]], position + got)):
            got += more
        written = 0
        while written < got:
            written += os.pwrite(target_fd, block[written:got], position + written)
        if got < size_bytes:
            work.cut(position + got)
        told(got)


def _kinds_of(devices: tuple[int, int]) -> set[bytes]:
    """The kinds of the file systems on some devices; one that nobody knows has an empty name."""
    kinds: dict[int, bytes] = {}
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            for line in table:
                mount, _, file_system = line.partition(b" - ")
                major, minor = mount.split(b" ", 3)[2].split(b":")
                kinds[os.makedev(int(major), int(minor))] = file_system.partition(b" ")[0]
    except OSError:
        # Another system than Linux, one without /proc, or no descriptor is free: nothing is known.
        return {b""}
    return {kinds.get(device, b"") for device in devices}
