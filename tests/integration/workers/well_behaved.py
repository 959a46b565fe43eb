"""A whole worker with nothing but the standard library: sandboxes are folders below the host's state directory.

Commands run as plain children in the worker's own process group, so that they end with the worker; a kill reaches the
command itself and promises nothing of what it started (`kill: none`). Folders outlive the worker: another one can
attach them. `--processes`: it also serves startProcess, writeProcess, signalProcess and waitProcess. `--at-most N`: it
runs no more commands at once. `--no-time-outs`: it takes a time-out and does not keep it.
"""

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.workers.speaker import LATER, MANDATORY, Message, Refused, Speaker

PROCESS = ("startProcess", "writeProcess", "signalProcess", "waitProcess")
PIECE = 64 * 1024
DRAIN_S = 0.2


class Room:
    """The credit of one stream of one request: how much may still be sent."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._changed = threading.Condition()
        self._closed = False
        self.wanted = False
        """Whether somebody waits for room."""

    def give(self, size: int) -> None:
        with self._changed:
            self._left += size
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, size: int) -> int:
        """Wait for room; how much of `size` may be sent now, 0 when nobody listens any more."""
        with self._changed:
            self.wanted = self._left <= 0
            self._changed.wait_for(lambda: self._left > 0 or self._closed)
            self.wanted = False
            granted = 0 if self._closed else min(size, self._left)
            self._left -= granted
            return granted


class Running:
    """A child and what is known of its end."""

    def __init__(self, worker: "Worker", params: Message, keep_stdin: bool) -> None:
        argv, shell = params.get("argv"), params.get("shell")
        words = [octets(word) for word in argv] if argv else [b"/bin/sh", b"-c", octets(shell)]
        root = self.root = worker.root(params["sandboxId"])
        worker.refuse_more()
        cwd = root / os.fsdecode(octets(params.get("cwd", "")))
        if not cwd.is_dir():
            raise Refused(-32021, f"no directory {cwd}", dispatched="no")
        env = {**os.environ, "HOME": str(root)} | {k: os.fsdecode(octets(v)) for k, v in params.get("env", {}).items()}
        self.started = time.monotonic()
        self.stdin = base64.b64decode(params.get("stdin", "")) if not keep_stdin else None
        try:
            self.child = subprocess.Popen(
                words,
                cwd=cwd,
                env=env,
                stdin=subprocess.PIPE if keep_stdin or self.stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        except FileNotFoundError:
            raise Refused(-32019, f"no program {words[0]!r}", condition="CommandNotFound", dispatched="no") from None
        except (PermissionError, OSError) as error:
            raise Refused(-32020, f"{words[0]!r}: {error}", condition="CommandNotExecutable", dispatched="no") from None
        self.killed: str | None = None
        self.rooms: dict[str, Room] = {}
        timeout_ms = params.get("timeoutMs") if worker.keeps_limits else None
        self.timer = threading.Timer(timeout_ms / 1000, self.kill, ("timedOut",)) if timeout_ms else None
        if self.timer is not None:
            self.timer.daemon = True
            self.timer.start()

    def kill(self, why: str) -> None:
        if self.child.poll() is None:
            self.killed = self.killed or why
            self.child.kill()

    def feed(self) -> None:
        """Give it all of its input."""
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.child.stdin as pipe:
            view = memoryview(self.stdin or b"")
            while view:
                view = view[pipe.write(view) :]


class Worker(Speaker):
    """What this program does with each message."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: dict[str, Path] = {}
        self.running: dict[Any, Running] = {}
        self.processes: dict[tuple[str, str], Running] = {}
        self.handlers |= {
            "acquireLease": self.acquire,
            "attachLease": self.attach,
            "listLeases": self.list,
            "destroyLease": self.destroy,
            "execute": self.execute,
            "cancel": self.cancel,
            "credit": self.credit,
            "shutdown": self.shutdown,
        }
        self.at_most = (
            int(self.arguments[self.arguments.index("--at-most") + 1]) if "--at-most" in self.arguments else None
        )
        self.keeps_limits = "--no-time-outs" not in self.arguments
        methods: tuple[str, ...] = MANDATORY
        if "--processes" in self.arguments:
            methods += PROCESS
            self.handlers |= {
                "startProcess": self.start_process,
                "writeProcess": lambda message: self.aside(message, self.write_process),
                "signalProcess": self.signal_process,
                "waitProcess": self.wait_process,
            }
        self.facts = {
            "provider": {"name": "well-behaved", "version": "1", "displayName": "Folders"},
            "supportedMethods": list(methods),
            "capabilities": {"kill": "none", "attach": "none"},
        }

    # ------------------------------------------------------------ leases

    def root(self, sandbox_id: str) -> Path:
        root = self.leases.get(sandbox_id)
        if root is None:
            raise Refused(-32011, "attach it first", condition="NotAttached", retry="now", dispatched="no")
        return root

    def _found(self, sandbox_id: str) -> Message:
        root = self.leases[sandbox_id]
        found = {"handle": str(root), "workingDirectory": str(root), "shell": "/bin/sh", "localRoot": str(root)}
        return found if self.at_most is None else {**found, "maxProcesses": self.at_most}

    def acquire(self, message: Message) -> Message:
        sandbox_id = message["params"]["sandboxId"]
        egress = message["params"].get("egress")
        if egress is not None and egress["mode"] != "all":
            raise Refused(-32018, "cannot limit the network", condition="NotSupported", dispatched="no")
        root = Path(self.hello["stateDir"], sandbox_id)
        root.mkdir(mode=0o700)
        self.leases[sandbox_id] = root
        return self._found(sandbox_id) | ({"egress": egress} if egress else {})

    def attach(self, message: Message) -> Message:
        params = message["params"]
        root = Path(params["handle"])
        if not root.is_dir():
            return {"state": "gone"}
        self.leases[params["sandboxId"]] = root
        return {"state": "attached", "lease": self._found(params["sandboxId"]), "processesLost": True}

    def list(self, message: Message) -> Message:
        wanted = message["params"].get("sandboxId")
        found = [path for path in Path(self.hello["stateDir"]).iterdir() if wanted in (None, path.name)]
        return {"leases": [{"sandboxId": path.name, "handle": str(path)} for path in found]}

    def destroy(self, message: Message) -> Message:
        root = self.root(message["params"]["sandboxId"])
        for running in [*self.running.values(), *self.processes.values()]:
            if running.root == root:
                running.kill("destroyed")
        there = root.exists()
        shutil.rmtree(root, ignore_errors=True)
        return {"state": "destroyed" if there else "gone"}

    # ------------------------------------------------------------ commands

    def aside(self, message: Message, work: Callable[[Message], Any]) -> Any:
        """Answer from a thread, so that the next message is read meanwhile."""
        request = message["id"]

        def run() -> None:
            try:
                result = work(message)
            except Refused as error:
                if request in self.open:
                    self.refuse(request, error.code, error.message, **error.data)
            else:
                if request in self.open:
                    self.answer(request, result)

        threading.Thread(target=run, daemon=True).start()
        return LATER

    def refuse_more(self) -> None:
        """Refuse a command where as many run as may."""
        known = {id(running): running for running in [*self.running.values(), *self.processes.values()]}
        count = sum(running.child.poll() is None for running in known.values())
        if self.at_most is not None and count >= self.at_most:
            raise Refused(-32024, f"{count} commands run", condition="Overloaded", retry="later", dispatched="no")

    def execute(self, message: Message) -> Any:
        running = Running(self, message["params"], keep_stdin=False)
        self.running[message["id"]] = running
        self.record("executes", id=message["id"], child=running.child.pid)
        if running.stdin:
            threading.Thread(target=running.feed, daemon=True).start()
        return self.aside(message, lambda message: self.follow(message, running))

    def follow(self, message: Message, running: Running) -> Message:
        """Send what a child writes, and say how it ended."""
        request, child = message["id"], running.child
        self.running[request] = running
        credit = self.hello["limits"]["creditBytes"]
        lanes = [
            Lane(self, request, "stdout", child.stdout, credit),
            Lane(self, request, "stderr", child.stderr, credit),
        ]
        running.rooms = {lane.stream: lane.room for lane in lanes}
        for lane in lanes:
            lane.start()
        status = child.wait()
        if running.timer is not None:
            running.timer.cancel()
        ends = {lane.stream: lane.finish() for lane in lanes}
        del self.running[request]
        self.record("ended", id=request, status=status, killed=running.killed)
        if running.killed == "cancelled":
            raise Refused(-32026, "cancelled", condition="Cancelled", dispatched="yes")
        for lane in lanes:
            self.output(request, lane.stream, lane.sent, end=ends[lane.stream])
        ended: Message = {"ended": "exited", "exitCode": status}
        if running.killed == "timedOut":
            ended = {"ended": "timedOut", "signal": signal.SIGKILL, "tree": "unreachable"}
        elif status < 0:
            ended = {"ended": "signalled", "signal": -status} | ({"tree": "unreachable"} if running.killed else {})
        return {
            **ended,
            "durationMs": round((time.monotonic() - running.started) * 1000),
            **{lane.stream: {"totalBytes": lane.sent, "end": ends[lane.stream]} for lane in lanes},
        }

    def cancel(self, message: Message) -> None:
        request = message["params"]["id"]
        running = self.running.get(request)
        if self.open.get(request) == "waitProcess":
            # Nobody follows it any more; the process runs on.
            self.refuse(request, -32026, "cancelled", condition="Cancelled", dispatched="no")
        elif running is not None:
            running.kill("cancelled")
            for room in running.rooms.values():
                room.close()

    def credit(self, message: Message) -> None:
        params = message["params"]
        running = self.running.get(params["id"])
        if running is not None:
            running.rooms[params["stream"]].give(params["bytes"])

    # ------------------------------------------------------------ processes

    def start_process(self, message: Message) -> Message:
        params = message["params"]
        key = (params["sandboxId"], params["processId"])
        if key in self.processes:
            raise Refused(-32600, "that process id was used", dispatched="no")
        self.processes[key] = Running(self, params, keep_stdin=params.get("stdin", False))
        self.record("executes", id=message["id"], child=self.processes[key].child.pid)
        return {}

    def _process(self, message: Message) -> Running:
        params = message["params"]
        self.root(params["sandboxId"])
        running = self.processes.get((params["sandboxId"], params["processId"]))
        if running is None:
            raise Refused(-32028, "no such process", condition="ProcessNotFound", dispatched="no")
        return running

    def write_process(self, message: Message) -> Message:
        pipe = self._process(message).child.stdin
        if pipe is None or pipe.closed:
            return {"takenBytes": 0}
        data = base64.b64decode(message["params"].get("data", ""))
        taken = 0
        with contextlib.suppress(BrokenPipeError):
            while taken < len(data):
                taken += pipe.write(data[taken:])
        if message["params"].get("end"):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        return {"takenBytes": taken}

    def signal_process(self, message: Message) -> Message:
        running, params = self._process(message), message["params"]
        there = running.child.poll() is None
        if there and params.get("kill"):
            running.kill("killed")
        elif there and "signal" in params:
            running.child.send_signal(params["signal"])
        return {"delivered": there}

    def wait_process(self, message: Message) -> Any:
        running = self._process(message)
        return self.aside(message, lambda message: self.follow(message, running))

    # ------------------------------------------------------------ the end

    def shutdown(self, message: Message) -> Any:
        """Let what runs finish, at most as long as the host says; what still runs then is killed."""
        limit = time.monotonic() + message["params"].get("drainMs", 5000) / 1000

        def drain(_: Message) -> Message:
            for running in list(self.running.values()):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    running.child.wait(max(0.0, limit - time.monotonic()))
            self.kill_all()
            while set(self.open.values()) - {"shutdown"} and time.monotonic() < limit + DRAIN_S:
                time.sleep(0.002)  # their last words
            return {}

        return self.aside(message, drain)

    def kill_all(self) -> None:
        for running in [*self.running.values(), *self.processes.values()]:
            running.kill("stopped")


class Lane:
    """One stream of a child on its way to the host, under credit."""

    def __init__(self, worker: Worker, request: Any, stream: str, pipe: Any, credit: int) -> None:
        self.stream = stream
        self.room = Room(credit)
        self.sent = 0
        self._worker = worker
        self._request = request
        self._fd: int = pipe.fileno()
        self._over = False
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while data := os.read(self._fd, PIECE):
            while data:
                size = self.room.take(len(data))
                with self._sending:
                    if size == 0 or self._over:
                        return
                    self._worker.output(self._request, self.stream, self.sent, data[:size])
                    self.sent += size
                data = data[size:]

    def finish(self) -> str:
        """The child has ended: send what it wrote; `heldOpen` where something else still holds the stream."""
        sent = -1
        while self._thread.is_alive() and (self.room.wanted or sent != self.sent):
            sent = self.sent
            self._thread.join(DRAIN_S)
        with self._sending:
            self._over = True
            return "heldOpen" if self._thread.is_alive() else "seen"


def octets(value: Any) -> bytes:
    """The bytes of a string or of `{"b64": ...}`."""
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else str(value).encode()


def main() -> None:
    worker = Worker()
    try:
        worker.serve()
    finally:
        worker.kill_all()
    os._exit(0)  # threads that wait for a stream must not hold the process


if __name__ == "__main__":
    main()
