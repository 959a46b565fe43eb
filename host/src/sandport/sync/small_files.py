"""Small files, from one directory to another: most of what most trees are made of, so each call more would show.

`copy_small` does all of one file or nothing: what does not go smoothly is left undone, without a trace, for whoever has
the longer way that finds out and tells why.

This module is also a program, the second process of a copy (`second_process`), which does the same with the same
function for the directories that it is handed. That is why it imports nothing of ours and next to nothing at all: it
must be there before the copy is over. (`typing` alone would double the time that it takes to start.)
"""

from __future__ import annotations

import os
import stat

__all__ = [
    "CHUNK_FILES",
    "CREATE",
    "ONE_STEP_BYTES",
    "OPEN_FILE",
    "PROGRAM",
    "READY",
    "SMALL_BYTES",
    "STRETCH_FILES",
    "UNDONE",
    "Making",
    "copy_small",
    "make_file",
    "read_on",
    "write_all",
]

OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""How a source is opened: never through a link, and never waiting for a FIFO or a lease."""

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

SMALL_BYTES = 64 << 10
"""Up to here, reading and writing costs less than asking where the holes are."""

ONE_STEP_BYTES = 4096
"""The smallest page that a kernel has: a read of so much is of one moment."""

UNDONE = -1

PROGRAM = __file__
"""What the second process runs."""

READY = b"ready"
CHUNK_FILES = 8
"""How many files of a stretch either process takes at a time."""

STRETCH_FILES = 512
"""How many names one message brings at most."""

_FILE_MODE_BITS = 0o777
_NAME_BYTES = 256
_LOOKS_EVERY_S = 1.0
_DESCRIPTORS = 3
_DESCRIPTOR_BYTES = 4


class Making:
    """How the files of one directory are made.

    Attributes:
        now_ns: The time of access that they get.
        owner: User and group that they are given to; None for those of this process.
        exact: Modes that files made here have at once: neither this process's umask nor the directory takes from them.
        odd: Files that were not the same before and after they were read: the name, and the size that was promised
            and not given, or `UNDONE` where it was.
    """

    __slots__ = ("exact", "now_ns", "odd", "owner")

    def __init__(self, now_ns: int, owner: tuple[int, int] | None) -> None:
        self.now_ns = now_ns
        self.owner = owner
        self.exact: set[int] = set()
        self.odd: list[tuple[bytes, int]] = []


def copy_small(name: bytes, source_fd: int, target_fd: int, most_bytes: int, making: Making) -> int:
    """Copy a file of at most so many bytes to the same name in a directory that is closed to everybody else.

    Returns:
        How many bytes, or `UNDONE` if it cannot be done in this way.
    """
    try:
        fd = os.open(name, OPEN_FILE, dir_fd=source_fd)
    except OSError:
        return UNDONE
    try:
        before = os.fstat(fd)
        size_bytes = before.st_size
        if size_bytes > most_bytes or not stat.S_ISREG(before.st_mode):
            return UNDONE
        # A byte more shows a file that has grown, and one of the kernel's own, whose sizes mean nothing.
        data = os.read(fd, size_bytes + 1)
        copied = len(data)
        # Its size was the one that was told, and it was read at once: a second look would tell nothing.
        changed = False
        if copied != size_bytes or size_bytes > ONE_STEP_BYTES:
            data = read_on(fd, data, size_bytes)
            copied = len(data)
            after = os.fstat(fd)
            changed = after.st_size != size_bytes or after.st_mtime_ns != before.st_mtime_ns
    except OSError:
        return UNDONE
    finally:
        os.close(fd)
    if copied > size_bytes:
        data = data[:size_bytes]
    try:
        make_file(name, data, before.st_mode & _FILE_MODE_BITS, before.st_mtime_ns, target_fd, making)
    except OSError:
        return UNDONE
    if copied != size_bytes:
        making.odd.append((name, size_bytes))
    elif changed:
        making.odd.append((name, UNDONE))
    return len(data)


def make_file(name: bytes, data: bytes, mode: int, mtime_ns: int, target_fd: int, making: Making) -> None:
    """Make a file of bytes that are at hand, in a directory that is closed to everybody else.

    One call for each thing to be done, and none for a mode that the system gave already.

    Raises:
        FileExistsError: Somebody was here all the same, and has that name.
        OSError: As the system said. The file is not there, unless it could not be removed.
    """
    fd = os.open(name, CREATE, mode, dir_fd=target_fd)
    try:
        try:
            if data:
                written = os.write(fd, data)
                if written < len(data):
                    write_all(fd, data[written:])
            if making.owner is not None:
                os.fchown(fd, *making.owner)
            if mode not in making.exact:
                if stat.S_IMODE(os.fstat(fd).st_mode) == mode:
                    making.exact.add(mode)
                else:
                    os.fchmod(fd, mode)
            os.utime(fd, ns=(making.now_ns, mtime_ns))
        finally:
            os.close(fd)
    except BaseException as error:
        try:
            os.unlink(name, dir_fd=target_fd)
        except OSError as problem:
            error.add_note(f"could not remove what was unfinished: {problem}")
        raise


def read_on(fd: int, data: bytes, size_bytes: int) -> bytes:
    """Read what is still to come of a small file after its first bytes, until its end or its size."""
    while len(data) < size_bytes:
        more = os.read(fd, size_bytes - len(data))
        if not more:
            break
        data += more
    return data


def write_all(fd: int, data: bytes) -> None:
    """Write bytes to a file, as many at a time as it takes."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, data[written:])


# ------------------------------------------------------------------ the second process


def _serve() -> None:
    """Take stretches of files from standard input, a socket of messages, until it ends or the parent does.

    A message is a line of numbers and the names, each after a null byte; with it come the source's directory, the
    target's, and a pipe that holds one byte for each chunk of the names that nobody has taken yet. The answer is three
    lines of numbers: files and bytes that were copied; the places of the names that were left undone; and place and
    size of what is in `Making.odd`.
    """
    import _socket
    import sys

    parent = os.getppid()
    channel = _socket.socket(fileno=0)
    channel.settimeout(_LOOKS_EVERY_S)
    channel.send(READY)
    room_bytes = (STRETCH_FILES + 1) * _NAME_BYTES
    room = _socket.CMSG_SPACE(_DESCRIPTORS * _DESCRIPTOR_BYTES)
    # Looked at beside the end of input: a copy of the other end may live on in a process that the parent forked.
    while os.getppid() == parent:
        try:
            message, ancillary, flags, _ = channel.recvmsg(room_bytes, room)
        except TimeoutError:
            continue
        if not message or flags & (_socket.MSG_TRUNC | _socket.MSG_CTRUNC):
            # The end; or longer names than a system should have, or no room for one more descriptor.
            return
        handed = b"".join(data for _, _, data in ancillary)
        places = range(0, len(handed), _DESCRIPTOR_BYTES)
        source_fd, target_fd, tokens_fd = (
            int.from_bytes(handed[place : place + _DESCRIPTOR_BYTES], sys.byteorder) for place in places
        )
        channel.send(_do_stretch(message, source_fd, target_fd, tokens_fd, parent))
        for fd in (source_fd, target_fd, tokens_fd):
            os.close(fd)


def _do_stretch(message: bytes, source_fd: int, target_fd: int, tokens_fd: int, parent: int) -> bytes:
    numbers, *names = message.split(b"\0")
    now_ns, most_bytes, has_owner, user, group = map(int, numbers.split())
    making = Making(now_ns, (user, group) if has_owner else None)
    files = total_bytes = 0
    undone: list[int] = []
    odd: list[int] = []
    while os.getppid() == parent:
        try:
            token = os.read(tokens_fd, 1)
        except BlockingIOError:
            break
        if not token:
            break
        first = token[0] * CHUNK_FILES
        for place in range(first, min(first + CHUNK_FILES, len(names))):
            copied = copy_small(names[place], source_fd, target_fd, most_bytes, making)
            if copied == UNDONE:
                undone.append(place)
                continue
            files += 1
            total_bytes += copied
            while making.odd:
                odd += place, making.odd.pop()[1]
    return b"\n".join(" ".join(map(str, line)).encode() for line in ((files, total_bytes), undone, odd))


if __name__ == "__main__":
    try:
        _serve()
    finally:
        # Nothing is open that wants to be flushed, and taking an interpreter apart takes longer than all that is left.
        os._exit(0)
