"""`well_behaved` with the group `sync`, honest or not: a path in a directory that has the name of a lie gets that lie.

It moves archives with the system's tar. Its leases say no `localRoot`, unless `--direct`.
"""

import os
import queue
import signal
import socket
import subprocess
import threading
from typing import Any

from tests.integration.workers.speaker import LATER, Message, Refused
from tests.integration.workers.well_behaved import Worker, octets

SYNC = ("syncIn", "syncOut")


class Syncing(Worker):
    """A worker that moves files too."""

    def __init__(self) -> None:
        super().__init__()
        self.direct = "--direct" in self.arguments
        self.facts["supportedMethods"] = [*self.facts["supportedMethods"], *SYNC]
        self.handlers |= {
            "syncIn": lambda message: self.aside(message, self.sync_in),
            "syncOut": lambda message: self.aside(message, self.sync_out),
        }
        if "writeProcess" in self.handlers:
            self.handlers["writeProcess"] = self.write_in_turn
            self.turns: dict[str, queue.SimpleQueue[Message]] = {}
        self.said: dict[Any, list[str]] = {}
        self.tars: dict[Any, subprocess.Popen[bytes]] = {}
        self.lines: dict[Any, socket.socket] = {}
        self.cancelled: dict[Any, threading.Event] = {}

    def _found(self, sandbox_id: str) -> Message:
        found = super()._found(sandbox_id)
        if not self.direct:
            del found["localRoot"]
        return found

    def write_in_turn(self, message: Message) -> Any:
        """Several writes of a process may be open; their bytes arrive in order."""
        process = message["params"]["processId"]
        turn = self.turns.get(process)
        if turn is None:
            turn = self.turns[process] = queue.SimpleQueue()
            threading.Thread(target=self._write_all, args=(turn,), daemon=True).start()
        turn.put(message)
        return LATER

    def _write_all(self, turn: "queue.SimpleQueue[Message]") -> None:
        while True:
            message = turn.get()
            try:
                self.answer(message["id"], self.write_process(message))
            except Refused as error:
                self.refuse(message["id"], error.code, error.message, **error.data)

    # ------------------------------------------------------------ files

    def _path(self, message: Message) -> bytes:
        params = message["params"]
        return os.path.join(os.fsencode(self.root(params["sandboxId"])), octets(params["path"]))

    def _lie(self, message: Message) -> str:
        root = os.fsencode(self.root(message["params"]["sandboxId"]))
        return os.path.relpath(self._path(message), root).split(b"/")[0].decode(errors="replace")

    def _meet(self, message: Message) -> socket.socket:
        request = message["id"]
        self.cancelled[request] = threading.Event()
        self.record("syncs", method=message["method"], socket=message["params"]["socket"])
        match self._lie(message):
            case "unreachable":
                raise Refused(-32025, "no such socket here", condition="Unavailable", retry="later", dispatched="no")
            case "refuses":
                raise Refused(-32030, "it is shut", condition="PathRefused", dispatched="no")
            case "dies first":
                os._exit(3)
            case "never connects":
                self.cancelled[request].wait()
                raise Refused(-32026, "cancelled", condition="Cancelled", dispatched="no")
            case "never connects and never answers":
                threading.Event().wait()
        line = socket.socket(socket.AF_UNIX)
        line.connect(message["params"]["socket"])
        self.lines[request] = line
        if self._lie(message) == "connects twice":
            with socket.socket(socket.AF_UNIX) as second:
                second.settimeout(20)
                try:
                    second.connect(message["params"]["socket"])
                    self.record("second", got=second.recv(1).decode())
                except OSError as error:
                    self.record("second", error=str(error))
        return line

    def _run(self, message: Message, line: socket.socket, words: list[bytes], *, reads: bool) -> None:
        request = message["id"]
        child = subprocess.Popen(
            words,
            stdin=line.fileno() if reads else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if reads else line.fileno(),
            stderr=subprocess.PIPE,
        )
        self.tars[request] = child
        if self.cancelled[request].is_set():
            child.kill()
        _, said = child.communicate()
        if self.cancelled[request].is_set():
            raise Refused(-32026, "cancelled", condition="Cancelled", dispatched="unknown")
        if b"No space left" in said:
            detail = {"reason": "noSpace"}
            raise Refused(-32014, "full", condition="QuotaExceeded", dispatched="unknown", detail=detail)
        if child.returncode:
            raise Refused(-32603, f"tar: {said.decode(errors='replace')}", condition="Internal", dispatched="unknown")
        self.said[request] = said.decode(errors="replace").splitlines()

    def sync_in(self, message: Message) -> Any:
        path = self._path(message)
        if self._lie(message) == "answers before it connects":
            return {"bytes": 0}
        line = self._meet(message)
        with line:
            match self._lie(message):
                case "answers early":
                    line.recv(1000)
                    self.answer(message["id"], {"bytes": 1000})
                    self.cancelled[message["id"]].wait(20)
                    return LATER
                case "closes early":
                    line.recv(1000)
                    return {"bytes": 1000}
                case "closes early and says why":
                    line.recv(1000)
                    line.close()
                    raise Refused(-32014, "the disk is full", condition="QuotaExceeded", dispatched="yes")
                case "fails while it reads":
                    line.recv(1000)
                    raise Refused(-32014, "the disk is full", condition="QuotaExceeded", dispatched="yes")
                case "stalls":
                    line.recv(1000)
                    self.cancelled[message["id"]].wait()
                    raise Refused(-32026, "cancelled", condition="Cancelled", dispatched="unknown")
                case "dies":
                    line.recv(1000)
                    os._exit(3)
            os.makedirs(path, exist_ok=True)
            count = Counting(line)
            self._run(message, count.end, [b"tar", b"-xpof", b"-", b"-C", path], reads=True)
            return self._told(message, count.total())

    def sync_out(self, message: Message) -> Any:
        path = self._path(message)
        if not os.path.lexists(path):
            raise Refused(-32021, "nothing there", condition="PathNotFound", dispatched="no")
        line = self._meet(message)
        with line:
            match self._lie(message):
                case "closes early":
                    line.sendall(b"a" * 1000)
                    return {"bytes": 1000}
                case "fails while it writes":
                    line.sendall(b"a" * 1000)
                    raise Refused(-32013, "it is gone", condition="SandboxLost", dispatched="yes")
                case "stalls":
                    line.sendall(b"\0" * 512)
                    self.cancelled[message["id"]].wait()
                    raise Refused(-32026, "cancelled", condition="Cancelled", dispatched="unknown")
                case "answers and never closes":
                    self.answer(message["id"], {"bytes": 0})
                    self.cancelled[message["id"]].wait(20)
                    return LATER
                case "dies":
                    line.sendall(b"a" * 1000)
                    os._exit(3)
            what = [b"-C", path, b"."] if os.path.isdir(path) else [b"-C", *os.path.split(path)]
            if not os.path.isdir(path):
                what[2] = b"./" + what[2]
            mine, theirs = socket.socketpair()
            total = 0

            def move() -> None:
                nonlocal total
                try:
                    while data := mine.recv(1 << 16):
                        line.sendall(data)
                        total += len(data)
                except OSError:
                    mine.shutdown(socket.SHUT_RDWR)  # the host takes no more, so tar is to end

            mover = threading.Thread(target=move, daemon=True)
            mover.start()
            with mine:
                words = [
                    b"tar",
                    b"-cSf",
                    b"-",
                    b"--format=posix",
                    b"--hard-dereference",
                    b"--ignore-failed-read",
                    *what,
                ]
                try:
                    self._run(message, theirs, words, reads=False)
                finally:
                    theirs.close()
                    mover.join()
            line.shutdown(socket.SHUT_RDWR)
            return self._told(message, total)

    def _told(self, message: Message, total: int) -> Any:
        if self._lie(message) == "wrong bytes":
            return {"bytes": total + 1}
        if self._lie(message) == "never answers":
            self.cancelled[message["id"]].wait()
            raise Refused(-32026, "cancelled", condition="Cancelled", dispatched="unknown")
        return {"bytes": total, "notes": self.said.pop(message["id"])}

    def cancel(self, message: Message) -> None:
        request = message["params"]["id"]
        if (event := self.cancelled.get(request)) is not None:
            event.set()
            if (tar := self.tars.get(request)) is not None and tar.poll() is None:
                tar.send_signal(signal.SIGKILL)
        super().cancel(message)


class Counting:
    """Counts what goes from a socket to a program."""

    def __init__(self, line: socket.socket) -> None:
        self.end, self._mine = socket.socketpair()
        self._line = line
        self._total = 0
        self._thread = threading.Thread(target=self._move, daemon=True)
        self._thread.start()

    def _move(self) -> None:
        with self._mine:
            while data := self._line.recv(1 << 16):
                self._total += len(data)
                try:
                    self._mine.sendall(data)
                except OSError:
                    continue  # the program takes no more; the rest is counted all the same

    def total(self) -> int:
        self.end.close()
        self._thread.join()
        return self._total


def main() -> None:
    worker = Syncing()
    try:
        worker.serve()
    finally:
        worker.kill_all()
        for tar in worker.tars.values():
            tar.kill()
    os._exit(0)  # threads that wait for a stream must not hold the process


if __name__ == "__main__":
    main()
