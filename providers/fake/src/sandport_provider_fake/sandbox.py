"""One sandbox that this worker acquired or attached: what runs in it, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from sandport_sdk.v1 import errors, pack, types

from .command import SHELL, Command, variables_of
from .errors import sandbox_failed
from .starter import Starter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import FakeConfig
    from .starter import Program
    from .vendor import Record, Vendor

ENDED_KEPT = 64
"""Ended processes of a sandbox whose results and last output are kept."""


class Sandbox:
    """What a worker knows of a sandbox.

    Attributes:
        record: As it was when it was opened; of what may change, the vendor's own is what counts.
        config: Of the environment that it was opened for.
        processes_lost: Whether something that ran in it went with an earlier worker.
    """

    def __init__(
        self, vendor: Vendor, record: Record, config: FakeConfig, *, window_bytes: int, processes_lost: bool = False
    ) -> None:
        self.record = record
        self.config = config
        self.processes_lost = processes_lost
        self._vendor = vendor
        self._window_bytes = window_bytes
        self._starter: Starter | None = None
        self._commands: set[Command] = set()
        self.processes: dict[str, Command | None] = {}
        """By the host's ids; None for one that is about to start."""

    def check(self, params: types.CommandParams) -> None:
        """Refuse what no command of this provider can have, before anything is started.

        Raises:
            NotSupported: Another user, or a terminal.
        """
        if params.user is not None:
            why = "commands run as the user of this worker"
            raise errors.NotSupported(why, detail=errors.Detail(field="user"), dispatched="no")
        if isinstance(params, types.StartProcessParams) and params.pty is not None:
            why = "there are no terminals here"
            raise errors.NotSupported(why, detail=errors.Detail(field="pty"), dispatched="no")

    async def run(
        self, params: types.CommandParams, *, keep_bytes: int | None, stdin: bytes | None, timeout_ms: int | None
    ) -> Command:
        """Start a command; whoever started it says `begin_reading`, and `release` in the end.

        Args:
            params: What to run.
            keep_bytes: How much of each stream is kept; None where it is followed.
            stdin: All of its input; None to keep it open.
            timeout_ms: When it is killed; None for never.

        Cancel: it is killed.

        Raises:
            WireError: It did not start.
        """
        starter = self._guarded()
        root = self._vendor.files(self.record.sandbox_id)
        variables = variables_of(root) | starter.marks
        command = Command(params, window_bytes=self._window_bytes, keep_bytes=keep_bytes)
        starting = asyncio.ensure_future(command.start(starter, root, variables, stdin=stdin, timeout_ms=timeout_ms))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            starter.resume()
            await starting
            # It runs by now, for nobody.
            command.begin_reading()
            await command.stop("cancelled")
            await asyncio.shield(command.over)
            command.close()
            raise errors.Cancelled("the command was cancelled", dispatched="unknown", partial=command.partial) from None
        self._commands.add(command)
        return command

    async def start_program(self, argv: Sequence[bytes], fds: tuple[int, int, int]) -> Program:
        """Start a program of ours in the working directory, with these descriptors; its end is the caller's affair.

        Cancel: it is killed.

        Raises:
            WireError: It did not start.
        """
        starter = self._guarded()
        root = self._vendor.files(self.record.sandbox_id)
        starting = asyncio.ensure_future(
            starter.start(argv, variables_of(root) | starter.marks, os.fsencode(root), fds)
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starter.resume()
            program = await starting
            await program.signal(signal.SIGKILL)
            await asyncio.shield(program.status)
            raise

    def _guarded(self) -> Starter:
        """The guard of this worker's programs, begun with the first.

        Raises:
            WireError: The machine does not let us.
        """
        if self._starter is None or self._starter.is_ending:
            try:
                starter = Starter(self._vendor.guards(self.record.sandbox_id))
                starter.begin(self._vendor.record_path(self.record.sandbox_id))
            except OSError as error:
                self._starter = None
                raise sandbox_failed(error, dispatched="no") from error
            self._starter = starter
        return self._starter

    def release(self, command: Command) -> None:
        """The command has its answer. What it left behind writes on, into nothing."""
        command.when_quiet(lambda: self._commands.discard(command))

    def add_process(self, process_id: str, command: Command) -> None:
        """Remember a process; of those that ended, only so many are kept."""
        ended = [known for known, process in self.processes.items() if process is not None and process.over.done()]
        for known in ended[: max(0, len(ended) - ENDED_KEPT)]:
            forgotten = self.processes.pop(known)
            if forgotten is not None:
                self.release(forgotten)
        self.processes[process_id] = command

    async def end(self) -> None:
        """End everything that runs in it for this worker."""
        if self._starter is not None:
            await self._starter.end()
        await self._let_go()

    async def leave(self) -> None:
        """Let go of it: what runs in it is lost, the sandbox stays."""
        if self._starter is not None:
            await self._starter.leave()
        await self._let_go()

    async def _let_go(self) -> None:
        running = [command for command in self._commands if command.is_running]
        for command in running:
            command.begin_reading()  # where an ordered fault keeps its call from it: nobody waits for that
        await asyncio.gather(*(command.over for command in running))
        for command in self._commands:
            command.close()
        self._commands.clear()
        self.processes.clear()

    def lease(self) -> types.LeaseResult:
        """What the host is told of it."""
        root = pack(os.fsencode(self._vendor.files(self.record.sandbox_id)))
        return types.LeaseResult(
            handle=handle_of(self.record.sandbox_id),
            working_directory=root,
            local_root=root if self.config.local_root else None,
            shell=SHELL,
            egress=types.Egress(mode="none" if self.record.egress == "none" else "all"),
            expires_at_ms=self.record.expires_at_ms,
            without=() if self.config.sync else ("sync",),
            notes=("a test tool: nothing isolates this sandbox", "the egress grant is written down and not enforced"),
        )


def handle_of(sandbox_id: str) -> str:
    """The handle of a sandbox."""
    return f"fake/1/{sandbox_id}"
