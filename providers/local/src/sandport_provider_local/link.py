"""What a small program of ours says: messages over a SOCK_SEQPACKET socket, and lines to its log.

A message is byte strings joined by NUL, which neither an argument nor a variable can hold; the first one is the verb.
Of the standard library only what starts fast, as in every module that `init` and `keeper` import.
"""

from __future__ import annotations

import os
import struct
import time

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    import socket
else:
    import _socket as socket  # Without the other's import of `enum`, which is a third of a start.

REQUEST_BYTES = 16 * 1024 * 1024
"""No kernel takes more arguments and variables than this."""


class Link:
    """One end of a connection that never waits: what cannot be sent now is kept and sent later."""

    __slots__ = ("socket", "fd", "outgoing")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected
        self.fd = connected.fileno()
        self.outgoing: list[tuple[bytes, tuple[int, ...]]] = []

    def send(self, *fields: bytes | int | str, fds: tuple[int, ...] = ()) -> None:
        """Send a message, or queue it where the socket is full; its descriptors are closed here once they are sent."""
        self.outgoing.append((b"\0".join(f if isinstance(f, bytes) else str(f).encode() for f in fields), fds))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        try:
            while self.outgoing:
                message, fds = self.outgoing[0]
                if fds:
                    passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))
                    self.socket.sendmsg([message], [passed], socket.MSG_NOSIGNAL)
                else:
                    self.socket.send(message, socket.MSG_NOSIGNAL)
                del self.outgoing[0]
                for fd in fds:
                    os.close(fd)
        except BlockingIOError:
            return
        except OSError:  # The other end is gone; the loop reads the end of the connection.
            self.forget()

    def forget(self) -> None:
        """Drop what waits to be sent."""
        for _, fds in self.outgoing:
            for fd in fds:
                os.close(fd)
        self.outgoing.clear()


def exactly(fields: list[bytes], count: int) -> list[bytes]:
    """The fields, if they are so many.

    Raises:
        ValueError: They are not.
    """
    if len(fields) != count:
        raise ValueError("a message with the wrong number of fields")
    return fields


def read_memfd(fd: int) -> bytes:
    """The message in a descriptor that came with it; closes the descriptor.

    Raises:
        ValueError: It is too long, or not a file.
    """
    try:
        size = os.fstat(fd).st_size
        if size > REQUEST_BYTES:
            raise ValueError("a message of more than it may have")
        return os.pread(fd, size, 0)
    except OSError as error:
        raise ValueError(f"a message that cannot be read: {error}") from None
    finally:
        os.close(fd)


def log(text: str) -> None:
    """One line to the sandbox's log file, with the time."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode("utf-8", "backslashreplace")
    try:
        os.write(2, line)
    except OSError:  # A full disk must not be the end of the sandbox.
        return
