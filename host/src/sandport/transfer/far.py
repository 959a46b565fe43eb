"""The far side of one sandbox: which tar it has, and the four things that can be asked of its files."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from sandport.numbers import Timing
from sandport.sync.errors import SyncError
from sandport.sync.result import SyncResult
from sandport.sync.scratch import scratch_name
from sandport.sync.tar_format import Dialect
from sandport.sync.tar_write import Sink
from sandport.transfer import script
from sandport.transfer.contents import past_ceiling, target_names
from sandport.transfer.patience import Patience
from sandport.transfer.shell import Commands, Shell
from sandport.transfer.told import failure_of, told_by

if TYPE_CHECKING:
    from sandport.files import Choice, OnProgress
    from sandport.sync import HostPath

__all__ = ["Far"]

_INLINE_BYTES: Final = 1 << 20
"""Written at once with the command that takes it; more goes in pieces."""

_GNU: Final = "gnu"
_BSD: Final = "bsd"
_BUSYBOX: Final = "busybox"
_OTHER: Final = "other"

_EXTRACT: Final = {_GNU: "--warning=no-timestamp", _BSD: "", _BUSYBOX: "", _OTHER: ""}
_CREATE: Final = {
    _GNU: (
        "--format=posix --pax-option=delete=atime,delete=ctime --sparse --hard-dereference --numeric-owner "
        "--ignore-failed-read --quoting-style=escape"
    ),
    _BSD: "--format=pax",
    _BUSYBOX: "",
    _OTHER: "",
}


class Far:
    """What files need of a sandbox that is not a directory of this machine.

    Attributes:
        commands: The sandbox.
        shell: Its shell.
        patience: How long it may do nothing.
        has_socket: Whether its worker moves archives itself.
    """

    def __init__(self, commands: Commands, timing: Timing) -> None:
        self.commands = commands
        self.patience = Patience.of(timing)
        self.shell = Shell(commands, self.patience)
        self.has_socket = False
        self._tar: str | None = None

    async def has_processes(self) -> bool:
        """Whether a command's input can be poured in."""
        return "process" in await self.commands.groups()

    async def dialect(self) -> Dialect:
        """What its tar reads; asked once."""
        if self._tar is None:
            self._tar = await self._probe()
        return Dialect.PAX if self._tar == _GNU else Dialect.PLAIN

    async def _probe(self) -> str:
        outcome = await self.shell.run(script.PROBE)
        said = bytes(outcome.stdout)
        if not outcome.ok:
            raise SyncError("the sandbox's shell does not run a script, which moving files needs")
        if said.strip() == b"none":
            raise SyncError(
                "the sandbox has no tar, which moving files needs; install it in the sandbox's image, or use a "
                "provider that moves files itself"
            )
        if b"GNU tar" in said:
            return _GNU
        if b"bsdtar" in said:
            return _BSD
        return _BUSYBOX if b"BusyBox" in said or b"busybox" in said else _OTHER

    @property
    def extract_options(self) -> str:
        """For tar, when it extracts; once `dialect` was asked."""
        return _EXTRACT[self._tar or _OTHER]

    @property
    def create_options(self) -> str:
        """For tar, when it archives; once `dialect` was asked."""
        return _CREATE[self._tar or _OTHER]

    async def sync_in(
        self,
        local: HostPath,
        destination: bytes,
        *,
        mode: int | None,
        choice: Choice,
        replace: bool,
        dry_run: bool,
        tell: OnProgress | None,
    ) -> SyncResult:
        """`Sandbox.sync_in`."""
        from sandport.transfer.inward import sync_in

        return await sync_in(
            self, local, destination, mode=mode, choice=choice, replace=replace, dry_run=dry_run, tell=tell
        )

    async def sync_out(
        self,
        source: bytes,
        local: HostPath,
        *,
        mode: int | None,
        choice: Choice,
        dry_run: bool,
        max_bytes: int,
        max_entries: int,
        tell: OnProgress | None,
    ) -> SyncResult:
        """`Sandbox.sync_out`."""
        from sandport.transfer.outward import sync_out

        return await sync_out(
            self,
            source,
            local,
            mode=mode,
            choice=choice,
            dry_run=dry_run,
            max_bytes=max_bytes,
            max_entries=max_entries,
            tell=tell,
        )

    async def read_bytes(self, path: bytes, *, max_bytes: int) -> bytes:
        """`Sandbox.read_bytes`."""
        scratch = scratch_name()
        content = bytearray()

        def take(stream: str, data: bytes) -> None:
            if stream == "stdout":
                if len(content) + len(data) > max_bytes:
                    raise past_ceiling(path, max_bytes)
                content.extend(data)

        outcome = await self.shell.run(script.read_file(scratch, path), on_output=take)
        told = told_by(outcome, scratch)
        if told is not None:
            raise failure_of(outcome, told, path)
        return bytes(content)

    async def write_bytes(self, path: bytes, data: bytes | bytearray | memoryview, *, mode: int) -> None:
        """`Sandbox.write_bytes`."""
        from sandport.transfer.inward import Staging, deliver, tidied

        names = target_names(path)
        view = memoryview(data).cast("B")
        if len(view) <= min(_INLINE_BYTES, await self.shell.piece_bytes()):
            scratch = scratch_name()
            async with tidied(self, scratch, names):
                await self.shell.ask(
                    script.write_file(scratch, names, mode=mode, size_bytes=len(view)), scratch, path, stdin=bytes(view)
                )
            return

        def write(sink: Sink) -> SyncResult:
            for start in range(0, len(view), 1 << 20):
                sink.write(view[start : start + (1 << 20)])
            return SyncResult(files=1, directories=0, links=0, total_bytes=len(view))

        staging = Staging(
            names=names,
            shown=path,
            whole=lambda scratch: script.write_file(scratch, names, mode=mode, size_bytes=len(view)),
            place=lambda scratch: script.place_file(
                scratch, names, "", base=b"", inside=False, replace=False, unpack=False
            ),
            unpack=lambda scratch, where: script.keep_chunks(scratch, where, mode=mode, size_bytes=len(view)),
            finish=lambda scratch, loose: script.finish_file(
                scratch, names, base=b"", inside=False, replace=False, loose=loose
            ),
        )
        await deliver(self, staging, write, threading.Event())
