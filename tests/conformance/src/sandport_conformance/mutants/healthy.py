"""A worker that keeps every rule of L0 to L4, in the standard library alone, made to be broken in one place.

A mutant overrides one method. The wire is here: lines, messages, phases, answers. Sandboxes are in `leases`
and `places`, commands in `programs`, archives of files in `files`.

One thread reads, each call has its own, one lock guards what goes out. Control messages (`ping`, `cancel`, `credit`)
are served by the reading thread, so nothing waits in front of them.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from sandport_conformance import schema

from .archive_in import Unpacker
from .archive_out import Packer
from .files import Files
from .leases import Leases
from .places import Guard
from .refusals import Cancelled, Refusal

Json = dict[str, Any]

VERSIONS = [1]
MANDATORY = schema.mandatory_methods()
PROCESS = schema.optional_groups()["process"]
SYNC = schema.optional_groups()["sync"]
_PIECE_BYTES = 1 << 16
_EOF_FINISH_S = 0.5
_TICK_S = 0.5


class Call:
    """One request that is being served."""

    def __init__(self, worker: Healthy, request_id: Any, method: str, params: Json) -> None:
        self.worker, self.id, self.method, self.params = worker, request_id, method, params
        self.cancelled = threading.Event()
        self.on_cancel: Callable[[], object] = lambda: None
        """Wakes whatever the handler waits for."""
        self.credit: dict[str, int] = {}
        """Room at the host, for each stream; touched under the worker's `credit_changed`."""


class Healthy:
    """The worker; see the module."""

    name = "healthy"
    methods: tuple[str, ...] = (*MANDATORY, *PROCESS, *SYNC)
    capabilities: Json = {"kill": "tree", "expiry": "agent", "attach": "none", "pty": True, "egress": ["all"]}  # noqa: RUF012 - read only

    guard_class: type[Guard] = Guard
    leases_class: type[Leases] = Leases
    files_class: type[Files] = Files
    unpacker_class: type[Unpacker] = Unpacker
    packer_class: type[Packer] = Packer

    def __init__(self) -> None:
        self.phase = "new"
        self.limits = schema.default_limits()
        """The agreed ones, once the hello is done."""
        self.own_limits = schema.default_limits()
        self.open: dict[Any, Call] = {}
        """What was taken and not answered."""
        self.lock = threading.RLock()
        self.credit_changed = threading.Condition()
        self.idle = threading.Condition(self.lock)
        self.draining = False
        self.exit_code = 0

    # -------------------------------------------------------------- the process

    def main(self) -> None:
        """Serve until the host is done."""
        parent = os.getppid()
        self.take_descriptors()
        self.guard = self.guard_class()
        self.prepare_signals()
        for line in self.lines(parent):
            if self.phase != "closed":
                self.receive(line)
        self.end()

    def take_descriptors(self) -> None:
        """Keep the wire on descriptors of our own; a stray print goes to the log, a stray read finds nothing."""
        self.wire_in, self.wire_out = os.dup(0), os.dup(1)
        os.set_blocking(self.wire_out, False)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(2, 1)

    def prepare_signals(self) -> None:
        """SIGTERM is an end of input; Ctrl-C is for the host."""
        self.waker, self.wake = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: os.write(self.wake, b"t"))
        signal.signal(signal.SIGINT, lambda *_: None)

    def lines(self, parent: int) -> Iterator[bytes]:
        """The lines from the host, until its end, our SIGTERM, its silence or its death."""
        pending = bytearray()
        heard = time.monotonic()
        while self.phase != "closed":
            ready = self.wait_input()
            if self.waker in ready or self.wire_out in ready or os.getppid() != parent:
                return
            if self.wire_in not in ready:
                if self.phase == "serving" and self.is_silence(heard):
                    return
                continue
            heard = time.monotonic()
            data = self.read()
            if not data:
                return
            pending += data
            if b"\n" in data:
                *whole, rest = self.split(bytes(pending))
                pending = bytearray(rest)
                yield from (line for line in whole if self.fits(line))
            self.look_at_unfinished(pending)

    def read(self) -> bytes:
        """What is there; nothing at the end."""
        return os.read(self.wire_in, _PIECE_BYTES)

    def is_silence(self, heard: float) -> bool:
        """Whether the host, heard at this time, has been silent for so long that it must be dead."""
        return time.monotonic() - heard > self.limits["hostSilenceMs"] / 1000

    def wait_input(self) -> set[int]:
        """Descriptors that something happened on; the outgoing one only ever says that the host has closed it."""
        poll = select.poll()
        poll.register(self.wire_in, select.POLLIN)
        poll.register(self.waker, select.POLLIN)
        poll.register(self.wire_out, 0)
        return {descriptor for descriptor, _ in poll.poll(_TICK_S * 1000)}

    def split(self, data: bytes) -> list[bytes]:
        """Lines, and what is left of the last one."""
        return data.split(b"\n")

    def fits(self, line: bytes) -> bool:
        """Whether a line may be read; one that is too long ends the worker with the ceiling's name."""
        if len(line) <= self.own_limits["frameBytes"]:
            return True
        self.violated(f"a line longer than {self.own_limits['frameBytes']} bytes (limits.frameBytes)")
        return False

    def look_at_unfinished(self, pending: bytearray) -> None:
        """Nothing is gathered beyond the ceiling."""
        if len(pending) > self.own_limits["frameBytes"]:
            self.fits(bytes(pending))

    def violated(self, rule: str) -> None:
        """Answer what cannot be survived, and close."""
        self.refuse(None, Refusal("ParseFailed", rule))
        self.phase, self.exit_code = "closed", 2

    def end(self) -> None:
        """Let calls finish for a moment, cancel the others, and go."""
        self.draining = True
        if not self.wait_idle(_EOF_FINISH_S):
            self.cancel_all()
            self.wait_idle(self.limits["drainMs"] / 1000)
        self.leave()

    def leave(self) -> None:
        """End the process, whatever thread still lives."""
        self.lock.acquire(timeout=1.0)  # no frame is cut in two by the exit, unless the host does not read it
        self.guard.kill_all()
        sys.stderr.flush()
        os._exit(self.exit_code)

    def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no call is open."""
        with self.idle:
            return self.idle.wait_for(lambda: not self.open, timeout_s)

    def cancel_all(self) -> None:
        """Cancel every call."""
        with self.lock:
            calls = list(self.open.values())
        for call in calls:
            self.interrupt(call)

    # -------------------------------------------------------------- in

    def receive(self, line: bytes) -> None:
        """Serve one line."""
        if not line.strip(b" \t\r"):
            return
        if self.too_deep(line):
            self.violated(f"nested deeper than {self.own_limits['depth']} levels (limits.depth)")
            return
        try:
            message = self.parse(line)
        except (ValueError, RecursionError) as error:
            self.refuse(None, Refusal("ParseFailed", f"not JSON: {error}"))
            return
        if fault := fault_of(message):
            self.refuse(readable_id(message), Refusal("InvalidRequest", fault))
        elif "id" in message:
            self.take_request(message)
        else:
            self.take_notification(message["method"], message.get("params", {}))

    def too_deep(self, line: bytes) -> bool:
        """Whether a line passes the ceiling on nesting."""
        return deeper_than(line, self.own_limits["depth"])

    def parse(self, line: bytes) -> Any:
        """A line as JSON."""
        message = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
        if b"\\u" in line:
            json.dumps(message, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8
        return message

    def take_request(self, message: Json) -> None:
        """Refuse a request, answer it, or give it a thread."""
        request_id, method, params = message["id"], message["method"], message.get("params", {})
        try:
            self.admit(request_id, method, params)
        except Refusal as refusal:
            self.refuse_request(request_id, refusal)
            return
        if method == "ping":
            self.answer(request_id, self.pong())
        elif method == "initialize":
            self.greet(request_id, params)
        else:
            call = Call(self, request_id, method, params)
            with self.lock:
                self.open[key_of(request_id)] = call
            if method == "writeProcess":
                self.leases.queue_write(call)  # here, where calls still have their order
            threading.Thread(target=self.serve, args=(call,), daemon=True).start()

    def refuse_request(self, request_id: Any, refusal: Refusal) -> None:
        """Refuse what was not taken; a call that is open under the same id stays open."""
        with self.lock:
            first = self.open.get(key_of(request_id))
            self.refuse(request_id, refusal)
            if first is not None:
                self.open[key_of(request_id)] = first

    def admit(self, request_id: Any, method: str, params: Any) -> None:
        """Raise Refusal where a request must not be served."""
        if key_of(request_id) in self.open:
            raise Refusal("InvalidRequest", f"id {request_id!r:.60} is open already")
        if method == "initialize" and self.phase != "new":
            raise Refusal("InvalidRequest", "the hello was said already")
        if self.draining and method not in ("ping", "shutdown"):
            raise Refusal("Unavailable", "the worker is shutting down", retry="later")
        if method not in ("initialize", "ping", "shutdown"):
            if self.phase != "serving":
                raise Refusal("NotInitialized", f"{method:.60} before the hello was done")
            if method not in self.methods:
                raise Refusal("MethodNotFound", f"{method:.60} is not one of supportedMethods")
            with self.lock:  # an answer that the host has read may still be on its way out of the table
                full = len(self.open) >= self.limits["inFlight"]
            if full:
                raise Refusal("Overloaded", "too many requests in flight (limits.inFlight)", retry="later")
        rule = schema.protocol()["methods"].get(method, {}).get("params", {"type": "object"})
        if faults := schema.faults(params, rule, schema.protocol(), "params"):
            # The member and not its value, which may be a secret.
            field = faults[0].split(" has no ")[-1].split(" ")[0].removeprefix("params.")
            raise Refusal("InvalidParams", f"{method:.60}: {field} does not fit the schema", detail={"field": field})

    def pong(self) -> Json:
        """What is open."""
        with self.lock:
            return {"open": [call.id for call in self.open.values()]}

    def take_notification(self, method: str, params: Any) -> None:
        """Serve a notification; one that is not known, or makes no sense now, is ignored."""
        if not isinstance(params, dict):
            return
        if method == "initialized" and self.phase == "negotiated":
            self.phase = "serving"
            self.notify("ready", {})
        elif method == "cancel":
            call = self.call_of(params)
            if call is not None and call.method != "shutdown":
                self.interrupt(call)
        elif method == "credit":
            self.take_credit(params)

    def interrupt(self, call: Call) -> None:
        """Cancel a call."""
        call.cancelled.set()
        call.on_cancel()
        with self.credit_changed:
            self.credit_changed.notify_all()

    def call_of(self, params: Json) -> Call | None:
        """The open call that a notification is about."""
        request_id = params.get("id")
        if not isinstance(request_id, str | int):
            return None
        with self.lock:
            return self.open.get(key_of(request_id))

    def take_credit(self, params: Json) -> None:
        """Give a stream more room."""
        call, stream, size = self.call_of(params), params.get("stream"), params.get("bytes")
        if call is not None and isinstance(stream, str) and stream in call.credit and isinstance(size, int):
            with self.credit_changed:
                call.credit[stream] += size
                self.credit_changed.notify_all()

    # -------------------------------------------------------------- hello

    def greet(self, request_id: Any, params: Json) -> None:
        """Answer the hello."""
        offered = params["protocolVersions"]
        if not set(offered) & set(VERSIONS):
            message = f"no common protocol version: the host offers {offered}, {self.name} offers {VERSIONS}"
            detail = {"field": "protocolVersions", "hostVersions": offered, "workerVersions": VERSIONS}
            self.refuse(request_id, Refusal("VersionMismatch", message, detail=detail))
            return
        limits = params.get("limits", {})
        for name, rule in schema.protocol()["limits"].items():
            theirs = limits.get(name, rule["default"])
            self.limits[name] = min(theirs, self.own_limits[name]) if rule["kind"] == "ceiling" else theirs
        self.guard.tell(b"g%d" % self.limits["orphanGraceMs"])
        self.leases = self.leases_class(params["stateDir"], params["storeId"], self)
        self.phase = "negotiated"
        self.answer(request_id, self.hello(params))

    def hello(self, params: Json) -> Json:
        """The result of `initialize`."""
        ceilings = {n: v for n, v in self.own_limits.items() if schema.protocol()["limits"][n]["kind"] == "ceiling"}
        config = {"type": "object", "properties": {"label": {"type": "string", "default": "plain"}}}
        return {
            "protocolVersion": max(VERSIONS),
            "provider": {"name": self.name, "version": "1", "configSchema": config},
            "supportedMethods": list(self.methods),
            "capabilities": dict(self.capabilities),
            "limits": ceilings,
        }

    # -------------------------------------------------------------- calls

    def serve(self, call: Call) -> None:
        """Run a handler in its thread, and answer once."""
        try:
            result = self.handle(call)
        except Refusal as refusal:
            self.refuse(call.id, refusal)
        except Cancelled:
            self.refuse(call.id, Refusal("Cancelled", f"{call.method} was cancelled", dispatched="unknown"))
        except Exception as error:  # noqa: BLE001 - a fault of ours is the call's outcome, whatever it is
            print(f"{call.method}: {error!r}", file=sys.stderr)
            self.refuse(call.id, Refusal("Internal", f"{type(error).__name__}: {error}", dispatched="unknown"))
        else:
            self.answer(call.id, result)
            if call.method == "shutdown":
                self.leave()

    def handle(self, call: Call) -> Json:
        """The result of a call."""
        if call.method == "shutdown":
            return self.shutdown(call)
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in call.method)
        result: Json = getattr(self.leases, name)(call)
        return result

    def shutdown(self, call: Call) -> Json:
        """Let what runs finish, then end it."""
        self.draining = True
        with self.idle:
            done = self.idle.wait_for(self.alone, call.params.get("drainMs", 5000) / 1000)
        if not done:
            self.cancel_all()
            with self.idle:
                self.idle.wait_for(self.alone, _EOF_FINISH_S * 2)
        return {}

    def alone(self) -> bool:
        """Whether nothing is open but the shutdown."""
        return all(call.method == "shutdown" for call in self.open.values())

    # -------------------------------------------------------------- out

    def answer(self, request_id: Any, result: Json) -> None:
        """Send a result, or the error that says that it does not fit in a frame."""
        try:
            line = self.encode({"jsonrpc": "2.0", "id": request_id, "result": result})
        except ValueError as error:
            self.refuse(request_id, Refusal("Internal", f"the result is no JSON: {error}", dispatched="unknown"))
            return
        if len(line) - 1 > self.limits["frameBytes"]:
            refusal = Refusal("TooLarge", "the result does not fit in a frame (limits.frameBytes)", dispatched="yes")
            self.refuse(request_id, refusal)
            return
        self.settle(request_id, line)

    def refuse(self, request_id: Any, refusal: Refusal) -> None:
        """Send an error."""
        data = {"condition": refusal.condition, "retry": "never", "dispatched": "no", **refusal.data}
        error = {"code": schema.error_code(refusal.condition), "message": refusal.message, "data": data}
        line = self.encode({"jsonrpc": "2.0", "id": request_id, "error": error})
        if len(line) - 1 > self.limits["frameBytes"]:
            line = self.encode({"jsonrpc": "2.0", "id": request_id, "error": self.shortened(error)})
        self.settle(request_id, line)

    def shortened(self, error: Json) -> Json:
        """An error without what may be long."""
        data = {name: value for name, value in error["data"].items() if name != "partial"}
        return {**error, "message": error["message"][:1000], "data": data}

    def settle(self, request_id: Any, line: bytes) -> None:
        """Send an answer and close its id in one step, so that no pong can fall between."""
        with self.lock:
            self.write(line)
            self.open.pop(key_of(request_id), None)
            self.idle.notify_all()

    def notify(self, method: str, params: Json) -> None:
        """Send a notification."""
        self.write(self.encode({"jsonrpc": "2.0", "method": method, "params": params}))

    def encode(self, message: Json) -> bytes:
        """A whole frame."""
        return json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"

    def write(self, line: bytes) -> None:
        """Put a frame on the pipe as a whole; a host that is gone needs none."""
        with self.lock:
            left = memoryview(line)
            while left:
                try:
                    left = left[os.write(self.wire_out, left) :]
                except BlockingIOError:
                    self.wait_room()
                except BrokenPipeError:
                    return  # the reading thread sees it too, and ends the worker

    def wait_room(self) -> None:
        """Wait until the host reads on; after the end of our input, which nobody else may see now, not for long."""
        poll = select.poll()
        poll.register(self.wire_out, select.POLLOUT)
        poll.register(self.wire_in, 0)  # says only that the host has closed it
        ready = poll.poll(_TICK_S * 1000)
        if any(descriptor == self.wire_in for descriptor, _ in ready):
            poll.unregister(self.wire_in)
            if not poll.poll(self.limits["drainMs"]):
                self.guard.kill_all()
                os._exit(1)


def key_of(request_id: Any) -> Any:
    """What tells 1 and "1" apart in a table."""
    return (type(request_id).__name__, request_id)


def fault_of(message: Any) -> str:
    """Which rule of the wire a JSON value breaks; empty where it is a request or notification."""
    if isinstance(message, list):
        return "a batch; send one message a line"
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return 'not JSON-RPC 2.0: an object with "jsonrpc": "2.0" is needed'
    if not isinstance(message.get("method"), str):
        return "a message to a worker has a method"
    if "id" in message and not is_id(message["id"]):
        return "an id is a string or an integer"
    return ""


def is_id(value: Any) -> bool:
    """Whether a value may be an id."""
    return isinstance(value, str | int) and not isinstance(value, bool)


def readable_id(message: Any) -> Any:
    """The id of something that is no message, to answer it with; None where it has none."""
    found = message.get("id") if isinstance(message, dict) else None
    return found if is_id(found) else None


def deeper_than(line: bytes, limit: int) -> bool:
    """Whether more arrays and objects than that are open at once; brackets in strings do not count."""
    if line.count(b"[") + line.count(b"{") <= limit:
        return False
    depth = deepest = 0
    in_string = escaped = False
    for byte in line:
        if in_string:
            in_string = escaped or byte != 0x22
            escaped = not escaped and byte == 0x5C
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest > limit


def _no_constant(token: str) -> Any:
    raise ValueError(f"{token} is no JSON number")
