"""Where a sandbox's files are: one folder a sandbox, under the host's state directory for this provider.

```text
STATE_DIR/<sandbox id>/      0700
    record.json              what was asked for; written whole before the init is started, by the init while it runs,
                             removed first at the end
    init.json                which process the init is; written by the init
    socket                   the init's
    init.log                 what the init had to say
    sandbox/                 the working directory and home of its commands
    tmp/                     their TMPDIR
```

A folder with a sandbox id for a name is a sandbox, whatever is in it: a listing is a scan of names. One without a
record is a leftover, of a create that was cut before anything ran or of an end that was cut before everything was
removed.

Who starts an init, or removes what an init has left, holds a lock on the folder: so nobody starts two, and nobody
removes the folder of one that is just coming up. The kernel lets go of it with the worker that held it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from .bubblewrap import Boundary
from .proc import Stat, boot_id, has_variable, read_stat
from .removal import remove_tree
from .term import IDENTITY, RECORD, write_whole

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: no later instant can be told on the wire. A lease may be longer, and ends then."""

_MEANWHILE = frozenset({errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST})
_SANDBOX_ID = re.compile(r"sp[a-z2-7]{26}")
INIT_TOKEN = "SANDPORT_INIT_TOKEN"
BACKLOG = 64
"""Workers that may wait for an init to take their connection."""
REMOVAL_DESCRIPTORS = 6
"""More than the removal of a sandbox holds at once."""
REMOVALS = 20
"""Tries to remove a folder in which somebody else removes or writes at the same time."""


class Record(NamedTuple):
    """What a sandbox is, for workers to come."""

    sandbox_id: str
    store_id: str
    token: str
    """Opens the init's socket, and is in the init's environment."""
    isolation: str
    """What is around it: `none` or `bubblewrap`."""
    created_at_ms: int
    expires_at_ms: int
    keep: bool = False
    """Whether it outlives its workers."""
    boundary: Boundary | None = None
    """What it is isolated by; None: nothing isolates it."""
    folder: str = ""
    """Which folder it was made in, or started again, as the kernel knows it: a copy of that one has another."""

    @classmethod
    def of(cls, said: dict[str, Any]) -> Record:
        """The record that was written as this.

        Raises:
            TypeError: It was not.
            ValueError: Likewise.
        """
        values = {name: value for name, value in said.items() if name in cls._fields}
        if (boundary := values.get("boundary")) is not None:
            values["boundary"] = Boundary(**{**boundary, "expose": tuple(boundary["expose"])})
        record = cls(**values)
        if (record.boundary is None) != (record.isolation == "none"):
            raise ValueError("it does not say what isolates it")
        return record

    def to_json(self) -> str:
        """The text of it."""
        boundary = self.boundary._asdict() if self.boundary is not None else None
        return json.dumps({**self._asdict(), "boundary": boundary})


class Identity(NamedTuple):
    """One process, told apart from any other that may get its number."""

    pid: int
    start_ticks: int
    boot_id: str
    inside_pid: int = 0
    """PID 1 of an isolated sandbox, as it is numbered here; 0: there is none."""
    inside_start_ticks: int = 0

    def inside(self) -> Stat | None:
        """PID 1 of an isolated sandbox, while it runs."""
        found = read_stat(self.inside_pid) if self.inside_pid and self.boot_id == boot_id() else None
        return found if found is not None and found.live and found.start_ticks == self.inside_start_ticks else None

    def is_alive(self, token: str | None) -> bool:
        """Whether the init still runs as this process, the init of this token where one is known."""
        found = read_stat(self.pid)
        return (
            found is not None
            and found.live
            and found.start_ticks == self.start_ticks
            and self.boot_id == boot_id()
            and (token is None or has_variable(self.pid, f"{INIT_TOKEN}={token}".encode()))
        )


class Place:
    """The folder of one sandbox."""

    def __init__(self, state_dir: Path, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.state_dir = state_dir
        self.path = state_dir / sandbox_id
        self.working_directory = self.path / "sandbox"
        self.temporary = self.path / "tmp"
        self.log = self.path / "init.log"
        self._spare: list[int] = []

    def exists(self) -> bool:
        """Whether the folder is there."""
        return os.path.lexists(self.path)

    def folder(self) -> str:
        """Which one it is, as the kernel knows it since the machine's start.

        Raises:
            FileNotFoundError: It is gone.
        """
        status = os.stat(self.path, follow_symlinks=False)
        return f"{boot_id()}:{status.st_dev}:{status.st_ino}"

    def is_copy(self, record: Record | None) -> bool:
        """Whether the folder was copied from the one of the record, whose processes are then not its own."""
        if record is None or not record.folder:
            return False
        try:
            here = self.folder()
        except FileNotFoundError:
            return False
        # After another start of the machine no process is there any more, and the numbers may be others.
        return record.folder != here and record.folder.split(":")[0] == here.split(":")[0]

    def reserve(self) -> None:
        """Hold the descriptors that `remove` takes, so that their lack cannot leave what their lack has cut.

        Raises:
            OSError: There are not so many.
        """
        try:
            for _ in range(REMOVAL_DESCRIPTORS):
                self._spare.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            self.release()
            raise

    def release(self) -> None:
        """Let go of what `reserve` holds."""
        while self._spare:
            os.close(self._spare.pop())

    def create(self, *, store_id: str, ttl_ms: int, keep: bool = False, boundary: Boundary | None = None) -> Record:
        """Make the folder and its record; the sandbox's own directories belong to its own user, where it has one.

        Raises:
            FileExistsError: The id was used before.
            OSError: The folder cannot be made; nothing of it is left.
        """
        now_ms = time.time_ns() // 1_000_000
        isolation = "none" if boundary is None else "bubblewrap"
        token = secrets.token_hex(16)
        _make(self.path)
        try:
            times = now_ms, min(now_ms + ttl_ms, LATEST_MS)
            record = Record(self.sandbox_id, store_id, token, isolation, *times, keep, boundary, self.folder())
            for folder in (self.working_directory, self.temporary):
                _make(folder)
                if boundary is not None and boundary.uid is not None:
                    os.chown(folder, boundary.uid, boundary.uid)
            self.write_record(record)
        except BaseException:  # whatever it is: a place without its record is found by nobody
            self.remove()
            raise
        return record

    def write_record(self, record: Record) -> None:
        """Put the record in place, whole or not at all; only where no init runs, which else is the one to do it.

        Raises:
            OSError: It cannot be written.
        """
        write_whole(os.fspath(self.path / RECORD), record.to_json())

    def read_record(self) -> Record | None:
        """The record; None where there is none, or none that we can read."""
        try:
            said = json.loads((self.path / RECORD).read_bytes())
            return Record.of(said)
        except (FileNotFoundError, NotADirectoryError, AttributeError, KeyError, TypeError, ValueError):
            return None

    def read_identity(self) -> Identity | None:
        """Which process the init is or was; None where it did not come to say so."""
        try:
            said = json.loads((self.path / IDENTITY).read_bytes())
            inside = int(said.get("insidePid", 0)), int(said.get("insideStartTicks", 0))
            return Identity(int(said["pid"]), int(said["startTicks"]), str(said["bootId"]), *inside)
        except (FileNotFoundError, NotADirectoryError, AttributeError, KeyError, TypeError, ValueError):
            return None

    def log_tail(self, size_bytes: int = 2000) -> str:
        """The end of what the init said."""
        try:
            return self.log.read_bytes()[-size_bytes:].decode(errors="replace").strip()
        except OSError:
            return ""

    def remove(self) -> None:
        """Remove the folder, its record first, so that one that is removed in part is not taken for a sandbox.

        Raises:
            OSError: Something cannot be removed; see `remove_tree`.
        """
        self.release()
        fd = os.open(self.state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for left in reversed(range(REMOVALS)):
                try:
                    with contextlib.suppress(OSError), _Folder(self.path) as short:  # What resists, remove_tree tells.
                        os.unlink(f"{short}/{RECORD}")
                    remove_tree(fd, self.sandbox_id, last=IDENTITY)
                    return
                except OSError as error:
                    if not left or error.errno not in _MEANWHILE:
                        raise
        finally:
            os.close(fd)

    def lock(self) -> int | None:
        """A descriptor that holds the folder for one worker alone until it is closed; None where another has it.

        Raises:
            FileNotFoundError: The folder is gone.
        """
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise
            return None
        return fd

    def is_locked_by(self, lock: int) -> bool:
        """Whether what the descriptor holds is still the folder of this name."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.path, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def listen(self) -> socket.socket:
        """A listening socket for the init, in place of one that a dead init has left."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _Folder(self.path) as short:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{short}/socket")
                listener.bind(f"{short}/socket")
            listener.listen(BACKLOG)
        except BaseException:  # whatever it is, the socket is nobody else's yet
            listener.close()
            raise
        return listener

    def connect(self) -> socket.socket:
        """A connection to the init, without waiting.

        Raises:
            OSError: FileNotFoundError or ConnectionRefusedError where no init listens; BlockingIOError where it does
                not take the connections that wait.
        """
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connected.setblocking(False)
            with _Folder(self.path) as short:
                connected.connect(f"{short}/socket")
        except BaseException:  # whatever it is, the socket is nobody else's yet
            connected.close()
            raise
        return connected


class _Folder:
    """A name for a folder that is short enough for a socket's path, which may have 107 bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> str:
        self._fd = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._fd)


def _make(folder: Path) -> None:
    folder.mkdir(0o700)
    folder.chmod(0o700)  # whatever the umask takes


def scan(state_dir: Path) -> list[str]:
    """The ids of all sandboxes that are there, in order."""
    try:
        return sorted(entry.name for entry in os.scandir(state_dir) if _SANDBOX_ID.fullmatch(entry.name))
    except FileNotFoundError:
        return []
