"""The init of one sandbox: it starts the sandbox's commands, reaps them, and its end is the end of them all.

A program of its own, with a listening socket as descriptor 3, one per sandbox, in one of two ways.

Without isolation (`init FOLDER EXPIRES_MS GRACE_MS KEPT`) it owns the sandbox's folder under the host's state, whose
name is the sandbox's id, and is a child subreaper, so nothing that a command starts can leave its subtree: not with
setsid, not by forking twice. It ends when it is told to, at the lease's expiry, on SIGTERM, or one grace after the last
worker is gone; each time it kills until the kernel says that it has no children, then removes the folder. A kept
sandbox has no grace, and a SIGTERM (the machine is shut down) ends its processes and leaves its folder to an init that
is started later.

Isolated (`init --inside`) it is PID 1 of the sandbox's own namespaces. All that is about the folder and the time is the
affair of its keeper, which it speaks to over descriptor 4; see `keeper`.

Several workers may be connected at once. A command belongs to the connection that started it, and ends with it.

A worker speaks to it over a SOCK_SEQPACKET socket, in messages as `link` has them. One that is too long for the socket
is `memfd`, and the text itself is the first descriptor passed with it.

```text
hello TOKEN GRACE_MS                               -> ready PID START_TICKS LOST
    PID is that of the process that owns the folder
keep 0 | 1                                         -> kept ERRNO; in the record before it counts, or not at all
start SEQ MARK STDIO CWD ARGC ARGV... NAME=VALUE.. -> started SEQ PID | failed SEQ STAGE ERRNO;   exit SEQ STATUS ASKED
    STDIO null: descriptors are stdout, stderr; pipe: stdin, stdout, stderr; pty: the terminal
    STAGE cwd, program, interpreter or spawn; STATUS as waitpid gives it; ASKED 1 where a kill came before the end
terminal REF                                       -> terminal REF ERRNO, and where that is 0 a terminal's two sides
kill SEQ MARK MODE                                 -> killed SEQ gone | signalled | ended
    MODE now: SIGKILL for everything that carries the mark; soon: SIGTERM for the group first, and nothing (`ended`)
    where the command's own process has already ended
signal SEQ NUMBER REF                              -> signalled REF 0 | 1
end                                                -> ending REASON, then the end of the connection, to every worker
```

It must outlive every worker's environment, and its start is a part of every acquire: so of the standard library it and
what it imports use only what starts fast.

Why so long: the loop, the commands and the kills are one machine, and each file more is a part of every start.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import struct
import sys
import time

from sandport_provider_local.link import Link, exactly, log, read_memfd
from sandport_provider_local.proc import (
    TICKS,
    Stat,
    boot_time,
    children_of,
    freeze_and_kill,
    has_variable,
    read_stat,
    signal_group,
    start_ticks,
)
from sandport_provider_local.spawn import Action, StartFailed, spawn

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    import signal
    import socket
    from collections.abc import Callable

    from sandport_provider_local.above import Above
else:  # Without the others' import of `enum`, which is a third of a start.
    import _signal as signal
    import _socket as socket

MESSAGE_BYTES = 128 * 1024
"""What is taken in one message of the socket; the worker sends less, and more in a memfd."""
KILL_S = 2.0
"""A kill that is not proven complete by then is answered as `signalled`."""
TERM_GRACE_S = 2.0
"""Between the SIGTERM and the SIGKILL of a time-out, where the command's own process has not ended before.

As long as a host gives its workers: enough to end in order on a busy machine. Less than the 10 s of `docker stop`,
since a program past its limit has had its time, and whoever waits for the result waits for this too.
"""
EAGER_PASSES = 50
"""Passes of a kill that follow each other at once: what forks quickly is only caught by looking at once again."""
PASS_S = 0.002
SLOW_PASSES = 1000
"""After so many something does not end though it was killed (it waits in the kernel): looked at less often."""
SLOW_PASS_S = 0.1
STRAY_PASSES = 5
"""Looks at an orphan of unknown origin before it is left alone: amid an exec a process shows no environment."""
STRANGERS = 8
"""Connections that have not said hello yet; the oldest goes when there are more."""
BACKLOG_MESSAGES = 4096
"""Answers kept for a worker that does not read; then it is dropped."""
SELF = os.getpid()
LISTENER_FD = 3
CONTROL_FD = 4
OOM_SCORE = b"500"
"""What a command counts for above the init when the kernel looks for memory, so that it takes the command."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What asks the owner of a folder to end."""
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


class Keeper:
    """The keeper, as the init of an isolated sandbox knows it."""

    def __init__(self, link: Link) -> None:
        self.ending = ""
        self.fd = link.fd
        self._link = link
        self._keeping: list[Callable[[int], None]] = []

    @property
    def unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._link.outgoing)

    def on_readable(self) -> None:
        """Take what it says; without it, this is the end."""
        self._link.flush()
        try:
            message = self._link.socket.recv(4096)
        except BlockingIOError:
            return
        verb, _, rest = message.partition(b"\0")
        if verb == b"kept":
            self._keeping.pop(0)(int(rest))
        elif verb == b"ending":
            self.ending = rest.decode()
        else:
            os._exit(1)

    def due(self) -> float | None:
        """Time is the keeper's affair."""
        return None

    def on_time(self, now: float) -> None:
        """Time is the keeper's affair."""

    def attended(self) -> None:
        """A worker is there."""
        self._link.send(b"attended")

    def left(self, grace_s: float) -> None:
        """The last worker has gone."""
        self._link.send(b"left", int(grace_s * 1000))

    def stop(self) -> None:
        """Signals are the keeper's affair."""

    def end(self) -> None:
        """A worker asks for the end."""
        self._link.send(b"end")

    def keep(self, kept: bool, answer: Callable[[int], None]) -> None:  # noqa: FBT001
        """Outlive the workers from now on, or no longer; the answer is the number of the error that left it as is."""
        self._keeping.append(answer)
        self._link.send(b"keep", int(kept))


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


class Connection(Link):
    """One worker, or someone who has not said yet that it is one."""

    __slots__ = ("known", "running", "grace_s", "told")

    def __init__(self, connected: socket.socket) -> None:
        super().__init__(connected)
        self.known = False
        self.running: dict[bytes, Command] = {}
        self.grace_s = 0.0
        self.told = 0
        """Whether it was told of lost commands and has started none since: it may not have passed that on."""


class Init:
    """The loop: one thread, and nothing in it waits but the poll."""

    def __init__(
        self,
        listener: socket.socket,
        token: bytes,
        above: Above,
        owner: tuple[int, int],
        *,
        inside: bool = False,
        shields: bool = False,
    ) -> None:
        self.listener = listener
        self.token = token
        self.above = above
        self.owner = owner
        """Number and start of the process that owns the folder."""
        self.inside = inside
        self.shields = shields
        """Whether a command goes before the init where memory is short."""
        self.home = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self.poll = select.poll()
        self.wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        # What asks for the end comes to whoever owns the folder: a PID 1 is not told what it has no handler for.
        for number in (signal.SIGCHLD,) if self.inside else (signal.SIGCHLD, *ENDING):
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
        self.buffer = memoryview(bytearray(MESSAGE_BYTES))

    def run(self) -> None:
        """Serve until it is time to end."""
        self.poll.register(self.wake, select.POLLIN)
        self.poll.register(self.listener, select.POLLIN)
        self.poll.register(self.above.fd, select.POLLIN)
        while not self.above.ending:
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
                elif fd == self.above.fd:
                    self.above.on_readable()
            for connection in [c for c in self.connections.values() if c.outgoing]:
                if len(connection.outgoing) > BACKLOG_MESSAGES:
                    self.drop(connection)
            for connection in self.connections.values():
                self.poll.modify(connection.fd, select.POLLIN | (select.POLLOUT if connection.outgoing else 0))
            self.poll.modify(self.above.fd, select.POLLIN | (select.POLLOUT if self.above.unsent else 0))
            self.on_time()

    def wait_ms(self) -> float | None:
        """Until the next thing is due, None for no such thing; expiry has a descriptor of its own.

        At most half a minute: a poll does not count the time of a suspended machine.
        """
        due = [kill.next_at for kill in self.kills]
        above = self.above.due()
        if above is not None:
            due.append(above)
        return max(0.0, min(30_000.0, math.ceil((min(due) - boot_time()) * 1000))) if due else None

    def on_time(self) -> None:
        """Do what is due."""
        now = boot_time()
        for kill in [kill for kill in self.kills if kill.next_at <= now]:
            self.step(kill, now)
        self.above.on_time(now)

    def on_signals(self, numbers: bytes) -> None:
        """Reap; end on any signal that asks for it."""
        if any(number != signal.SIGCHLD for number in numbers):
            self.above.stop()
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
                if not self.above.ending:
                    command.connection.send(b"exit", command.seq, status, int(command.asked))

    # -------------------------------------------------------------- connections

    def accept(self) -> None:
        """Take a connection from the same user; too many strangers drive out the oldest."""
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined] # what `accept` is made of
        except OSError:  # It went away again, or we are out of descriptors for the moment.
            return
        connected = socket.socket(fileno=fd)
        credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        # From inside a namespace of its own it cannot tell users of the host apart; the folder is closed to them.
        if struct.unpack("3i", credentials)[1] != os.geteuid() and not self.inside:
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
        connection.forget()
        for command in connection.running.values():
            self.lost = 1
            command.asked = True
            kill = Kill(connection, command.seq, command.mark, command, boot_time())
            kill.deadline = math.inf  # Nobody waits for an answer, so it goes on until nothing is left.
            self.kills.append(kill)
        self.lost |= connection.told
        if connection.known and not any(c.known for c in self.connections.values()):
            self.above.left(connection.grace_s)

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
            self.above.attended()
            connection.send(b"ready", *self.owner, self.lost)
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
            self.above.keep(kept == b"1", lambda number: connection.send(b"kept", number))
        elif verb == b"terminal":
            self.open_terminal(connection, *exactly(rest, 1))
        elif verb == b"end":
            self.above.end()
        else:
            raise ValueError(f"unknown verb {verb[:20]!r}")

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
        if self.shields:
            shield(pid)
        command = Command(connection, seq, mark, pid, before)
        self.commands[pid] = connection.running[seq] = command
        self.marks.add(mark)
        self.has_children = True
        connection.told = 0
        connection.send(b"started", seq, pid)

    def open_terminal(self, connection: Connection, ref: bytes) -> None:
        """Make a terminal of the sandbox's own, and let the worker have both sides of it."""
        try:
            ends = os.openpty()
        except OSError as error:
            connection.send(b"terminal", ref, error.errno or errno.EIO)
            return
        connection.send(b"terminal", ref, 0, fds=ends)

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
            kill.deadline += TERM_GRACE_S  # What is proven, and how long that may take, begins with the SIGKILL.
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

    def announce(self) -> None:
        """Say why it ends, to every worker; nobody else is let in."""
        self.listener.close()
        for connection in self.connections.values():
            if connection.known:
                connection.send(b"ending", self.above.ending)
            else:
                connection.socket.close()  # Who is just coming looks again, and waits for our end.

    def end_processes(self) -> None:
        """Kill until the kernel says that there is nothing; comes back only when that is true."""
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


def shield(pid: int) -> None:
    """Let the kernel take this process before the init where memory is short; what it starts inherits that."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
    except OSError:  # It has ended, or it hides.
        return
    try:
        os.write(fd, OOM_SCORE)
    except OSError:  # Likewise.
        return
    finally:
        os.close(fd)


def set_option(option: int, value: int) -> bool:
    """Set an option of this process; False where the kernel does not let us, with a line in the log."""
    zeros = (ctypes.c_ulong(0),) * 3
    if ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), *zeros) == 0:
        return True
    log(f"prctl {option}: {os.strerror(ctypes.get_errno())}")
    return False


def main(arguments: list[str]) -> int:
    """Be the init of one sandbox; returns when nothing of it is left that is its to end."""
    os.set_inheritable(LISTENER_FD, False)
    listener = socket.socket(fileno=LISTENER_FD)
    listener.setblocking(False)
    os.umask(0o022)
    return run_inside(listener) if arguments == ["--inside"] else run_alone(listener, *arguments)


def run_alone(listener: socket.socket, folder: str, expires_ms: str, grace_ms: str, kept: str) -> int:
    """Be the init of a sandbox without isolation, which owns its folder."""
    from sandport_provider_local.term import FIRST_S, Term, write_identity

    os.closerange(LISTENER_FD + 1, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    if not set_option(_PR_SET_CHILD_SUBREAPER, 1):
        return 3
    term = Term(int(expires_ms), int(grace_ms), kept=kept == "1")
    init = Init(listener, os.environb[b"SANDPORT_INIT_TOKEN"], term, (SELF, start_ticks()))
    write_identity()
    # It greets once it runs again, and under load that takes it longer than a short grace.
    term.left(max(term.grace_s, FIRST_S))
    try:
        init.run()
    except Exception:  # whatever it is, a sandbox that is to be kept keeps its files
        term.ending = "stopped" if term.kept else "failed"
        raise
    finally:
        term.begin_end()
        init.announce()
        init.end_processes()
        term.remove()
    return 0


def run_inside(listener: socket.socket) -> int:
    """Be PID 1 of an isolated sandbox; the end of this process is the end of all others in it."""
    if not set_option(_PR_SET_DUMPABLE, 0):  # Or commands, which are of the same user, could look into it.
        return 3
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python has a handler of its own, and commands may send it.
    os.closerange(CONTROL_FD + 1, os.sysconf("SC_OPEN_MAX"))
    os.set_inheritable(CONTROL_FD, False)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    os.chdir("/")
    control = socket.socket(fileno=CONTROL_FD)
    control.sendall(b"up")
    _, token, pid, ticks, shields = exactly(control.recv(4096).split(b"\0"), 5)
    keeper = Keeper(Link(control))
    init = Init(listener, token, keeper, (int(pid), int(ticks)), inside=True, shields=shields == b"1")
    init.run()
    init.announce()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
