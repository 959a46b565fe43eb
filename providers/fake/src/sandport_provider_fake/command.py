"""One command: a program in a group of its own, two streams, a time limit, and an end that always comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Literal, TypeVar

from sandport_sdk.v1 import errors, types, unpack

from .errors import sandbox_failed
from .input import Input
from .streams import Kept, Stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from sandport_sdk.v1 import Call, Octets

    from .starter import Program, Starter

SHELL = "/bin/sh"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STALLED_S = 5.0
"""How long a host that takes no output keeps a killed command from its answer."""

Reason = Literal["timedOut", "cancelled", "killed"]
R = TypeVar("R", types.ExecuteResult, types.WaitProcessResult)


class Command:
    """One `execute`, or one process.

    Attributes:
        streams: Its stdout and stderr.
        exited: Done once its own process has ended, or its sandbox.
        over: Done once it has ended and what it had written was read.
        followed: Whether a call follows it.
    """

    def __init__(self, params: types.CommandParams, *, window_bytes: int, keep_bytes: int | None = None) -> None:
        """Prepare.

        Args:
            params: What to run.
            window_bytes: How far its output runs ahead of who follows it.
            keep_bytes: How much of each stream is kept instead; None where it is followed.
        """
        loop = asyncio.get_running_loop()
        self.streams: tuple[Stream, Stream] = (
            Stream("stdout", window_bytes=window_bytes, keep=None if keep_bytes is None else Kept(keep_bytes)),
            Stream("stderr", window_bytes=window_bytes, keep=None if keep_bytes is None else Kept(keep_bytes)),
        )
        self.exited: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[None] = loop.create_future()
        self.input: Input | None = None
        """Where it reads from, as long as that is open; None where it has all its input, or none."""
        self.followed = False
        self._tell: Literal["error", "dropped", "lie"] = "error"
        self._begun = False
        self._params = params
        self._program: Program | None = None
        self._status: int | None = None
        self._stopped: Reason | None = None
        self._began = loop.time()
        self._ended = self._began
        self._watch: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._watch is not None and not self.over.done()

    @property
    def was_killed(self) -> bool:
        """Whether it ended because it was stopped, or with its sandbox."""
        return self._status is None or (self._stopped is not None and os.WIFSIGNALED(self._status))

    # ------------------------------------------------------------ begin

    async def start(
        self,
        starter: Starter,
        root: Path,
        variables: dict[bytes, bytes],
        *,
        stdin: bytes | None,
        timeout_ms: int | None,
    ) -> None:
        """Start it; `over` is done in the end.

        Args:
            starter: What starts it.
            root: The sandbox's working directory.
            variables: Its environment, less what the call adds.
            stdin: All of its input; None to keep it open.
            timeout_ms: When it is killed; None for never.

        Raises:
            WireError: It did not start.
        """
        params = self._params
        argv: tuple[Octets, ...] = (SHELL, "-c", params.shell or "") if params.argv is None else params.argv
        cwd = os.path.join(os.fsencode(root), unpack(params.cwd or ""))
        env = variables | {name.encode(): unpack(value) for name, value in params.env.items()}
        with contextlib.ExitStack() as theirs:
            outputs = []
            try:
                if stdin is None:
                    self.input, source = Input.open(self.exited)
                    theirs.callback(os.close, source)
                else:
                    source = theirs.enter_context(input_file(stdin)).fileno()
                for stream in self.streams:
                    fd = stream.open()
                    theirs.callback(os.close, fd)
                    outputs.append(fd)
                fds = (source, outputs[0], outputs[1])
                self._program = await starter.start([unpack(word) for word in argv], env, cwd, fds)
            except OSError as error:
                self.close()
                raise sandbox_failed(error, dispatched="no") from error
            except BaseException:  # a cancel too: the descriptors are nobody else's yet
                self.close()
                raise
        self._watch = asyncio.create_task(self._run(self._program, timeout_ms))

    async def _run(self, program: Program, timeout_ms: int | None) -> None:
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await asyncio.shield(program.status)
        except TimeoutError:
            await self.stop("timedOut")
        self._status = await program.status
        if self._status is None:
            self.begin_reading()  # where an ordered fault keeps its call from it: nobody waits for that
        self._ended = asyncio.get_running_loop().time()
        self.exited.set_result(None)
        await asyncio.gather(*(stream.drain() for stream in self.streams))
        if self.input is not None:
            self.input.close()
        self.over.set_result(None)

    def begin_reading(self, cut_bytes: int | None = None, tell: Literal["error", "dropped", "lie"] = "error") -> None:
        """Begin to read its output; nothing happens where it was begun.

        Args:
            cut_bytes: An ordered fault: what comes after so many bytes of a stream is lost on its way.
            tell: What is said of that.
        """
        if self._begun:
            return
        self._begun = True
        self._tell = tell
        for stream in self.streams:
            stream.begin(cut_bytes=cut_bytes)

    # ------------------------------------------------------------ end

    async def stop(self, reason: Reason) -> None:
        """Kill its group; nothing happens where it had ended by itself."""
        if self._program is not None and await self._program.signal(signal.SIGKILL) and self._stopped is None:
            self._stopped = reason

    async def signal(self, number: int) -> bool:
        """Signal its group; False where it has ended."""
        return self._program is not None and await self._program.signal(number)

    def give_up_output(self) -> None:
        """Nobody wants the rest of its output."""
        for stream in self.streams:
            stream.give_up()

    def when_quiet(self, callback: Callable[[], object]) -> None:
        """Call back once nothing holds its streams any more."""
        left = list(self.streams)

        def one_less(stream: Stream) -> None:
            left.remove(stream)
            if not left:
                callback()

        for stream in self.streams:
            stream.when_quiet(lambda stream=stream: one_less(stream))  # type: ignore[misc]

    def close(self) -> None:
        """Give its pipes back; what it left behind writes into nothing from then on."""
        for stream in self.streams:
            stream.close()
        if self.input is not None:
            self.input.close()
        if self._watch is not None:
            self._watch.cancel()

    # ------------------------------------------------------------ the answer

    async def deliver(self, call: Call, bases: Mapping[types.StreamName, int], *, ended: set[str]) -> None:
        """Send its output on until it is over; a killed command's for a bounded time only.

        Cancel: nothing more is sent; it may be followed again.

        Args:
            call: Where it goes.
            bases: The offsets to begin at; 0 where left out.
            ended: The streams whose end marks were sent in this call; added to.

        Raises:
            Cancelled: The host takes nothing, and gave up.
        """
        followers = {
            stream: asyncio.ensure_future(stream.follow(call, bases.get(stream.name, 0), ended))
            for stream in self.streams
            if stream.name not in ended
        }
        try:
            if followers:
                following = asyncio.ensure_future(asyncio.wait(followers.values(), return_when=asyncio.FIRST_EXCEPTION))
                await asyncio.wait((following, self.over), return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait((following,), timeout=self._patience_s())
                following.cancel()
            for follower in followers.values():
                if follower.done():
                    follower.result()
            if all(follower.done() for follower in followers.values()):
                await asyncio.shield(self.over)
                return
        finally:
            for follower in followers.values():
                follower.cancel()
            await asyncio.gather(*followers.values(), return_exceptions=True)
        for stream in self.streams:
            if stream.name not in ended:
                stream.end = "heldOpen"
                call.send_end(stream.name, "heldOpen")

    def _patience_s(self) -> float | None:
        if self._stopped is None and self._status is not None:
            return None
        return max(0.0, self._ended + STALLED_S - asyncio.get_running_loop().time())

    @property
    def partial(self) -> errors.Partial | None:
        """What it had written, where that was not sent on."""
        stdout, stderr = (stream.kept() for stream in self.streams)
        return errors.Partial(stdout=stdout, stderr=stderr) if stdout.total_bytes or stderr.total_bytes else None

    def outcome(self, kind: type[R], call: Call | None, *, bases: Mapping[types.StreamName, int] | None = None) -> R:
        """What became of it.

        Args:
            kind: The method's result.
            call: The call that its output was sent to; None where it was kept.
            bases: The offsets from which it was sent; 0 where left out.

        Raises:
            Cancelled, SandboxLost, Unavailable: There is no result to be had.
        """
        if self._status is None:
            raise errors.SandboxLost("the sandbox ended while the command ran", dispatched="yes", partial=self.partial)
        code = os.waitstatus_to_exitcode(self._status)
        # What has an exit code has ended by itself, just before our signal: then that is what happened.
        stopped = self._stopped if code < 0 else None
        if stopped == "cancelled":
            raise errors.Cancelled("the command was cancelled", dispatched="unknown", partial=self.partial)
        if self._tell == "error" and any(stream.was_cut for stream in self.streams):
            raise errors.Unavailable(
                "the way to the sandbox was cut while the output was read", dispatched="yes", partial=self.partial
            )
        stdout, stderr = (
            self._stream_result(stream, call, (bases or {}).get(stream.name, 0)) for stream in self.streams
        )
        return kind(
            ended="exited" if code >= 0 else "timedOut" if stopped == "timedOut" else "signalled",
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            core_dumped=os.WCOREDUMP(self._status) if code < 0 else False,
            tree="signalled" if stopped is not None else None,
            stdout=stdout,
            stderr=stderr,
            duration_ms=round((self._ended - self._began) * 1000),
        )

    def _stream_result(self, stream: Stream, call: Call | None, base: int) -> types.StreamResult:
        if call is None:
            kept = stream.kept()
            missing = stream.total - kept.total_bytes
            lying = self._tell == "lie"
            return types.StreamResult(
                total_bytes=stream.total,
                end=stream.end if lying else stream.told_end,
                data=kept.data,
                tail=kept.tail,
                dropped_bytes=kept.dropped_bytes + (0 if lying else missing),
            )
        sent = base + call.sent(stream.name)
        if self._tell == "lie":
            return types.StreamResult(total_bytes=stream.total, end=stream.told_end)
        return types.StreamResult(total_bytes=sent, dropped_bytes=stream.total - sent, end=stream.told_end)


def input_file(data: bytes) -> BinaryIO:
    """A file that holds a command's whole input: the command reads it when it likes, and nobody has to feed it."""
    if not data:
        return open(os.devnull, "rb")
    file = os.fdopen(os.memfd_create("input", os.MFD_CLOEXEC), "wb+")
    file.write(data)
    file.flush()
    file.seek(0)
    return file


def variables_of(root: Path) -> dict[bytes, bytes]:
    """The environment of every command: nothing of the worker's."""
    return {b"PATH": PATH.encode(), b"HOME": os.fsencode(root), b"LANG": b"C.UTF-8"}


def words_of(params: types.CommandParams) -> list[str]:
    """The words of a command, or its text for a shell, to be read by people."""
    words = (params.shell or "",) if params.argv is None else params.argv
    return [text_of(word) for word in words]


def text_of(value: Octets) -> str:
    """What may be any bytes, to be read by people."""
    return os.fsdecode(unpack(value)).encode(errors="backslashreplace").decode()


def deadline_ms(call: Call) -> int | None:
    """What the host said it would still wait."""
    remaining_s = call.remaining_s()
    return None if remaining_s is None else round(remaining_s * 1000)
