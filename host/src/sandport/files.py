"""Files in and out of one sandbox: by which way they go, and the blocking copy kept off the event loop.

The ways, the best first: `local`, where the sandbox is a directory on this machine (`localRoot`) and the host copies
directly; `socket`, where the worker moves an archive (group `sync`); `command`, where the sandbox's own shell and tar
do. A socket that the worker cannot reach is no failure: the command is taken then.
"""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from msgspec import structs

from sandport_protocol.octets import unpack
from sandport_protocol.v1 import LeaseResult

from .errors import PathOutsideRoot, SandboxLost, UsageError
from .transfer.choice import Choice, OnProgress
from .transfer.thread import in_a_thread

if TYPE_CHECKING:
    from .numbers import Timing
    from .sync import HostPath, SyncResult
    from .transfer.far_files import FarFiles
    from .transfer.shell import Commands

__all__ = ["READ_BYTES", "Choice", "Files", "OnProgress", "Way"]

READ_BYTES = 64 * 1024 * 1024
"""How much `read_bytes` takes unless the caller says otherwise; it is all in memory at once."""
_T = TypeVar("_T")


class Way(enum.Enum):
    """How files go."""

    LOCAL = "local"
    SOCKET = "socket"
    COMMAND = "command"


class Files:
    """The files of one sandbox.

    Args:
        commands: What runs in it.
        state: Where the host keeps its state; a mirror on the way out must not empty it.

    Attributes:
        way: The way to take; None for the best that there is.
    """

    def __init__(self, commands: Commands, timing: Timing, *, state: bytes | None = None) -> None:
        self.way: Way | None = None
        self._commands = commands
        self._timing = timing
        self._state = state
        self._far: FarFiles | None = None
        self._sources: dict[bytes, None] = {}
        """What was copied in from this machine: a mirror on the way out must not empty it."""

    async def sync_in(
        self,
        local: HostPath,
        remote: bytes,
        *,
        mode: int | None,
        choice: Choice,
        replace: bool,
        dry_run: bool,
        tell: OnProgress | None,
    ) -> SyncResult:
        """`Sandbox.sync_in`."""
        destination = self._below(remote)
        self._remember(local)
        if await self._chosen() is not Way.LOCAL:
            far = await self._reached()
            return await far.sync_in(
                local, destination, mode=mode, choice=choice, replace=replace, dry_run=dry_run, tell=tell
            )
        from .sync import copy_in

        selection = choice.selection(above=True)

        def copy(root_fd: int, cancelled: Callable[[], bool]) -> SyncResult:
            return copy_in(
                local,
                root_fd,
                destination,
                mode=mode,
                selection=selection,
                follow_symlinks=choice.follow_symlinks,
                replace=replace,
                delete=choice.delete,
                dry_run=dry_run,
                cancelled=cancelled,
                progress=tell,
            )

        return await _off_the_loop(self._commands.lease, copy)

    def _remember(self, source: HostPath) -> None:
        self._sources[os.path.abspath(os.fsencode(source))] = None

    async def sync_out(
        self,
        remote: bytes,
        local: HostPath,
        *,
        mode: int | None,
        choice: Choice,
        dry_run: bool,
        max_bytes: int | None,
        max_entries: int | None,
        tell: OnProgress | None,
    ) -> SyncResult:
        """`Sandbox.sync_out`."""
        from .sync import DEFAULT_MAX_BYTES, DEFAULT_MAX_ENTRIES, copy_out

        source = self._below(remote)
        if choice.delete:
            choice = structs.replace(choice, protect=tuple(self._sources), state=self._state)
        most_bytes = DEFAULT_MAX_BYTES if max_bytes is None else max_bytes
        most_entries = DEFAULT_MAX_ENTRIES if max_entries is None else max_entries
        if await self._chosen() is not Way.LOCAL:
            far = await self._reached()
            return await far.sync_out(
                source,
                local,
                mode=mode,
                choice=choice,
                dry_run=dry_run,
                max_bytes=most_bytes,
                max_entries=most_entries,
                tell=tell,
            )
        selection = choice.selection(above=False)

        def copy(root_fd: int, cancelled: Callable[[], bool]) -> SyncResult:
            return copy_out(
                root_fd,
                source,
                local,
                mode=mode,
                selection=selection,
                delete=choice.delete,
                protect=choice.protect,
                state=choice.state,
                dry_run=dry_run,
                max_bytes=most_bytes,
                max_entries=most_entries,
                cancelled=cancelled,
                progress=tell,
            )

        return await _off_the_loop(self._commands.lease, copy)

    async def read_bytes(self, remote: bytes, *, max_bytes: int) -> bytes:
        """`Sandbox.read_bytes`."""
        source = self._below(remote)
        if await self._chosen() is not Way.LOCAL:
            return await (await self._reached()).read_bytes(source, max_bytes=max_bytes)
        from .transfer.contents import read_below

        return await _off_the_loop(
            self._commands.lease, lambda root_fd, cancelled: read_below(root_fd, source, max_bytes, cancelled)
        )

    async def write_bytes(self, remote: bytes, data: bytes | bytearray | memoryview, *, mode: int) -> None:
        """`Sandbox.write_bytes`."""
        if not 0 <= mode <= 0o777:
            raise UsageError(f"mode {mode} is not a set of permission bits; write it in octal, such as 0o600 or 0o755")
        destination = self._below(remote)
        if await self._chosen() is not Way.LOCAL:
            await (await self._reached()).write_bytes(destination, data, mode=mode)
            return
        from .transfer.contents import write_below

        await _off_the_loop(
            self._commands.lease,
            lambda root_fd, cancelled: write_below(root_fd, destination, data, mode, cancelled),
        )

    async def _chosen(self) -> Way:
        if self.way is not None:
            return self.way
        if self._commands.lease.local_root is not None:
            return Way.LOCAL
        return Way.SOCKET if "sync" in await self._commands.groups() else Way.COMMAND

    async def _reached(self) -> FarFiles:
        from .transfer.far import Far
        from .transfer.far_files import FarFiles

        if self._far is None:
            self._far = FarFiles(Far(self._commands, self._timing))
        self._far.side.has_socket = await self._chosen() is Way.SOCKET
        return self._far

    def _below(self, remote: bytes) -> bytes:
        """The path relative to the working directory."""
        if not remote.startswith(b"/"):
            return remote
        top = unpack(self._commands.lease.working_directory).rstrip(b"/")
        if remote == top or remote.startswith(top + b"/"):
            inside = remote[len(top) :].lstrip(b"/")
            return inside or b"."
        raise PathOutsideRoot(
            f"{os.fsdecode(remote)!r} is not below the sandbox's working directory {os.fsdecode(top)!r}; "
            "only files below it can be moved",
            dispatched="no",
        )


async def _off_the_loop(lease: LeaseResult, copy: Callable[[int, Callable[[], bool]], _T]) -> _T:
    assert lease.local_root is not None  # the way was chosen by it
    try:
        root_fd = os.open(unpack(lease.local_root), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxLost(
            f"the sandbox's directory is gone: {error.strerror}; take a new lease", dispatched="no"
        ) from error
    stop = threading.Event()
    try:
        return await in_a_thread(partial(copy, root_fd, stop.is_set), stop)
    finally:
        os.close(root_fd)
