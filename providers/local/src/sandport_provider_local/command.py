"""One command: started through the init's channel, watched to its own end, and killed on time-out or order.

Above: the sandbox and the provider's methods. Below: the channel for its process, `streams` for its bytes. All of it
runs by callback; whoever needs the outcome waits on `wait`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from typing import TYPE_CHECKING, Literal, TypeVar

from sandport_sdk.v1 import errors, types

from .channel import ChannelClosed, set_if_waiting
from .errors import start_failed
from .init import KILL_S, TERM_GRACE_S
from .streams import Ends, Follower, HeldOpen, Input, Output, Window, set_size
from .survivors import PROCESS

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandport_sdk.v1 import Call

    from .channel import Channel

READ_AFTER_S = 0.002
"""Output is looked at so long after the start: a command that is over by then wakes its worker half as often."""
DRAIN_S = 0.25
"""What a command's last children may take to finish writing after it ended, before a stream counts as held open."""
STALLED_S = 5.0
"""After a time-out, output that waits for credit is kept for so long; the host's own deadline comes 15 s later."""
KILL_ANSWER_S = TERM_GRACE_S + KILL_S + 1.0
"""A kill that the init has not answered by then reached nothing that we know of."""

Kind = Literal["kept", "live", "process"]
"""Where output goes: kept for the result, sent to the call that runs it, or held for whoever waits for the process."""
Name = Literal["stdin", "stdout", "stderr", "pty"]
Descriptors = tuple[list[tuple[Name, int]], tuple[int, ...]]
R = TypeVar("R", bound=types.CommandResult)


class Plan:
    """What is to be run, in bytes: the program, where, and with which variables."""

    __slots__ = ("argv", "cwd", "variables")

    def __init__(self, argv: tuple[bytes, ...], cwd: bytes, variables: list[bytes]) -> None:
        self.argv = argv
        self.cwd = cwd
        self.variables = variables


class Command:
    """A command from its start to its end.

    Attributes:
        finished: Whether everything about it is known.
        outputs: Its output streams: stdout and stderr, or pty.
        input: Its input, where it was given one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: Channel,
        held: HeldOpen,
        plan: Plan,
        *,
        kind: Kind,
        credit_bytes: int,
        limit_bytes: int = 0,
        stdin: bytes | None = b"",
        pty: types.PtySize | None = None,
        terminal: tuple[int, int] | None = None,
        timeout_s: float | None = None,
        owner: int | None = None,
        oom_kills: Callable[[], int] | None = None,
    ) -> None:
        """Start it; nothing is waited for.

        Args:
            loop: The running loop.
            channel: The init to start it through.
            held: Takes over the streams that something else holds open at the end.
            plan: What to run.
            kind: Where its output goes.
            credit_bytes: The window of a process's output.
            limit_bytes: How much of each stream is kept for the result.
            stdin: All of its input; None to keep the input open.
            pty: The size of its terminal, where it gets one.
            terminal: Both sides of that terminal, ours and its; they are closed here, whatever becomes of it.
            timeout_s: Seconds after which it is killed.
            owner: Whose its pipes are, where its user is not the worker's: it may open them anew (/dev/stdout).
            oom_kills: How often the kernel has killed something in the sandbox for want of memory.

        Raises:
            OSError: There are no descriptors or terminals left.
            ChannelClosed: The init is gone.
        """
        self.finished = False
        self.outputs: list[Output] = []
        self.input: Input | None = None
        self._loop = loop
        self._channel = channel
        self._plan = plan
        self._waiting: list[asyncio.Future[None]] = []
        self._error: errors.WireError | None = None
        self._started = False
        self._status: int | None = None
        self._asked = False
        self._timed_out = False
        self._kill: Literal["none", "asked", "answered"] = "none"
        self._tree: types.Tree | None = None
        self._draining = False
        self._out_of_memory = False
        self._oom_kills = oom_kills
        self._oom_kills_before = oom_kills() if oom_kills is not None else 0
        self._began = loop.time()
        self._duration_s = 0.0
        self._mark = f"{PROCESS}={secrets.token_hex(8)}".encode()
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._read_timer = loop.call_later(READ_AFTER_S, self._read)

        ours, theirs = open_terminal(pty, terminal) if pty is not None else open_pipes(stdin != b"", owner)
        for name, fd in ours:
            if name == "stdin":
                self.input = Input(loop, fd, terminal=pty is not None)
                continue
            sink = Ends(limit_bytes) if kind == "kept" else Window(credit_bytes if kind == "process" else 0)
            self.outputs.append(Output(loop, name, fd, sink, self._on_output_end, held, credit_bytes=credit_bytes))
        if self.input is not None and stdin is not None:
            self.input.send(stdin, end=True)
        try:
            self._seq = channel.start(
                self,
                mark=self._mark,
                stdio=b"pty" if pty is not None else b"null" if self.input is None else b"pipe",
                fds=theirs,
                cwd=plan.cwd,
                argv=plan.argv,
                variables=[*plan.variables, self._mark],
            )
        except (ChannelClosed, OSError):
            self._read_timer.cancel()
            self._drop_streams()
            raise
        if timeout_s is not None:
            self._timeout_timer = loop.call_later(timeout_s, self._on_timeout)

    # ------------------------------------------------------------ what the init says

    def on_started(self, pid: int) -> None:
        """It runs."""
        self._started = True
        self._wake()

    def on_failed(self, stage: str, number: int) -> None:
        """It was not started."""
        self._fail(start_failed(stage, number, program=self._plan.argv[0], cwd=self._plan.cwd))

    def on_exit(self, status: int, *, asked: bool) -> None:
        """Its own process ended."""
        self._status = status
        self._asked = asked
        if not asked:
            self._timed_out = False
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL and self._oom_kills is not None:
                self._out_of_memory = self._oom_kills() > self._oom_kills_before
        self._stop_clock()
        if self.input is not None:
            self.input.close()
        if self._kill != "asked":
            self._drain()

    def on_killed(self, answer: str) -> None:
        """What a kill reached."""
        if self._kill != "asked":
            return
        if answer == "ended":
            self._kill, self._timed_out = "none", False
        else:
            self._kill = "answered"
            self._tree = "gone" if answer == "gone" else "signalled" if answer == "signalled" else "unreachable"
        if self._status is not None or self._timed_out:
            # A time-out is over, ended or not; the result says what was not reached.
            self._drain()
        self._wake()

    def on_lost(self, reason: str) -> None:
        """The init is gone."""
        self._fail_with_output(
            errors.SandboxLost(
                f"the sandbox ended while the command ran ({reason})",
                dispatched="yes" if self._started else "unknown",
            )
        )

    # ------------------------------------------------------------ the end

    def kill(self, *, gently: bool = False) -> None:
        """End it and everything that it started; `wait` comes back once that is done or has failed."""
        if self.finished or (self._kill == "asked" and gently):
            return
        try:
            self._channel.kill(self._seq, self._mark, gently=gently)
        except ChannelClosed:
            return  # The loss was told already, or is told in this turn of the loop.
        if self._kill != "asked":
            self._kill = "asked"
            self._kill_timer = self._loop.call_later(KILL_ANSWER_S, self.on_killed, "unreachable")

    def _read(self) -> None:
        for output in self.outputs:
            output.begin()

    def _on_timeout(self) -> None:
        self._timed_out = True
        self.kill(gently=True)

    def _drain(self) -> None:
        """Read what was written, then wait a moment for the ends that are still to come."""
        if self._draining or self.finished:
            return
        self._draining = True
        self._stop_clock()
        for output in self.outputs:
            output.read_written()
            output.begin()
        if all(output.end is not None for output in self.outputs):
            self._finish()
        else:
            self._drain_timer = self._loop.call_later(DRAIN_S, self._hold)

    def _hold(self) -> None:
        for output in self.outputs:
            output.hold()

    def _on_output_end(self) -> None:
        if self._draining and all(output.end is not None for output in self.outputs):
            self._finish()

    def _fail_with_output(self, error: errors.WireError) -> None:
        for output in self.outputs:
            output.read_written()
        error.partial = self.partial()
        self._fail(error)

    def _fail(self, error: errors.WireError) -> None:
        if not self.finished:
            self._error = error
            self._drop_streams()
            self._finish()

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        self._stop_clock()
        for timer in (self._timeout_timer, self._kill_timer, self._drain_timer, self._read_timer):
            if timer is not None:
                timer.cancel()
        if self.input is not None:
            self.input.close()
        self._channel.forget(self._seq)
        self._wake()

    def _drop_streams(self) -> None:
        for output in self.outputs:
            output.drop()
        if self.input is not None:
            self.input.close()

    def _stop_clock(self) -> None:
        if not self._duration_s:
            self._duration_s = self._loop.time() - self._began
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            set_if_waiting(future)

    async def _news(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        await future

    # ------------------------------------------------------------ for the provider

    async def wait_started(self) -> None:
        """Return once it runs.

        Raises:
            WireError: It does not, and why.
        """
        while not self._started and not self.finished:
            await self._news()
        if self._error is not None:
            raise self._error

    async def wait(self) -> None:
        """Return once everything about it is known.

        Raises:
            WireError: There is no result, and why.
        """
        while not self.finished:
            await self._news()
        if self._error is not None:
            raise self._error

    async def end(self) -> None:
        """Kill it, and return once that is done or has failed, in a few seconds at most."""
        self.kill()
        while not self.finished and self._kill == "asked":
            await self._news()

    @property
    def ended_by_itself(self) -> bool:
        """Whether its own process ended before any order to end it arrived."""
        return self.finished and self._error is None and not self._asked

    def interrupted(self) -> errors.WireError:
        """What to answer for a command that was ended on the host's order, after `end`."""
        return self._error or errors.Cancelled(
            f"the command was ended on order; what it started is {self._tree or 'gone'}",
            dispatched="unknown",  # A cancelled call never says more, also where its command is known to have begun.
            partial=self.partial(),
        )

    def follow(self, call: Call, offsets: dict[types.StreamName, int]) -> Follower:
        """Send the output to this call, from these offsets (0 where none is named).

        Raises:
            OutputGap: Not all of that is kept.
            InvalidParams: It names a stream or an offset that is not there.
        """
        for name in offsets:
            if name not in [output.name for output in self.outputs]:
                raise errors.InvalidParams(f"this process has no stream {name!r}", dispatched="no")
        follower = Follower(self._loop, call, len(self.outputs))
        starts = [(output, output.offset_from(offsets.get(output.name, 0))) for output in self.outputs]
        for output, offset in starts:
            output.follow(follower, offset)
        for output in self.outputs:
            output.deliver()
        return follower

    async def delivered(self, follower: Follower) -> None:
        """Return once the output was sent to its end; after a time-out, a follower that takes nothing is left."""
        if not self._timed_out:
            await follower.done
            return
        await asyncio.wait((follower.done,), timeout=STALLED_S)
        for output in self.outputs:
            output.cut()

    def unfollow(self) -> None:
        """Nobody takes the output any more."""
        for output in self.outputs:
            output.unfollow()

    async def signal(self, number: int) -> bool:
        """Signal its group; whether its own process was there to take it."""
        if self._status is not None or self.finished:
            return False
        try:
            return await self._channel.signal(self._seq, number)
        except ChannelClosed:
            return False

    def resize(self, size: types.PtySize) -> bool:
        """Give its terminal another size; False where it has ended.

        Raises:
            InvalidParams: It has no terminal.
        """
        if self.outputs[0].name != "pty":
            raise errors.InvalidParams("this process has no terminal to resize", dispatched="no")
        return self.outputs[0].resize(size)

    # ------------------------------------------------------------ the outcome

    def outcome(self, result: type[R]) -> R:
        """The result, once `wait` came back."""
        streams = {output.name: output.result() for output in self.outputs}
        signalled = self._status is not None and os.WIFSIGNALED(self._status)
        number = os.WTERMSIG(self._status) if self._status is not None and signalled else None
        ended: types.Ended = "exited"
        if self._timed_out:
            ended = "timedOut"
        elif signalled:
            ended = "outOfMemory" if self._out_of_memory else "signalled"
        return result(
            ended=ended,
            exit_code=os.WEXITSTATUS(self._status) if self._status is not None and ended == "exited" else None,
            signal=number,
            core_dumped=self._status is not None and signalled and os.WCOREDUMP(self._status),
            tree=self._tree,
            stdout=streams.get("stdout") or streams["pty"],
            stderr=streams.get("stderr") or types.StreamResult(),
            duration_ms=round(self._duration_s * 1000),
        )

    def partial(self) -> errors.Partial:
        """What it has produced so far; counts only where the output was sent."""
        return errors.Partial(**{output.name: output.kept() for output in self.outputs})

    @property
    def retained_bytes(self) -> int:
        """What its output takes in memory."""
        return sum(output.retained_bytes for output in self.outputs)

    def forget_output(self) -> None:
        """Free what is kept of its output; who asks for it gets a gap."""
        for output in self.outputs:
            output.forget()


def open_pipes(with_input: bool, owner: int | None = None) -> Descriptors:  # noqa: FBT001
    """Our ends by name, and those of the command in the order of the init's message.

    Args:
        with_input: Whether there is one for its input.
        owner: Whose they are, where that is not this user.

    Raises:
        OSError: There are no descriptors left.
    """
    names: tuple[Name, ...] = ("stdin", "stdout", "stderr") if with_input else ("stdout", "stderr")
    ours: list[tuple[Name, int]] = []
    theirs: list[int] = []
    try:
        for name in names:
            read, write = os.pipe()
            ours.append((name, write if name == "stdin" else read))
            theirs.append(read if name == "stdin" else write)
            if owner is not None:
                os.fchown(write, owner, owner)
    except OSError:
        for fd in (*theirs, *(fd for _, fd in ours)):
            os.close(fd)
        raise
    return ours, tuple(theirs)


def open_terminal(size: types.PtySize, sides: tuple[int, int] | None = None) -> Descriptors:
    """A terminal of this size: our side twice, for output and for input, and the command's.

    Args:
        size: The size.
        sides: One that was made already; None makes one of this machine's.

    Raises:
        OSError: There are no terminals or descriptors left.
    """
    ours, theirs = sides or os.openpty()
    try:
        set_size(ours, size)
        return [("pty", ours), ("stdin", os.dup(ours))], (theirs,)
    except BaseException:  # whatever it is, the descriptors are nobody else's yet
        os.close(ours)
        os.close(theirs)
        raise
