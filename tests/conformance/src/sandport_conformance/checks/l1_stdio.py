"""L1: the worker's three standard streams: clean, apart from what runs inside, and full or closed at times."""

from __future__ import annotations

import contextlib
import json

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, Severity, WorkerGone, expect
from sandport_conformance.session import Session, encode
from sandport_conformance.stories import PROCESS, WIRE, Stage, tell

from .l0_frames import strays
from .l0_lines import stalled_host
from .l0_messages import NO_JSON
from .l0_record import read_record

_JUNK = "written by a child"
_ALL_OF_THEM = 500

# ------------------------------------------------------------------ what runs inside


@check(
    "PROC-1",
    part="record",
    uses=Uses.RECORD,
    why="Whatever a handler or a library prints lands between two frames, or in the middle of one.",
    broken="prints while it serves: a warning, a progress bar, a debugging line",
    fix="At the start, move the wire to descriptors of your own and point descriptor 1 at stderr.",
    source="mcp-hangar/mcp-hangar#563, espressif/esp-idf#19087, hashicorp/go-plugin#164, hashicorp/go-plugin#199",
)
def stdout_carries_frames_only(lab: Lab) -> None:
    """From its first message to its end, no worker of the whole run wrote anything but frames."""
    for session in lab.sessions(sandbox=True):
        for message in strays(session):
            raise Failed(f"this is no frame ({message.fault}): {message.line[:120]!r}")


@check(
    "PROC-1",
    part="children",
    needs=Needs(commands=("write_everywhere",)),
    why="A child that inherits the wire can write on it, and keeps it open when the worker is gone.",
    broken="starts commands with the descriptors of the wire still open in them",
    fix="Make the descriptors of the wire close on exec, and close all others in a child.",
    source="evanw/esbuild#2727",
)
def no_child_has_the_wire(lab: Lab) -> None:
    """What a command writes to every descriptor that it finds does not reach the wire."""
    worker = lab.worker
    seen = len(worker.messages)
    lab.sandbox.execute(lab.command("write_everywhere", text=_JUNK))
    worker.ping()
    for message in worker.faults(after=seen):
        raise Failed(f"a command wrote on the wire: {message.line[:120]!r}")


@check(
    "PROC-2",
    needs=Needs(commands=("copy",)),
    why="A child that reads its input reads the wire, if it inherited that: the host's next message is gone.",
    broken="lets commands inherit its own stdin",
    fix="Point descriptor 0 at the null device at the start, and give each command an input of its own.",
    source="modelcontextprotocol/python-sdk#671",
)
def no_child_reads_the_wire(lab: Lab) -> None:
    """A command that reads its input finds the end of it, while messages come in and are served."""
    worker = lab.worker
    running = lab.sandbox.start(lab.command("copy"))
    for _ in range(10):
        worker.ping()
    result = worker.result_of(running)
    size = result.get("stdout", {}).get("totalBytes", 0)
    expect(size == 0, f"a command without input read {size} bytes")
    expect(result.get("ended") == "exited" and result.get("exitCode") == 0, f"it ended {result.get('ended')!r}")


# ------------------------------------------------------------------ a full stdout


@check(
    "PROC-14",
    uses=Uses.OWN,
    why="A host is busy now and then; what it does not read at once must wait for it, in order.",
    broken="drops or overtakes frames where the pipe is full, or stops for ever",
    fix="Keep what the pipe does not take, in one queue, and write on when there is room.",
    source="MongLong0214/logic-pro-mcp#232, modelcontextprotocol/python-sdk#547",
)
def a_full_stdout_loses_nothing(lab: Lab) -> None:
    """Megabytes of answers that nobody reads for a while all come, once each, and no pong overtakes an answer."""
    told = tell(lab, WIRE, stalled_host)
    session = told.session
    place: dict[str, int] = {}
    for request_id, method in told.asked:
        answers = session.answers(request_id)
        expect(len(answers) == 1, f"{method} ({request_id[:20]!r}) got {len(answers)} answers")
        place[request_id] = session.messages.index(answers[0])
    for number, (pong, method) in enumerate(told.asked):
        if method != "ping":
            continue
        still_open = session.messages[place[pong]].body.get("result", {}).get("open", [])
        for request_id, _ in told.asked[:number]:
            expect(
                place[request_id] < place[pong] or request_id in still_open,
                f"the pong {pong[:20]!r} overtook the answer to {request_id[:20]!r}, which it does not list as open",
            )


# ------------------------------------------------------------------ a full stderr, a closed stdout, the last words


@PROCESS.story
def provoked_with_a_full_log(stage: Stage) -> tuple[Session, int]:
    """A worker that has much to complain of, and no room for it: what it says once its log is read."""
    session = stage.spawn(greet=False, full_stderr=True)
    hello = session.request("initialize", session.offered)
    if not session.pump(lambda: session.answers(hello), stage.times.start_s / 4):
        session.process.drain_stderr()  # it has to log before it can greet; the rest of the story is the same
    session.hello = session.result_of(hello, timeout_s=stage.times.start_s)
    session.initialized()
    for _ in range(10):
        for line in NO_JSON:
            session.send_line(line)
        session.notify("cancel", {"id": []})
        session.request("x-none/of it")
    pong = session.request("ping")
    session.pump(lambda: session.answers(pong), stage.times.moment_s)
    session.process.drain_stderr()
    session.result_of(pong)
    for request_id, method, _ in session.requests:
        if method == "x-none/of it":
            session.error_of(request_id, "MethodNotFound")
    unreadable = [message for message in session.messages if message.answers(None)]
    return session, len(unreadable)


@PROCESS.story
def ordinary_with_a_full_log(stage: Stage) -> None:
    """An ordinary session whose log nobody reads."""
    session = stage.spawn(full_stderr=True)
    session.ping()
    session.call("validateConfig", stage.lab.with_config())
    session.ping()
    session.call("shutdown", {"drainMs": 1_000})


@PROCESS.story
def closed_output(stage: Stage) -> str:
    """A host that reads no more, and does not end the input: how the worker ends."""
    session = stage.spawn()
    session.ping()
    session.process.close_output()
    with contextlib.suppress(WorkerGone):  # it may see the closed pipe without writing to it
        session.request("ping")
    return session.exit()


@PROCESS.story
def last_words(stage: Stage) -> tuple[Session, list[int | str], str]:
    """Hundreds of calls, a shutdown and the end of input at once; nothing is read before the process has ended."""
    session = stage.spawn()
    lines = []
    ids: list[int | str] = []
    for n in range(_ALL_OF_THEM + 1):
        method = "shutdown" if n == _ALL_OF_THEM else "validateConfig" if n % 10 == 0 else "ping"
        ids.append(session.next_id())
        session.requests.append((ids[-1], method, {}))
        lines.append(encode({"jsonrpc": "2.0", "id": ids[-1], "method": method, "params": {}}) + b"\n")
    data = b"".join(lines)
    taken = session.process.write_unheard(data, timeout_s=stage.times.moment_s)
    session.send_bytes(data[taken:])
    session.process.close_input()
    session.process.wait_exit(stage.times.moment_s, read=False)  # its answers fit in the pipe: it need not wait for us
    return session, ids, session.exit()


@check(
    "PROC-15",
    part="provoked",
    uses=Uses.OWN,
    why="A log that is read late is no reason to lose a call, and none to die.",
    broken="fails where its log has no room: an exception while logging ends a handler or the worker",
    fix="Let a log wait for room, or drop records; never let it fail a call.",
    source="anthropics/claude-agent-sdk-python#103",
)
def a_full_log_costs_no_answer(lab: Lab) -> None:
    """With a full stderr every message is answered, at the latest once the log is read again."""
    _, unreadable = tell(lab, PROCESS, provoked_with_a_full_log)
    wanted = 10 * len(NO_JSON)
    expect(unreadable == wanted, f"{wanted} lines that are no JSON got {unreadable} answers")


@check(
    "PROC-15",
    part="ordinary",
    severity=Severity.SHOULD,
    uses=Uses.OWN,
    why="Whoever writes to a full pipe waits; a worker that has nothing to say does not.",
    broken="logs each message that it serves",
    fix="Log what somebody must know; put the rest at a level that is off by default.",
    source="anthropics/claude-agent-sdk-python#103",
)
def an_ordinary_session_needs_no_log(lab: Lab) -> None:
    """A session without faults is served from the hello to the shutdown while stderr is full."""
    tell(lab, PROCESS, ordinary_with_a_full_log)


@check(
    "PROC-16",
    uses=Uses.OWN,
    why="A host that closed its end is dead, or done; what runs for it runs for nobody.",
    broken="takes the failure to write for a fault of one call, and serves on",
    fix="Watch the descriptor for errors; end like at the end of input when a write fails.",
    source="hashicorp/go-plugin#10, flanksource/mission-control#3185",
)
def a_closed_stdout_ends_the_worker(lab: Lab) -> None:
    """A worker whose stdout was closed by the host ends, at the latest when it next has something to say."""
    tell(lab, PROCESS, closed_output)


@check(
    "PROC-19",
    uses=Uses.OWN,
    why="The last answers say what became of a sandbox; a host that misses them must look for itself.",
    broken="exits with answers left in a buffer, or in a thread that had yet to write them",
    fix="Flush everything, then exit.",
    source="microsoft/vscode-js-debug#1530",
)
def the_last_words_arrive(lab: Lab) -> None:
    """Five hundred answers and that of the shutdown are all there after the exit."""
    session, ids, cause = tell(lab, PROCESS, last_words)
    missing = [request_id for request_id in ids if len(session.answers(request_id)) != 1]
    expect(not missing, f"{len(missing)} of {len(ids)} calls were not answered once, the first is {missing[:1]}")
    expect(not session.process.unfinished_line, f"half a frame at the end: {session.process.unfinished_line[:120]!r}")
    expect(cause == "exit code 0", f"after a shutdown the worker should end with exit code 0, not {cause}")


# ------------------------------------------------------------------ the log


@check(
    "LOG-1",
    uses=Uses.RECORD,
    why="A host shows a worker's records by their level; one that it cannot read it shows at none.",
    broken="logs JSON objects whose level and message have other names",
    fix="Call them `level` and `message`; plain text is right too.",
    source="cloudfoundry/guardian#121",
)
def a_json_record_has_level_and_message(lab: Lab) -> None:
    """Every line of the log that is a JSON object has a `level` and a `message`."""
    lab.once(read_record)  # a day on which there is much to log
    for session in lab.sessions(sandbox=True):
        for line in session.process.stderr_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # plain text
            if isinstance(record, dict):
                for member in ("level", "message"):
                    found = record.get(member)
                    expect(isinstance(found, str), f"a record has no {member}, but {found!r:.40}: {line[:200]}")
