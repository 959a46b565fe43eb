"""One worker process and its three pipes, in bytes: no message is understood here.

stderr is drained by a thread from the start to the end, so that no worker ever waits for it, unless a check asks for a
full one. stdin and stdout are served by the caller, inside `pump`: a check that wants a host which does not read simply
does not call it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from . import processes
from .masking import Masker
from .outcomes import Failed, NotStarted, TimedOut, WorkerGone
from .processes import ExitCause, Identity, Survivor
from .transcript import Transcript
from .worker_log import WorkerLog, bytes_in, full_pipe

_PIECE_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 28
_TICK_S = 0.02
"""How often the end of a process is looked for, where the machine cannot tell it."""
_PIPE_BYTES = 1 << 16
"""What a pipe holds, where the machine cannot tell it."""
_LOOK_S = 0.0002
"""Between two looks into a pipe that should become empty."""
_KILL_S = 30.0
_KILL_ROUNDS = 10
_DRAIN_S = 2.0
_LINE_FEED = 0x0A


def _there(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # each is asked for as a pipe
    return pipe


class WorkerProcess:
    """A worker that was started in its own session, with `/` as its directory and only the given environment.

    Args:
        command: Program and arguments.
        environ: The whole environment, the token included.
        token: What marks its processes.
        masker: For the transcript and stderr.
        full_stderr: Give it a stderr without room for a single byte, which is not read before `drain_stderr`.

    Raises:
        NotStarted: The program could not be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        token: str,
        masker: Masker,
        full_stderr: bool = False,
    ) -> None:
        self.command = tuple(command)
        self.token = token
        self.transcript = Transcript(masker)
        self._masker = masker
        full, filling_bytes = full_pipe() if full_stderr else (None, 0)
        try:
            self._popen = subprocess.Popen(
                command,
                cwd="/",
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if full is None else full[1],
                start_new_session=True,
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            if full is not None:
                full[0].close()
            hint = (
                "; does its first line name its interpreter, as in `#!/bin/sh`?"
                if isinstance(error, OSError) and error.errno == errno.ENOEXEC
                else ""
            )
            raise NotStarted(f"{command[0]!r} cannot be run: {error}{hint}") from error
        finally:
            if full is not None:
                full[1].close()
        self.pid = self._popen.pid
        self._identity = Identity.of(self.pid, token)
        err = self._popen.stderr if full is None else full[0]
        self._in, self._out, log = map(_there, (self._popen.stdin, self._popen.stdout, err))
        self.log = WorkerLog(log, masker, filling_bytes=filling_bytes)
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._exit: ExitCause | None = None
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._pending = bytearray()
        self._unfinished = bytearray()
        self.lines: deque[tuple[float, bytes]] = deque()
        """What the worker wrote, line by line without the line feed, each with the seconds since its start."""
        self.out_ended = False
        """Whether every holder of its stdout has closed it."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self.stimuli: list[str] = []
        """What should have ended it, in words."""
        self._sending = threading.Lock()
        self._between_lines = True
        self._sent_at = time.monotonic()
        self._peak_bytes = 0
        if not full_stderr:
            self.log.begin()

    # -------------------------------------------------------------- bytes

    def write(self, data: bytes, *, timeout_s: float, pieces: Sequence[int] = ()) -> None:
        """Give the worker bytes, reading what it says meanwhile.

        Args:
            data: What to send.
            timeout_s: How long the worker may leave its pipe full.
            pieces: Sizes of the writes to cut the data into; what is left goes in one.

        Raises:
            WorkerGone: It closed its stdin, or ended; or its stdin was ended by us.
            TimedOut: It did not read.
        """
        if self._in.closed:
            raise WorkerGone("nothing can be said to it: its stdin was ended")
        self.transcript.add("sent", data)
        begin = 0
        for size in (*pieces, len(data)):
            piece, begin = data[begin : begin + size], begin + size
            if piece:
                self._pending += piece
                if not self.pump(lambda: not self._pending, timeout_s=timeout_s):
                    left = len(self._pending)
                    self._pending.clear()
                    raise TimedOut(f"the worker did not read its stdin: {left} bytes were left after {timeout_s:.1f} s")

    def write_at_last(self, line: bytes, *, timeout_s: float) -> None:
        """Give it a line where an earlier write was cut off: what was left of that is dropped, its line is ended."""
        self._pending.clear()
        self.write(line if self._between_lines else b"\n" + line, timeout_s=timeout_s)

    def write_some(self, data: bytes) -> int:
        """Put as much into the worker's stdin as its pipe takes at once; nothing is read meanwhile."""
        taken = self._put(data)
        if taken:
            self.transcript.add("sent", data[:taken])
        return taken

    def slip_in(self, line: bytes, *, silence_s: float) -> bool:
        """Write one short line, from whatever thread, where nothing was sent for so long and nothing is half written.

        Returns:
            Whether it was written; False too where there is no room now, or nobody reads any more.
        """
        with self._sending:
            quiet = time.monotonic() - self._sent_at >= silence_s
            if not quiet or not self._between_lines or self._in.closed or self._out.closed:
                return False
            try:
                taken = os.write(self._in.fileno(), line)  # no longer than a pipe takes whole or not at all
            except (BlockingIOError, BrokenPipeError):
                return False
            self._sent_at = time.monotonic()
            self.sent_bytes += taken
            self.transcript.add("sent", line)
            return True

    def _put(self, data: bytes | bytearray) -> int:
        """Write as much as the pipe takes at once."""
        with self._sending:
            try:
                taken = os.write(self._in.fileno(), data)
            except BlockingIOError:
                return 0
            except BrokenPipeError as error:
                raise WorkerGone(self._gone("closed its stdin")) from error
            if taken:
                self._between_lines = data[taken - 1] == _LINE_FEED
                self._sent_at = time.monotonic()
                self.sent_bytes += taken
            return taken

    def write_unheard(self, data: bytes, *, timeout_s: float) -> int:
        """Give the worker bytes while nothing that it says is read, until its stdout is full and it takes no more.

        Args:
            data: What to send.
            timeout_s: The longest wait for a worker that takes nothing and fills nothing.

        Returns:
            How much it took: less than everything where it waits for us to read.
        """
        taken = 0
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and (taken < len(data) or not self._output_is_full()):
            with selectors.DefaultSelector() as selector:
                if taken < len(data):
                    selector.register(self._in, selectors.EVENT_WRITE)
                if selector.select(_TICK_S):
                    taken += self.write_some(data[taken : taken + _PIECE_BYTES])
                    deadline = time.monotonic() + timeout_s
                elif self._output_is_full():
                    break
        return taken

    def _output_is_full(self) -> bool:
        """Whether little more finds room in the worker's stdout than what is there already."""
        command = getattr(fcntl, "F_GETPIPE_SZ", None)
        capacity = _PIPE_BYTES if command is None else fcntl.fcntl(self._out.fileno(), command)
        return bytes_in(self._out) > capacity * 3 // 4

    def wait_taken(self, *, timeout_s: float) -> None:
        """Wait until the worker has taken every byte out of its stdin; at once where the machine cannot tell."""
        deadline = time.monotonic() + timeout_s
        while bytes_in(self._in) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)

    def pump(self, until: Callable[[], object], *, timeout_s: float) -> bool:
        """Move bytes both ways until a condition holds.

        Args:
            until: Looked at before and after everything that comes in.
            timeout_s: The longest wait.

        Returns:
            Whether the condition holds; False when the time is over, or stdout ended and nothing can come any more.
        """
        deadline = time.monotonic() + timeout_s
        while not until():
            left = deadline - time.monotonic()
            if left <= 0 or (self.out_ended and not self._pending):
                return False
            with selectors.DefaultSelector() as selector:
                if not self.out_ended:
                    selector.register(self._out, selectors.EVENT_READ)
                if self._pending:
                    selector.register(self._in, selectors.EVENT_WRITE)
                ready = {key.fileobj for key, _ in selector.select(left)}
            if self._out in ready:
                self._read()
            if self._in in ready:
                self._write_pending()
        return True

    def unread(self) -> bool:
        """Whether something waits in the worker's stdout that `pump` has not taken yet."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._out, selectors.EVENT_READ)
            return bool(selector.select(0))

    def close_input(self) -> None:
        """End the worker's stdin."""
        if not self._in.closed:
            self.peak_memory_bytes()
            self.transcript.note("stdin closed")
            self.stimuli.append("the end of its input")
            with self._sending:
                self._in.close()

    def close_output(self) -> None:
        """Close our end of its stdout, as a host does that dies: the worker's next write fails."""
        if not self._out.closed:
            self.transcript.note("our end of stdout closed")
            self.stimuli.append("the end of its output's reader")
            with self._sending:
                self._out.close()
            self.out_ended = True

    @property
    def unfinished_line(self) -> bytes:
        """What came after the last line feed."""
        return bytes(self._unfinished)

    def _read(self) -> None:
        try:
            data = os.read(self._out.fileno(), _PIECE_BYTES)
        except BlockingIOError:
            return
        self.received_bytes += len(data)
        if not data:
            self.out_ended = True
            self.transcript.note("stdout ended")
            return
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._unfinished) + lines[0]
            self._unfinished.clear()
        self._unfinished += rest
        if len(self._unfinished) > _LONGEST_LINE_BYTES:
            raise Failed(f"a line of more than {_LONGEST_LINE_BYTES} bytes: {bytes(self._unfinished[:80])!r}...")
        for line in lines:
            self.transcript.add("received", line)
            self.lines.append((self.transcript.now_s, line))

    def _write_pending(self) -> None:
        try:
            taken = self._put(self._pending[:_PIECE_BYTES])
        except WorkerGone:
            self._pending.clear()
            raise
        del self._pending[:taken]

    # -------------------------------------------------------------- log

    def drain_stderr(self) -> None:
        """Begin to read a stderr that was full from the start."""
        if not self.log.begun:
            self.transcript.note("stderr is read from here on")
            self.log.begin()

    def drained(self, timeout_s: float) -> None:
        """Wait until every holder of its stderr has closed it, or the time is over."""
        self.log.wait_end(timeout_s)

    @property
    def stderr_bytes(self) -> int:
        """Everything that came on stderr, kept or not."""
        return self.log.total_bytes

    def stderr_text(self) -> str:
        """The end of what was written to stderr until now, secrets masked."""
        return self.log.text()

    # -------------------------------------------------------------- end

    @property
    def exit_cause(self) -> ExitCause | None:
        """How the process ended; None while it lives."""
        if self._exit is None:
            self.peak_memory_bytes()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit = ExitCause.of(status)
                self._popen.returncode = self._exit.code if self._exit.signal is None else -self._exit.signal
                self.transcript.note(f"the process ended: {self._exit}")
        return self._exit

    def wait_exit(self, timeout_s: float, *, read: bool = True) -> ExitCause | None:
        """Wait until the process ends; None when it still lives at the end of the time.

        The process itself counts, not the end of its pipes: a child may hold those.

        Args:
            timeout_s: The longest wait.
            read: Whether its stdout is read meanwhile.
        """
        deadline = time.monotonic() + timeout_s
        while self.exit_cause is None and (left := deadline - time.monotonic()) > 0:
            with selectors.DefaultSelector() as selector:
                if self._pidfd is not None:
                    selector.register(self._pidfd, selectors.EVENT_READ)
                else:
                    left = min(left, _TICK_S)
                if read and not self.out_ended:
                    selector.register(self._out, selectors.EVENT_READ)
                if any(key.fileobj is self._out for key, _ in selector.select(left)):
                    self._read()
        while read and not self.out_ended and self.unread():
            self._read()
        return self._exit

    def signal(self, number: int) -> None:
        """Send a signal to the worker's own process; nothing happens where it has ended."""
        if self.exit_cause is None:
            self.peak_memory_bytes()
            self.transcript.note(f"{signal.Signals(number).name} sent")
            self.stimuli.append(signal.Signals(number).name)
            os.kill(self.pid, number)

    def peak_memory_bytes(self) -> int:
        """The most memory that the worker had so far; its children are not counted."""
        if self._exit is None:
            self._peak_bytes = max(self._peak_bytes, processes.peak_memory_bytes(self.pid))
        return self._peak_bytes

    def survivors(self) -> list[Survivor]:
        """What lives of everything that this worker started, the worker itself left out."""
        found = processes.survivors(self._identity)
        return [survivor for survivor in found if survivor.pid != self.pid]

    def wait_survivors(self, grace_s: float) -> list[Survivor]:
        """What still lives of what this worker started, once it had so long to end; returns early when nothing does."""
        deadline = time.monotonic() + grace_s
        while (left := self.survivors()) and time.monotonic() < deadline:
            time.sleep(_TICK_S)
        return left

    def end(self, *, eof_s: float, term_s: float) -> ExitCause:
        """End the process: end of input, SIGTERM, SIGKILL, each with its wait."""
        self.drain_stderr()
        self.close_input()
        if self.wait_exit(eof_s) is None:
            self.signal(signal.SIGTERM)
            if self.wait_exit(term_s) is None:
                self.signal(signal.SIGKILL)
        cause = self.wait_exit(_KILL_S)
        if cause is None:
            raise RuntimeError(f"process {self.pid} cannot be killed")
        return cause

    def release(self, *, grace_s: float) -> list[Survivor]:
        """Give up the pipes of a process that has ended, and kill what it left.

        Args:
            grace_s: How long what it started may live on.

        Returns:
            What lived longer than that.
        """
        self.wait_survivors(grace_s)
        killed: dict[int, Survivor] = {}
        for _ in range(_KILL_ROUNDS):  # what is killed may just have started something
            found = processes.kill_survivors(self._identity)
            if not found:
                break
            killed |= {survivor.pid: survivor for survivor in found}
        # Once all holders are dead stderr ends, and the thread with it; a holder outside our reach must not hang us.
        self.log.close(_DRAIN_S)
        self._out.close()
        self.out_ended = True
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        return list(killed.values())

    def _gone(self, what: str) -> str:
        cause = self.exit_cause
        tail = self.stderr_text().strip()[-300:]
        ended = f" and ended with {cause}" if cause else ""
        return f"the worker {what}{ended}{': ' + tail if tail else ''}"
