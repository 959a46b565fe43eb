"""The healthy worker's commands: real programs, their output in bounded buffers, and an end that always comes."""

from __future__ import annotations

import base64
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

Json = dict[str, Any]

_WINDOW_BYTES = 1 << 20
"""Output that is read ahead of whoever follows it; and what is kept for one who follows again."""
_PIECE_BYTES = 1 << 16
_DRAIN_S = 0.25
"""How long a stream is read on after its program's end, while nothing comes: a descendant may hold it for ever."""
_PATH = "/usr/local/bin:/usr/bin:/bin"


class StartFailed(Exception):
    """A program could not be started; `condition` is the protocol's name for why."""

    def __init__(self, condition: str, path: str) -> None:
        super().__init__(f"{condition}: {path}")
        self.condition, self.path = condition, path


class Guard:
    """A process that ends our groups when we are gone, however we went: all it does is wait for the end of a pipe."""

    def __init__(self) -> None:
        read_end, self._pipe = os.pipe()
        self._groups: set[int] = set()
        self._lock = threading.Lock()
        if os.fork() == 0:
            self._watch(read_end)
        os.close(read_end)

    def add(self, group: int) -> None:
        """Watch over a group."""
        with self._lock:
            self._groups.add(group)
            os.write(self._pipe, b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """A group's program has ended and was waited for."""
        with self._lock:
            self._groups.discard(group)
            os.write(self._pipe, b"-%d\n" % group)

    def kill_all(self) -> None:
        """Kill every group that is watched."""
        with self._lock:
            for group in self._groups:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)

    @staticmethod
    def _watch(pipe: int) -> None:
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            os.dup2(pipe, 0)
            os.closerange(1, 1024)
            groups: set[int] = set()
            with os.fdopen(0, "rb") as lines:
                for line in lines:
                    (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
            for group in groups:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)
        finally:
            os._exit(0)


def octets(value: Any) -> bytes:
    """A string of the wire, or its form for bytes."""
    return value.encode() if isinstance(value, str) else base64.b64decode(value["b64"])


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
    return {"args": argv, "cwd": cwd, "env": environ}


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

    def ended_at(self, offset: int) -> bool:
        """Whether nothing comes after an offset any more."""
        with self._changed:
            return self.end is not None and offset >= self.total

    def _fill(self) -> None:
        quiet_since: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.total - self.taken < _WINDOW_BYTES)
            if not select.select([self._source], [], [], 0.05)[0]:
                if self._program_ended.is_set():
                    quiet_since = quiet_since or time.monotonic()
                    if time.monotonic() - quiet_since > _DRAIN_S:
                        self._finish("heldOpen")
                        return
                continue
            quiet_since = None
            data = os.read(self._source.fileno(), _PIECE_BYTES)
            if not data:
                self._finish("seen")
                return
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

    def __init__(self, name: str, options: Json, guard: Guard, *, keep_input: bool, timeout_ms: int | None) -> None:
        self.name = name
        self.guard = guard
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.killed = False
        self.timed_out = False
        self._kept: dict[str, tuple[bytes, bytes, int]] = {}
        try:
            self._popen = subprocess.Popen(
                options["args"],
                cwd=options["cwd"],
                env=options["env"],
                stdin=subprocess.PIPE if keep_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                bufsize=0,
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StartFailed("CommandNotFound", os.fsdecode(options["args"][0])) from error
        except OSError as error:
            raise StartFailed("CommandNotExecutable", os.fsdecode(options["args"][0])) from error
        guard.add(self._popen.pid)
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        if self._popen.stdin:
            os.set_blocking(self._popen.stdin.fileno(), False)
        self.streams = {
            "stdout": Stream(self._popen.stdout, self._ended),
            "stderr": Stream(self._popen.stderr, self._ended),
        }
        threading.Thread(target=self._wait, args=(timeout_ms,), daemon=True).start()

    def _wait(self, timeout_ms: int | None) -> None:
        try:
            self._popen.wait(None if timeout_ms is None else timeout_ms / 1000)
        except subprocess.TimeoutExpired:
            self.timed_out = True
            self.kill()
            self._popen.wait()
        with self._lock:
            self.guard.remove(self._popen.pid)
            self._ended.set()

    @property
    def finished(self) -> bool:
        """Whether the program itself has ended."""
        return self._ended.is_set()

    def signal(self, number: int) -> bool:
        """Signal the group; False where the program has ended."""
        with self._lock:
            # The group's id is ours as long as its leader was not waited for, which the lock rules out here.
            if self._ended.is_set() or self._popen.returncode is not None:
                return False
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)
            return True

    def kill(self) -> bool:
        """Kill the group; False where the program has ended."""
        if not self.signal(signal.SIGKILL):
            return False
        self.killed = True
        return True

    def write(self, data: bytes, end: bool) -> int:
        """Give the program input, waiting for room; how much it took."""
        stdin = self._popen.stdin
        taken = 0
        if stdin is None or stdin.closed:
            return 0
        with suppress(BrokenPipeError):
            while taken < len(data) and not self._ended.is_set():
                if select.select([], [stdin], [], 0.1)[1]:
                    taken += os.write(stdin.fileno(), data[taken : taken + _PIECE_BYTES])
        if end or self._ended.is_set():
            stdin.close()
        return taken

    def stop_writing(self) -> None:
        """Nothing: a write ends with the program, and says what it took."""

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
        code = self._popen.returncode
        result: Json = {name: self._stream_result(name) for name in self.streams}
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
