"""Writes tar archives: headers and small files gathered into large writes, big files by the kernel.

The writer knows nothing of trees: it is told one member after the other. A file of which fewer bytes come than its
header has promised is filled up with zeros, and one that has grown is cut; the caller learns what it really gave.
"""

from __future__ import annotations

import errno
import io
import os
import select
import zlib
from collections.abc import Callable
from typing import Final, Protocol

from sandport.sync.errors import SyncError, failure, printable
from sandport.sync.small_files import SMALL_BYTES, read_on
from sandport.sync.tar_format import (
    BLOCK_BYTES,
    LONGEST_PATH_BYTES,
    NANOSECONDS,
    ZERO_BLOCK,
    Dialect,
    Extents,
    padding_of,
    sum_of,
)

__all__ = ["DescriptorSink", "Sink", "TarWriter"]

_BATCH_BYTES: Final = 1 << 20
"""How much is gathered before it is written."""

_PIECE_BYTES: Final = 8 << 20
"""Between two pieces of a big file the caller may stop the copy."""

_MOST_EXTENTS: Final = 1 << 16
"""Pieces of data told apart in one file; what comes after them is written with its holes as zeros."""

_LARGEST_OCTAL: Final = 0o77777777777
_NAME_BYTES: Final = 100

_USUAL_FROM_NS: Final = 10**18
_USUAL_TO_NS: Final = 8 * 10**18
"""Times whose seconds have ten decimal digits and at most eleven octal ones: from 2001 to 2223."""

_USUAL_RECORD_BYTES: Final = 30
_USUAL_FILL: Final = bytes(BLOCK_BYTES - _USUAL_RECORD_BYTES)
"""The record of such a time is always as long."""

_ZEROS: Final = bytes(1 << 20)


class Sink(Protocol):
    """Takes an archive. One that also has `fileno()` is sent big files by the kernel, past `write`.

    So its `write` must keep nothing back: what was written before must be in the descriptor already. The standard
    library's file objects do keep back, and are only ever written to.
    """

    def write(self, data: bytes | memoryview, /) -> object:
        """Take all of it, however long that takes; what it raises ends the archive."""


class DescriptorSink:
    """Writes to a pipe, a socket or a file.

    Args:
        fd: The descriptor, which stays the caller's to close. It may be in the mode that does not wait.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor, for `os.sendfile`."""
        return self._fd

    def write(self, data: bytes | memoryview, /) -> None:
        """Write all of it.

        Raises:
            OSError: As the system said.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                _wait_writable(self._fd)


class TarWriter:
    """Writes one archive.

    Args:
        sink: Where to.
        dialect: For which readers.

    Attributes:
        bytes_written: What the sink has taken; after `end` the length of the archive.
    """

    def __init__(self, sink: Sink, *, dialect: Dialect) -> None:
        self.bytes_written = 0
        self._sink = sink
        self._out_fd = _descriptor_of(sink)
        self._is_pax = dialect is Dialect.PAX
        self._batch: list[bytes] = []
        self._batched = 0
        self._magic = b"ustar\x0000" if self._is_pax else b"ustar  \0"
        self._tails: dict[bytes, tuple[bytes, int]] = {}
        self._leads: dict[tuple[bytes, int], bytes] = {}
        self._usual_tail = self._tail(b"0", b"")
        self._usual_lead = self._lead(b"x", bytes(_USUAL_RECORD_BYTES))[:BLOCK_BYTES]

    def directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Write a directory; what is in it follows as members of its own.

        Raises:
            SyncError: The path is longer than an archive may hold.
        """
        self._add(self._header(b"5", path if path.endswith(b"/") else path + b"/", mode, 0, mtime_ns))

    def link(self, path: bytes, target: bytes, mtime_ns: int) -> None:
        """Write a symbolic link.

        Raises:
            SyncError: The path is longer than an archive may hold.
        """
        self._add(self._header(b"2", path, 0o777, 0, mtime_ns, target=target))

    def file(
        self,
        path: bytes,
        mode: int,
        size_bytes: int,
        mtime_ns: int,
        fd: int,
        *,
        advance: Callable[[int], None] | None = None,
    ) -> int:
        """Write a regular file.

        Args:
            path: Its path in the archive.
            mode: Its permission bits.
            size_bytes: How many bytes its header promises.
            mtime_ns: Its time.
            fd: Where its bytes are, at the first of them.
            advance: Told of each piece, in bytes, holes included; may raise to stop.

        Returns:
            How many bytes, holes included, the file really gave; if that is not `size_bytes`, the rest is zeros.

        Raises:
            SyncError: The path is longer than an archive may hold, or the file cannot be read.
        """
        if size_bytes > SMALL_BYTES:
            return self._big(path, mode, size_bytes, mtime_ns, fd, advance or _ignore)
        try:
            # A byte from an empty file shows one of the kernel's own files, whose sizes mean nothing.
            data = os.read(fd, size_bytes or 1)
            if len(data) < size_bytes:
                data = read_on(fd, data, size_bytes)
        except OSError as error:
            raise failure(error, path, "read") from error
        given = len(data)
        if given != size_bytes:
            data = data.ljust(size_bytes, b"\0") if size_bytes else b""
        if len(path) <= _NAME_BYTES and path.isascii() and _USUAL_FROM_NS <= mtime_ns < _USUAL_TO_NS:
            header = self._usual_header(path, mode, size_bytes, mtime_ns)
        else:
            header = self._header(b"0", path, mode, size_bytes, mtime_ns)
        fill = -size_bytes % BLOCK_BYTES
        self._batch += (header, data, ZERO_BLOCK[:fill])
        self._batched += len(header) + size_bytes + fill
        if self._batched >= _BATCH_BYTES:
            self.flush()
        if advance is not None:
            advance(given)
        return given

    def end(self) -> None:
        """Write the end mark, and all that is still held back."""
        self._add(ZERO_BLOCK + ZERO_BLOCK)
        self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        if self._batch:
            data = b"".join(self._batch)
            self._batch.clear()
            self._batched = 0
            self._sink.write(data)
            self.bytes_written += len(data)

    def _add(self, data: bytes) -> None:
        self._batch.append(data)
        self._batched += len(data)
        if self._batched >= _BATCH_BYTES:
            self.flush()

    # Big files

    def _big(
        self, path: bytes, mode: int, size_bytes: int, mtime_ns: int, fd: int, advance: Callable[[int], None]
    ) -> int:
        try:
            extents = _find_extents(fd, size_bytes) if self._is_pax else None
        except OSError as error:
            raise failure(error, path, "read") from error
        if extents is None:
            self._add(self._header(b"0", path, mode, size_bytes, mtime_ns))
            given = self._piece(path, fd, 0, size_bytes, advance)
            self._zeros(size_bytes - given + padding_of(size_bytes), advance)
            return given
        layout = b"%d\n%b" % (len(extents), b"".join([b"%d\n%d\n" % extent for extent in extents]))
        layout = layout.ljust(len(layout) + padding_of(len(layout)), b"\0")
        data_bytes = sum(extents.sizes)
        records = b"".join(
            (
                b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n",
                _record(b"GNU.sparse.name", _checked(path)),
                _record(b"GNU.sparse.realsize", b"%d" % size_bytes),
            )
        )
        stored = len(layout) + data_bytes
        self._add(self._header(b"0", b"GNUSparseFile.0", mode, stored, mtime_ns, records=records))
        self._add(layout)
        given = self._sparse(path, fd, extents, size_bytes, advance)
        self._add(ZERO_BLOCK[: padding_of(stored)])
        return given

    def _sparse(self, path: bytes, fd: int, extents: Extents, size_bytes: int, advance: Callable[[int], None]) -> int:
        position, shortest = 0, size_bytes
        for offset, length in extents:
            advance(offset - position)
            given = self._piece(path, fd, offset, length, advance)
            if given < length:
                shortest = min(shortest, offset + given)
                self._zeros(length - given, advance)
            position = offset + length
        advance(size_bytes - position)
        return min(shortest, os.fstat(fd).st_size)

    def _piece(self, path: bytes, fd: int, offset: int, size_bytes: int, advance: Callable[[int], None]) -> int:
        """Write one stretch of a file; how many of its bytes there were."""
        done = 0
        while done < size_bytes:
            wanted = min(size_bytes - done, _PIECE_BYTES)
            moved = self._send(fd, offset + done, wanted) if self._out_fd is not None else 0
            if not moved:
                # No descriptor to send to, a pair that the kernel does not serve, or the end; reading decides.
                try:
                    data = os.pread(fd, min(wanted, _BATCH_BYTES), offset + done)
                except OSError as error:
                    raise failure(error, path, "read") from error
                if not data:
                    break
                self._add(data)
                moved = len(data)
            done += moved
            advance(moved)
        return done

    def _send(self, fd: int, offset: int, size_bytes: int) -> int:
        out_fd = self._out_fd
        if out_fd is None or size_bytes <= SMALL_BYTES:
            return 0
        self.flush()
        while True:
            try:
                moved = os.sendfile(out_fd, fd, offset, size_bytes)
            except BlockingIOError:
                _wait_writable(out_fd)
            except OSError:
                # The kernel does not serve this pair, or one of them is at fault; reading and writing tell which.
                self._out_fd = None
                return 0
            else:
                self.bytes_written += moved
                return moved

    def _zeros(self, size_bytes: int, advance: Callable[[int], None]) -> None:
        while size_bytes > len(_ZEROS):
            self._add(_ZEROS)
            size_bytes -= len(_ZEROS)
            advance(0)
        self._add(_ZEROS[:size_bytes])

    # Headers

    def _usual_header(self, path: bytes, mode: int, size_bytes: int, mtime_ns: int) -> bytes:
        """What `_header` gives for a small file of a short name and of these centuries, in a third of the time."""
        seconds, fraction = divmod(mtime_ns, NANOSECONDS)
        tail, tail_sum = self._usual_tail
        head = b"%b%07o\x000000000\x000000000\x00%011o\x00%011o\x00" % (
            path.ljust(_NAME_BYTES, b"\0"),
            mode,
            size_bytes,
            seconds,
        )
        checksum = (zlib.adler32(head, 0) & 0xFFFF) + tail_sum
        if fraction and self._is_pax:
            return b"%b30 mtime=%d.%09d\n%b%b%06o\0 %b" % (
                self._usual_lead,
                seconds,
                fraction,
                _USUAL_FILL,
                head,
                checksum,
                tail,
            )
        return b"%b%06o\0 %b" % (head, checksum, tail)

    def _header(
        self,
        kind: bytes,
        path: bytes,
        mode: int,
        size_bytes: int,
        mtime_ns: int,
        *,
        target: bytes = b"",
        records: bytes = b"",
    ) -> bytes:
        seconds, fraction = divmod(mtime_ns, NANOSECONDS)
        size = b"%011o\0" % size_bytes if size_bytes <= _LARGEST_OCTAL else None
        time = b"%011o\0" % seconds if 0 <= seconds <= _LARGEST_OCTAL else None
        if self._is_pax:
            if fraction or time is None:
                records += _time_record(mtime_ns)
            if size is None:
                records += _record(b"size", b"%d" % size_bytes)
            if len(path) > _NAME_BYTES or not path.isascii():
                records += _record(b"path", _checked(path))
                path = path[:_NAME_BYTES]
            if len(target) > _NAME_BYTES or not target.isascii():
                records += _record(b"linkpath", _checked(target))
                target = target[:_NAME_BYTES]
            lead = self._lead(b"x", records) if records else b""
            size, time = size or b"00000000000\0", time or b"00000000000\0"
        else:
            lead = b""
            if len(target) > _NAME_BYTES:
                lead = self._lead(b"K", _checked(target) + b"\0")
                target = target[:_NAME_BYTES]
            if len(path) > _NAME_BYTES:
                lead += self._lead(b"L", _checked(path) + b"\0")
                path = path[:_NAME_BYTES]
            size, time = size or _base_256(size_bytes), time or _base_256(seconds)
        return lead + self._block(kind, path, mode, size, time, target)

    def _block(self, kind: bytes, path: bytes, mode: int, size: bytes, time: bytes, target: bytes) -> bytes:
        head = b"%b%07o\x000000000\x000000000\x00%b%b" % (path.ljust(_NAME_BYTES, b"\0"), mode, size, time)
        if target:
            tail, tail_sum = self._tail(kind, target)
        else:
            known = self._tails.get(kind)
            if known is None:
                known = self._tails[kind] = self._tail(kind, b"")
            tail, tail_sum = known
        return b"%b%06o\0 %b" % (head, sum_of(head) + tail_sum, tail)

    def _tail(self, kind: bytes, target: bytes) -> tuple[bytes, int]:
        """What stands after the checksum, and what it and the checksum's own field (eight spaces) add to the sum."""
        tail = kind + target.ljust(_NAME_BYTES, b"\0") + self._magic
        tail = tail.ljust(BLOCK_BYTES - 156, b"\0")
        return tail, sum_of(tail) + 8 * ord(" ")

    def _lead(self, kind: bytes, body: bytes) -> bytes:
        """A header that describes the member after it. Most are as long as the one before, so they are kept."""
        size_bytes = len(body)
        block = self._leads.get((kind, size_bytes))
        if block is None:
            name = b"pax" if kind == b"x" else b"././@LongLink"
            block = self._block(kind, name, 0o644, b"%011o\0" % size_bytes, b"00000000000\0", b"")
            if size_bytes < 2 * BLOCK_BYTES:
                self._leads[kind, size_bytes] = block
        return block + body.ljust(size_bytes + -size_bytes % BLOCK_BYTES, b"\0")


def _time_record(mtime_ns: int) -> bytes:
    seconds, fraction = divmod(abs(mtime_ns), NANOSECONDS)
    value = b"%d.%09d" % (seconds, fraction)
    if len(value) == 20 and mtime_ns > 0:
        return b"30 mtime=%b\n" % value
    return _record(b"mtime", b"-" + value if mtime_ns < 0 else value)


def _record(key: bytes, value: bytes) -> bytes:
    """A pax record; its length counts the digits of the length as well.

    A name that is no UTF-8 stands there as it is, which is GNU tar's way. The standard's own, a record that says so,
    makes GNU tar complain.
    """
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _checked(path: bytes) -> bytes:
    if len(path) > LONGEST_PATH_BYTES:
        raise SyncError(
            f"{printable(path)} is longer than the {LONGEST_PATH_BYTES:,} bytes that an archive may hold; leave that "
            "part of the tree out",
            path=path,
        )
    return path


def _base_256(number: int) -> bytes:
    """A number that needs more than eleven octal digits, or is negative: GNU's form."""
    return (number & ((1 << 96) - 1) | 1 << 95).to_bytes(12, "big")


def _find_extents(fd: int, size_bytes: int) -> Extents | None:
    """Find a file's data; None if it has no holes, or the file system does not tell."""
    extents = Extents()
    position = 0
    try:
        while position < size_bytes and len(extents) < _MOST_EXTENTS:
            try:
                start = os.lseek(fd, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                start = size_bytes
            if start >= size_bytes:
                # A last piece without bytes: readers go by it to make the file as long as it is.
                extents.add(size_bytes, 0)
                return extents
            end = min(os.lseek(fd, start, os.SEEK_HOLE), size_bytes)
            if start == 0 and end == size_bytes:
                return None
            if end > start:
                extents.add(start, end - start)
            # If somebody punched a hole between the two questions, the next round finds what is left of the data.
            position = max(end, start + 1)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
    if position < size_bytes:
        extents.add(position, size_bytes - position)
    return extents


def _descriptor_of(sink: Sink) -> int | None:
    fileno: Callable[[], int] | None = getattr(sink, "fileno", None)
    if fileno is None or isinstance(sink, io.IOBase):
        return None
    return fileno()


def _wait_writable(fd: int) -> None:
    waiting = select.poll()
    waiting.register(fd, select.POLLOUT)
    waiting.poll()


def _ignore(_: int) -> None:
    pass
