"""The process that starts the commands of one sandbox for one worker, and ends them with it.

A program of its own, on the standard library alone; the worker starts it with the first command of a sandbox. It is a
child subreaper: whatever a command starts, and however it hides, stays below it. It ends, and with it everything
below, when its worker is gone (however it went), when it is told to, and on SIGTERM, by which another worker that
destroys the sandbox ends it.

Its file in the sandbox's folder of guards is locked as long as it lives, and never visible unlocked before: whether
a guard lives is asked of the kernel. A worker that vanished while something ran leaves the file `lost`.

Messages are JSON over a sequential-packet socket. To the guard: `{"start": number}` with the descriptors of a plan
(a file with argv, env and cwd), stdin, stdout and stderr; `{"signal": number, "with": signal}`; `{"end": true}`. From
it: `{"started": number, "pid": pid}`, `{"failed": number, "stage": stage, "errno": errno}`, `{"ended": number,
"status": wait status}`, `{"over": why}`.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time

LOST = "lost"
"""The file that says that something ran and was ended because its worker had gone."""
MESSAGE_BYTES = 4096
END_S = 10.0
"""What has not ended by then belongs to another user or hangs in the kernel."""
PAUSE_S = 0.001
_PR_SET_CHILD_SUBREAPER = 36


class Guard:
    """The loop of this process."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._numbers: dict[int, int] = {}
        """Of each command that has not ended: its number, by its pid."""
        self._pending: list[bytes] = []
        self._told_to_end = False
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._on_term)

    def run(self) -> str:
        """Serve until the end; why it came: `destroyed` or `orphaned`."""
        control = self._control.fileno()
        while True:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            poll.register(control, select.POLLIN | (select.POLLOUT if self._pending else 0))
            events = dict(poll.poll())
            if self._wake in events:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, MESSAGE_BYTES)
            self.reap()
            self.flush()
            if self._told_to_end:
                return "destroyed"
            if events.get(control, 0) & ~select.POLLOUT and not self._take():
                return "orphaned"

    def tell(self, message: dict[str, object]) -> None:
        """Say something to the worker, as soon as it has room for it."""
        self._pending.append(json.dumps(message).encode())
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        while self._pending:
            try:
                self._control.send(self._pending[0])
            except BlockingIOError:
                return
            except OSError:
                self._pending.clear()  # the worker is gone; the next look at the socket says so
                return
            del self._pending[0]

    def reap(self) -> bool:
        """Take the status of what has ended; False where nothing is left below."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if (number := self._numbers.pop(pid, None)) is not None:
                self.tell({"ended": number, "status": status})

    def _on_term(self, number: int, frame: object) -> None:
        self._told_to_end = True

    def _take(self) -> bool:
        room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
        try:
            data, control, _, _ = self._control.recvmsg(MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        fds = array.array("i")
        for level, kind, content in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        message = json.loads(data)
        if "start" in message:
            if self._is_orphaned():
                return False  # what was asked by a worker that is gone by now must not begin
            self._start(message["start"], list(fds))
        elif "signal" in message:
            self._signal(message["signal"], message["with"])
        else:
            self._told_to_end = True
            signal.raise_signal(signal.SIGTERM)  # wakes the loop
        return True

    def _is_orphaned(self) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLRDHUP)
        return bool(poll.poll(0))

    def _start(self, number: int, fds: list[int]) -> None:
        with os.fdopen(fds[0], "rb") as file:
            plan = json.load(file)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _become(plan, fds[1:], write)
        for fd in (*fds[1:], write):
            os.close(fd)
        with os.fdopen(read, "rb") as report:
            failure = report.read()
        if failure:
            os.waitpid(pid, 0)
            self.tell({"failed": number, **json.loads(failure)})
            return
        self._numbers[pid] = number
        self.tell({"started": number, "pid": pid})

    def _signal(self, number: int, with_: int) -> None:
        for pid, known in self._numbers.items():
            # Not reaped yet: its number, and its group's, are no one else's.
            if known == number:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, with_)


def _become(plan: dict[str, object], fds: list[int], report: int) -> None:
    """In the child: turn into the program, or say why that cannot be."""
    stage, number = "program", 0
    try:
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # Python's own doing, which a program would inherit
            signal.signal(ignored, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        stage = "cwd"
        os.chdir(str(plan["cwd"]))
        stage = "program"
        argv, env = plan["argv"], plan["env"]
        assert isinstance(argv, list)
        assert isinstance(env, dict)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        number = error.errno or 0
    finally:
        os.write(report, json.dumps({"stage": stage, "errno": number}).encode())
        os._exit(127)


# ------------------------------------------------------------------ the end


def end_all(guard: Guard) -> bool:
    """Kill everything below this process, and return once it is gone; whether there was anything."""
    found = False
    deadline = time.monotonic() + END_S
    while guard.reap() and time.monotonic() < deadline:
        seen: set[int] = set()
        while fresh := below(os.getpid()) - seen:
            # Held first: what forks faster than it is killed cannot, while it is stopped.
            found = True
            seen |= fresh
            _signal_all(fresh, signal.SIGSTOP)
        _signal_all(seen, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return found


def below(ancestor: int) -> set[int]:
    """Every live process below one."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                parents[int(name)] = int(parent) if state not in b"ZX" else -int(parent)
    found: set[int] = set()
    fresh = {ancestor}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if abs(parent) in fresh} - found
        found |= fresh
    return {pid for pid in found if parents[pid] > 0}


def _signal_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


# ------------------------------------------------------------------ the beginning


def _subreaper() -> None:
    import ctypes

    zeros = (ctypes.c_ulong(0),) * 3
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), *zeros) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _announce(folder: str, worker: str) -> str:
    """Make this guard's file, locked from the first moment that anybody can see it; its path."""
    new, path = f"{folder}/.{os.getpid()}", f"{folder}/{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.write(fd, worker.encode())
    os.rename(new, path)
    return path  # the descriptor stays open: the lock is this process's life


def _is_ready(record: str) -> bool:
    try:
        with open(record, "rb") as file:
            return bool(json.load(file)["state"] == "ready")
    except (OSError, ValueError, KeyError):
        return False


def main() -> None:
    """Guard until the end: `guard.py DESCRIPTOR FOLDER RECORD WORKER`."""
    number, folder, record, worker = sys.argv[1:]
    control = socket.socket(fileno=int(number))
    control.set_inheritable(False)
    control.setblocking(False)
    guard = Guard(control)
    try:
        _subreaper()
        path = _announce(folder, worker)
    except FileNotFoundError:
        guard.tell({"over": "destroyed"})
        return
    # Looked at once the file is there: who ends the sandbox marks the record first, and then looks for guards.
    why = guard.run() if _is_ready(record) else "destroyed"
    guard.tell({"over": why})
    found = end_all(guard)
    if why == "orphaned" and found:
        with contextlib.suppress(FileNotFoundError):  # the sandbox was destroyed meanwhile
            os.close(os.open(f"{folder}/{LOST}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


if __name__ == "__main__":
    main()
