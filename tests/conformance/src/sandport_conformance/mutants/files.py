"""The healthy worker's `syncIn` and `syncOut`: an archive over a socket into a sandbox's directory, and out of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from .archive_in import Cut, LeadsOut, Malformed, Refused, Source
from .programs import octets
from .refusals import Cancelled, Refusal

if TYPE_CHECKING:
    import socket

    from .healthy import Call
    from .leases import Leases

Json = dict[str, Any]
_BOTH_WAYS = 2
"""As `socket.SHUT_RDWR`."""


class Files:
    """The handlers of both methods.

    Args:
        leases: The sandboxes that files go into and come from.
    """

    source_class: type[Source] = Source

    def __init__(self, leases: Leases) -> None:
        self.leases = leases

    def path_of(self, call: Call) -> bytes:
        """The path that a call names."""
        self.leases.check_attached(call.params["sandboxId"])
        place = self.leases.place(call.params["sandboxId"])
        return os.path.join(os.fsencode(place.files), octets(call.params["path"]))

    @contextmanager
    def connected(self, call: Call) -> Iterator[socket.socket]:
        """The host's socket; a cancel breaks it."""
        import socket  # here, for most broken workers start without

        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            try:
                self.connect(connection, call)
            except OSError as error:
                message = f"the host's socket cannot be reached: {error}"
                raise Refusal("Unavailable", message, retry="later", detail={"field": "socket"}) from None
            call.on_cancel = lambda: self.break_off(connection)
            if call.cancelled.is_set():
                raise Cancelled
            yield connection
        finally:
            self.close(connection)

    def connect(self, connection: socket.socket, call: Call) -> None:
        """Reach the host."""
        connection.connect(call.params["socket"])

    def break_off(self, connection: socket.socket) -> None:
        """Wake whoever reads from a connection or writes to it."""
        with suppress(OSError):
            connection.shutdown(_BOTH_WAYS)

    def close(self, connection: socket.socket) -> None:
        """Let go of a connection."""
        connection.close()

    # -------------------------------------------------------------- in

    def sync_in(self, call: Call) -> Json:
        """Unpack what the host sends."""
        path = self.path_of(call)
        with self.connected(call) as connection:
            source = self.source_class(connection)
            try:
                self.unpack(call, source, self.open_top(path))
                self.read_rest(source)
            except (Cut, ConnectionError, BrokenPipeError, Malformed, LeadsOut, Refused, OSError) as error:
                if call.cancelled.is_set():
                    raise Cancelled from None
                self.refuse(error)
            if call.cancelled.is_set():
                raise Cancelled
            return {"bytes": self.counted(source.total)}

    def read_rest(self, source: Source) -> None:
        """Read what follows the archive."""
        source.rest()

    def open_top(self, path: bytes) -> int:
        """A descriptor of the directory that the archive goes into."""
        try:
            os.makedirs(path, exist_ok=True)
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError):
            detail = {"path": os.fsdecode(path), "reason": "kind"}
            raise Refusal("PathRefused", f"{path!r} is no directory", detail=detail) from None

    def unpack(self, call: Call, source: Source, top: int) -> None:
        """Unpack an archive into an open directory, and close it."""
        try:
            self.leases.worker.unpacker_class(source, top, call.cancelled).run()
        finally:
            os.close(top)

    def refuse(self, error: Exception) -> None:
        """Answer what went wrong."""
        if isinstance(error, Cut | Malformed):
            detail = {"reason": "cut" if isinstance(error, Cut) else "malformed"}
            raise Refusal("ProtocolViolation", str(error), dispatched="unknown", detail=detail)
        if isinstance(error, LeadsOut):
            raise Refusal("PathOutsideRoot", str(error), dispatched="unknown", detail={"path": str(error)})
        if isinstance(error, ConnectionError):
            raise Refusal("Unavailable", f"the connection broke: {error}", dispatched="unknown")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            detail = {"reason": "noSpace"}
            raise Refusal("QuotaExceeded", f"there is no room left: {error}", dispatched="unknown", detail=detail)
        raise Refusal("PathRefused", str(error), dispatched="unknown", detail={"reason": "kind"})

    def counted(self, total: int) -> int:
        """What is answered for the bytes that went through."""
        return total

    # -------------------------------------------------------------- out

    def sync_out(self, call: Call) -> Json:
        """Send what is there."""
        path = self.path_of(call)
        if not os.path.lexists(path):
            shown = os.fsdecode(octets(call.params["path"]))
            raise Refusal("PathNotFound", f"there is no {shown!r}", detail={"path": shown})
        total = 0
        packer = self.leases.worker.packer_class(path)
        with self.connected(call) as connection:
            try:
                for piece in packer.pieces():
                    connection.sendall(piece)
                    total += len(piece)
            except ConnectionError as error:
                if call.cancelled.is_set():
                    raise Cancelled from None
                self.refuse(error)
            if call.cancelled.is_set():
                raise Cancelled
        return {"bytes": self.counted(total), "notes": packer.notes}
