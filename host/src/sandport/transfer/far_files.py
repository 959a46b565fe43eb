"""The four things that can be asked of the files of a sandbox's far side."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from sandport.sync.result import SyncResult
from sandport.sync.scratch import scratch_name
from sandport.sync.tar_write import Sink
from sandport.transfer import script
from sandport.transfer.contents import past_ceiling, target_names
from sandport.transfer.far import Far
from sandport.transfer.told import failure_of, told_by

if TYPE_CHECKING:
    from sandport.sync import HostPath
    from sandport.transfer.choice import Choice, OnProgress

__all__ = ["FarFiles"]

_INLINE_BYTES: Final = 1 << 20
"""Written at once with the command that takes it; more goes in pieces."""


class FarFiles:
    """The files of a sandbox that is not a directory of this machine.

    Attributes:
        side: What they need of it.
    """

    def __init__(self, side: Far) -> None:
        self.side = side

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
            self.side, local, destination, mode=mode, choice=choice, replace=replace, dry_run=dry_run, tell=tell
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
            self.side,
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

        outcome = await self.side.shell.run(script.read_file(scratch, path), on_output=take)
        told = told_by(outcome, scratch)
        if told is not None:
            raise failure_of(outcome, told, path)
        return bytes(content)

    async def write_bytes(self, path: bytes, data: bytes | bytearray | memoryview, *, mode: int) -> None:
        """`Sandbox.write_bytes`."""
        from sandport.transfer.inward import Staging, deliver, tidied

        names = target_names(path)
        view = memoryview(data).cast("B")
        if len(view) <= min(_INLINE_BYTES, await self.side.shell.piece_bytes()):
            scratch = scratch_name()
            async with tidied(self.side, scratch, names):
                await self.side.shell.ask(
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
        await deliver(self.side, staging, write, threading.Event())
