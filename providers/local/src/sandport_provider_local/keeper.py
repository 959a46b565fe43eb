"""The keeper of one isolated sandbox: it owns the sandbox's folder and its end, and stays outside.

A program of its own (`keeper FOLDER EXPIRES_MS GRACE_MS KEPT`, with the listening socket as descriptor 3 and the plan
as descriptor 4), one per sandbox. It starts bubblewrap, and in it the sandbox's init as PID 1 of namespaces of its own,
which gets the listening socket and speaks with the workers; the keeper never does. Whatever ends the sandbox (a worker
that says so, the lease's expiry, one grace without a worker, SIGTERM), the keeper ends it: the end of PID 1 is the end
of every process in it, by the kernel's word. Then it removes the cgroup and the folder.

It has one thread, and bubblewrap dies with it (`--die-with-parent`, kept by the kernel): so after a SIGKILL of the
keeper nothing runs that nobody would end. A SIGKILL of bubblewrap or of the init ends the sandbox's processes, then the
keeper; the folder stays, as that of an init that was killed, for a worker to attach with a new keeper.

It speaks with the init over a SOCK_SEQPACKET pair, in messages as `link` has them. What the init says is taken with
care: what runs beside it is not trusted, and it could have been taken over.

```text
init                                               keeper
up                                                 -> begin TOKEN PID START_TICKS SHIELDS
    PID is the keeper's; SHIELDS 1 where commands are to go first when memory is short
attended; left GRACE_MS                            a worker is there; the last one has gone
keep 0 | 1                                         -> kept ERRNO
end                                                a worker asks for the end
                                                   ending REASON; the init tells the workers and ends
```
"""

from __future__ import annotations

import os
import resource
import select
import sys
import time

from sandport_provider_local.init import CONTROL_FD, ENDING, LISTENER_FD, PASS_S, SLOW_PASS_S, SLOW_PASSES, set_option
from sandport_provider_local.link import Link, log
from sandport_provider_local.proc import boot_time, children_of, read_stat, signal_exactly, start_ticks
from sandport_provider_local.term import FIRST_S, Term, write_identity

TYPE_CHECKING = False  # That of `typing` costs more to import than all the rest.
if TYPE_CHECKING:
    import signal
    import socket
    from typing import NoReturn

    from sandport_provider_local.cgroups import Cgroup
else:  # Without the others' import of `enum`, which is a third of a start.
    import _signal as signal
    import _socket as socket

PLAN_FD = 4
TELL_S = 1.0
"""What the init gets to tell its workers why it ends; then it is killed."""
START_S = 20.0
"""What bubblewrap and the init get to come up; they take some 30 ms."""
NOT_ISOLATED = 4
"""The exit code where the sandbox's processes could not be started; the log says why."""
LONGEST_GRACE_MS = 10**12
MESSAGE_BYTES = 256

_PR_SET_CHILD_SUBREAPER = 36
_RESET = [n for n in signal.valid_signals() if n not in (signal.SIGKILL, signal.SIGSTOP)]


class Plan:
    """What to start, from the worker: bubblewrap, its user and limits, the steps that it takes, and the command.

    Words joined by NUL: bubblewrap's path, the user's number, the cgroup's name, open files, processes (each empty
    where there is none), the number of the command's words, these, and the steps, each as its verb, the number of its
    words, and these; see `bubblewrap.steps`.
    """

    def __init__(self, encoded: bytes) -> None:
        self.bwrap, uid, self.cgroup, open_files, processes, count, *words = encoded.split(b"\0")
        self.uid = int(uid) if uid else None
        self.open_files = int(open_files) if open_files else None
        self.processes = int(processes) if processes else None
        self.command = words[: int(count)]
        self.steps: list[list[bytes]] = []
        left = iter(words[int(count) :])
        for verb in left:
            self.steps.append([verb, *(next(left) for _ in range(int(next(left))))])


def start(plan: Plan, cgroup: Cgroup | None) -> int:
    """Start bubblewrap with what this process leaves inheritable; returns its process.

    Raises:
        OSError: There is no process to be had.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        become_bubblewrap(plan, cgroup, parent)
    except BaseException as error:  # noqa: BLE001 - this is the end of a fork: nothing may go on behind it
        log(f"cannot isolate: {error}")
    os._exit(NOT_ISOLATED)


def become_bubblewrap(plan: Plan, cgroup: Cgroup | None, parent: int) -> NoReturn:
    """Go, in a process that was just forked, to where the sandbox is to be, and be bubblewrap.

    Raises:
        OSError: The kernel refuses.
    """
    from sandport_provider_local import namespaces

    signal.set_wakeup_fd(-1)
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    if cgroup is not None:
        cgroup.add(0)
    # 1 and not 0: a program that the kernel pipes cores to (on the host, as root) would be started for 0 all the same.
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    core = 1 if most == resource.RLIM_INFINITY else min(1, most)
    resource.setrlimit(resource.RLIMIT_CORE, (core, core))
    if plan.open_files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (plan.open_files, plan.open_files))
    name = os.path.basename(os.getcwdb())
    arguments: list[bytes] = []
    places: list[tuple[int, bytes]] = []
    for verb, *words in plan.steps:
        if verb == b"arg":
            arguments += words
        elif verb in (b"bind", b"ro"):
            arguments += [b"--ro-bind" if verb == b"ro" else b"--bind", b"", words[1]]
            places.append((len(arguments) - 2, words[0]))
        elif verb == b"seccomp":
            arguments += [b"--seccomp", b"%d" % in_memory(bytes.fromhex(words[0].decode()))]
        else:
            text = words[1] if verb == b"file" else read_whole(words[0])
            arguments += [b"--file", b"%d" % in_memory(text), words[0 if verb == b"file" else 1]]
    sources = [source for _, source in places]
    if plan.uid is not None:
        sources = namespaces.stage([os.path.join(os.getcwdb(), source) for source in sources])
        if plan.processes is not None:
            resource.setrlimit(resource.RLIMIT_NPROC, (plan.processes, plan.processes))
        namespaces.become(plan.uid)
    namespaces.leave_keyring()  # After the change of user, whose key it is then.
    for (place, _), source in zip(places, sources, strict=True):
        arguments[place] = source
    listed = in_memory(b"".join(word + b"\0" for word in arguments))
    if not namespaces.die_with(parent):
        os._exit(NOT_ISOLATED)
    # The mark by which a worker finds what a killed keeper has left before bubblewrap came to die with it.
    environment = {b"LANG": b"C.UTF-8", b"SANDPORT_SANDBOX_ID": name}
    os.execve(plan.bwrap, [b"bwrap", b"--args", b"%d" % listed, b"--", *plan.command], environment)


def in_memory(text: bytes) -> int:
    """A file in memory for bubblewrap to read."""
    fd = os.memfd_create("sandport", 0)
    os.write(fd, text)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def read_whole(path: bytes) -> bytes:
    """All of a file."""
    with open(path, "rb") as file:
        return file.read()


class Keeper:
    """The loop: one thread, and nothing in it waits but the poll."""

    def __init__(self, term: Term, plan: Plan, token: bytes) -> None:
        self.term = term
        self.plan = plan
        self.token = token
        self.cgroup: Cgroup | None = None
        self.bwrap = 0
        self.link: Link | None = None
        self.up = False
        self.lost = ""
        """Why there is no init any more, where nobody asked for its end."""
        self.wake = -1

    def start(self) -> None:
        """Start bubblewrap; the listening socket and the plan's descriptor are its own from then on.

        Raises:
            OSError: There is no process to be had, or the cgroup is gone.
        """
        self.wake, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *ENDING):
            signal.signal(number, lambda _number, _frame: None)  # The wake-up descriptor carries the number.
        if self.plan.cgroup:
            from sandport_provider_local.cgroups import Cgroup

            self.cgroup = Cgroup.open(self.plan.cgroup.decode())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        os.dup2(theirs.fileno(), CONTROL_FD)
        theirs.close()
        os.set_inheritable(LISTENER_FD, True)
        self.link = Link(ours)
        self.bwrap = start(self.plan, self.cgroup)
        os.close(LISTENER_FD)
        os.close(CONTROL_FD)

    def run(self) -> None:
        """Serve until it is time to end, or there is no init any more."""
        assert self.link is not None
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        poll.register(self.term.fd, select.POLLIN)
        poll.register(self.link.fd, select.POLLIN)
        late_at = boot_time() + START_S
        while not self.term.ending and not self.lost:
            due = self.term.due() if self.up else late_at
            left_ms = None if due is None else max(0.0, min(30_000.0, (due - boot_time()) * 1000 + 1))
            for fd, _ in poll.poll(left_ms):
                if fd == self.link.fd:
                    self.receive()
                elif fd == self.term.fd:
                    self.term.on_readable()
                else:
                    self.on_signals(os.read(self.wake, 4096))
            if self.up:
                self.term.on_time(boot_time())
            elif boot_time() >= late_at:
                self.lost = f"it did not come up within {START_S:g} s"
            poll.modify(self.link.fd, select.POLLIN | (select.POLLOUT if self.link.outgoing else 0))

    def on_signals(self, numbers: bytes) -> None:
        """Look whether bubblewrap has ended; end on any signal that asks for it."""
        if any(number in ENDING for number in numbers):
            self.term.stop()
        self.reap()

    def reap(self) -> bool:
        """Take the status of what has ended; False where there is nothing left that could."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.bwrap:
                self.bwrap = 0
                self.lost = self.lost or f"bubblewrap ended with status {status:#x}"

    def receive(self) -> None:
        """Take one message of the init's; it is the end of it where it says what it should not."""
        assert self.link is not None
        self.link.flush()
        try:
            message = self.link.socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.lost = "the init ended"
            return
        try:
            self.handle(self.link, message.split(b"\0"))
        except (ValueError, OverflowError):
            self.lost = f"the init says {message[:40]!r}"

    def handle(self, link: Link, fields: list[bytes]) -> None:
        """Do what one message says.

        Raises:
            ValueError: It says nothing that we know.
        """
        verb, *rest = fields
        if verb == b"up" and not rest and not self.up:
            self.begin(link)
        elif not self.up or len(link.outgoing) > 100:
            raise ValueError("not now")
        elif verb == b"attended" and not rest:
            self.term.attended()
        elif verb == b"left" and len(rest) == 1 and len(rest[0]) <= len(str(LONGEST_GRACE_MS)):
            self.term.left(min(max(0, int(rest[0])), LONGEST_GRACE_MS) / 1000)
        elif verb == b"keep" and rest in ([b"0"], [b"1"]):
            self.term.keep(rest == [b"1"], lambda number: link.send(b"kept", number))
        elif verb == b"end" and not rest:
            self.term.end()
        else:
            raise ValueError("unknown")

    def begin(self, link: Link) -> None:
        """Let the init take workers in, once it is recorded which processes the two of us are."""
        inside = children_of(self.bwrap)
        found = read_stat(inside[0]) if len(inside) == 1 else None
        if found is None:
            self.lost = f"bubblewrap has the children {inside}"
            return
        write_identity(inside=(found.pid, found.start_ticks))
        self.up = True
        self.term.left(max(self.term.grace_s, FIRST_S))
        shields = self.plan.cgroup != b""
        link.send(b"begin", self.token, os.getpid(), start_ticks(), int(shields))

    # -------------------------------------------------------------- the end

    def finish(self) -> int:
        """End every process of the sandbox and, where the sandbox ends, remove what it has; returns the exit code.

        Raises:
            OSError: Something in the folder cannot be removed.
        """
        if self.term.ending:
            self.term.begin_end()
            self.tell()
        self.kill()
        if self.cgroup is not None:
            self.remove_cgroup(self.cgroup)
        if not self.term.ending:
            log(f"the sandbox's processes are lost: {self.lost}")
            return 1 if self.up else NOT_ISOLATED
        self.term.remove()
        return 0

    def tell(self) -> None:
        """Have the init say to the workers why it ends, and end."""
        if self.link is None or not self.up:
            return
        self.link.send(b"ending", self.term.ending)
        deadline = time.monotonic() + TELL_S
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        while self.bwrap and (left_s := deadline - time.monotonic()) > 0:
            poll.poll(left_s * 1000)
            self.drain()
            self.reap()

    def drain(self) -> None:
        """Forget which signals came."""
        try:
            os.read(self.wake, 4096)
        except BlockingIOError:
            return

    def kill(self) -> None:
        """Kill PID 1 and bubblewrap; comes back when the kernel says that nothing of them is left."""
        passes = 0
        while self.reap():
            for pid in [*(children_of(self.bwrap) if self.bwrap else ()), *children_of(os.getpid())]:
                found = read_stat(pid)
                if found is not None:
                    signal_exactly(pid, found.start_ticks, signal.SIGKILL)
            passes += 1
            time.sleep(PASS_S if passes < SLOW_PASSES else SLOW_PASS_S)

    def remove_cgroup(self, cgroup: Cgroup) -> None:
        """Remove the cgroup; should that fail, whoever destroys the sandbox tries again."""
        try:
            cgroup.kill()
            cgroup.remove()
        except OSError as error:
            log(f"its cgroup: {error}")


def main(arguments: list[str]) -> int:
    """Be the keeper of one sandbox, or try whether one could be isolated (`--try`)."""
    plan = Plan(read_whole(f"/proc/self/fd/{PLAN_FD}".encode()))
    os.umask(0o022)
    if arguments == ["--try"]:
        os.close(PLAN_FD)
        _, status = os.waitpid(start(plan, None), 0)
        return os.waitstatus_to_exitcode(status)
    folder, expires_ms, grace_ms, kept = arguments
    os.set_inheritable(LISTENER_FD, False)
    os.closerange(PLAN_FD + 1, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    if not set_option(_PR_SET_CHILD_SUBREAPER, 1):  # What bubblewrap leaves, should it be killed, comes to us.
        return 3
    term = Term(int(expires_ms), int(grace_ms), kept=kept == "1")
    keeper = Keeper(term, plan, os.environb[b"SANDPORT_INIT_TOKEN"])
    try:
        keeper.start()
        keeper.run()
    except Exception as error:
        keeper.lost = f"{type(error).__name__}: {error}"
        raise
    finally:
        code = keeper.finish()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
