"""Where a sandbox's files are: one folder a sandbox, under the host's state directory for this provider.

```text
STATE_DIR/<sandbox id>/      0700
    record.json              what was asked for; written whole before the init is started, removed first at the end
    init.json                which process the init is; written by the init
    socket                   the init's
    init.log                 what the init had to say
    sandbox/                 the working directory and home of its commands
    tmp/                     their TMPDIR
```

A folder with a sandbox id for a name is a sandbox, whatever is in it: a listing is a scan of names. One without a
record is a leftover, of a create that was cut before anything ran or of an end that was cut before everything was
removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import NamedTuple

from .init import IDENTITY, RECORD, boot_id, has_variable, read_stat, remove_tree

_SANDBOX_ID = re.compile(r"sp[a-z2-7]{26}")
INIT_TOKEN = "SANDPORT_INIT_TOKEN"


class Record(NamedTuple):
    """What a sandbox is, for workers to come."""

    sandbox_id: str
    store_id: str
    token: str
    """Opens the init's socket, and is in the init's environment."""
    isolation: str
    """What is around it: `none`."""
    created_at_ms: int
    expires_at_ms: int


class Identity(NamedTuple):
    """One process, told apart from any other that may get its number."""

    pid: int
    start_ticks: int
    boot_id: str

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

    def exists(self) -> bool:
        """Whether the folder is there."""
        return os.path.lexists(self.path)

    def create(self, *, store_id: str, isolation: str, ttl_ms: int) -> Record:
        """Make the folder and its record.

        Raises:
            FileExistsError: The id was used before.
            OSError: The folder cannot be made; nothing of it is left.
        """
        now_ms = time.time_ns() // 1_000_000
        record = Record(self.sandbox_id, store_id, secrets.token_hex(16), isolation, now_ms, now_ms + ttl_ms)
        self.path.mkdir(0o700)
        try:
            self.working_directory.mkdir(0o700)
            self.temporary.mkdir(0o700)
            new = self.path / f"{RECORD}.new"
            with open(new, "x", opener=_private) as file:
                json.dump(record._asdict(), file)
            new.rename(self.path / RECORD)
        except BaseException:
            self.remove()
            raise
        return record

    def read_record(self) -> Record | None:
        """The record; None where there is none, or none that we can read."""
        try:
            return Record(**json.loads((self.path / RECORD).read_bytes()))
        except (FileNotFoundError, NotADirectoryError, TypeError, ValueError):
            return None

    def read_identity(self) -> Identity | None:
        """Which process the init is or was; None where it did not come to say so."""
        try:
            said = json.loads((self.path / IDENTITY).read_bytes())
            return Identity(int(said["pid"]), int(said["startTicks"]), str(said["bootId"]))
        except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError):
            return None

    def log_tail(self, size_bytes: int = 2000) -> str:
        """The end of what the init said."""
        try:
            return self.log.read_bytes()[-size_bytes:].decode(errors="replace").strip()
        except OSError:
            return ""

    def remove(self) -> None:
        """Remove the folder; see `init.remove_tree`."""
        fd = os.open(self.state_dir, os.O_RDONLY | os.O_DIRECTORY)
        try:
            remove_tree(fd, self.sandbox_id)
        finally:
            os.close(fd)

    def lock(self) -> int | None:
        """A descriptor that holds the folder for one worker alone until it is closed; None where another has it."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def listen(self) -> socket.socket:
        """A listening socket for the init, in place of one that a dead init has left."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with _Folder(self.path) as short:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{short}/socket")
                listener.bind(f"{short}/socket")
            listener.listen(16)
        except BaseException:
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
        except BaseException:
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


def scan(state_dir: Path) -> list[str]:
    """The ids of all sandboxes that are there, in order."""
    try:
        return sorted(entry.name for entry in os.scandir(state_dir) if _SANDBOX_ID.fullmatch(entry.name))
    except FileNotFoundError:
        return []


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
