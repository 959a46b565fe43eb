"""A Sandport worker in one file, with nothing but Python's standard library.

It is a real one: a sandbox is a directory, a command a process in it, with live output, time-outs and cancels. It is
also meant to be read, and to be written again in another language. What the wire asks for is in protocol/SPEC.md;
comments name the requirement that they are about. From top to bottom:

1. The wire: lines in, lines out.
2. Requests: who may ask what when, and one answer for each.
3. The hello: who we are and what we can do.
4. The end: the ways in which it comes.
5. Params: what must be in a request.
6. Sandboxes: config, create, find again, list, destroy.
7. Commands: start, stream, wait, kill, and that nothing stays behind.

How it works: the main thread reads and never waits for anything else, so that a ping, a cancel or a credit is served
at once whatever runs; each call has a thread; one more thread writes, so that a host which does not read holds up
nothing but what it does not read.

Why so long: it is one file on purpose, to be copied as one.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import json
import os
import queue
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

Json = dict[str, Any]

NAME, VERSION = "stdlib", "1.0.0"
PROTOCOL_VERSIONS = [1]
METHODS = (
    "initialize",
    "ping",
    "shutdown",
    "validateConfig",
    "probe",
    "acquireLease",
    "attachLease",
    "listLeases",
    "destroyLease",
    "execute",
)
# The conditions that this worker answers with, and their codes; the schema has the whole table.
CODES = {
    "ParseFailed": -32700,
    "InvalidRequest": -32600,
    "MethodNotFound": -32601,
    "InvalidParams": -32602,
    "Internal": -32603,
    "NotInitialized": -32002,
    "VersionMismatch": -32010,
    "NotAttached": -32011,
    "SandboxLost": -32013,
    "ConfigInvalid": -32017,
    "NotSupported": -32018,
    "CommandNotFound": -32019,
    "CommandNotExecutable": -32020,
    "PathNotFound": -32021,
    "TooLarge": -32023,
    "Overloaded": -32024,
    "Unavailable": -32025,
    "Cancelled": -32026,
}
# The largest messages that we take and make; the host says its own in the hello, and the smaller of both holds.
CEILINGS = {
    "frameBytes": 16 * 1024 * 1024,
    "depth": 64,
    "inFlight": 1024,
    "creditBytes": 1024 * 1024,
    "chunkBytes": 128 * 1024,
}
PIECE_BYTES = 64 * 1024
TICK_S = 0.5  # how often the main thread looks whether its host still lives
CREDIT_TICK_S = 0.1  # how often a command that waits for credit looks whether it was killed meanwhile
DRAIN_S = 0.25  # how long a stream is read on after its command's end, when something else holds it open
LOOK_S = 0.05  # how often the reader of a silent stream looks whether its command has ended
FLUSH_S = 1.0  # what the host gets at the end to read what was answered
FINISH_S = 0.5  # what quick calls get to finish in after the end of input


class Failure(Exception):
    """An error to answer a request with.

    `dispatched` says whether the effect may have happened: a host repeats a call by itself only after "no".
    """

    def __init__(self, condition: str, message: str, *, dispatched: str = "no", retry: str = "never", **data: Any):
        super().__init__(message)
        self.condition = condition
        self.data = {"condition": condition, "retry": retry, "dispatched": dispatched, **data}


# ---------------------------------------------------------------------------------------------------- 1. the wire


class Wire:
    """Lines of JSON on the descriptors that we were started with."""

    def __init__(self) -> None:
        for descriptor, wrong_way in ((0, os.O_WRONLY), (1, os.O_RDONLY)):
            try:
                usable = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != wrong_way
            except OSError:
                usable = False
            if not usable:
                raise SystemExit(f"{NAME}: descriptor {descriptor} must be a pipe from or to a host")  # PROC-18
        # Everything else in this process, and every child, gets an empty stdin, and the log for its stdout: a stray
        # print must never stand between two frames, a stray read never take one away (PROC-1, PROC-2).
        self.incoming, self.outgoing = os.dup(0), os.dup(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        self.frames: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self.write_frames, daemon=True).start()

    def lines(self, over: Callable[[bool], bool]) -> Iterator[bytes]:
        """Lines without their line feed, until the host has ended its side or `over` says so.

        `over` is asked whenever something came (True) and whenever nothing came for a tick (False).
        """
        poll = select.poll()
        poll.register(self.incoming, select.POLLIN)
        # For our own end of the other pipe we wait for nothing; poll still tells when the host has closed its end.
        poll.register(self.outgoing, 0)
        pending = bytearray()
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(TICK_S * 1000)]
            if self.outgoing in ready or over(bool(ready)):
                return
            if not ready:
                continue
            data = os.read(self.incoming, PIECE_BYTES)
            if not data:
                return
            pending += data
            # Only 0x0A ends a line (FRAME-2), and the bytes come in any portions (FRAME-9).
            if b"\n" in data:
                *lines, rest = pending.split(b"\n")
                pending = rest
                for line in lines:
                    self.check_length(line)
                    yield bytes(line)
            self.check_length(pending)

    def check_length(self, line: bytearray) -> None:
        """Refuse a line that is too long before more of it is gathered; there is no way to go on (FRAME-12)."""
        if len(line) > CEILINGS["frameBytes"]:
            raise Unsurvivable(f"a line is longer than {CEILINGS['frameBytes']} bytes (limits.frameBytes)")

    def send(self, message: Json) -> None:
        """Write one message, some time; see `frames`."""
        self.frames.put(encode(message))

    def write_frames(self) -> None:
        """Write frames, each as a whole (FRAME-11), in the order in which they were put.

        This thread alone waits where the host does not read (PROC-14): whoever has something to say puts it and goes
        on, the one that reads above all.
        """
        with contextlib.suppress(BrokenPipeError):  # the host is gone; the main thread sees that too
            while True:
                frame = self.frames.get()
                if isinstance(frame, threading.Event):
                    frame.set()
                    continue
                left = memoryview(frame)
                while left:
                    left = left[os.write(self.outgoing, left) :]

    def flush(self, timeout_s: float) -> None:
        """Wait until everything that was put has been written (PROC-19), unless the host does not read it."""
        written = threading.Event()
        self.frames.put(written)
        written.wait(timeout_s)


class Unsurvivable(Exception):
    """What the host sent leaves no way to read on."""


def encode(message: Json) -> bytes:
    """A frame. Python would write NaN, which is no JSON (FRAME-7)."""
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Any:
    """A line as JSON; raises ValueError where it is none."""

    def refuse(token: str) -> NoReturn:
        raise ValueError(f"{token} is no JSON number")  # FRAME-8

    try:
        value = json.loads(line.decode("utf-8"), parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if b"\\u" in line:
        # An escape may stand for half a character, which cannot be written again; this fails where one does (FRAME-19).
        json.dumps(value, ensure_ascii=False).encode()
    return value


def check_depth(line: bytes) -> None:
    """Refuse what is nested deeper than agreed, before a parser's stack has to bear it (FRAME-13)."""
    if line.count(b"[") + line.count(b"{") <= CEILINGS["depth"]:
        return
    depth = 0
    # With its escapes taken out, every second piece between quotes is outside of strings.
    for piece in line.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]:
        for byte in piece:
            depth += (byte in b"[{") - (byte in b"]}")
            if depth > CEILINGS["depth"]:
                raise Unsurvivable(f"nested deeper than {CEILINGS['depth']} levels (limits.depth)")


# ---------------------------------------------------------------------------------------------------- 2. requests


class Call:
    """One request that is being served."""

    def __init__(self, request_id: int | str, method: str, params: Json) -> None:
        self.id, self.method, self.params = request_id, method, params
        self.cancelled = threading.Event()
        self.on_cancel: Callable[[], object] = lambda: None
        self.credit: dict[str, int] = {}  # room at the host for each output stream, in bytes
        self.credit_came = threading.Condition()


class Worker:
    """Everything between the wire and the sandboxes."""

    def __init__(self) -> None:
        self.parent = os.getppid()
        self.guard = Guard()  # it forks, so it comes before any thread
        self.wire = Wire()
        self.phase = "new"  # then negotiated, serving, draining
        self.limits = {**CEILINGS, "hostSilenceMs": 60_000, "drainMs": 5_000}
        self.open: dict[Any, Call] = {}  # what was taken and not answered
        self.lock = threading.RLock()  # of `open`, and of what must not come between it and the frames
        self.answered = threading.Condition(self.lock)
        self.terminated = False
        self.heard = time.monotonic()
        self.sandboxes: Sandboxes | None = None  # known once the hello has told where to keep them

    def run(self) -> int:
        """Serve until the host is done; the exit code."""
        signal.signal(signal.SIGTERM, self.on_sigterm)
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal's Ctrl-C is for the host to act upon (PROC-11)
        try:
            for line in self.wire.lines(self.is_over):
                self.receive(line)
        except Unsurvivable as reason:
            self.refuse(None, Failure("ParseFailed", str(reason)))
            self.drain(0)
            return 2
        self.drain(self.limits["drainMs"] / 1000)
        return 0

    def receive(self, line: bytes) -> None:
        """Serve one line."""
        if not line.strip(b" \t\r"):
            return  # FRAME-4
        check_depth(line)
        try:
            message = decode(line)
        except ValueError as error:
            self.refuse(None, Failure("ParseFailed", f"not JSON: {error}"))  # FRAME-6: one error, then on we go
            return
        fault = fault_of_message(message)
        if fault:
            readable = message.get("id") if isinstance(message, dict) else None
            self.refuse(readable if is_id(readable) else None, Failure("InvalidRequest", fault))
        elif "id" in message:
            self.take_request(message["id"], message["method"], message.get("params", {}))
        else:
            self.take_notification(message["method"], message.get("params", {}))

    def take_request(self, request_id: int | str, method: str, params: Any) -> None:
        """Answer a request at once, or give it a thread."""
        try:
            self.admit(request_id, method)
            check_params(method, params)
            if method == "ping":
                # The answers written before this pong are those whose ids it does not list any more (PING-3).
                with self.lock:
                    self.answer(request_id, {"open": [call.id for call in self.open.values()]})
            elif method == "initialize":
                self.answer(request_id, self.greet(params))
            else:
                call = Call(request_id, method, params)
                with self.lock:
                    self.open[key(request_id)] = call
                threading.Thread(target=self.serve, args=(call,), daemon=True).start()
        except Failure as failure:
            self.refuse(request_id, failure)

    def admit(self, request_id: int | str, method: str) -> None:
        """Refuse what must not be served now."""
        if key(request_id) in self.open:
            raise Failure("InvalidRequest", f"id {request_id!r:.60} is open already")  # MSG-13
        if method in ("ping", "shutdown"):
            return  # in every phase
        if self.phase == "draining":
            raise Failure("Unavailable", "the worker is shutting down", retry="later")
        if method == "initialize":
            if self.phase != "new":
                raise Failure("InvalidRequest", "the hello was said already; the first one holds")
        elif self.phase != "serving":
            raise Failure("NotInitialized", f"{method:.60} before the hello was done")
        elif method not in METHODS:
            raise Failure("MethodNotFound", f"{method:.60} is not one of supportedMethods")
        elif self.is_full():
            raise Failure("Overloaded", f"{len(self.open)} requests are open (limits.inFlight)", retry="later")

    def is_full(self) -> bool:
        """Whether no more calls may be open (CALL-4)."""
        with self.lock:  # an answer that the host has read already may still be on its way out of the table
            return len(self.open) >= self.limits["inFlight"]

    def take_notification(self, method: str, params: Any) -> None:
        """Act on a notification; it is never answered, and one that we do not know is none of our business."""
        if not isinstance(params, dict):
            return
        if method == "initialized" and self.phase == "negotiated":
            self.phase = "serving"
            # A worker that must import something heavy does it in a thread from here on, and says this afterwards.
            self.wire.send({"jsonrpc": "2.0", "method": "ready", "params": {}})
        elif method in ("cancel", "credit") and is_id(params.get("id")):
            with self.lock:
                call = self.open.get(key(params["id"]))
            if call is None:
                return  # it has just been answered
            if method == "cancel":
                cancel(call)
            elif is_int(params.get("bytes")) and params.get("stream") in call.credit:
                with call.credit_came:
                    call.credit[params["stream"]] += params["bytes"]
                    call.credit_came.notify_all()

    def serve(self, call: Call) -> None:
        """Run a call in its thread. Whatever happens in there, it is answered once (CALL-1, ERR-4)."""
        try:
            result = self.handle(call)
        except Failure as failure:
            self.refuse(call.id, failure, call)
        except Exception as error:  # noqa: BLE001 - a fault of ours is the outcome of this call, not the worker's end
            log("error", f"{call.method} failed: {error!r}")
            self.refuse(call.id, Failure("Internal", f"{type(error).__name__}: {error}", dispatched="unknown"), call)
        else:
            self.answer(call.id, result, call)
            if call.method == "shutdown":
                self.leave(0)

    def handle(self, call: Call) -> Json:
        """The result of a call."""
        if call.method == "shutdown":
            # The answer means that we may be killed, so all that takes time comes before it (PROC-6).
            self.drain(int(call.params.get("drainMs", self.limits["drainMs"])) / 1000, shutdown=True)
            return {}
        assert self.sandboxes is not None  # `admit` lets nothing else pass before the hello
        handlers: dict[str, Callable[[Call], Json]] = {
            "validateConfig": lambda call: validated(call.params.get("config", {})),
            "probe": self.sandboxes.probe,
            "acquireLease": self.sandboxes.acquire,
            "attachLease": self.sandboxes.attach,
            "listLeases": self.sandboxes.list,
            "destroyLease": self.sandboxes.destroy,
            "execute": self.sandboxes.execute,
        }
        return handlers[call.method](call)

    def answer(self, request_id: int | str, result: Json, call: Call | None = None) -> None:
        """Send a result."""
        frame = encode({"jsonrpc": "2.0", "id": request_id, "result": result})
        if len(frame) - 1 > self.limits["frameBytes"]:  # FRAME-14
            self.refuse(request_id, Failure("TooLarge", "the result does not fit in a frame", dispatched="yes"), call)
            return
        self.settle(frame, call)

    def refuse(self, request_id: int | str | None, failure: Failure, call: Call | None = None) -> None:
        """Send an error."""
        error = {"code": CODES[failure.condition], "message": str(failure), "data": failure.data}
        frame = encode({"jsonrpc": "2.0", "id": request_id, "error": error})
        if len(frame) - 1 > self.limits["frameBytes"] and "partial" in failure.data:  # ERR-8
            error["data"] = {name: value for name, value in failure.data.items() if name != "partial"}
            frame = encode({"jsonrpc": "2.0", "id": request_id, "error": error})
        self.settle(frame, call)

    def settle(self, frame: bytes, call: Call | None) -> None:
        """Put an answer and forget its call, in one step: a pong must not fall between (PING-3)."""
        with self.lock:
            self.wire.frames.put(frame)
            if call is not None:
                del self.open[key(call.id)]
                self.answered.notify_all()

    # ------------------------------------------------------------------------------------------------ 3. the hello

    def greet(self, params: Json) -> Json:
        """Agree on a version and on limits, and say what we can do."""
        common = set(params["protocolVersions"]) & set(PROTOCOL_VERSIONS)
        if not common:
            raise Failure(
                "VersionMismatch",
                f"the host speaks versions {params['protocolVersions']}, {NAME} speaks {PROTOCOL_VERSIONS}",
                detail={"hostVersions": params["protocolVersions"], "workerVersions": PROTOCOL_VERSIONS},
            )
        offered = params.get("limits", {})
        for name, value in offered.items():
            if is_int(value):
                self.limits[name] = min(value, CEILINGS[name]) if name in CEILINGS else value
        self.sandboxes = Sandboxes(Path(params["stateDir"]), params["storeId"], self)
        self.phase = "negotiated"
        return {
            "protocolVersion": max(common),
            "provider": {
                "name": NAME,
                "version": VERSION,
                "displayName": "Directories on this machine",
                "configSchema": CONFIG_SCHEMA,
            },
            "supportedMethods": list(METHODS),
            # Every word of this is held against what we do: a kill reaches the group that we make for each command,
            # nobody ends a sandbox by itself, and what a sandbox may reach is not limited.
            "capabilities": {"kill": "group", "expiry": "none", "attach": "none", "egress": ["all"]},
            "limits": CEILINGS,
        }

    # ------------------------------------------------------------------------------------------------ 4. the end

    def on_sigterm(self, *_: object) -> None:
        """SIGTERM is an end of input that comes another way (PROC-10)."""
        self.terminated = True

    def is_over(self, heard: bool) -> bool:  # noqa: FBT001 - called back with the one fact there is
        """Whether our host is gone, though its end of the pipe may be held open by somebody else (PROC-13)."""
        if heard:
            self.heard = time.monotonic()
        silent_s = time.monotonic() - self.heard
        too_silent = self.phase == "serving" and silent_s > self.limits["hostSilenceMs"] / 1000
        return self.terminated or too_silent or os.getppid() != self.parent

    def drain(self, patience_s: float, *, shutdown: bool = False) -> None:
        """Refuse what is new, let what runs finish, then cancel it.

        After a shutdown it gets all the time that the host allows; after the end of input nobody waits for it any
        more, so only quick calls finish (PROC-4), and the time is for the cancelled ones to tidy up in.
        """
        self.phase = "draining"
        if not self.wait_answered(patience_s if shutdown else min(FINISH_S, patience_s)):
            with self.lock:
                calls = [call for call in self.open.values() if call.method != "shutdown"]
            for call in calls:
                cancel(call)
            self.wait_answered(FINISH_S if shutdown else patience_s)

    def wait_answered(self, timeout_s: float) -> bool:
        """Wait until nothing but a shutdown is open."""
        with self.answered:
            return self.answered.wait_for(
                lambda: all(call.method == "shutdown" for call in self.open.values()), timeout_s
            )

    def leave(self, code: int) -> NoReturn:
        """End the process, whatever threads still wait for something; what they started ends with it (PROC-12)."""
        self.wire.flush(FLUSH_S)
        self.guard.kill_all()
        sys.stderr.flush()
        os._exit(code)


def cancel(call: Call) -> None:
    """Interrupt a call; its own thread answers it when it has really ended (CANCEL-1)."""
    call.cancelled.set()
    call.on_cancel()
    with call.credit_came:
        call.credit_came.notify_all()


def key(request_id: int | str | None) -> Any:
    """An id as a key; 1 and "1" are two."""
    return (type(request_id), request_id)


def is_int(value: Any) -> bool:
    """Whether a JSON value is an integer; in Python a boolean would be one too."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_id(value: Any) -> bool:
    """Whether a JSON value may be an id."""
    return is_int(value) or isinstance(value, str)


def fault_of_message(message: Any) -> str:
    """Why a JSON value is no request and no notification; empty where it is one."""
    if not isinstance(message, dict):
        return "a message is one JSON object; there are no batches"
    if message.get("jsonrpc") != "2.0":
        return 'the member "jsonrpc" must be "2.0"'
    if not isinstance(message.get("method"), str):
        return "a message to a worker has a method"
    if "id" in message and not is_id(message["id"]):
        return "an id is a string or an integer"
    return ""


def log(level: str, message: str) -> None:
    """One record on stderr (LOG-1)."""
    sys.stderr.write(json.dumps({"level": level, "message": message}) + "\n")
    sys.stderr.flush()


# ---------------------------------------------------------------------------------------------------- 5. params
#
# What a value must be is a function; its name is what the error says.


def a_string(value: Any) -> bool:
    return isinstance(value, str)


def an_object(value: Any) -> bool:
    return isinstance(value, dict)


def an_object_of_strings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(member, str) for member in value.values())


def a_list_of_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_int, value))


def true_or_false(value: Any) -> bool:
    return isinstance(value, bool)


def an_integer(value: Any) -> bool:
    return is_int(value)


def an_integer_from_0_on(value: Any) -> bool:
    return is_int(value) and value >= 0


def an_integer_above_0(value: Any) -> bool:
    return is_int(value) and value > 0


def a_name_and_a_version(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(member), str) for member in ("name", "version"))


def an_object_of_limits(value: Any) -> bool:
    return isinstance(value, dict) and all(
        is_int(limit) and limit >= (name in CEILINGS) for name, limit in value.items()
    )


def a_sandbox_id(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"sp[a-z2-7]{26}", value) is not None


def an_object_with_mode_all_none_or_listed(value: Any) -> bool:
    return isinstance(value, dict) and value.get("mode") in ("all", "none", "listed")


def base64_text(value: Any) -> bool:
    with contextlib.suppress(binascii.Error, ValueError, TypeError):
        base64.b64decode(value, validate=True)
        return isinstance(value, str)
    return False


def text_or_bytes_without_nul(value: Any) -> bool:
    if isinstance(value, dict) and base64_text(value.get("b64")):
        return b"\0" not in octets(value)
    return isinstance(value, str) and "\0" not in value


def a_program_and_its_arguments(value: Any) -> bool:
    return isinstance(value, list) and all(map(text_or_bytes_without_nul, value)) and any(map(octets, value[:1]))


def an_object_of_variables(value: Any) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and text_or_bytes_without_nul(member)
        for name, member in value.items()
    )


def octets(value: Any) -> bytes:
    """The bytes of a string, or of {"b64": "..."}, which stands for those that are no UTF-8 (OCT-1)."""
    return value.encode() if isinstance(value, str) else base64.b64decode(value["b64"])


Members = dict[str, Callable[[Any], bool]]
CONFIGURED: Members = {"secrets": an_object_of_strings}
MEMBERS: dict[str, Members] = {
    "initialize": {
        "protocolVersions": a_list_of_numbers,
        "host": a_name_and_a_version,
        "storeId": a_string,
        "stateDir": a_string,
        "limits": an_object_of_limits,
    },
    "shutdown": {"drainMs": an_integer},
    "validateConfig": CONFIGURED,
    "probe": CONFIGURED,
    "acquireLease": {
        **CONFIGURED,
        "sandboxId": a_sandbox_id,
        "ttlMs": an_integer_above_0,
        "egress": an_object_with_mode_all_none_or_listed,
    },
    "attachLease": {**CONFIGURED, "sandboxId": a_sandbox_id, "handle": a_string},
    "listLeases": {**CONFIGURED, "sandboxId": a_sandbox_id, "cursor": a_string},
    "destroyLease": {"sandboxId": a_sandbox_id},
    "execute": {
        "sandboxId": a_sandbox_id,
        "argv": a_program_and_its_arguments,
        "shell": text_or_bytes_without_nul,
        "cwd": text_or_bytes_without_nul,
        "env": an_object_of_variables,
        "user": a_string,
        "stdin": base64_text,
        "timeoutMs": an_integer_above_0,
        "live": true_or_false,
        "outputLimitBytes": an_integer_from_0_on,
    },
}
REQUIRED = {
    "initialize": ("protocolVersions", "host", "storeId", "stateDir"),
    "acquireLease": ("sandboxId", "ttlMs"),
    "attachLease": ("sandboxId", "handle"),
    "destroyLease": ("sandboxId",),
    "execute": ("sandboxId",),
}
# Members that may be null, which is as if they were not there.
NULL_TOO = {
    "acquireLease": ("egress",),
    "listLeases": ("sandboxId", "cursor"),
    "execute": ("argv", "shell", "cwd", "user", "timeoutMs"),
}


def check_params(method: str, params: Any) -> None:
    """Raise InvalidParams, with the member's name, where params do not fit the method (MSG-11, MSG-12)."""
    if not isinstance(params, dict):
        raise Failure("InvalidParams", "params must be an object")
    for name in REQUIRED.get(method, ()):
        if name not in params:
            raise Failure("InvalidParams", f"{name} is missing", detail={"field": name})
    for name, fits in MEMBERS.get(method, {}).items():
        if name not in params or (params[name] is None and name in NULL_TOO.get(method, ())):
            continue
        if not fits(params[name]):
            raise Failure("InvalidParams", f"{name} must be {fits.__name__.replace('_', ' ')}", detail={"field": name})
    if method == "execute" and (params.get("argv") is None) == (params.get("shell") is None):
        raise Failure("InvalidParams", "exactly one of argv and shell is needed", detail={"field": "argv"})


# ---------------------------------------------------------------------------------------------------- 6. sandboxes

CONFIG_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "shell": {"type": "string", "default": "/bin/sh", "description": "Absolute path of the shell of a sandbox"},
    },
    "additionalProperties": False,
}


def validated(config: Any) -> Json:
    """The result of validateConfig: the config with its defaults, or what is wrong with it (CONF-1, CONF-3)."""
    if not isinstance(config, dict):
        return {"config": {}, "issues": [{"field": "config", "message": "must be an object"}]}
    issues = [
        {
            "field": f"config.{name}",
            "message": f"there is no such key; there is {', '.join(CONFIG_SCHEMA['properties'])}",
        }
        for name in config
        if name not in CONFIG_SCHEMA["properties"]
    ]
    shell = config.get("shell", "/bin/sh")
    if not isinstance(shell, str) or not shell.startswith("/"):
        issues.append({"field": "config.shell", "message": "must be the absolute path of a shell"})
    return {"config": {"shell": shell, **config}, "issues": issues}


def checked_config(params: Json) -> Json:
    """The config of params, with its defaults; refused with the first thing that is wrong with it (CONF-2)."""
    answer = validated(params.get("config", {}))
    for issue in answer["issues"]:
        message = f"{issue['field']} {issue['message']}"
        raise Failure("ConfigInvalid", message, detail={"field": issue["field"]})
    config: Json = answer["config"]
    return config


class Sandboxes:
    """Directories below the host's `stateDir`, so that a later worker finds them (LEASE-10).

    <stateDir>/used/<id>                an id that served a create, for ever
    <stateDir>/sandboxes/<id>/lease     what we must remember of it
    <stateDir>/sandboxes/<id>/files     its working directory
    """

    def __init__(self, state_dir: Path, store_id: str, worker: Worker) -> None:
        self.used, self.root = state_dir / "used", state_dir / "sandboxes"
        self.store_id = store_id
        self.worker = worker
        self.attached: dict[str, Json] = {}  # what this worker may touch, with its config
        self.commands: dict[str, list[Command]] = {}
        self.lock = threading.Lock()

    def probe(self, call: Call) -> Json:
        """Whether a sandbox could be had; nothing is created (CONF-4)."""
        config = checked_config(call.params)
        return {
            "checks": [
                {
                    "name": "state directory",
                    "ok": os.access(self.root.parent, os.W_OK),
                    "detail": str(self.root.parent),
                },
                {"name": "shell", "ok": os.access(config["shell"], os.X_OK), "detail": config["shell"]},
            ]
        }

    def acquire(self, call: Call) -> Json:
        """Create a sandbox."""
        params = call.params
        config = checked_config(params)
        grant = params.get("egress")
        if grant is not None and grant["mode"] != "all":
            # Better refused than not enforced, and before anything is there (CAP-3).
            raise Failure("NotSupported", f"egress {grant['mode']!r} cannot be enforced", detail={"field": "egress"})
        sandbox_id = params["sandboxId"]
        self.used.mkdir(parents=True, exist_ok=True)
        try:
            (self.used / sandbox_id).touch(exist_ok=False)
        except FileExistsError:
            raise Failure("InvalidParams", f"{sandbox_id} was used; an id serves one create") from None  # LEASE-4
        # The ids are on the resource from its first moment on: what is there without them could never be found again.
        self.root.mkdir(exist_ok=True)
        new = self.root / f".{sandbox_id}"
        (new / "files").mkdir(parents=True)
        lease = {"storeId": self.store_id, "createdAtMs": round(time.time() * 1000)}
        (new / "lease").write_text(json.dumps(lease), encoding="utf-8")
        new.rename(self.root / sandbox_id)
        self.attached[sandbox_id] = config
        if call.cancelled.is_set():
            self.remove(sandbox_id)  # LEASE-5
            raise Failure("Cancelled", "acquireLease was cancelled, and the sandbox removed")
        result = self.lease_of(sandbox_id)
        return result if grant is None else {**result, "egress": {"mode": "all"}}

    def lease_of(self, sandbox_id: str) -> Json:
        """What acquire and attach say of a sandbox."""
        files = str(self.root / sandbox_id / "files")
        return {
            "handle": sandbox_id,  # enough for us; with a vendor, what the vendor calls it
            "workingDirectory": files,
            "shell": self.attached[sandbox_id]["shell"],
            "localRoot": files,  # it is on the host's own machine, which may copy files by itself
            "expiresAtMs": None,
            "notes": ["nothing isolates this sandbox from its machine"],
        }

    def attach(self, call: Call) -> Json:
        """Open a sandbox that another worker created, or this one."""
        config, sandbox_id = checked_config(call.params), call.params["sandboxId"]
        if call.params["handle"] != sandbox_id:  # never `gone`, which lets a host forget a sandbox (LEASE-29)
            raise Failure("InvalidParams", "it is another sandbox's handle", detail={"field": "handle"})
        if not self.exists(sandbox_id):
            return {"state": "gone"}
        new_here = sandbox_id not in self.attached
        self.attached[sandbox_id] = config
        return {"state": "attached", "lease": self.lease_of(sandbox_id), "processesLost": new_here}

    def list(self, call: Call) -> Json:
        """Everything of this store; one page is enough for directories."""
        checked_config(call.params)
        leases = []
        for file in sorted(self.root.glob("sp*/lease")):
            with contextlib.suppress(FileNotFoundError):  # it is being destroyed
                lease, sandbox_id = json.loads(file.read_text(encoding="utf-8")), file.parent.name
                if lease["storeId"] == self.store_id and call.params.get("sandboxId") in (None, sandbox_id):
                    leases.append({"sandboxId": sandbox_id, "handle": sandbox_id, "createdAtMs": lease["createdAtMs"]})
        return {"leases": leases}

    def destroy(self, call: Call) -> Json:
        """End a sandbox and everything in it; once more is no mistake (LEASE-9)."""
        sandbox_id = call.params["sandboxId"]
        if not self.exists(sandbox_id):
            return {"state": "gone"}
        self.check_attached(sandbox_id)
        self.remove(sandbox_id)
        return {"state": "destroyed"}

    def remove(self, sandbox_id: str) -> None:
        """Kill what runs in a sandbox, and remove its directory."""
        with self.lock:
            self.attached.pop(sandbox_id, None)
            commands = self.commands.pop(sandbox_id, [])
        for command in commands:
            command.end()
        # Away in one step, so that half a sandbox is never listed.
        doomed = self.root / f".{sandbox_id}"
        with contextlib.suppress(FileNotFoundError):
            (self.root / sandbox_id).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)

    def exists(self, sandbox_id: str) -> bool:
        """Whether a sandbox is there."""
        return (self.root / sandbox_id / "lease").exists()

    def check_attached(self, sandbox_id: str) -> None:
        """Refuse a sandbox that this worker has not opened; the host attaches it and asks again (LEASE-6)."""
        if sandbox_id not in self.attached or not self.exists(sandbox_id):
            raise Failure("NotAttached", f"{sandbox_id} is not attached to this worker", retry="now")

    # ------------------------------------------------------------------------------------------------ 7. commands

    def execute(self, call: Call) -> Json:
        """Run a command to its end."""
        params, sandbox_id = call.params, call.params["sandboxId"]
        if params.get("user") is not None:
            raise Failure("NotSupported", "commands run as the worker's user", detail={"field": "user"})  # CAP-2
        files = self.root / sandbox_id / "files"
        output: Live | Kept = Live(call, self.worker) if params.get("live") else Kept(params.get("outputLimitBytes"))
        # In one step with being known, so that a destroy in that moment finds what runs, or nothing runs (LEASE-9).
        with self.lock:
            self.check_attached(sandbox_id)
            shell = self.attached[sandbox_id]["shell"]
            command = Command(params, files, shell, self.worker.guard, output, call.cancelled)
            self.commands.setdefault(sandbox_id, []).append(command)
        call.on_cancel = command.kill
        if call.cancelled.is_set():  # between the request and the line above
            command.kill()
        result = command.wait()
        if call.cancelled.is_set() and (command.killed or command.cut):
            # It has ended, as far as `kill` says; whether it had its effect before nobody knows (CANCEL-3).
            failure = Failure("Cancelled", "the command was cancelled", dispatched="unknown")
            if isinstance(output, Kept):
                failure.data["partial"] = output.streams  # CANCEL-6
            raise failure
        if command.lost:
            # It ran, and did not come to an end of its own (CMD-24).
            failure = Failure("SandboxLost", "the sandbox was destroyed during the command", dispatched="yes")
            if isinstance(output, Kept):
                failure.data["partial"] = output.streams
            raise failure
        return result


class Kept:
    """Output that is kept for the result: the head and the tail of each stream (CMD-15)."""

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit = 1024 * 1024 if limit_bytes is None else limit_bytes
        self.streams: dict[str, Json] = {}
        self.kept = {"stdout": (bytearray(), bytearray()), "stderr": (bytearray(), bytearray())}
        self.total = {"stdout": 0, "stderr": 0}

    def room(self, name: str) -> int:
        """How much may be read now: what does not fit is thrown away, never left in the pipe."""
        return PIECE_BYTES

    def take(self, name: str, data: bytes) -> None:
        """Keep a piece, or the end of it."""
        head, tail = self.kept[name]
        self.total[name] += len(data)
        room = self.limit - self.limit // 2 - len(head)
        head += data[:room]
        tail += data[room:]
        del tail[: max(0, len(tail) - self.limit // 2)]

    def end(self, name: str, end: str) -> Json:
        """What the result says of a stream."""
        head, tail = self.kept[name]
        dropped = self.total[name] - len(head) - len(tail)
        if not dropped:
            head, tail = head + tail, bytearray()
        self.streams[name] = {
            "totalBytes": self.total[name],
            "data": base64.b64encode(head).decode(),
            "tail": base64.b64encode(tail).decode(),
            "droppedBytes": dropped,
        }
        return {**self.streams[name], "end": end}


class Live:
    """Output that is sent as it comes, as far as the host has room for it.

    What the host has no room for is not read: then the pipe fills, and the command waits in its write (CRED-1, CRED-3).
    """

    def __init__(self, call: Call, worker: Worker) -> None:
        self.call, self.worker = call, worker
        self.sent = {"stdout": 0, "stderr": 0}
        for name in self.sent:
            call.credit[name] = worker.limits["creditBytes"]

    def room(self, name: str) -> int:
        """How much may be read now; waits a little where that is nothing."""
        with self.call.credit_came:
            self.call.credit_came.wait_for(lambda: self.call.credit[name] > 0, CREDIT_TICK_S)
            return int(min(self.call.credit[name], self.worker.limits["chunkBytes"], PIECE_BYTES))

    def take(self, name: str, data: bytes) -> None:
        """Send a piece."""
        with self.call.credit_came:
            self.call.credit[name] -= len(data)
        self.notify(name, data=base64.b64encode(data).decode())
        self.sent[name] += len(data)

    def end(self, name: str, end: str) -> Json:
        """Send the end mark, which comes before the result (OUT-3); what the result says of the stream."""
        self.notify(name, end=end)
        return {"totalBytes": self.sent[name], "end": end}

    def notify(self, name: str, **members: str) -> None:
        """Send one notification, with the place of its first byte in the stream (OUT-2)."""
        params = {"id": self.call.id, "stream": name, "offset": self.sent[name], **members}
        self.worker.wire.send({"jsonrpc": "2.0", "method": "output", "params": params})


class Command:
    """A process, in a group that we make for it."""

    def __init__(
        self, params: Json, files: Path, shell: str, guard: Guard, output: Live | Kept, cancelled: threading.Event
    ) -> None:
        argv = [os.fsencode(shell), b"-c", octets(params["shell"])] if params.get("shell") is not None else None
        argv = argv or [octets(argument) for argument in params["argv"]]  # never through a shell (CMD-1)
        cwd = os.path.join(os.fsencode(files), octets(params.get("cwd") or ""))  # CMD-9
        if not os.path.isdir(cwd):
            raise Failure(
                "PathNotFound", f"there is no directory {os.fsdecode(cwd)}", detail={"path": os.fsdecode(cwd)}
            )
        # The sandbox's own variables, not the worker's: those may hold secrets. The token marks what we started.
        environ = {b"PATH": b"/usr/local/bin:/usr/bin:/bin", b"HOME": os.fsencode(files), b"LANG": b"C.UTF-8"}
        environ |= {name: value for name, value in os.environb.items() if name == b"SANDPORT_WORKER_TOKEN"}
        environ |= {name.encode(): octets(value) for name, value in params.get("env", {}).items()}  # CMD-8
        stdin = base64.b64decode(params.get("stdin", ""))
        detail = {"path": os.fsdecode(argv[0])}
        try:
            self.process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=environ,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                bufsize=0,
            )
        except (FileNotFoundError, NotADirectoryError):
            raise Failure("CommandNotFound", f"there is no program {detail['path']}", detail=detail) from None
        except OSError as error:
            message = f"{detail['path']} cannot be run: {error.strerror}"
            raise Failure("CommandNotExecutable", message, detail=detail) from None
        guard.add(self.process.pid)
        self.guard, self.output, self.cancelled = guard, output, cancelled
        self.began = time.monotonic()
        self.lock = threading.Lock()
        self.ended, self.ended_at = threading.Event(), 0.0
        self.killed = self.timed_out = False
        self.lost = False  # whether its sandbox ended first
        self.cut = False  # whether output was left behind that nobody wanted any more
        self.code = self.signal = 0
        self.core_dumped = False
        self.results: dict[str, Json] = {}
        if stdin:
            threading.Thread(target=self.feed, args=(stdin,), daemon=True).start()
        self.readers = [threading.Thread(target=self.read, args=(name,), daemon=True) for name in ("stdout", "stderr")]
        for reader in self.readers:
            reader.start()
        threading.Thread(target=self.watch, daemon=True).start()
        # Time runs by the clock alone, whatever becomes of the streams (CMD-10, CRED-4).
        if params.get("timeoutMs") is not None:
            timer = threading.Timer(params["timeoutMs"] / 1000, self.kill, kwargs={"timed_out": True})
            timer.daemon = True
            timer.start()

    def feed(self, data: bytes) -> None:
        """Give the command its input, then the end of it (CMD-7); one that does not want it all is in its right."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            left = memoryview(data)
            while left:
                left = left[stdin.write(left) :]

    def read(self, name: str) -> None:
        """Bring one stream's output to where it goes, up to its end."""
        pipe = self.process.stdout if name == "stdout" else self.process.stderr
        assert pipe is not None
        with pipe:
            self.results[name] = self.output.end(name, self.read_to_end(name, pipe.fileno()))

    def read_to_end(self, name: str, descriptor: int) -> str:
        """Read a stream; `seen` where its end came, `heldOpen` where something else keeps it open (CMD-12, CMD-13).

        What the command left behind may write for ever. So the time after the command's end is the same whether
        something comes or not, and what is in the pipe after it is the last that is read: the command's own is in it.
        """
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        left: int | None = None  # how much is still to be read, once that is known
        while True:
            if left is None and self.ended.is_set() and time.monotonic() - self.ended_at > DRAIN_S:
                left = waiting_bytes(descriptor)
            events = sum(event for _, event in poll.poll(0 if left == 0 else LOOK_S * 1000))
            if events and not events & select.POLLIN:
                return "seen"
            if left == 0:
                return "heldOpen"
            if events:
                room = self.output.room(name)
                if room > 0:
                    data = os.read(descriptor, room if left is None else min(room, left))
                    if not data:
                        return "seen"
                    self.output.take(name, data)
                    left = None if left is None else left - len(data)
                elif self.killed:
                    return "heldOpen"  # a host that takes nothing does not keep a killed command from its result
                elif self.cancelled.is_set():
                    self.cut = True
                    return "heldOpen"
            elif left is not None:
                return "heldOpen"  # somebody else has read what was left

    def watch(self) -> None:
        """Learn how the process ends, without reaping it.

        As long as it is a zombie, its number, which is the group's too, cannot become anybody else's: so `end` can kill
        what it left running, without a chance to kill a stranger. It costs an entry in the table of processes.
        """
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # only WNOHANG comes back with nothing
        with self.lock:
            if ended.si_code == os.CLD_EXITED:
                self.code = ended.si_status
            else:
                self.signal, self.core_dumped = ended.si_status, ended.si_code == os.CLD_DUMPED
            self.ended_at = time.monotonic()
            self.ended.set()

    def kill(self, *, timed_out: bool = False) -> None:
        """Kill the whole group, unless the command has ended by itself."""
        with self.lock:
            if not self.ended.is_set():
                self.killed, self.timed_out = True, timed_out
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> Json:
        """How it ended, once it has and its output was read (CMD-3, CMD-4, CMD-12)."""
        self.ended.wait()
        for reader in self.readers:
            reader.join()
        result: Json = {**self.results, "durationMs": round((time.monotonic() - self.began) * 1000)}
        if self.killed:
            result["tree"] = "signalled"  # the group was; what has left it may live (CMD-11)
        if self.timed_out:
            return {**result, "ended": "timedOut", "signal": self.signal or None}
        if self.signal:
            return {**result, "ended": "signalled", "signal": self.signal, "coreDumped": self.core_dumped}
        return {**result, "ended": "exited", "exitCode": self.code}

    def end(self) -> None:
        """End the command and what it left in its group, for good, with its sandbox."""
        with self.lock:
            self.lost = not self.ended.is_set()
        self.kill()
        self.ended.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.guard.remove(self.process.pid)
        self.process.wait()


def waiting_bytes(descriptor: int) -> int:
    """How much a pipe holds."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


class Guard:
    """A second process that kills our groups when we are gone, however we went (PROC-12).

    All that it does is read a pipe that ends when we do. It is in a session of its own, so that a kill of our group
    does not reach it, and holds no descriptor of the wire.
    """

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self.groups: set[int] = set()
        self.lock = threading.Lock()
        if os.fork() == 0:
            self.watch(reading)
        os.close(reading)

    def watch(self, reading: int) -> NoReturn:
        """The life of the second process."""
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.dup2(reading, 0)
            os.closerange(1, 1024)
            with open(0, "rb") as lines:
                for line in lines:
                    (self.groups.add if line.startswith(b"+") else self.groups.discard)(int(line[1:]))
            self.kill_all()
        finally:
            os._exit(0)

    def add(self, group: int) -> None:
        """Watch over a group."""
        with self.lock:
            self.groups.add(group)
            os.write(self.writing, b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Stop watching over a group that has ended, before its number can be anybody else's."""
        with self.lock:
            self.groups.discard(group)
            os.write(self.writing, b"-%d\n" % group)

    def kill_all(self) -> None:
        """Kill every group that is left."""
        with self.lock:
            for group in self.groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    worker = Worker()
    worker.leave(worker.run())
