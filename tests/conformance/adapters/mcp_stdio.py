"""Puts a stdio server of the Model Context Protocol under the kit: it has a process to judge, and another hello.

    mcp_stdio.py SERVER COMMAND...

What is translated, once in each direction:

- the first `initialize` of the host becomes MCP's, with the same id;
- the result of that becomes the hello of a worker without capabilities that says it serves `initialize` and `ping`;
- the first `initialized` after it becomes `notifications/initialized`.

Everything else passes as the bytes that it is: `ping` (MCP's is the same message), methods that MCP does not have,
lines that are no messages, the answers to all of them. MCP has no `ready`, no `shutdown` and no `data.condition` in its
errors, and none is made up here: a check that needs them fails.

What the process does passes too:

- the end of the host's output is the end of the server's input, and the other way round; what one side closes is
  closed for the other at once;
- stderr, environment and directory are the server's own, and so is a stdout that cannot be written;
- SIGTERM, SIGINT and SIGHUP are sent on, and nothing else comes of them here;
- the server's exit code, or the signal that ended it, becomes that of this program.

What is different from a server without it: two more pipes of 64 KiB are in between; until the hello is done, a line
passes when it is whole; and after the server's end what nobody reads is given up in a second.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

Json = dict[str, Any]
MCP_VERSION = "2025-06-18"
_PIECE_BYTES = 1 << 16
_LONGEST_HELLO_BYTES = 1 << 16
"""A line that is longer is no part of a hello, and passes as it comes."""
_LAST_WORDS_S = 1.0
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Hello:
    """The hello of one connection, as far as it got."""

    def __init__(self) -> None:
        self.request_id: object = None
        self.asked = False

    def to_server(self, line: bytes) -> tuple[bytes, bool]:
        """A line of the host's as the server gets it, and whether it was the last one to translate."""
        message = read(line)
        if not self.asked and message.get("method") == "initialize" and "id" in message:
            self.request_id, self.asked = message["id"], True
            params = {
                "protocolVersion": MCP_VERSION,
                "capabilities": {},
                "clientInfo": {"name": "sandport-conformance", "version": "0"},
            }
            return written({"jsonrpc": "2.0", "id": self.request_id, "method": "initialize", "params": params}), False
        if self.asked and message.get("method") == "initialized" and "id" not in message:
            return written({"jsonrpc": "2.0", "method": "notifications/initialized"}), True
        return line, False

    def to_host(self, line: bytes) -> tuple[bytes, bool]:
        """A line of the server's as the host gets it, and whether it was the last one to translate."""
        message = read(line)
        if not self.asked or message.get("id") != self.request_id or not isinstance(message.get("result"), dict):
            return line, False
        server = message["result"].get("serverInfo") or {}
        provider = {"name": server.get("name", ""), "version": server.get("version", ""), "configSchema": {}}
        result = {"protocolVersion": 1, "provider": provider, "supportedMethods": ["initialize", "ping"]}
        return written({"jsonrpc": "2.0", "id": self.request_id, "result": result}), True


def read(line: bytes) -> Json:
    """The object of a line; an empty one where it is none, since it passes as it is then."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def written(message: Json) -> bytes:
    """A message as a line."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def carry(source: int, sink: int, translate: Callable[[bytes], tuple[bytes, bool]]) -> None:
    """Carry bytes until one side is closed: lines while there is something to translate, and then what comes."""
    held = b""
    translating = True
    ends = select.poll()
    ends.register(source, select.POLLIN)
    ends.register(sink, 0)  # tells only that nobody will read what is written there
    while not any(descriptor == sink for descriptor, _ in ends.poll()):
        piece = os.read(source, _PIECE_BYTES)
        held += piece
        ready = b""
        while translating and b"\n" in held:
            line, _, held = held.partition(b"\n")
            passed, last = translate(line + b"\n")
            ready += passed
            translating = not last
        if not (translating and piece) or len(held) > _LONGEST_HELLO_BYTES:
            ready, held = ready + held, b""
        try:
            write(sink, ready)
        except BrokenPipeError:
            return
        if not piece:
            return


def write(sink: int, data: bytes) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(sink, left) :]


def close(*descriptors: int) -> None:
    """Close descriptors; those below 3 keep their number, so that nothing else gets it."""
    for descriptor in descriptors:
        if descriptor < 3:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, descriptor)
            os.close(nothing)
        else:
            os.close(descriptor)


def start(source: int, sink: int, translate: Callable[[bytes], tuple[bytes, bool]]) -> threading.Thread:
    """Carry in a thread of its own, and close both ends after it."""

    def carry_and_close() -> None:
        try:
            carry(source, sink, translate)
        finally:
            close(source, sink)

    thread = threading.Thread(target=carry_and_close, daemon=True)
    thread.start()
    return thread


def can_write(descriptor: int) -> bool:
    """Whether a descriptor is there and open for writing."""
    try:
        os.write(descriptor, b"")
    except OSError:
        return False
    return True


def end_like(code: int) -> NoReturn:
    """End as a process did whose code this is, in `subprocess`'s sense."""
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)  # a thread may still be in a write that nobody reads


def main() -> NoReturn:
    """Run a server."""
    command = sys.argv[1:]
    if not command:
        sys.exit("usage: mcp_stdio.py SERVER COMMAND...")
    heard = can_write(1)
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE if heard else None, bufsize=0)
    for number in _PASSED_ON:
        signal.signal(number, lambda passed, _: server.send_signal(passed))
    hello = Hello()
    assert server.stdin is not None
    start(0, os.dup(server.stdin.fileno()), hello.to_server)
    server.stdin.close()
    if server.stdout is None:
        end_like(server.wait())
    out = start(os.dup(server.stdout.fileno()), 1, hello.to_host)
    server.stdout.close()
    code = server.wait()
    out.join(_LAST_WORDS_S)
    end_like(code)


if __name__ == "__main__":
    main()
