"""The healthy worker's commands: real programs, their output in bounded buffers, and an end that always comes."""

from __future__ import annotations

import base64
import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .places import Guard, Place, bounded, bounds

Json = dict[str, Any]

_WINDOW_BYTES = 1 << 20
"""Output that is read ahead of whoever follows it; and what is kept for one who follows again."""
_PIECE_BYTES = 1 << 16
_PIPE_BYTES = 1 << 20
"""More than a pipe holds: who has read so much since a program ended reads what others write."""
_DRAIN_S = 0.25
"""How long a stream is read on after its program's end, while nothing comes: a descendant may hold it for ever."""
_PATH = "/usr/local/bin:/usr/bin:/bin"


class StartFailed(Exception):
    """A program could not be started; `condition` is the protocol's name for why."""

    def __init__(self, condition: str, path: str) -> None:
        super().__init__(f"{condition}: {path}")
        self.condition, self.path = condition, path


def octets(value: Any) -> bytes:
    """A string of the wire, or its form for bytes."""
    return value.encode() if isinstance(value, str) else base64.b64decode(value["b64"])


def others_in_group(group: int) -> bool:
    """Whether something lives in a group whose leader has ended; True where the machine does not tell."""
    if not os.path.isdir("/proc/self"):
        return True
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != group:
            with suppress(OSError):  # it ended while we looked
                state, _, its_group = Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[:3]
                if int(its_group) == group and state not in (b"Z", b"X"):
                    return True
    return False


def fault_of(params: Json) -> str:
    """What is wrong with a command that the schema cannot say: bytes that are no base64, or a NUL in them."""
    given = {"shell": params.get("shell"), "cwd": params.get("cwd")}
    given |= {f"argv[{number}]": value for number, value in enumerate(params.get("argv") or ())}
    given |= {f"env.{name}": value for name, value in params.get("env", {}).items()}
    for member, value in given.items():
        try:
            if value is not None and b"\0" in octets(value):
                return f"{member} has a NUL byte, which cannot be passed to a program"
        except ValueError:
            return f"{member} is not base64"
    return ""


def options_of(params: Json, files: Path) -> Json:
    """What to start, and where; raises StartFailed where the directory is not there."""
    shell = params.get("shell")
    argv = [octets(argument) for argument in params["argv"]] if shell is None else [b"/bin/sh", b"-c", octets(shell)]
    cwd = os.path.join(os.fsencode(files), octets(params.get("cwd") or ""))
    if not os.path.isdir(cwd):
        raise StartFailed("PathNotFound", os.fsdecode(cwd))
    environ = {b"PATH": _PATH.encode(), b"HOME": os.fsencode(files), b"LANG": b"C.UTF-8"}
    if "SANDPORT_WORKER_TOKEN" in os.environ:
        environ[b"SANDPORT_WORKER_TOKEN"] = os.environb[b"SANDPORT_WORKER_TOKEN"]
    environ |= {name.encode(): octets(value) for name, value in params.get("env", {}).items()}
    return {"args": argv, "cwd": cwd, "env": environ, "pty": params.get("pty")}


class Stream:
    """One output stream: read by a thread into a buffer that never holds more than two windows."""

    def __init__(self, source: IO[bytes], ended: threading.Event) -> None:
        self.base = 0
        """The offset of the first byte that is still kept."""
        self.end: str | None = None
        self.total = 0
        self.taken = 0
        """How far a follower has come."""
        self._kept = bytearray()
        self._changed = threading.Condition()
        self._source = source
        self._program_ended = ended
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def read(self, offset: int, most: int, *, wait_s: float) -> bytes:
        """What is there from an offset on; waits for something."""
        with self._changed:
            self._changed.wait_for(lambda: self.total > offset or self.end, wait_s)
            data = bytes(self._kept[offset - self.base : offset - self.base + most])
            if offset + len(data) > self.taken:
                self.taken = offset + len(data)
                surplus = self.taken - self.base - _WINDOW_BYTES
                if surplus > 0:
                    del self._kept[:surplus]
                    self.base += surplus
                self._changed.notify_all()
            return data

    def wait_room(self) -> None:
        """Wait, under the lock, until the window has room for more."""
        self._changed.wait_for(lambda: self.total - self.taken < _WINDOW_BYTES)

    def ended_at(self, offset: int) -> bool:
        """Whether nothing comes after an offset any more."""
        with self._changed:
            return self.end is not None and offset >= self.total

    def _fill(self) -> None:
        over: float | None = None
        since_end = 0
        while True:
            began = time.monotonic()
            with self._changed:
                self.wait_room()
            now = time.monotonic()
            if self._program_ended.is_set():
                # What it had written is in the pipe; who waits for a silence waits for ever for what it left behind.
                over = now + _DRAIN_S if over is None else over + (now - began)
            is_over = over is not None and now > over
            if not select.select([self._source], [], [], 0 if is_over else 0.05)[0]:
                if is_over:
                    self._finish("heldOpen")
                    return
                continue
            if is_over and since_end >= _PIPE_BYTES:
                self._finish("heldOpen")
                return
            try:
                data = os.read(self._source.fileno(), _PIECE_BYTES)
            except OSError:
                data = b""  # a terminal without a program
            if not data:
                self._finish("seen")
                return
            since_end += len(data) if over is not None else 0
            self._take(data)

    def _take(self, data: bytes) -> None:
        with self._changed:
            self._kept += data
            self.total += len(data)
            self._changed.notify_all()

    def _finish(self, end: str) -> None:
        with self._changed:
            self.end = end
            self._changed.notify_all()
        self._source.close()


class Program:
    """A program that was started in its own group.

    Raises:
        StartFailed: It could not be.
    """

    no_input: int | None = subprocess.DEVNULL
    """What a command without input reads from."""
    close_fds = True
    """Whether a command gets none of our descriptors."""
    stream_class = Stream

    def __init__(self, name: str, options: Json, guard: Guard, *, keep_input: bool, timeout_ms: int | None) -> None:
        self.name = name
        self.guard = guard
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.code = 0
        """Its exit code, or minus the signal that ended it."""
        self.reaped = False
        """Whether nothing is left of it and its group."""
        self.killed = False
        self.timed_out = False
        self.writes: list[object] = []
        """Who gives it input, in order."""
        self._kept: dict[str, tuple[bytes, bytes, int]] = {}
        self._place: Place | None = None
        self._note: Path | None = None
        self.lost = False
        """Whether its sandbox had ended, or was ending, when it did."""
        self.mark = b"SANDPORT_MARK=" + os.urandom(12).hex().encode()
        self._bound = int.from_bytes(os.urandom(7), "big") + 1
        """Its soft limit, by which what has left its group is found; it is not in anybody's environment."""
        terminal = self.open_terminal(options["pty"]) if options.get("pty") else None
        plain = terminal[1] if terminal else subprocess.PIPE
        try:
            self._popen = self.start(
                options["args"],
                cwd=options["cwd"],
                env={**options["env"], b"SANDPORT_MARK": self.mark.partition(b"=")[2]},
                preexec_fn=bounds(self._bound, options["bound"]),
                stdin=plain if keep_input or terminal else self.no_input,
                stdout=plain,
                stderr=plain,
                close_fds=self.close_fds,
                process_group=0,
                bufsize=0,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StartFailed("CommandNotFound", os.fsdecode(options["args"][0])) from error
        except OSError as error:
            raise StartFailed("CommandNotExecutable", os.fsdecode(options["args"][0])) from error
        finally:
            if terminal:
                os.close(terminal[1])
        guard.add(self._popen.pid)
        if self._popen.stdin:
            os.set_blocking(self._popen.stdin.fileno(), False)
        sources: dict[str, IO[bytes]] = {}
        if terminal:
            sources["pty"] = os.fdopen(terminal[0], "rb", 0)
        else:
            assert self._popen.stdout is not None
            assert self._popen.stderr is not None
            sources |= {"stdout": self._popen.stdout, "stderr": self._popen.stderr}
        self.streams = {name: self.stream_class(source, self._ended) for name, source in sources.items()}
        threading.Thread(target=self._wait, daemon=True).start()
        if timeout_ms is not None:
            timer = threading.Timer(timeout_ms / 1000, self.kill, kwargs={"timed_out": True})
            timer.daemon = True
            timer.start()

    def start(self, args: list[bytes], **options: Any) -> subprocess.Popen[bytes]:
        """Start the process."""
        return subprocess.Popen(args, **options)

    def open_terminal(self, size: Json) -> tuple[int, int]:
        """A terminal of this size: our side and the program's."""
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size["rows"], size["columns"], 0, 0))
        return ours, theirs

    def note_at(self, place: Place) -> None:
        """Let a later worker know that this program ran, until its end was seen."""
        with self._lock:
            if not self._ended.is_set():
                self._place, self._note = place, place.note(self._popen.pid)

    def _wait(self) -> None:
        # Not reaped yet: as long as the leader is a zombie, nobody else can get its number, which is the group's too.
        ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        with self._lock:
            self.code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            self.lost = self._place is not None and self._place.facts() is None
            self._ended.set()
            if self._note is not None:
                self._note.unlink(missing_ok=True)
            if not others_in_group(self._popen.pid):
                self._reap()

    def _reap(self) -> None:
        self.guard.remove(self._popen.pid)
        self._popen.wait()
        self.reaped = True

    def end(self) -> None:
        """End the program and everything that it left in its group."""
        self.kill()
        self._ended.wait()
        with self._lock:
            if not self.reaped:
                with suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)
                self._reap()

    @property
    def finished(self) -> bool:
        """Whether the program itself has ended."""
        return self._ended.is_set()

    def signal(self, number: int) -> bool:
        """Signal the group; False where the program has ended."""
        with self._lock:
            if self._ended.is_set():
                return False
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)
            return True

    def kill(self, *, timed_out: bool = False) -> bool:
        """Kill the group and what has left it; False where the program has ended."""
        with self._lock:
            if self._ended.is_set():
                return False
            self.killed = True
            self.timed_out = timed_out
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self.kill_strays()  # after the program: it must not end by itself because its child did
            return True

    def kill_strays(self) -> None:
        """Kill what it has started, until nothing new turns up."""
        seen: set[int] = set()
        while strays := self.strays() - seen - {self._popen.pid}:
            for pid in strays:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            seen |= strays

    def strays(self) -> set[int]:
        """What it has started, wherever that has gone."""
        return bounded(soft=self._bound)

    def write(self, data: bytes, end: bool, turn: object, stopped: threading.Event) -> int:
        """Give the program input when its turn has come, waiting for room; how much it took."""
        stdin = self._popen.stdin
        taken = 0
        while self.writes and self.writes[0] is not turn and not self._ended.wait(0.01):
            pass
        try:
            while stdin is not None and not stdin.closed and taken < len(data):
                if stopped.is_set() or self._ended.is_set():
                    break
                if select.select([], [stdin], [], 0.1)[1]:
                    taken += os.write(stdin.fileno(), data[taken : taken + _PIECE_BYTES])
        except BrokenPipeError:
            end = True
        finally:
            if stdin is not None and ((end and not stopped.is_set()) or self._ended.is_set()):
                stdin.close()
            if turn in self.writes:
                self.writes.remove(turn)
        return taken

    def collect(self, limit: int) -> Json:
        """Read everything, keeping the head and the tail of each stream; the result."""
        readers = [threading.Thread(target=self._keep, args=(name, limit), daemon=True) for name in self.streams]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return self.result()

    def _keep(self, name: str, limit: int) -> None:
        stream, head, tail, offset = self.streams[name], b"", b"", 0
        while not stream.ended_at(offset):
            data = stream.read(offset, _PIECE_BYTES, wait_s=0.2)
            offset += len(data)
            room = limit - limit // 2 - len(head)
            head, tail = head + data[:room], tail + data[room:] if room > 0 else tail + data
            tail = tail[len(tail) - limit // 2 :] if len(tail) > limit // 2 else tail
        self._kept[name] = (head, tail, offset - len(head) - len(tail))

    def result(self) -> Json:
        """How it ended; waits for its end."""
        self._ended.wait()
        code = self.code
        result: Json = {"stdout" if name == "pty" else name: self._stream_result(name) for name in self.streams}
        result["durationMs"] = round((time.monotonic() - self._began) * 1000)
        if self.killed:
            result["tree"] = "signalled"
        if self.timed_out:
            return {**result, "ended": "timedOut", **({"signal": -code} if code < 0 else {})}
        if code < 0:
            return {**result, "ended": "signalled", "signal": -code}
        return {**result, "ended": "exited", "exitCode": code}

    def _stream_result(self, name: str) -> Json:
        stream = self.streams[name]
        head, tail, dropped = self._kept.get(name, (b"", b"", 0))
        if not dropped:
            head, tail = head + tail, b""
        return {
            "totalBytes": stream.total,
            "end": stream.end or "seen",
            "data": base64.b64encode(head).decode(),
            "tail": base64.b64encode(tail).decode(),
            "droppedBytes": dropped,
        }

    def partial(self, name: str) -> Json:
        """What an interrupted program had produced on a stream."""
        kept = self._stream_result(name)
        return {member: kept[member] for member in ("totalBytes", "data", "tail", "droppedBytes")}
