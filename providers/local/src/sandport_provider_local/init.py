"""The init of one sandbox: it starts the sandbox's commands, reaps them, and its end is the end of them all.

A program of its own (`python -I -S -E init.py FOLDER EXPIRES_MS GRACE_MS KEPT`, with a listening socket as descriptor
3), one per sandbox; FOLDER is the sandbox's own under the host's state, and its name is the sandbox's id. It is a child
subreaper, so nothing that a command starts can leave its subtree: not with setsid, not by forking twice. It ends when
it is told to, at the lease's expiry, on SIGTERM, or one grace after the last worker is gone; each time it kills until
the kernel says that it has no children, then removes the sandbox's folder. A kept sandbox has no grace, and a SIGTERM
(the machine is shut down) ends its processes and leaves its folder to an init that is started later.

Several workers may be connected at once. A command belongs to the connection that started it, and ends with it.

A worker speaks to it over a SOCK_SEQPACKET socket. A message is byte strings joined by NUL, which neither an argument
nor a variable can hold; the first one is the verb. A message that is too long for the socket is `memfd`, and the
text itself is the first descriptor passed with it.

```text
hello TOKEN GRACE_MS                               -> ready PID START_TICKS LOST
keep 0 | 1                                         -> kept ERRNO; in the record before it counts, or not at all
start SEQ MARK STDIO CWD ARGC ARGV... NAME=VALUE.. -> started SEQ PID | failed SEQ STAGE ERRNO;   exit SEQ STATUS ASKED
    STDIO null: descriptors are stdout, stderr; pipe: stdin, stdout, stderr; pty: the terminal
    STAGE cwd, program, interpreter or spawn; STATUS as waitpid gives it; ASKED 1 where a kill came before the end
kill SEQ MARK MODE                                 -> killed SEQ gone | signalled | ended
    MODE now: SIGKILL for everything that carries the mark; soon: SIGTERM for the group first, and nothing (`ended`)
    where the command's own process has already ended
signal SEQ NUMBER REF                              -> signalled REF 0 | 1
end                                                -> ending REASON, then the end of the connection, to every worker
```

Why so long: it is one file, and of the standard library it uses only what starts fast. It is started by its path with
nothing of ours on the module path, it must outlive every worker's environment, and its start is a part of every
acquire. The worker imports the functions on /proc and on removal from here.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import math
import os
import select
import signal
import socket
import stat
import struct
import sys
import time

MESSAGE_BYTES = 128 * 1024
"""What is taken in one message of the socket; the worker sends less, and more in a memfd."""
REQUEST_BYTES = 16 * 1024 * 1024
"""No kernel takes more arguments and variables than this."""
KILL_S = 2.0
"""A kill that is not proven complete by then is answered as `signalled`."""
TERM_GRACE_S = 0.2
"""Between the SIGTERM and the SIGKILL of a time-out."""
EAGER_PASSES = 50
"""Passes of a kill that follow each other at once: what forks quickly is only caught by looking at once again."""
PASS_S = 0.002
SLOW_PASSES = 1000
"""After so many something does not end though it was killed (it waits in the kernel): looked at less often."""
SLOW_PASS_S = 0.1
LOOK_S = 1.0
"""A kept sandbox looks no more often than that whether its folder is still there."""
STRAY_PASSES = 5
"""Looks at an orphan of unknown origin before it is left alone: amid an exec a process shows no environment."""
STRANGERS = 8
"""Connections that have not said hello yet; the oldest goes when there are more."""
BACKLOG_MESSAGES = 4096
"""Answers kept for a worker that does not read; then it is dropped."""
TICKS = os.sysconf("SC_CLK_TCK")
SELF = os.getpid()
LISTENER_FD = 3
RECORD = "record.json"
"""Written by the worker before the init is started; the init's end begins with removing it. While the init runs, only
the init writes it: several workers may want that at once."""
IDENTITY = "init.json"
"""Which process the init is; removed last, so that whoever waits for its end can find it until then."""

Action = tuple[int, int, int] | tuple[int, int, str, int, int]
"""What posix_spawn does with one descriptor in the child."""

_PR_SET_CHILD_SUBREAPER = 36
_TFD_TIMER_ABSTIME = 1
_FAR_S = 2**40
"""Some thirty thousand years: later than that no timer of the kernel goes."""
_RESET = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{SELF}/children")


# ------------------------------------------------------------------ /proc


class Stat:
    """What /proc/PID/stat says about a process."""

    __slots__ = ("pid", "ppid", "session", "start_ticks", "live")

    def __init__(self, pid: int, text: bytes) -> None:
        fields = text[text.rindex(b")") + 2 :].split()
        self.pid = pid
        self.ppid = int(fields[1])
        self.session = int(fields[3])
        self.start_ticks = int(fields[19])
        # The leader of a process shows as a zombie while its other threads run on.
        self.live = fields[0] not in (b"Z", b"X") or int(fields[17]) > 1


def read_file(path: str) -> bytes:
    """The whole of a file of /proc, or b"" where the process is gone or is not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        pieces = []
        while piece := os.read(fd, 65536):
            pieces.append(piece)
        return b"".join(pieces)
    except OSError:  # It ended while we read.
        return b""
    finally:
        os.close(fd)


def read_stat(pid: int) -> Stat | None:
    """The process of this number, or None."""
    text = read_file(f"/proc/{pid}/stat")
    return Stat(pid, text) if text else None


def has_variable(pid: int, assignment: bytes) -> bool:
    """Whether the process was started with exactly this `NAME=value` (and has not hidden it)."""
    return assignment in read_file(f"/proc/{pid}/environ").split(b"\0")


def all_pids() -> list[int]:
    """Every process that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def children_of(pid: int) -> list[int]:
    """Processes whose parent this is, from the kernel's list, or where it has none from a look at all processes."""
    if not _LISTS_CHILDREN:
        return [p for p in all_pids() if (found := read_stat(p)) is not None and found.ppid == pid]
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for thread in threads for child in read_file(f"/proc/{pid}/task/{thread}/children").split()]


def signal_exactly(pid: int, start_ticks: int, number: int) -> bool:
    """Signal a process if the number still belongs to the one that started at `start_ticks`; False if not."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = read_stat(pid)
        if found is None or found.start_ticks != start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:  # It ended, or belongs to another user.
        return False
    finally:
        os.close(fd)


def freeze_and_kill(roots: list[Stat]) -> bool:
    """Kill these processes and everything below them; False if nothing of it was alive.

    Every process is stopped before its children are read, so that none is missed because its parent went first.
    """
    frozen: list[Stat] = []
    queue = list(roots)
    while queue:
        process = queue.pop()
        if not process.live:
            continue
        frozen.append(process)
        signal_exactly(process.pid, process.start_ticks, signal.SIGSTOP)
        children = [found for child in children_of(process.pid) if (found := read_stat(child)) is not None]
        again = read_stat(process.pid)
        if again is not None and again.start_ticks == process.start_ticks:
            queue.extend(child for child in children if child.ppid == process.pid)
    for process in frozen:
        signal_exactly(process.pid, process.start_ticks, signal.SIGKILL)
    return bool(frozen)


# ------------------------------------------------------------------ removal


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove a directory and all below it, whatever its owner did to it: modes of 000, links, any depth.

    No link is followed and no path is longer than one name: a directory that is not empty is first moved up to the
    top, so that depth costs neither descriptors nor stack. Missing is fine.

    Raises:
        OSError: Something cannot be removed, e.g. a mount point.
    """
    try:
        top = _open_directory(parent_fd, name)
    except FileNotFoundError:
        return
    numbers = itertools.count()
    try:
        for kept in ((IDENTITY,), ()):
            full = _clear(top, top, numbers, kept)
            while full:
                entry = full.pop()
                fd = _open_directory(top, entry)
                try:
                    full += _clear(fd, top, numbers)
                finally:
                    os.close(fd)
                os.rmdir(entry, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent_fd)


def _clear(fd: int, top: int, numbers: itertools.count[int], kept: tuple[str, ...] = ()) -> list[str]:
    """Remove what is in a directory, and return the names below `top` of those that are directories with a content."""
    full = []
    for entry in os.listdir(fd):
        if entry in kept:
            continue
        try:
            os.unlink(entry, dir_fd=fd)
            continue
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise
        try:
            os.rmdir(entry, dir_fd=fd)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            full.append(entry if fd == top else _move_up(fd, top, entry, numbers))
    return full


def _move_up(fd: int, top: int, entry: str, numbers: itertools.count[int]) -> str:
    os.close(_open_directory(fd, entry))  # Only who may write to a directory may move it.
    while True:
        name = f".removed-{next(numbers)}"
        try:
            os.rename(entry, name, src_dir_fd=fd, dst_dir_fd=top)
            return name
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise


def _open_directory(fd: int, entry: str) -> int:
    """Open a directory that is no link, giving ourselves all rights on it first."""
    path_fd = os.open(entry, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
    try:
        if stat.S_IMODE(os.fstat(path_fd).st_mode) & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{path_fd}", 0o700)
        return os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(path_fd)


# ------------------------------------------------------------------ commands


class Command:
    """A command whose own process has not ended."""

    __slots__ = ("connection", "seq", "mark", "pid", "before_ticks", "asked")

    def __init__(self, connection: Connection, seq: bytes, mark: bytes, pid: int, before_ticks: int) -> None:
        self.connection = connection
        self.seq = seq
        self.mark = mark
        self.pid = pid
        self.before_ticks = before_ticks
        """The clock just before it started: what started earlier is not its child."""
        self.asked = False


class Kill:
    """The killing of one command's tree, pass by pass."""

    def __init__(self, connection: Connection, seq: bytes, mark: bytes, command: Command | None, now: float) -> None:
        self.connection = connection
        self.seq = seq
        self.mark = mark
        self.pid = command.pid if command is not None else 0
        self.before_ticks = command.before_ticks if command is not None else 0
        self.term_until = 0.0
        self.deadline = now + KILL_S
        self.next_at = now
        self.passes = 0
        self.quiet = 0
        """Passes in a row that found nothing alive, with no orphan reaped since the one before."""
        self.orphans = -1


class StartFailed(Exception):
    """A command was not started: at which stage, and the kernel's reason."""

    def __init__(self, stage: str, number: int) -> None:
        super().__init__(stage, number)
        self.stage = stage
        self.number = number


def spawn(argv: list[bytes], variables: dict[bytes, bytes], actions: list[Action]) -> int:
    """Start a program in a session of its own, found as execvp would find it; returns its pid.

    posix_spawn and not subprocess: no thread, no fork, and the exec's own error number.
    """
    program = argv[0]
    if b"/" in program:
        candidates = [program]
    else:
        folders = variables.get(b"PATH", b"").split(b":")
        candidates = [os.path.join(folder or b".", program) for folder in folders]
    failure = errno.ENOENT
    for candidate in candidates:
        try:
            found = os.stat(candidate)
        except OSError as error:
            if error.errno == errno.EACCES:
                failure = errno.EACCES
            continue
        if not stat.S_ISREG(found.st_mode) or not os.access(candidate, os.X_OK, effective_ids=True):
            failure = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EACCES
            continue
        try:
            return os.posix_spawn(
                candidate, argv, variables, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_RESET
            )
        except OSError as error:
            if error.errno == errno.ENOENT:  # The file is there; what its first line or its header names is not.
                raise StartFailed("interpreter", errno.ENOENT) from None
            raise StartFailed("spawn", error.errno or errno.EIO) from None
    raise StartFailed("program", failure)


class Connection:
    """One worker, or someone who has not said yet that it is one."""

    __slots__ = ("socket", "fd", "known", "running", "outgoing", "grace_s", "told")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.fd = connected.fileno()
        self.known = False
        self.running: dict[bytes, Command] = {}
        self.outgoing: list[bytes] = []
        self.grace_s = 0.0
        self.told = 0
        """Whether it was told of lost commands and has started none since: it may not have passed that on."""

    def send(self, *fields: bytes | int | str) -> None:
        """Send a message, or queue it where the socket is full."""
        self.outgoing.append(b"\0".join(f if isinstance(f, bytes) else str(f).encode() for f in fields))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        try:
            while self.outgoing:
                self.socket.send(self.outgoing[0], socket.MSG_NOSIGNAL)
                del self.outgoing[0]
        except BlockingIOError:
            return
        except OSError:  # The worker is gone; the loop reads the end of the connection.
            self.outgoing.clear()


# ------------------------------------------------------------------ the init


class Init:
    """The loop: one thread, and nothing in it waits but the poll."""

    def __init__(self, listener: socket.socket, token: bytes, expires_ms: int, grace_ms: int, *, kept: bool) -> None:
        self.listener = listener
        self.token = token
        self.kept = kept
        self.grace_s = grace_ms / 1000
        """What the last worker to go has left us; before any came, what the one that started us has."""
        self.expiry = WallTimer(expires_ms)
        self.alone_since: float | None = boot_time()
        self.home = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self.parent = os.open("..", os.O_RDONLY | os.O_DIRECTORY)
        self.poll = select.poll()
        self.wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda _number, _frame: None)  # The wake-up descriptor carries the number.
        self.connections: dict[int, Connection] = {}
        self.commands: dict[int, Command] = {}
        self.kills: list[Kill] = []
        self.has_children = False
        self.orphans = 0
        """How many were reaped that no worker had started."""
        self.marks: set[bytes] = set()
        """Marks of all commands started since the kernel last said that there is no child at all: nobody else can
        have started what is here now."""
        self.lost = 0
        self.ending = ""
        self.buffer = memoryview(bytearray(MESSAGE_BYTES))

    def run(self) -> None:
        """Serve until it is time to end."""
        self.poll.register(self.wake, select.POLLIN)
        self.poll.register(self.listener, select.POLLIN)
        self.poll.register(self.expiry.fd, select.POLLIN)
        while not self.ending:
            for fd, events in self.poll.poll(self.wait_ms()):
                connection = self.connections.get(fd)
                if connection is not None:
                    if events & select.POLLOUT:
                        connection.flush()
                    if events & ~select.POLLOUT:
                        self.receive(connection)
                elif fd == self.wake:
                    self.on_signals(os.read(self.wake, 4096))
                elif fd == self.listener.fileno():
                    self.accept()
                elif fd == self.expiry.fd:
                    self.on_expiry()
            for connection in [c for c in self.connections.values() if c.outgoing]:
                if len(connection.outgoing) > BACKLOG_MESSAGES:
                    self.drop(connection)
            for connection in self.connections.values():
                self.poll.modify(connection.fd, select.POLLIN | (select.POLLOUT if connection.outgoing else 0))
            self.on_time()

    def wait_ms(self) -> float | None:
        """Until the next thing is due, None for no such thing; expiry has a descriptor of its own.

        At most half a minute: a poll does not count the time of a suspended machine.
        """
        due = [kill.next_at for kill in self.kills]
        if self.alone_since is not None:
            due.append(self.alone_since + self.patience_s())
        return max(0.0, min(30_000.0, math.ceil((min(due) - boot_time()) * 1000))) if due else None

    def on_time(self) -> None:
        """Do what is due."""
        now = boot_time()
        for kill in [kill for kill in self.kills if kill.next_at <= now]:
            self.step(kill, now)
        if self.alone_since is not None and not self.ending and now >= self.alone_since + self.patience_s():
            if self.kept and is_recorded():
                self.alone_since = now
            else:
                self.ending = "orphaned"

    def patience_s(self) -> float:
        """How long it is alone before it ends or, where it is kept, looks whether anybody could still find it."""
        return max(self.grace_s, LOOK_S) if self.kept else self.grace_s

    def on_expiry(self) -> None:
        """End where it is time; the clock may have been set back since the timer said so."""
        if self.expiry.is_over():
            self.ending = self.ending or "expired"

    def on_signals(self, numbers: bytes) -> None:
        """Reap; end on any signal that asks for it."""
        if any(number != signal.SIGCHLD for number in numbers):
            self.ending = self.ending or ("stopped" if self.kept else "terminated")
        self.reap()
        for kill in self.kills:
            if not kill.term_until or kill.pid not in self.commands:
                kill.next_at = 0.0

    def reap(self) -> None:
        """Take the status of every process that has ended, whoever started it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.has_children = False
                self.marks.clear()
                return
            if pid == 0:
                self.has_children = True
                return
            command = self.commands.pop(pid, None)
            if command is None:
                self.orphans += 1
            else:
                del command.connection.running[command.seq]
                if not self.ending:
                    command.connection.send(b"exit", command.seq, status, int(command.asked))

    # -------------------------------------------------------------- connections

    def accept(self) -> None:
        """Take a connection from the same user; too many strangers drive out the oldest."""
        try:
            connected, _ = self.listener.accept()
        except OSError:  # It went away again, or we are out of descriptors for the moment.
            return
        connected.setblocking(False)
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.geteuid():
            connected.close()
            return
        connection = Connection(connected)
        self.connections[connection.fd] = connection
        self.poll.register(connection.fd, select.POLLIN)
        strangers = [c for c in self.connections.values() if not c.known]
        if len(strangers) > STRANGERS:
            self.drop(strangers[0])

    def drop(self, connection: Connection) -> None:
        """Forget a connection and end what it was running: nobody could read from it, wait for it or end it now."""
        self.poll.unregister(connection.fd)
        del self.connections[connection.fd]
        connection.socket.close()
        connection.outgoing.clear()
        for command in connection.running.values():
            self.lost = 1
            command.asked = True
            kill = Kill(connection, command.seq, command.mark, command, boot_time())
            kill.deadline = math.inf  # Nobody waits for an answer, so it goes on until nothing is left.
            self.kills.append(kill)
        self.lost |= connection.told
        if connection.known and not any(c.known for c in self.connections.values()):
            self.alone_since = boot_time()
            self.grace_s = connection.grace_s

    def receive(self, connection: Connection) -> None:
        """Take one message; whoever sends nonsense is dropped."""
        try:
            size, control, flags, _ = connection.socket.recvmsg_into(
                [self.buffer], socket.CMSG_SPACE(4 * 4), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            self.drop(connection)
            return
        fds = [
            fd
            for level, kind, data in control
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (fd,) in struct.iter_unpack("i", data[: len(data) // 4 * 4])
        ]
        try:
            if size == 0:
                self.drop(connection)
            elif flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError("a message of more than it may have")
            else:
                self.handle(connection, bytes(self.buffer[:size]).split(b"\0"), fds)
        except (ValueError, OverflowError, IndexError) as error:
            log(f"dropped a connection: {error}")
            self.drop(connection)
        finally:
            for fd in fds:
                os.close(fd)

    def handle(self, connection: Connection, fields: list[bytes], fds: list[int]) -> None:
        """Do what one message says.

        Raises:
            ValueError: It says nothing that we know.
        """
        if not connection.known:
            verb, token, grace_ms = fields
            if verb != b"hello" or token != self.token:
                raise ValueError("not the hello of a worker")
            connection.grace_s = int(grace_ms) / 1000
            connection.known = True
            self.alone_since = None
            connection.send(b"ready", SELF, start_ticks(), self.lost)
            connection.told, self.lost = self.lost, 0
            return
        if fields[0] == b"memfd":
            fields = read_memfd(fds.pop(0)).split(b"\0")
        verb, *rest = fields
        if verb == b"start":
            self.start(connection, rest, fds)
        elif verb == b"kill":
            self.kill(connection, *exactly(rest, 3))
        elif verb == b"signal":
            self.pass_signal(connection, *exactly(rest, 3))
        elif verb == b"keep":
            (kept,) = exactly(rest, 1)
            connection.send(b"kept", self.keep(kept == b"1"))
        elif verb == b"end":
            self.ending = "destroyed"
        else:
            raise ValueError(f"unknown verb {verb[:20]!r}")

    def keep(self, kept: bool) -> int:  # noqa: FBT001
        """Outlive the workers from now on, or no longer; returns the number of the error that left it as it was."""
        try:
            record_keep(kept)
        except OSError as error:
            log(f"{RECORD}: {error}")
            return error.errno or errno.EIO
        self.kept = kept
        return 0

    # -------------------------------------------------------------- commands

    def start(self, connection: Connection, rest: list[bytes], fds: list[int]) -> None:
        """Start a command with the given standard streams."""
        seq, mark, stdio, cwd, count, *words = rest
        argc = int(count)
        if argc < 1 or len(words) < argc or seq in connection.running:
            raise ValueError("a start without a program, or one of a number that runs")
        pairs = [word.partition(b"=") for word in words[argc:]]
        if stdio == b"pty" and len(fds) == 1:
            # Opened anew by the leader of a session, a terminal becomes the one that controls it.
            path = f"/proc/self/fd/{fds[0]}"
            actions: list[Action] = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDWR, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        elif len(fds) == {b"null": 2, b"pipe": 3}.get(stdio):
            actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in zip((2, 1, 0), reversed(fds), strict=False)]
        else:
            raise ValueError("a start with the wrong descriptors")
        before = int(boot_time() * TICKS)
        try:
            try:
                os.chdir(cwd)
            except OSError as error:
                raise StartFailed("cwd", error.errno or errno.EIO) from None
            pid = spawn(words[:argc], {name: value for name, _, value in pairs}, actions)
        except StartFailed as failed:
            connection.send(b"failed", seq, failed.stage, failed.number)
            return
        finally:
            os.fchdir(self.home)
        command = Command(connection, seq, mark, pid, before)
        self.commands[pid] = connection.running[seq] = command
        self.marks.add(mark)
        self.has_children = True
        connection.told = 0
        connection.send(b"started", seq, pid)

    def pass_signal(self, connection: Connection, seq: bytes, number: bytes, ref: bytes) -> None:
        """Signal the group of a command whose own process has not ended."""
        wanted = int(number)
        self.reap()
        command = connection.running.get(seq)
        delivered = command is not None and signal_group(command.pid, wanted)
        connection.send(b"signalled", ref, int(delivered))

    def kill(self, connection: Connection, seq: bytes, mark: bytes, mode: bytes) -> None:
        """Begin to end a command and everything that it started."""
        self.reap()
        command = connection.running.get(seq)
        kill = Kill(connection, seq, mark, command, boot_time())
        if mode == b"soon":
            if command is None:
                connection.send(b"killed", seq, b"ended")
                return
            signal_group(command.pid, signal.SIGTERM)
            kill.next_at = kill.term_until = boot_time() + TERM_GRACE_S
        if command is not None:
            command.asked = True
        self.kills.append(kill)

    def step(self, kill: Kill, now: float) -> None:
        """One pass of a kill: end what is found, and answer once nothing was found twice."""
        kill.term_until = 0.0
        kill.passes += 1
        if kill.pid in self.commands:
            signal_group(kill.pid, signal.SIGKILL)  # At once for the whole group: no fork of it can slip through.
        roots, strays = self.trees_of(kill)
        found = freeze_and_kill(roots)
        self.reap()
        if found or kill.pid in self.commands or kill.orphans != self.orphans:
            kill.quiet = 0
        else:
            kill.quiet += 1
        kill.orphans = self.orphans
        if not self.has_children or (kill.quiet > 1 and not strays):
            answer = b"gone"
        elif kill.quiet > STRAY_PASSES or now >= kill.deadline:
            answer = b"signalled"
        else:
            at_once = kill.passes < EAGER_PASSES and not (kill.quiet and strays)
            kill.next_at = now if at_once else now + (PASS_S if kill.passes < SLOW_PASSES else SLOW_PASS_S)
            return
        self.kills.remove(kill)
        if self.connections.get(kill.connection.fd) is kill.connection:
            kill.connection.send(b"killed", kill.seq, answer)

    def trees_of(self, kill: Kill) -> tuple[list[Stat], bool]:
        """Children of ours that this command started, and whether there is one that it may have started.

        An orphan has come to us with its parents gone, so its origin is shown by the mark in its environment, by its
        session, or by there being no other command that could have started it.
        """
        roots: list[Stat] = []
        strays = False
        only = self.marks <= {kill.mark}
        for pid in children_of(SELF):
            command = self.commands.get(pid)
            if command is not None and command.mark != kill.mark:
                continue
            found = read_stat(pid)
            if found is None or not found.live:
                continue
            if command is not None or only or found.session == kill.pid or has_variable(pid, kill.mark):
                roots.append(found)
            elif found.start_ticks >= kill.before_ticks:
                strays = True
        return roots, strays

    # -------------------------------------------------------------- the end

    def finish(self) -> None:
        """End every process, then remove the sandbox's folder, unless it is kept and was only stopped.

        Comes back only when all of that is true.

        Raises:
            OSError: Something in the folder cannot be removed.
        """
        # The record goes first: whoever finds nobody listening and a record may take the sandbox for one to revive.
        for name in (RECORD, "socket") if self.ending != "stopped" else ():
            try:
                os.unlink(name)
            except OSError as error:  # A command took it away or put something else there: the removal deals with it.
                log(f"{name}: {error}")
        self.listener.close()
        for connection in self.connections.values():
            if connection.known:
                connection.send(b"ending", self.ending)
            else:
                connection.socket.close()  # Who is just coming looks again, and waits for our end.
        passes = 0
        self.reap()
        while self.has_children:
            found = freeze_and_kill([process for pid in children_of(SELF) if (process := read_stat(pid)) is not None])
            passes += 1
            if not found or passes > EAGER_PASSES:
                time.sleep(PASS_S if passes < SLOW_PASSES else SLOW_PASS_S)
            if passes == SLOW_PASSES:
                log(f"these processes do not end: {children_of(SELF)}")
            self.reap()
        if self.ending == "stopped":
            return
        try:
            name = os.path.basename(os.getcwd())
            named = os.stat(name, dir_fd=self.parent, follow_symlinks=False)
        except FileNotFoundError:
            return
        if os.path.samestat(os.fstat(self.home), named):
            remove_tree(self.parent, name)


class WallTimer:
    """An instant of the wall clock, as a descriptor that is readable from then on.

    The kernel keeps it through a suspended machine, and moves it when the clock is set: forward ends it earlier,
    backward later. What a host was told is an instant of that clock, and the host compares it with that clock too.
    """

    def __init__(self, at_ms: int) -> None:
        self._at_ms = at_ms
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_REALTIME, os.O_CLOEXEC | os.O_NONBLOCK)
        self._arm()

    def is_over(self) -> bool:
        """Whether it has come; where the clock was set back just now, it is waited for anew."""
        if time.time_ns() // 1_000_000 >= self._at_ms:
            return True
        self._arm()
        return False

    def _arm(self) -> None:
        at_s, left_ms = divmod(min(max(1, self._at_ms), _FAR_S * 1000), 1000)
        once = (ctypes.c_long * 4)(0, 0, at_s, left_ms * 1_000_000)
        if self.fd < 0 or self._libc.timerfd_settime(self.fd, _TFD_TIMER_ABSTIME, once, None) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"no timer: {os.strerror(number)}")


def exactly(fields: list[bytes], count: int) -> list[bytes]:
    """The fields, if they are so many.

    Raises:
        ValueError: They are not.
    """
    if len(fields) != count:
        raise ValueError("a message with the wrong number of fields")
    return fields


def read_memfd(fd: int) -> bytes:
    """The message in a descriptor that came with it; closes the descriptor.

    Raises:
        ValueError: It is too long, or not a file.
    """
    try:
        size = os.fstat(fd).st_size
        if size > REQUEST_BYTES:
            raise ValueError("a message of more than it may have")
        return os.pread(fd, size, 0)
    except OSError as error:
        raise ValueError(f"a message that cannot be read: {error}") from None
    finally:
        os.close(fd)


def signal_group(leader: int, number: int) -> bool:
    """Signal a group whose leader has not been reaped (so the number is its own); False if that failed."""
    try:
        os.killpg(leader, number)
    except OSError:  # Another user's, or no such signal.
        return False
    return True


def boot_time() -> float:
    """Seconds since the machine started, suspended time included: the clock that start times are measured by."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_ticks() -> int:
    """When this process started, in clock ticks since the machine did."""
    found = read_stat(SELF)
    return found.start_ticks if found is not None else 0


def boot_id() -> str:
    """The kernel's name for the time since the machine started."""
    return read_file("/proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()


def write_identity() -> None:
    """Say who we are in our folder; whole or not at all."""
    write_whole(IDENTITY, f'{{"pid": {SELF}, "startTicks": {start_ticks()}, "bootId": "{boot_id()}"}}\n')


def record_keep(kept: bool) -> None:  # noqa: FBT001
    """Say in the record that the sandbox outlives its workers, or not; whole or not at all.

    Raises:
        OSError: The record cannot be read or written.
    """
    import json  # Its import is a good part of our start, and few sandboxes are kept.

    with open(RECORD, opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
        try:
            record = json.load(file)
        except ValueError as error:
            raise OSError(errno.EIO, f"it is broken: {error}") from None
    if record.get("keep", False) != kept:
        write_whole(RECORD, json.dumps(record | {"keep": kept}))


def is_recorded() -> bool:
    """Whether a worker could still find us: not where somebody has removed the folder by hand."""
    try:
        os.lstat(RECORD)
    except FileNotFoundError:
        return False
    except OSError:  # A command may have closed the folder to its owner; it is there.
        return True
    return True


def write_whole(path: str, text: str) -> None:
    """Put a file of ours in place, readable by us alone, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    new = path + ".new"
    with open(new, "w", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as file:
        file.write(text)
    os.replace(new, path)


def log(text: str) -> None:
    """One line to the sandbox's log file, with the time."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode("utf-8", "backslashreplace")
    try:
        os.write(2, line)
    except OSError:  # A full disk must not be the end of the sandbox.
        return


def main(arguments: list[str]) -> int:
    """Be the init of one sandbox; returns when nothing of it is left."""
    folder, expires_ms, grace_ms, kept = arguments
    os.set_inheritable(LISTENER_FD, False)
    os.closerange(LISTENER_FD + 1, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    os.umask(0o022)
    zeros = (ctypes.c_ulong(0),) * 3
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), *zeros) != 0:
        log(f"cannot become a child subreaper: {os.strerror(ctypes.get_errno())}")
        return 3
    listener = socket.socket(fileno=LISTENER_FD)
    listener.setblocking(False)
    token = os.environb[b"SANDPORT_INIT_TOKEN"]
    init = Init(listener, token, int(expires_ms), int(grace_ms), kept=kept == "1")
    write_identity()
    try:
        init.run()
    except Exception:
        init.ending = "stopped" if init.kept else "failed"
        raise
    finally:
        init.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
