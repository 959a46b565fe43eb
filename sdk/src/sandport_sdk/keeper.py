"""The keeper of one sandbox on this machine: it starts what runs there, and its end is the end of all of it.

A program of its own, on the standard library alone; `sandport_sdk.v1.machine` starts one for each sandbox, and speaks
with it. Every worker may come and go, and be killed; the keeper stays. It ends when it is told to, at the sandbox's
expiry, one grace after the last worker has gone (unless the sandbox is kept), and on SIGTERM. Each time it kills until
the kernel says that it has no children: it is a child subreaper, so that whatever a command starts stays below it, also
what forks twice and makes a session of its own. Then it removes the sandbox's folder, and only then it exits; whoever
is connected sees the end of the connection, and knows that nothing is left.

A worker connects once to attend the sandbox, and once for each command. A command ends with its connection: the
worker that could have read its output, or ended it, is gone then. What it had left to itself runs on.

A keeper that was killed leaves the folder. The next one ends first what the former one has left, which it finds by the
mark in its environment.

Messages are JSON over a sequential-packet socket:

```text
{"attend": GRACE_S, "keep": true | false | null}   -> {"attended": LOST}; from then on this worker is there
    LOST: something ran, was ended with its worker or its keeper, and nothing was started since
{"start": null} with four descriptors: a file with argv, cwd and env as JSON, then stdin, stdout, stderr
                                                   -> {"started": PID}, then {"ended": WAIT_STATUS}
                                                   or {"failed": "fork" | "cwd" | "program", "errno": NUMBER}
    with `"stays": true` in the file it is no command: only the sandbox's end is its own, and none is told
{"signal": NUMBER}                                 to the group of this connection's command
{"leave": null}                                    as the end of the connection, by a worker that is there
{"end": null}                                      -> the end of the connection, once nothing is left
```
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SANDBOX_ID = "SANDPORT_SANDBOX_ID"
"""The variable that every command has; by it is found what a keeper that was killed has left."""
RECORD, KEPT, FILES, SOCKET = "record.json", "kept", "files", "socket"
"""What is in the sandbox's folder: what it is, whether it outlives its workers, its own files, and where we listen."""
MESSAGE_BYTES = 4096
POLL_MS = 30_000
"""A poll does not count the time that a machine sleeps, so the clock is looked at now and then."""
PAUSE_S = 0.002
SLOW_PAUSE_S = 0.1
EAGER_PASSES = 500
"""What does not end by then waits in the kernel, and is looked at less often."""
SWEEP_S = 5.0
"""What cannot be killed within that, of what a former keeper has left, belongs to another user."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OPEN_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
"""What commands get; the keeper itself takes as many as it may, one for each of them."""
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


class Connection:
    """A worker that attends, or one command of a worker's.

    Attributes:
        attending: Whether the sandbox outlives the grace as long as this is there.
        pid: The command's, until it has ended.
    """

    __slots__ = ("attending", "pid", "socket")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.attending = False
        self.pid = 0

    def send(self, **message: object) -> None:
        """Say something; whoever does not read two messages is not there to be told."""
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps(message).encode())


class Keeper:
    """The loop: one thread, and nothing in it waits but the poll."""

    def __init__(self, listener: socket.socket, *, expires_at_s: float | None, grace_s: float, lost: bool) -> None:
        self._listener = listener
        self._expires_at_s = expires_at_s
        self._grace_s = grace_s
        self._lost = lost
        self._kept = os.path.exists(KEPT)
        self._left_at_s = time.monotonic()
        """When the last worker left: none has come so far."""
        self._ending = False
        self._stopped = False
        self._connections: dict[int, Connection] = {}
        self._poll = select.poll()
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_term)
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(listener, select.POLLIN)

    def run(self) -> bool:
        """Serve until the end; whether the sandbox's files end too."""
        while not self._is_over():
            for fd, _ in self._poll.poll(self._wait_ms()):
                if fd == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, MESSAGE_BYTES)
                    self._reap()
                elif fd == self._listener.fileno():
                    self._accept()
                elif (connection := self._connections.get(fd)) is not None:
                    self._receive(connection)
        return not (self._stopped and self._kept)

    def _on_term(self, number: int, frame: object) -> None:
        self._stopped = True

    # ------------------------------------------------------------ time

    def _left_s(self) -> list[float]:
        """Until each moment at which this could end."""
        left = []
        if self._expires_at_s is not None:
            left.append(self._expires_at_s - time.time())
        if not self._kept and not any(connection.attending for connection in self._connections.values()):
            left.append(self._left_at_s + self._grace_s - time.monotonic())
        return left

    def _is_over(self) -> bool:
        return self._ending or self._stopped or any(left_s <= 0 for left_s in self._left_s())

    def _wait_ms(self) -> float:
        return max(0.0, min([POLL_MS, *(left_s * 1000 + 1 for left_s in self._left_s())]))

    # ------------------------------------------------------------ connections

    def _accept(self) -> None:
        try:
            connected, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(PAUSE_S)  # it waits in the queue, and we are called again at once
            return
        connected.setblocking(False)
        self._connections[connected.fileno()] = Connection(connected)
        self._poll.register(connected, select.POLLIN)

    def _receive(self, connection: Connection) -> None:
        fds = array.array("i")
        try:
            room = socket.CMSG_SPACE(4 * fds.itemsize)
            data, passed, flags, _ = connection.socket.recvmsg(MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, passed, flags = b"", [], 0
        for level, kind, content in passed:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        try:
            if flags & socket.MSG_CTRUNC:
                connection.send(failed="fork", errno=errno.EMFILE)
            elif data:
                self._handle(connection, json.loads(data), list(fds))
            else:
                self._lost |= connection.pid > 0
                self._drop(connection)
        except (OSError, ValueError, KeyError, TypeError) as error:
            log(f"{data[:100]!r} cannot be done: {error!r}")
            self._drop(connection)
        finally:
            for fd in fds:
                os.close(fd)

    def _handle(self, connection: Connection, message: dict[str, Any], fds: list[int]) -> None:
        if "attend" in message:
            self._grace_s = float(message["attend"])
            self._expires_at_s = _expiry()  # it may have been finished since
            if message["keep"] is not None:
                self._keep(kept=bool(message["keep"]))
            connection.attending = True
            connection.send(attended=self._lost)
        elif "start" in message:
            self._start(connection, fds)
        elif "signal" in message:
            self._signal(connection, int(message["signal"]))
        elif "leave" in message:
            self._drop(connection)
        elif "end" in message:
            self._ending = True

    def _keep(self, *, kept: bool) -> None:
        """Outlive the workers from now on, or no longer; in the folder before it counts."""
        if kept:
            os.close(os.open(KEPT, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(KEPT)
        self._kept = kept

    def _drop(self, connection: Connection) -> None:
        """Forget a connection, and end its command: nobody can read from that, wait for it, or end it now."""
        self._signal(connection, signal.SIGKILL)
        self._poll.unregister(connection.socket)
        del self._connections[connection.socket.fileno()]
        connection.socket.close()
        if connection.attending:
            self._left_at_s = time.monotonic()

    # ------------------------------------------------------------ commands

    def _start(self, connection: Connection, fds: list[int]) -> None:
        plan_fd, *streams = fds
        if len(streams) != 3 or connection.pid:
            raise ValueError("three streams, and one command for each connection")
        with open(plan_fd, "rb", closefd=False) as file:
            plan = json.load(file)
        try:
            read, write = os.pipe()
        except OSError as error:
            connection.send(failed="fork", errno=error.errno)
            return
        try:
            pid = os.fork()
            if pid == 0:
                _become(plan, streams, write)
        except OSError as error:
            os.close(read)
            connection.send(failed="fork", errno=error.errno)
            return
        finally:
            os.close(write)
        with os.fdopen(read, "rb") as report:
            failure = report.read()
        if failure:
            os.waitpid(pid, 0)
            connection.send(**json.loads(failure))
            return
        self._lost = False
        if not plan.get("stays"):
            connection.pid = pid
        connection.send(started=pid)

    def _signal(self, connection: Connection, number: int) -> None:
        if connection.pid:
            # Not reaped yet: its number, and its group's, are no one else's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(connection.pid, number)

    def _reap(self) -> None:
        """Take the status of what has ended, whoever started it, and tell of commands."""
        while (ended := _reap_one()) is not None and ended[0]:
            for connection in self._connections.values():
                if connection.pid == ended[0]:
                    connection.pid = 0
                    connection.send(ended=ended[1])


def _reap_one() -> tuple[int, int] | None:
    """A child that has ended, with its status; 0 for one that has not, None where there is none at all."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def _become(plan: dict[str, Any], streams: list[int], report: int) -> None:
    """In the child: turn into the program, or say why that cannot be."""
    stage, number = "program", 0
    try:
        os.setsid()
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        signal.set_wakeup_fd(-1)
        for ignored in _IGNORED_BY_PYTHON:  # or every program would inherit it
            signal.signal(ignored, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # our parent has one thread, which ends with it
        stage = "cwd"
        os.chdir(plan["cwd"])
        stage = "program"
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])
    except OSError as error:
        number = error.errno or 0
    finally:
        os.write(report, json.dumps({"failed": stage, "errno": number}).encode())
        os._exit(127)


# ------------------------------------------------------------------ the end


def end_all() -> None:
    """Kill everything below this process; comes back when the kernel says that there is nothing."""
    passes = 0
    while _reap_one() is not None:
        seen: set[int] = set()
        while fresh := _below(os.getpid()) - seen:
            # Held first: what forks faster than it is killed cannot, while it is stopped.
            seen |= fresh
            _signal_all(fresh, signal.SIGSTOP)
        _signal_all(seen, signal.SIGKILL)
        passes += 1
        if passes == EAGER_PASSES:
            log(f"these do not end: {sorted(seen)}")
        time.sleep(PAUSE_S if passes < EAGER_PASSES else SLOW_PAUSE_S)


def _below(ancestor: int) -> set[int]:
    """Every live process below one: none of them can be reaped, and its number given away, but by us."""
    children: dict[int, list[int]] = {}
    live: set[int] = set()
    for pid in _all_pids():
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            children.setdefault(int(parent), []).append(pid)
            if state not in b"ZX":
                live.add(pid)
    found: set[int] = set()
    fresh = [ancestor]
    while fresh:
        fresh = [child for pid in fresh for child in children.get(pid, ()) if child not in found]
        found.update(fresh)
    return found & live


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def sweep(sandbox_id: str) -> None:
    """Kill what a former keeper has left: everything that carries the sandbox's mark."""
    mark = f"{SANDBOX_ID}={sandbox_id}".encode()
    deadline = time.monotonic() + SWEEP_S
    quiet = 0
    # Two looks in a row that find nothing: amid an exec a process shows no environment.
    while quiet < 2 and time.monotonic() < deadline:
        found = [pid for pid in _all_pids() if _kill_marked(pid, mark)]
        quiet = 0 if found else quiet + 1
        time.sleep(PAUSE_S)
    if quiet < 2:
        log("something that a former keeper has left does not end")


def _kill_marked(pid: int, mark: bytes) -> bool:
    """Kill one process if it carries the mark; looked at once its number is held, so that no other one is meant."""
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if mark not in file.read().split(b"\0"):
                return False
        signal.pidfd_send_signal(held, signal.SIGKILL)
    except OSError:
        return False  # it has ended, or is another user's
    else:
        return True
    finally:
        os.close(held)


def remove(folder: str) -> None:
    """Remove the sandbox's folder, in which we are: first what says that it is one, last what keeps its name taken.

    Raises:
        OSError: Something in it cannot be removed.
    """
    # Held to the end: nobody may start another keeper in what is left.
    fcntl.flock(os.open(".", os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)
    for name in (RECORD, KEPT):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    names = [entry.name for entry in os.scandir(".") if entry.is_dir(follow_symlinks=False)]
    for name in names:
        _remove_tree(name)
    for name in sorted(os.listdir("."), key=lambda name: name == SOCKET):
        os.unlink(name)
    os.chdir("/")
    os.rmdir(folder)


def _remove_tree(name: str) -> None:
    """Remove a directory. Nothing runs in it any more, so it is safe to go down by name; and it may be very deep."""
    above: list[str] = []
    _enter(name)
    above.append(name)
    while above:
        inner = None
        with os.scandir(".") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    inner = entry.name
                    break
                os.unlink(entry.name)
        if inner is not None:
            _enter(inner)
            above.append(inner)
        else:
            os.chdir("..")
            os.rmdir(above.pop())


def _enter(name: str) -> None:
    with contextlib.suppress(PermissionError):  # another user's: then what follows says so
        os.chmod(name, 0o700)
    os.chdir(name)


# ------------------------------------------------------------------ the beginning


def log(text: str) -> None:
    """One line for whoever looks into the folder."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} keeper: {text}\n")
    sys.stderr.flush()


def _prctl(option: int, argument: int) -> None:
    rest = (ctypes.c_ulong(0),) * 3
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(argument), *rest) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _expiry() -> float | None:
    """The Unix time at which the sandbox ends; None for one that is not finished."""
    try:
        with open(RECORD, "rb") as file:
            return float(json.load(file)["expiresAtMs"]) / 1000
    except FileNotFoundError:
        return None


def main() -> int:
    """Keep a sandbox: `keeper.py FOLDER SANDBOX_ID LISTENER GRACE_S LOST`."""
    folder, sandbox_id, number, grace_s, lost = sys.argv[1:]
    os.umask(0o022)
    os.chdir(folder)
    listener = socket.socket(fileno=int(number))
    listener.set_inheritable(False)
    listener.setblocking(False)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES[1], _OPEN_FILES[1]))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = Keeper(listener, expires_at_s=_expiry(), grace_s=float(grace_s), lost=lost == "1")
    if lost == "1":
        sweep(sandbox_id)
    try:
        ends = keeper.run()
    finally:
        end_all()
    if ends:
        remove(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
