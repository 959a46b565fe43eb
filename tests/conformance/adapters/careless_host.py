"""A host that is broken on purpose: it proves that each check of `sandport-conformance host` can fail.

It believes any result, reads without bound, ends nothing by force, hands its environment and its session to its worker,
reads no log, sends a command again whose worker is gone, forgets a sandbox once it has asked for its end, unpacks what
comes as it comes, says whatever comes to its mind, and waits for an answer until its alarm rings. With `--hasty` before
the kit's words the alarm rings early instead; with `--picky` it bears nothing that it does not know.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

Json = dict[str, Any]
_PATIENCE_S = 4.0
_HASTE_S = 0.8
_SANDBOX = "sp" + f"{os.getpid():026}".translate({48 + digit: 97 + digit for digit in range(10)})
_HELLO_ID, _WORK_ID = 7, 8
_MEMBERS = {"jsonrpc", "id", "method", "params", "result", "error"}
_NOTIFICATIONS = {"ready", "failed", "output", "progress", "span"}
_BLURTED = (
    b"this is no JSON",
    b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"x-careless/mark"}',
    b'{"jsonrpc":"2.0","method":"x-careless/number","params":{"a":NaN}}',
    b'{"jsonrpc":"2.0","method":"x-careless/half","params":{"a":"\\ud800"}}',
    b'{"jsonrpc":"1.0","method":"x-careless/version"}',
    b'{"jsonrpc":"2.0","method":"cancel","params":{"id":99.0}}',
    b'{"jsonrpc":"2.0","method":"x-careless/twice","method":"x-careless/twice"}',
    b'{"jsonrpc":"2.0","method":"x-careless/bytes","params":{"a":{"b64":"eA=="}}}',
    b'{"jsonrpc":"2.0","method":"mine"}',
)
"""Each breaks another rule of the wire."""


class Gone(Exception):
    """The worker has closed its pipe."""


class Unknown(Exception):
    """The worker said something new."""


class Careless:
    """The host's end of one worker.

    Args:
        argv: What starts it.
        picky: Bear nothing that is not known.
    """

    def __init__(self, argv: list[str], *, picky: bool) -> None:
        self.picky = picky
        pipe = subprocess.PIPE
        self.worker = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, close_fds=False)
        self.output = bytearray()

    def request(self, request_id: int, method: str, params: Json) -> Json:
        """Send a request, and take the next answer for its own."""
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return self.answer()

    def answer(self) -> Json:
        """The next answer, whose it may be."""
        assert self.worker.stdout is not None
        while line := self.worker.stdout.readline():
            message: Json = json.loads(line)
            if self.picky and is_new(line.decode(), message):
                raise Unknown
            if "method" not in message:
                return message
            if message["method"] == "output":
                self.output += base64.b64decode(message["params"].get("data", ""))
                self.note("credit", {"id": _WORK_ID, "stream": message["params"]["stream"], "bytes": 1 << 20})
        raise Gone

    def note(self, method: str, params: Json) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def send(self, message: Json) -> None:
        """A line."""
        assert self.worker.stdin is not None
        try:
            self.worker.stdin.write(json.dumps(message).encode() + b"\n")
            self.worker.stdin.flush()
        except BrokenPipeError:
            raise Gone from None

    def run(self, words: list[str], argv: list[str], settings: Json) -> Json:
        """The answer for the kit."""
        state = os.environ["SANDPORT_HOME"]
        os.makedirs(state, exist_ok=True)
        self.request(9, "ping", {})
        hello = {
            "protocolVersions": [1],
            "host": {"name": "careless", "version": "0"},
            "storeId": "s" * 26,
            "stateDir": state,
            "limits": settings.get("limits", {}),
        }
        self.send({"jsonrpc": "2.0", "id": _HELLO_ID, "method": "initialize", "params": hello})
        self.note("initialized", {})
        self.answer()
        self.note("initialized", {})
        config = settings.get("config", {})
        lease = {"sandboxId": _SANDBOX, "config": config, "ttlMs": 60_000}
        self.request(_HELLO_ID, "acquireLease", lease)
        self.request(_HELLO_ID, "acquireLease", lease)
        self.note("cancel", {"id": _WORK_ID})
        self.note("cancel", {"id": _WORK_ID})
        command: Json = {"sandboxId": _SANDBOX, "argv": argv, "config": config}
        if "--start" in words:
            answer = self.request(_WORK_ID, "startProcess", {**command, "processId": "p1", "stdin": "--write" in words})
            if "--write" in words:
                answer = self.write(int(words[words.index("--write") + 1]))
        else:
            answer = self.request(_WORK_ID, "execute", {**command, "live": True})
        if "--stall" in words:
            time.sleep(2 * _PATIENCE_S)
        answered = told(answer.get("result", {}), answer.get("error"), len(self.output))
        if "--send" in words:
            answered["sent"] = self.send_files(Path(words[words.index("--send") + 1]))
        if "--fetch" in words:
            answered["fetched"] = self.fetch_files(Path(words[words.index("--fetch") + 1]))
        return answered

    def write(self, writers: int) -> Json:
        """All input at once, and the end; the answer of a wait for the process."""
        for number in range(writers):
            piece = {"sandboxId": _SANDBOX, "processId": "p1", "data": "eA==", "end": number == writers - 1}
            self.send({"jsonrpc": "2.0", "id": 30 + number, "method": "writeProcess", "params": piece})
        for _ in range(writers):
            self.answer()
        return self.request(29, "waitProcess", {"sandboxId": _SANDBOX, "processId": "p1"})

    def meet(self, request_id: int, method: str, path: str) -> socket.socket:
        """The worker's connection, to a socket that stands where everybody's temporary files are."""
        place = os.path.join(tempfile.gettempdir(), f"careless-{os.getpid()}-{request_id}")
        listener = socket.socket(socket.AF_UNIX)
        os.chdir(os.path.dirname(place))
        listener.bind(os.path.basename(place))  # which may be longer than a worker can take
        listener.listen()
        params = {"sandboxId": _SANDBOX, "socket": place, "path": path}
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        try:
            return listener.accept()[0]
        finally:
            os.unlink(place)

    def send_files(self, tree: Path) -> Json:
        """Every file under the name that it has here, and no directory."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as archive:
            for path in filter(Path.is_file, tree.rglob("*")):
                member = archive.gettarinfo(path)
                member.name = str(path)
                archive.addfile(member, io.BytesIO(path.read_bytes()))
        with self.meet(20, "syncIn", "sent") as connection, contextlib.suppress(BrokenPipeError):
            connection.sendall(data.getvalue())
        self.answer()
        return {"error": None}

    def fetch_files(self, target: Path) -> Json:
        """Whatever comes, as it comes, wherever it says."""
        target.mkdir()
        with self.meet(21, "syncOut", "made") as connection, connection.makefile("rb") as stream:
            data = stream.read()
        self.answer()
        with tarfile.open(fileobj=io.BytesIO(data + bytes(1 << 16))) as archive:
            for member in archive:
                path = target / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                if member.issym():
                    path.symlink_to(member.linkname)
                elif member.islnk():
                    path.hardlink_to(target / member.linkname)
                elif found := archive.extractfile(member):
                    path.write_bytes(found.read())
        return {"error": None}

    def close(self) -> None:
        """Ask for the end of everything, and wait for that of the pipe."""
        self.request(_WORK_ID + 1, "destroyLease", {"sandboxId": _SANDBOX})
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(b"\n".join(_BLURTED) + b"\n")
        self.request(_WORK_ID + 2, "shutdown", {})
        self.worker.stdin.close()
        self.worker.stdout.read()


def is_new(text: str, message: Json) -> bool:
    """Whether a line of the worker's has what a host of today need not know."""
    body = message.get("result") or message.get("params") or {}
    return (
        len(text.splitlines()) > 1
        or not _MEMBERS.issuperset(message)
        or message.get("method", "output") not in _NOTIFICATIONS
        or None in body.values()
    )


def told(result: Json, error: Json | None, stdout_bytes: int) -> Json:
    """An outcome."""
    return {
        "ended": result.get("ended"),
        "exitCode": result.get("exitCode"),
        "stdoutBytes": stdout_bytes,
        "error": error and {"condition": "Internal", "message": error["message"], "dispatched": "unknown"},
        "tookS": 0.0,
    }


def finish(answer: Json) -> NoReturn:
    """Print one outcome for all that was asked, and leave without looking back."""
    sys.stdout.write(json.dumps({**answer, "next": answer, "beside": answer}) + "\n")
    sys.stdout.flush()
    os._exit(0)


def ring(*_: object) -> NoReturn:
    """Give up."""
    finish(told({}, {"message": "it took too long"}, 0))


def main() -> None:
    """Serve the kit once."""
    cut = sys.argv.index("--")
    words, argv = sys.argv[1:cut], sys.argv[cut + 1 :]
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, _HASTE_S if "--hasty" in words else _PATIENCE_S)
    settings = json.loads(os.environ.get("SANDPORT_HOST_SETTINGS", "{}"))
    worker = json.loads(os.environ["SANDPORT_HOST_WORKER"])
    while True:
        try:
            host = Careless(worker, picky="--picky" in words)
            answer = host.run(words, argv, settings)
            host.close()
        except Gone:
            continue
        except Unknown:
            answer = told({}, {"message": "what is this?"}, 0)
        finish(answer)


if __name__ == "__main__":
    main()
