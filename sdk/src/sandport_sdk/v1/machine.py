"""Sandboxes on the worker's own machine, which outlive their worker: for providers whose commands are processes here.

Not imported with `sandport_sdk.v1`: a provider says `from sandport_sdk.v1 import machine`. Each sandbox has a keeper, a
small process that starts the sandbox's commands and ends with all of them: when the sandbox is destroyed, at its
expiry, or one orphan grace after its last worker has gone, unless it is kept. So the lease methods of a provider are
these:

```python
class MyProvider(Provider):
    capabilities = Capabilities(kill="group", expiry="agent")

    def __init__(self, session):
        super().__init__(session)
        self._sandboxes = machine.Sandboxes(session, self.name)

    def acquire_lease(self, params, call):
        return self._sandboxes.create(params).lease(shell="/bin/sh")

    def attach_lease(self, params, call):
        try:
            sandbox = self._sandboxes.attach(params)
        except machine.Unfinished:
            return types.AttachLeaseResult(state="unreachable")
        if sandbox is None:
            return types.AttachLeaseResult(state="gone")
        lease = sandbox.lease(shell="/bin/sh")
        return types.AttachLeaseResult(state="attached", lease=lease, processes_lost=sandbox.processes_lost)

    def list_leases(self, params, call):
        return self._sandboxes.list(params)

    def destroy_lease(self, params, call):
        return self._sandboxes.destroy(params)

    def close(self):
        self._sandboxes.close()
```

and in `execute` a command is `process = await sandbox.start(argv, stdin, stdout, stderr, env=env)` with
`sandbox = self._sandboxes.opened(params.sandbox_id)`, then `await process.wait()`. Nothing here isolates anything. A
provider that does has an `Init` behind the sandbox's walls, which stays, starts `["nsenter", ..., "--", *argv]` or
whatever enters them, says with `look_inside` what is not there, and leaves the sandbox's `folder` out of what it shows.

The functions of `Sandboxes` block for some milliseconds, so plain `def` handlers call them: those run in threads. A
sandbox's `start` and all of `Process` are for code in the loop. It needs Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandport_protocol import errors
from sandport_protocol.octets import pack
from sandport_protocol.ranges import INSTANT_MS
from sandport_protocol.v1 import (
    AcquireLeaseParams,
    AttachLeaseParams,
    DestroyLeaseParams,
    DestroyLeaseResult,
    LeaseResult,
    ListedLease,
    ListLeasesParams,
    ListLeasesResult,
)
from sandport_sdk.inside import look_inside
from sandport_sdk.keeper import SANDBOX_ID
from sandport_sdk.machine_init import Init
from sandport_sdk.machine_process import Process, no_room, not_started, send_plan
from sandport_sdk.sandbox_folder import STARTS, SandboxFolder, all_ids, answer, ask

if TYPE_CHECKING:
    from sandport_sdk.v1.provider import Session

__all__ = ["Init", "Process", "Sandbox", "Sandboxes", "Unfinished", "look_inside"]

Text = str | bytes
"""A word, a path or a value: bytes, or what `os.fsdecode` makes of them."""

END_S = 60.0
"""What a sandbox gets to end. It takes milliseconds, and longer where there are many files."""
ENTRY_BYTES = 256
"""More than one sandbox takes on a page of `listLeases`."""


class Sandbox:
    """A sandbox that this worker has acquired or attached.

    Attributes:
        sandbox_id: Its id.
        handle: Its name for a later worker.
        files: Its directory for files, the working directory of its commands.
        folder: What `files` is in. A provider may keep files of its own there; they are removed with it.
        expires_at_ms: The Unix time at which it ends.
        processes_lost: Whether something ran in it and was ended, with its worker or with its keeper.
    """

    def __init__(self, folder: SandboxFolder, handle: str, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.handle = handle
        self.files: Path = folder.files
        self.folder: Path = folder.path
        self.expires_at_ms = folder.expires_at_ms()
        self.processes_lost = False
        self._folder = folder
        self._attending: socket.socket | None = None

    def lease(self, **facts: Any) -> LeaseResult:
        """The answer to an acquire or an attach.

        Args:
            **facts: Members of `LeaseResult` to add (`shell`, `egress`, `notes`), or to replace: where the sandbox sees
                its files under another name, `working_directory`; where a command sees other files, `local_root=None`.
        """
        known: dict[str, Any] = {
            "handle": self.handle,
            "working_directory": pack(os.fspath(self.files)),
            "local_root": pack(os.fspath(self.files)),
            "expires_at_ms": self.expires_at_ms,
        }
        return LeaseResult(**{**known, **facts})

    async def start(
        self,
        argv: Sequence[Text],
        stdin: int,
        stdout: int,
        stderr: int,
        *,
        cwd: Text = b"",
        env: Mapping[str, Text] | Mapping[bytes, Text],
    ) -> Process:
        """Start a command, in a session of its own.

        Args:
            argv: The program, looked for in the PATH of `env`, and its words.
            stdin: A descriptor for its input; this and the next two belong to the caller again when it comes back.
            stdout: For its output.
            stderr: For its errors.
            cwd: Where it runs, below `files` unless it is absolute.
            env: All of its variables; one that marks the sandbox is added.

        Raises:
            errors.LeaseNotFound: The sandbox has ended.
            errors.NotAttached: Its keeper has ended, and it has not: an attach brings it back.
            errors.CommandNotFound: There is no such program; all of these with `dispatched` `no`.
            errors.CommandNotExecutable: It is there, and cannot be run.
            errors.PathNotFound: `cwd` cannot be entered.
            errors.TooLarge: Words and variables are longer than the kernel takes.
            errors.QuotaExceeded: The machine has no room for another process.
            errors.SandboxLost: The sandbox ended at this moment.

        Cancel: nothing of it runs.
        """
        plan = self._plan(argv, cwd, env)
        connection = self._connect()
        try:
            send_plan(connection, plan, (stdin, stdout, stderr))
            process = Process(connection, asyncio.get_running_loop())
        except BaseException:
            connection.close()
            raise
        try:
            await process._begin()
        except BaseException:
            process.close()
            raise
        if process._failure is not None:
            raise not_started(*process._failure, plan["argv"][0], plan["cwd"])
        return process

    def _plan(self, argv: Sequence[Text], cwd: Text, env: Mapping[str, Text] | Mapping[bytes, Text]) -> dict[str, Any]:
        variables = {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
        return {
            "argv": [os.fsdecode(word) for word in argv],
            "cwd": os.path.join(os.fspath(self.files), os.fsdecode(cwd)),
            "env": variables | {SANDBOX_ID: self.sandbox_id},
        }

    def _connect(self) -> socket.socket:
        try:
            return self._folder.connect(timeout_s=0)
        except FileNotFoundError:
            raise errors.LeaseNotFound(f"{self.sandbox_id} has ended", dispatched="no") from None
        except ConnectionRefusedError:
            why = f"the keeper of {self.sandbox_id} has ended; attach the sandbox again"
            raise errors.NotAttached(why, dispatched="no") from None
        except BlockingIOError:
            raise errors.Overloaded("too many commands begin at this moment", dispatched="no") from None
        except OSError as error:
            raise no_room(error, dispatched="no") from error

    def _attend(self, connection: socket.socket, *, processes_lost: bool) -> None:
        """Be there from now on: as long as this connection is, the sandbox does not end for want of a worker."""
        former, self._attending = self._attending, connection
        self.processes_lost = processes_lost
        if former is not None:
            former.close()

    def _finish(self, expires_at_ms: int, grace_s: float, *, keep: bool) -> None:
        """From now on a later worker can attach it, and its time runs."""
        try:
            self._folder.finish(expires_at_ms=expires_at_ms)
        except OSError as error:
            raise no_room(error, dispatched="no") from error
        self.expires_at_ms = expires_at_ms
        assert self._attending is not None  # since it was created
        ask(self._attending, attend=grace_s, keep=keep)
        if answer(self._attending) is None:
            raise errors.SandboxLost("the sandbox was ended while it was made", dispatched="no")

    def _leave(self) -> None:
        if self._attending is not None:
            self._attending.close()


class Unfinished(errors.Unavailable):
    """A sandbox that is there and half made: its state is `unreachable`, and a destroy ends it."""

    @property
    def condition(self) -> str:
        """As which it goes over the wire where nobody catches it."""
        return errors.Unavailable.__name__


class Sandboxes:
    """All sandboxes of one provider and store on this machine; make one for a worker, when its provider is made.

    What it keeps is in the session's state directory, and nothing that a sandbox needs is in the worker.
    """

    def __init__(self, session: Session, name: str) -> None:
        """Touch nothing yet.

        Args:
            session: The provider's.
            name: The provider's, for handles.
        """
        self._session = session
        self._name = name
        self._grace_s = session.limits.orphan_grace_ms / 1000
        self._open: dict[str, Sandbox] = {}
        self._started: list[int] = []

    def create(self, params: AcquireLeaseParams, *, fill: Callable[[Sandbox], object] | None = None) -> Sandbox:
        """Make a sandbox, and attend it.

        Args:
            params: What was asked for.
            fill: Does what else a new sandbox needs: files, walls. Only once it has come back the sandbox is finished,
                and its lifetime begins. Where it raises, the sandbox is ended again and the error goes on; where the
                worker is killed in the middle, the sandbox is on the list, can be destroyed, and cannot be attached.

        Raises:
            errors.InvalidParams: Its id is taken (`dispatched` `no`, as all of these).
            errors.QuotaExceeded: The machine has no room for it.
            errors.Unavailable: Its keeper cannot be started; nothing is left of it. Or (`dispatched` `unknown`) `fill`
                failed, and what there was cannot be ended; it stays on the list.

        Repeat: refused. Cancel: a thread is not interrupted; the sandbox is made, or nothing is.
        """
        self._reap()
        folder = self._folder(params.sandbox_id)
        try:
            if fill is None:
                folder.make(expires_at_ms=_in_ms(params.ttl_ms), kept=params.keep)
            else:
                folder.begin()
        except FileExistsError:
            raise errors.InvalidParams(f"{params.sandbox_id} is there already", dispatched="no") from None
        except OSError as error:
            self._undo(params.sandbox_id)
            raise no_room(error, dispatched="no") from error
        try:
            attached = self._connection(folder, keep=None, fresh=True)
        except errors.WireError:
            self._undo(params.sandbox_id)
            raise
        if attached is None:
            raise errors.SandboxLost("the sandbox was ended while it was made", dispatched="no")
        sandbox = self._attended(params.sandbox_id, folder, attached)
        if fill is not None:
            self._fill(sandbox, fill, params)
        return sandbox

    def attach(self, params: AttachLeaseParams) -> Sandbox | None:
        """Attend a sandbox that this or another worker has made; None where it has ended.

        One whose keeper has ended (a reboot, a kill) gets a new one, and `processes_lost`.

        Raises:
            errors.InvalidParams: The handle is not the one of this sandbox.
            Unfinished: It is still being made, or whoever made it was killed, and only a destroy ends it. Answer
                `unreachable`.
            errors.Unavailable: Its keeper cannot be started.

        Repeat: the same. Cancel: a thread is not interrupted.
        """
        self._reap()
        if params.handle != self.handle(params.sandbox_id):
            raise errors.InvalidParams(f"{params.handle!r} is no handle of {params.sandbox_id}", dispatched="no")
        folder = self._folder(params.sandbox_id)
        for _ in range(STARTS):
            if folder.expires_at_ms() is not None:
                attached = self._connection(folder, keep=params.keep)
                return None if attached is None else self._attended(params.sandbox_id, folder, attached)
            if not folder.exists():
                self._forget(params.sandbox_id)
                return None
            if folder.is_unfinished() or not self._wait_end(folder):
                break
        raise Unfinished(f"{params.sandbox_id} was never finished; it can be destroyed", dispatched="no")

    def opened(self, sandbox_id: str) -> Sandbox:
        """A sandbox that this worker attends.

        Raises:
            errors.NotAttached: It does not.
        """
        sandbox = self._open.get(sandbox_id)
        if sandbox is None:
            raise errors.NotAttached(f"{sandbox_id} is not attached to this worker", dispatched="no")
        return sandbox

    def list(self, params: ListLeasesParams) -> ListLeasesResult:
        """All sandboxes of this store, or one, a page at a time; those too that were never finished.

        Raises:
            errors.Unavailable: The state directory cannot be read.
        """
        self._reap()
        try:
            ids = all_ids(self._session.state_dir, self._session.store_id)
        except OSError as error:
            raise errors.Unavailable(f"the state directory cannot be read: {error}", dispatched="no") from error
        ids = [each for each in ids if params.sandbox_id in (None, each) and each > (params.cursor or "")]
        page = max(1, self._session.limits.frame_bytes // ENTRY_BYTES - 1)
        entries = (self._entry(each) for each in ids[:page])
        return ListLeasesResult(
            leases=tuple(entry for entry in entries if entry is not None),
            next_cursor=ids[page - 1] if len(ids) > page else None,
        )

    def destroy(self, params: DestroyLeaseParams) -> DestroyLeaseResult:
        """End everything that runs in a sandbox, whichever worker started it, and remove its files.

        Raises:
            errors.Unavailable: Something of it cannot be ended or removed; it stays on the list.

        Repeat: `gone`. Cancel: a thread is not interrupted.
        """
        self._reap()
        self._forget(params.sandbox_id)
        folder = self._folder(params.sandbox_id)
        for attempt in range(STARTS):
            try:
                connection = self._connect_or_start(folder)
            except FileNotFoundError:
                return DestroyLeaseResult(state="destroyed" if attempt else "gone")
            with connection:
                ask(connection, end=None)
                self._await_end(folder, connection)
        why = f"{params.sandbox_id} cannot be removed: {folder.log()}"
        raise errors.Unavailable(why, dispatched="unknown")

    def close(self) -> None:
        """Let go of all of them, at the end of the worker: each ends after its grace, unless a later worker comes."""
        for sandbox in self._open.values():
            sandbox._leave()
        self._open.clear()
        self._reap()

    def handle(self, sandbox_id: str) -> str:
        """The name of a sandbox for a later worker."""
        return f"{self._name}/1/{sandbox_id}"

    # ------------------------------------------------------------ keepers

    def _folder(self, sandbox_id: str) -> SandboxFolder:
        return SandboxFolder(self._session.state_dir, sandbox_id, self._session.store_id)

    def _connect_or_start(self, folder: SandboxFolder, *, fresh: bool = False) -> socket.socket:
        try:
            return folder.connect_or_start(grace_s=self._grace_s, started=self._started, fresh=fresh)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise no_room(error, dispatched="no") from error

    def _connection(
        self, folder: SandboxFolder, *, keep: bool | None, fresh: bool = False
    ) -> tuple[socket.socket, bool] | None:
        """A connection by which this worker attends a sandbox, and what was lost; None where the sandbox has ended.

        Raises:
            errors.Unavailable: No keeper answers.
        """
        for _ in range(STARTS):
            try:
                connection = self._connect_or_start(folder, fresh=fresh)
            except FileNotFoundError:
                return None
            ask(connection, attend=self._grace_s, keep=keep)
            try:
                said = answer(connection)
            except TimeoutError:
                connection.close()
                break
            if said is not None:
                return connection, bool(said["attended"])
            connection.close()
        raise errors.Unavailable(f"its keeper does not answer: {folder.log()}", dispatched="no")

    def _fill(self, sandbox: Sandbox, fill: Callable[[Sandbox], object], params: AcquireLeaseParams) -> None:
        try:
            fill(sandbox)
            sandbox._finish(_in_ms(params.ttl_ms), self._grace_s, keep=params.keep)
        except BaseException as error:
            try:
                self.destroy(DestroyLeaseParams(sandbox_id=params.sandbox_id))
            except errors.WireError as left:
                why = f"{params.sandbox_id} cannot be made ({error}), and what there is of it cannot be ended ({left})"
                raise errors.Unavailable(why, dispatched="unknown") from error
            raise

    def _wait_end(self, folder: SandboxFolder) -> bool:
        """Wait for a keeper that is removing its sandbox; False where there is none."""
        try:
            connection = folder.connect()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        with connection:
            self._await_end(folder, connection)
        return True

    def _await_end(self, folder: SandboxFolder, connection: socket.socket) -> None:
        try:
            answer(connection, END_S)
        except TimeoutError:
            why = f"the sandbox does not end within {END_S:g} s: {folder.log()}"
            raise errors.Unavailable(why, dispatched="unknown") from None

    def _attended(self, sandbox_id: str, folder: SandboxFolder, attached: tuple[socket.socket, bool]) -> Sandbox:
        connection, lost = attached
        sandbox = self._open.setdefault(sandbox_id, Sandbox(folder, self.handle(sandbox_id), sandbox_id))
        sandbox._attend(connection, processes_lost=lost)
        return sandbox

    def _entry(self, sandbox_id: str) -> ListedLease | None:
        folder = self._folder(sandbox_id)
        expires_at_ms = folder.expires_at_ms()
        if expires_at_ms is not None and expires_at_ms < time.time() * 1000:
            # A keeper that was killed cannot end it: one that is started now does so at once.
            with contextlib.suppress(FileNotFoundError), self._connect_or_start(folder) as connection:
                self._await_end(folder, connection)
            if not folder.exists():
                return None
        return ListedLease(sandbox_id=sandbox_id, handle=self.handle(sandbox_id), expires_at_ms=expires_at_ms)

    def _forget(self, sandbox_id: str) -> None:
        sandbox = self._open.pop(sandbox_id, None)
        if sandbox is not None:
            sandbox._leave()

    def _undo(self, sandbox_id: str) -> None:
        """Remove what a create that failed has left; what cannot be removed stays on the list."""
        with contextlib.suppress(errors.WireError):
            self.destroy(DestroyLeaseParams(sandbox_id=sandbox_id))

    def _reap(self) -> None:
        """Take the status of keepers that have ended: they are children of the worker that started them."""
        for pid in tuple(self._started):
            with contextlib.suppress(ChildProcessError, ValueError):  # another thread was here first
                if os.waitpid(pid, os.WNOHANG)[0]:
                    self._started.remove(pid)


def _in_ms(ttl_ms: int) -> int:
    """The Unix time after so many milliseconds, as far as one can be told on the wire."""
    return min(int(time.time() * 1000) + ttl_ms, INSTANT_MS.most)
