"""Files in and out of one sandbox: which way they can go, and the blocking copy kept off the event loop.

So far there is one way: the sandbox is a directory on this machine (`localRoot`) and the host copies directly.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sandport_protocol.octets import unpack
from sandport_protocol.v1 import LeaseResult

from .closing import finished
from .errors import NotSupported, PathOutsideRoot, SandboxLost

if TYPE_CHECKING:
    from .sync import HostPath, SyncProgress, SyncResult

OnProgress = Callable[["SyncProgress"], None]


async def copy_into(
    lease: LeaseResult, local: HostPath, remote: bytes, *, mode: int | None, on_progress: OnProgress | None
) -> SyncResult:
    """Copy a host file or tree below the working directory of a lease."""
    from .sync import copy_in

    destination = _below(lease, remote)

    def copy(root_fd: int, cancelled: Callable[[], bool]) -> SyncResult:
        return copy_in(local, root_fd, destination, mode=mode, cancelled=cancelled, progress=on_progress)

    return await _off_the_loop(lease, copy)


async def copy_from(
    lease: LeaseResult,
    remote: bytes,
    local: HostPath,
    *,
    mode: int | None,
    max_bytes: int | None,
    max_entries: int | None,
    on_progress: OnProgress | None,
) -> SyncResult:
    """Copy a file or tree below the working directory of a lease to this machine."""
    from .sync import DEFAULT_MAX_BYTES, DEFAULT_MAX_ENTRIES, copy_out

    source = _below(lease, remote)

    def copy(root_fd: int, cancelled: Callable[[], bool]) -> SyncResult:
        return copy_out(
            root_fd,
            source,
            local,
            mode=mode,
            max_bytes=DEFAULT_MAX_BYTES if max_bytes is None else max_bytes,
            max_entries=DEFAULT_MAX_ENTRIES if max_entries is None else max_entries,
            cancelled=cancelled,
            progress=on_progress,
        )

    return await _off_the_loop(lease, copy)


def _below(lease: LeaseResult, remote: bytes) -> bytes:
    """The path relative to the working directory."""
    if not remote.startswith(b"/"):
        return remote
    top = unpack(lease.working_directory).rstrip(b"/")
    if remote == top or remote.startswith(top + b"/"):
        inside = remote[len(top) :].lstrip(b"/")
        return inside or b"."
    raise PathOutsideRoot(
        f"{os.fsdecode(remote)!r} is not below the sandbox's working directory {os.fsdecode(top)!r}; "
        "only files below it can be moved"
    )


async def _off_the_loop(lease: LeaseResult, copy: Callable[[int, Callable[[], bool]], SyncResult]) -> SyncResult:
    if lease.local_root is None:
        raise NotSupported(
            "this provider's sandboxes are not on this machine, and moving files over a stream is not built yet; "
            "use execute() with stdin and stdout"
        )
    try:
        root_fd = os.open(unpack(lease.local_root), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxLost(f"the sandbox's directory is gone: {error.strerror}", dispatched="no") from error
    stop = threading.Event()
    try:
        copying = asyncio.get_running_loop().run_in_executor(None, partial(copy, root_fd, stop.is_set))
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:
            # The copy looks at the flag between files and pieces; it clears its scratch away before it ends, and until
            # then the descriptor must stay what it is.
            stop.set()
            await finished(_settled(copying))
            raise
    finally:
        os.close(root_fd)


async def _settled(copying: asyncio.Future[SyncResult]) -> None:
    await asyncio.wait((copying,))
    copying.exception()  # seen: it was cut off, which is what its caller is told
