"""The folder of a sandbox on this machine, and the way to its keeper. All of this blocks, for some milliseconds.

```text
STATE_DIR/SANDBOX_ID-STORE/   made in one step, so that from its first moment on it is listed under both ids
    record.json               what it is; not there before the sandbox is finished, nor once it is being removed
    files/                    the sandbox's files
    socket                    where its keeper listens: a connection that is refused says that there is none
    making                    it is being made, or whoever made it was killed
    kept, log                 whether it outlives its workers; what the keeper has to say
```
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .keeper import FILES, KEPT, MESSAGE_BYTES, RECORD, SOCKET

MAKING = "making"
STARTS = 5
"""So often a keeper is looked for or started that ends just then; more is a fault and no coincidence."""
ANSWER_S = 20.0
"""What a keeper gets to answer. It takes some 30 ms to start, and more on a machine that is busy."""
LISTEN_BACKLOG = 1024
LOG_BYTES = 2000
_EVERY_SIGNAL = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
_PROGRAM = Path(__file__).with_name("keeper.py")


class SandboxFolder:
    """One of them, there or not.

    Attributes:
        path: Where it is.
        files: The sandbox's files.
    """

    def __init__(self, state_dir: Path, sandbox_id: str, store_id: str) -> None:
        self.path = state_dir / f"{sandbox_id}-{store_mark(store_id)}"
        self.files = self.path / FILES
        self._sandbox_id = sandbox_id
        self._store_id = store_id

    # ------------------------------------------------------------ what is there

    def exists(self) -> bool:
        """Whether the sandbox is there, in whatever state."""
        return self.path.is_dir()

    def make(self, *, expires_at_ms: int, kept: bool) -> None:
        """Make it, finished but for its keeper.

        Raises:
            FileExistsError: It is there already.
            OSError: There is no room, or no right.
        """
        _make(self.path)
        _make(self.files)
        if kept:
            (self.path / KEPT).touch(mode=0o600)
        self._record(expires_at_ms)

    def begin(self) -> None:
        """Make it, unfinished: until `finish` nobody can attach it, and it ends with the last worker.

        Raises:
            FileExistsError: It is there already.
            OSError: There is no room, or no right.
        """
        _make(self.path)
        (self.path / MAKING).touch(mode=0o600)
        _make(self.files)

    def finish(self, *, expires_at_ms: int) -> None:
        """From now on it can be attached."""
        self._record(expires_at_ms)
        (self.path / MAKING).unlink()

    def is_unfinished(self) -> bool:
        """Whether it is being made, or was when its worker was killed."""
        return (self.path / MAKING).exists()

    def _record(self, expires_at_ms: int) -> None:
        record = {
            "sandboxId": self._sandbox_id,
            "storeId": self._store_id,
            "createdAtMs": int(time.time() * 1000),
            "expiresAtMs": expires_at_ms,
        }
        new = self.path / f"{RECORD}.new"
        write_private(new, json.dumps(record))
        new.rename(self.path / RECORD)

    def expires_at_ms(self) -> int | None:
        """When the sandbox ends; None for one that is not finished, or is being removed."""
        try:
            return int(json.loads((self.path / RECORD).read_bytes())["expiresAtMs"])
        except FileNotFoundError:
            return None

    def log(self) -> str:
        """The end of what the keeper had to say."""
        with contextlib.suppress(FileNotFoundError):
            return (self.path / "log").read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()
        return ""

    # ------------------------------------------------------------ its keeper

    def connect(self, *, timeout_s: float = ANSWER_S) -> socket.socket:
        """A connection to the keeper.

        Args:
            timeout_s: How long to wait where many are before us; 0 for a connection that never waits for anything.

        Raises:
            ConnectionRefusedError: There is no keeper.
            FileNotFoundError: There is no folder either.
            BlockingIOError, TimeoutError: Too many are before us.
        """
        with _opened(self.path) as folder:
            return _connect(folder, timeout_s)

    def connect_or_start(self, *, grace_s: float, started: list[int], fresh: bool = False) -> socket.socket:
        """A connection to the keeper, which is started where there is none. Two workers that try start one.

        Args:
            grace_s: After so long without a worker it ends.
            started: Gets the number of the process, if one was started: a child of this one.
            fresh: Whether the sandbox was just made, so that nothing of it can have run before.

        Raises:
            FileNotFoundError: There is no such sandbox.
            OSError: The keeper cannot be started.
        """
        with _opened(self.path) as folder:
            with contextlib.suppress(ConnectionRefusedError):
                return _connect(folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
            with contextlib.suppress(ConnectionRefusedError):
                return _connect(folder)
            os.stat(self.path)  # it may have been removed while we waited
            with contextlib.suppress(FileNotFoundError):
                os.unlink(SOCKET, dir_fd=folder)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(_address(folder))
                listener.listen(LISTEN_BACKLOG)
                words = (str(self.path), self._sandbox_id, str(_LISTENER_FD), str(grace_s), str(int(not fresh)))
                started.append(_spawn(words, listener, folder))
            return _connect(folder)


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.chmod(0o700)  # whatever the umask takes


def write_private(path: Path, text: str) -> None:
    """Write a file that is this user's alone.

    Raises:
        OSError: It cannot be written.
    """
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)


def store_mark(store_id: str) -> str:
    """A store's id as a part of a file's name, whatever characters it has."""
    return hashlib.sha256(store_id.encode()).hexdigest()[:16]


def all_ids(state_dir: Path, store_id: str) -> list[str]:
    """The ids of all sandboxes of a store, sorted."""
    end = f"-{store_mark(store_id)}"
    return sorted(name.removesuffix(end) for name in os.listdir(state_dir) if name.endswith(end))


def ask(connection: socket.socket, **message: object) -> None:
    """Say something to a keeper; nothing where it has ended."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(json.dumps(message).encode())


def answer(connection: socket.socket, timeout_s: float = ANSWER_S) -> dict[str, object] | None:
    """What a keeper answers; None where it has ended, and with it all that it kept.

    Raises:
        TimeoutError: It does not.
    """
    connection.settimeout(timeout_s)
    try:
        data = connection.recv(MESSAGE_BYTES)
    except ConnectionResetError:
        return None
    return dict(json.loads(data)) if data else None


# ------------------------------------------------------------------ the kernel

_LISTENER_FD = 3


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _address(folder: int) -> str:
    """The socket by its folder's descriptor: a path may be longer than an address."""
    return f"/proc/self/fd/{folder}/{SOCKET}"


def _connect(folder: int, timeout_s: float = ANSWER_S) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(timeout_s)
        connection.connect(_address(folder))
    except FileNotFoundError:
        connection.close()
        raise ConnectionRefusedError("nobody ever listened") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _spawn(words: tuple[str, ...], listener: socket.socket, folder: int) -> int:
    """Start a keeper, in a session of its own: a signal to the worker's group must not reach it. Its process."""
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    # Moved out of the way, so that the one that is put in its place is not written over before its turn.
    moved = fcntl.fcntl(listener, fcntl.F_DUPFD_CLOEXEC, _LISTENER_FD + 1)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-E", "-B", os.fspath(_PROGRAM), *words],
            {"LANG": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, log, 2),
                (os.POSIX_SPAWN_DUP2, moved, _LISTENER_FD),
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setsid=True,
            setsigmask=(),
            setsigdef=_EVERY_SIGNAL,
        )
    finally:
        os.close(log)
        os.close(moved)
