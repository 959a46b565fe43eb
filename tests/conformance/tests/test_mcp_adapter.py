"""The adapter for MCP servers: the hello is translated, everything else is the server's own."""

import json
import signal
import sys
from pathlib import Path

from sandport_conformance.processes import ExitCause
from sandport_conformance.session import Session
from tests.conformance.tests.conftest import TIMES, Spawn, python

ADAPTER = Path(__file__).resolve().parents[1] / "adapters" / "mcp_stdio.py"
LONG_S = 60.0

STAND_IN = """
import json
for line in sys.stdin.buffer:
    try:
        message = json.loads(line)
    except ValueError:
        os.write(1, b"heard " + line)
        continue
    if message.get("method") == "initialize":
        assert message["params"]["protocolVersion"] == "2025-06-18"
        result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "it", "version": "3"}}
    else:
        result = {"heard": message["method"]}
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": message.get("id"), "result": result}).encode() + b"\\n")
os.write(1, b"the last words\\n")
os._exit(7)
"""
"""Answers everything, notifications too, says what it could not read, and ends with a code of its own."""

HELLO = {"protocolVersions": [1], "host": {"name": "a test", "version": "0"}, "storeId": "s", "stateDir": "/"}


def adapted(spawn: Spawn, code: str = STAND_IN) -> Session:
    process = spawn((sys.executable, "-S", "-E", str(ADAPTER), *python(code)))
    return Session(process, times=TIMES, hello_params=HELLO)


def heard(session: Session, count: int) -> list[str]:
    """What the server says it got, once there are so many messages."""
    assert session.pump(lambda: len(session.messages) >= count, LONG_S)
    return [message.body.get("result", {}).get("heard", "") for message in session.messages]


def test_an_mcp_server_gets_the_hello_of_mcp_and_the_host_that_of_a_worker(spawn: Spawn) -> None:
    session = adapted(spawn)
    hello = session.greet()
    assert hello["provider"] == {"name": "it", "version": "3", "configSchema": {}}
    assert hello["supportedMethods"] == ["initialize", "ping"]
    session.notify("initialized")
    assert heard(session, 3)[1:] == ["notifications/initialized", "initialized"]


def test_what_is_no_hello_passes_as_the_bytes_that_it_is(spawn: Spawn) -> None:
    session = adapted(spawn)
    session.send_line(b"\xff before")
    session.greet()

    def said() -> list[bytes]:
        return [message.line for message in session.messages if message.line.startswith(b"heard ")]

    lines = [b"\xff before", b"\xff\xfe after", b'{"a" : 1', b" " * 200_000 + b"x"]
    for count, line in enumerate(lines[1:], 2):
        session.send_line(line)
        session.pump(lambda count=count: len(said()) >= count, LONG_S)  # type: ignore[misc]
    assert said() == [b"heard " + line for line in lines]


def test_the_end_of_input_reaches_the_server_whose_last_words_and_exit_code_come_back(spawn: Spawn) -> None:
    session = adapted(spawn)
    session.greet()
    session.send_bytes(b"half a line")
    session.process.close_input()
    assert session.exit(LONG_S) == "exit code 7"
    assert session.messages[-1].line == b"heard half a linethe last words"


def test_a_signal_is_the_servers_to_answer(spawn: Spawn) -> None:
    code = "import signal\nsignal.signal(15, lambda *_: os._exit(9))\n" + STAND_IN
    session = adapted(spawn, code)
    session.greet()
    session.process.signal(signal.SIGTERM)
    assert session.exit(LONG_S) == "exit code 9"
    session = adapted(spawn)
    session.greet()
    session.process.signal(signal.SIGTERM)
    session.exit(LONG_S)
    assert session.process.exit_cause == ExitCause(signal=signal.SIGTERM)


def test_a_server_sees_at_once_that_nobody_reads_any_more(spawn: Spawn) -> None:
    code = "import select\nsys.stdin.readline()\nends = select.poll()\nends.register(1, 0)\nprint('{}', flush=True)\n"
    session = adapted(spawn, code + "ends.poll()\nos._exit(8)")
    session.send_line(json.dumps({"jsonrpc": "2.0", "method": "begin"}))
    heard(session, 1)
    session.process.close_output()
    session.process.wait_exit(LONG_S, read=False)
    assert session.process.exit_cause == ExitCause(code=8)


def test_an_output_that_cannot_be_written_is_the_servers_own(spawn: Spawn) -> None:
    without_output = ("sh", "-c", 'exec "$@" 1</dev/null', "sh")
    process = spawn((*without_output, sys.executable, "-S", "-E", str(ADAPTER), *python("os.write(1, b'x')")))
    process.close_input()
    assert process.wait_exit(LONG_S) == ExitCause(code=1)
    process.drained(LONG_S)
    assert "Bad file descriptor" in process.stderr_text()
