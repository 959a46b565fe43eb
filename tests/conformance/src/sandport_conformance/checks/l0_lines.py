"""L0: how bytes become lines, however they are cut, and how large a line may be."""

from __future__ import annotations

import json

from sandport_conformance import schema
from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, WorkerGone, expect
from sandport_conformance.schema import Json
from sandport_conformance.session import Id, Session, encode, is_heartbeat
from sandport_conformance.stories import WIRE, Stage, tell

WIDE = "\u00e9 \u20ac \U0001f600"
"""Characters of two, three and four bytes."""
_PIECE_BYTES = 1 << 20
_SLACK_BYTES = 1 << 16
"""So much beyond a ceiling has surely passed it, however a worker reads."""
_SMALL_FRAME_BYTES = 1 << 16
_MANY = 300
_SIZES = (4_095, 4_096, 4_097, 65_535, 65_536, 65_537, 1 << 20)
_ABYSS = 100_000


def filled(template: str, value: str) -> str:
    """A line with a value where it has a percent sign, as it is: what is sent here is not always JSON."""
    return template.replace("%", value)


def own_ceiling(session: Session, name: str) -> int:
    """What the worker itself announced, which is what it holds its host to."""
    limits = session.hello.get("limits")
    found = limits.get(name) if isinstance(limits, dict) else None
    return found if isinstance(found, int) else schema.default_limits()[name]


def ping_of(size: int, request_id: str) -> bytes:
    """A ping whose line has exactly so many bytes."""
    frame: Json = {"jsonrpc": "2.0", "id": request_id, "method": "ping", "params": {"pad": ""}}
    frame["params"]["pad"] = "x" * (size - len(encode(frame)))
    return encode(frame)


def nested_ping(depth: int, request_id: str) -> bytes:
    """A ping in which exactly so many objects and arrays are open at once."""
    arrays = depth - 2  # the message is one, its params are another
    return b'{"jsonrpc":"2.0","id":"%s","method":"ping","params":{"deep":%s%s}}' % (
        request_id.encode(),
        b"[" * arrays,
        b"]" * arrays,
    )


@check(
    "FRAME-3",
    why="A terminal, or a host on Windows, may end a line with two bytes; JSON takes the first for white space.",
    broken="takes the carriage return for a part of the message, and refuses it",
    fix="Give the line to the JSON parser as it is, or cut one 0x0D from its end.",
)
def a_carriage_return_is_white_space(lab: Lab) -> None:
    """A message that ends with a carriage return and a line feed is served."""
    worker = lab.worker
    worker.send_bytes(b'{"jsonrpc":"2.0","id":"with a return","method":"ping","params":{}}\r\n')
    body = worker.answer("with a return").body
    expect("result" in body, f"the ping was refused: {body.get('error')!r:.200}")


@check(
    "FRAME-9",
    why="A pipe has no messages: a read brings the end of one line and the beginning of the next, or half a character.",
    broken="decodes or parses each piece that it reads for itself",
    fix="Gather bytes until a line feed, then decode the line.",
)
def bytes_come_in_any_pieces(lab: Lab) -> None:
    """A line that comes byte by byte is one message, and so is each of many lines that come at once."""
    worker = lab.worker
    slow = encode({"jsonrpc": "2.0", "id": WIDE, "method": "ping"}) + b"\n"
    for at in range(len(slow)):
        worker.send_bytes(slow[at : at + 1])
        worker.process.wait_taken(timeout_s=lab.times.answer_s)
    expect("result" in worker.answer(WIDE).body, "a ping that came byte by byte was refused")
    names = [f"{n} of many" for n in range(_MANY)]
    many = b"".join(encode({"jsonrpc": "2.0", "id": name, "method": "ping"}) + b"\n" for name in names)
    worker.send_bytes(many, pieces=(len(many) - 7,))
    for name in names:
        worker.answer(name)
    worker.ping()
    twice = [name for name in names if len(worker.answers(name)) > 1]
    expect(not twice, f"answered more than once: {twice[:5]}")


@check(
    "FRAME-10",
    part="bytes",
    why="A buffer of 4 or 64 KiB is enough for every test and too small for the first real file.",
    broken="reads lines through a reader with a limit of its own, below the one that it agreed to",
    fix="Count the bytes of a line against `frameBytes`, and nothing else.",
    source="TokenRhythm/opensquilla#953, lilhammerfun/clumsies#100",
)
def a_message_may_be_as_large_as_agreed(lab: Lab) -> None:
    """Messages of every size are served, up to exactly the agreed `frameBytes`."""
    worker = lab.worker
    for size in (*_SIZES, lab.facts.limits["frameBytes"]):
        request_id = f"{size} bytes"
        worker.send_line(ping_of(size, request_id))
        expect("result" in worker.answer(request_id).body, f"a message of {size} bytes was refused")


@check(
    "FRAME-10",
    part="depth",
    why="A peer keeps to the ceiling that was agreed; one that counts what lies in strings refuses innocent text.",
    broken="counts brackets inside strings, or refuses the deepest level that is allowed",
    fix="Count arrays and objects that are open at once, and skip strings with their escapes.",
)
def a_message_may_be_as_deep_as_agreed(lab: Lab) -> None:
    """Messages are served down to exactly the agreed `depth`, and brackets in strings do not count."""
    worker = lab.worker
    depth = lab.facts.limits["depth"]
    worker.send_line(nested_ping(depth, "deep"))
    expect("result" in worker.answer("deep").body, f"a message of {depth} levels was refused")
    text = '\\" \\\\' + "[" * (depth + 1) + "{" * (depth + 1)
    worker.send_line(filled('{"jsonrpc":"2.0","id":"flat","method":"ping","params":{"text":"%"}}', text))
    expect("result" in worker.answer("flat").body, "brackets in a string were counted")
    wide = ",".join(["[]"] * 1000)
    worker.send_line(filled('{"jsonrpc":"2.0","id":"wide","method":"ping","params":{"all":[%]}}', wide))
    expect("result" in worker.answer("wide").body, "arrays beside each other were counted as if inside each other")


# ------------------------------------------------------------------ beyond a ceiling


def expect_refused_end(session: Session, name: str) -> None:
    """The worker has answered ParseFailed, naming a ceiling, and ends by itself."""
    error = session.error_of(None, "ParseFailed")
    told = json.dumps(error)
    expect(
        name in told or str(own_ceiling(session, name)) in told,
        f"the error should name the ceiling {name} ({own_ceiling(session, name)}): {told[:300]}",
    )
    session.exit()
    cause = session.process.exit_cause
    expect(cause is not None and cause.signal is None, f"the worker should end by itself, but it died of {cause}")
    expect(cause is None or cause.code != 0, "a worker that ends because of its host's mistake exits with 0")
    bodies = [message.body for message in session.messages if not is_heartbeat(message.body.get("id"))]
    served = [body for body in bodies if "result" in body][1:]  # the first is the hello
    expect(not served, f"what passed the ceiling was served: {served!r:.200}")


@WIRE.story
def endless_line(stage: Stage) -> None:
    """More bytes than a frame may have, and no line feed."""
    session = stage.spawn()
    left = own_ceiling(session, "frameBytes") + _SLACK_BYTES
    _send_until_it_hangs_up(session, [b"x" * min(_PIECE_BYTES, left - at) for at in range(0, left, _PIECE_BYTES)])
    expect_refused_end(session, "frameBytes")


@WIRE.story
def long_line(stage: Stage) -> None:
    """A whole message that is one byte too long."""
    session = stage.spawn()
    _send_until_it_hangs_up(session, [ping_of(own_ceiling(session, "frameBytes") + 1, "too long") + b"\n"])
    expect_refused_end(session, "frameBytes")


@WIRE.story
def deep_message(stage: Stage) -> None:
    """A message that is one level too deep."""
    session = stage.spawn()
    session.send_line(nested_ping(own_ceiling(session, "depth") + 1, "too deep"))
    expect_refused_end(session, "depth")


@WIRE.story
def bottomless_message(stage: Stage) -> None:
    """A message as deep as no stack."""
    session = stage.spawn()
    _send_until_it_hangs_up(session, [nested_ping(_ABYSS, "bottomless") + b"\n"])
    expect_refused_end(session, "depth")


def _send_until_it_hangs_up(session: Session, pieces: list[bytes]) -> None:
    try:
        for piece in pieces:
            session.send_bytes(piece)
    except WorkerGone:
        pass  # it may end in the middle: what it said before that is judged


@check(
    "FRAME-12",
    part="endless",
    uses=Uses.OWN,
    why="A line without an end would fill the machine's memory, and nothing after it could ever be read.",
    broken="gathers bytes until a line feed comes, whatever their number",
    fix="Count while reading: past `frameBytes` answer ParseFailed with id null, name the ceiling, and end.",
    source="modelcontextprotocol/typescript-sdk#2245, modelcontextprotocol/typescript-sdk#88",
)
def an_endless_line_ends_the_worker(lab: Lab) -> None:
    """A line that passes `frameBytes` is refused before it ends, and so does the worker."""
    tell(lab, WIRE, endless_line)


@check(
    "FRAME-12",
    part="line",
    uses=Uses.OWN,
    why="A ceiling is agreed by both; one that is kept only now and then is none.",
    broken="looks at the length of what is unfinished, and not of what a read completes",
    fix="Compare the length of each line too.",
)
def a_line_that_is_too_long_ends_the_worker(lab: Lab) -> None:
    """A whole line of one byte more than `frameBytes` is refused, and the worker ends."""
    tell(lab, WIRE, long_line)


@check(
    "FRAME-13",
    part="level",
    uses=Uses.OWN,
    why="Parsers recurse; a ceiling that both know is better than the stack's.",
    broken="parses whatever depth comes",
    fix="Count what is open before parsing: past `depth` answer ParseFailed with id null, name the ceiling, and end.",
)
def a_message_that_is_too_deep_ends_the_worker(lab: Lab) -> None:
    """A message of one level more than `depth` is refused, and the worker ends."""
    tell(lab, WIRE, deep_message)


@check(
    "FRAME-13",
    part="stack",
    uses=Uses.OWN,
    why="A hundred thousand brackets are 100 KB on the wire and the end of a recursive parser's stack.",
    broken="parses first and counts afterwards, and dies of it",
    fix="Count what is open in the bytes, before the parser sees them.",
)
def no_depth_breaks_the_stack(lab: Lab) -> None:
    """A message of a hundred thousand levels is refused like one that is a little too deep."""
    tell(lab, WIRE, bottomless_message)


# ------------------------------------------------------------------ what a worker may write


def greet_with_small_frames(stage: Stage) -> Session:
    """A session whose host reads no line longer than 64 KiB."""
    session = stage.spawn(greet=False)
    session.greet(limits={**session.offered["limits"], "frameBytes": _SMALL_FRAME_BYTES})
    return session


def expect_small_answer(session: Session, request_id: Id) -> None:
    """A request is answered by a result that fits in a small frame, or TooLarge; and the worker serves on."""
    answer = session.answer(request_id)
    longest = max((len(message.line) for message in session.messages), default=0)
    expect(
        longest <= _SMALL_FRAME_BYTES,
        f"a line of {longest} bytes came, though {_SMALL_FRAME_BYTES} were agreed (limits.frameBytes)",
    )
    if "error" in answer.body:
        session.error_of(request_id, "TooLarge")
    session.ping()


@WIRE.story
def large_result(stage: Stage) -> None:
    """A config of which there is more to say than fits in a frame.

    Each key is an issue, and longer as such. Where any key is allowed the config comes back, which is longer too
    wherever it is written in ASCII.
    """
    session = greet_with_small_frames(stage)
    request_id = session.request("validateConfig", {"config": {f"k{n:04}": "\u00e9" * 12 for n in range(1_500)}})
    expect_small_answer(session, request_id)


@WIRE.story
def large_output(stage: Stage) -> None:
    """A command whose whole output is wanted in its result, and does not fit in a frame."""
    session = greet_with_small_frames(stage)
    size = _SMALL_FRAME_BYTES * 2
    request_id = stage.sandbox(session).start(stage.lab.command("flood", bytes=size), outputLimitBytes=size)
    expect_small_answer(session, request_id)


@check(
    "FRAME-14",
    part="config",
    uses=Uses.OWN,
    why="A host ends a worker that passes its ceiling: one large answer would cost every other call.",
    broken="writes any result, whatever its length",
    fix="Measure the frame before it is written; where it is too long answer TooLarge.",
)
def a_result_that_does_not_fit_is_an_error(lab: Lab) -> None:
    """A result that would be longer than the agreed `frameBytes` is answered TooLarge instead."""
    tell(lab, WIRE, large_result)


@check(
    "FRAME-14",
    part="output",
    uses=Uses.OWN,
    needs=Needs(commands=("flood",)),
    why="Output is what grows beyond a frame in practice.",
    broken="puts the whole output of a command into its result",
    fix="Keep no more than fits, or answer TooLarge.",
)
def output_that_does_not_fit_is_no_longer_line(lab: Lab) -> None:
    """Kept output that would not fit in a frame makes no longer line: less is kept, or the answer is TooLarge."""
    tell(lab, WIRE, large_output)


# ------------------------------------------------------------------ a host that does not read


class Stalled:
    """What became of the answers that a worker had to give while nobody read them.

    Attributes:
        session: The worker.
        asked: The ids of the requests, in the order in which they were sent, with their methods.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.asked: list[tuple[str, str]] = []

    def line(self, method: str, request_id: str, params: Json) -> bytes:
        """A request, not sent yet."""
        self.asked.append((request_id, method))
        self.session.requests.append((request_id, method, params))
        return encode({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}) + b"\n"


@WIRE.story
def stalled_host(stage: Stage) -> Stalled:
    """A host that sends some megabytes of requests, reads nothing until the worker waits for it, and then all of it."""
    session = stage.spawn()
    told = Stalled(session)
    config = {f"k{n:02}" + "y" * 400: n for n in range(50)}
    lines = []
    for n in range(24):
        # Large answers of two kinds: those that the reader of most workers gives itself, and those of its handlers.
        lines.append(told.line("validateConfig", f"c{n}", {"config": config}))
        if n % 4 == 0:
            # Too late for most, and in the middle of a write for some: no answer may be cut by it.
            lines.append(encode({"jsonrpc": "2.0", "method": "cancel", "params": {"id": f"c{n}"}}) + b"\n")
        lines.append(told.line("ping", f"p{n}-" + "x" * (50_001 + n), {}))
    data = b"".join(lines)
    taken = session.process.write_unheard(data, timeout_s=stage.times.answer_s)
    session.send_bytes(data[taken:])
    for request_id, _ in told.asked:
        try:
            session.answer(request_id)
        except Failed:
            break  # which rule that breaks is for the checks to say
    return told


@check(
    "FRAME-11",
    uses=Uses.OWN,
    why="Two writers, or one that forgets the rest of a write, make one line of two answers: both are lost.",
    broken="writes from several threads without a lock, or goes on after a short write as if all had been taken",
    fix="One writer that writes each frame to its end before it takes the next.",
    source="MongLong0214/logic-pro-mcp#232, microsoft/vs-streamjsonrpc#55",
)
def frames_are_written_whole(lab: Lab) -> None:
    """Large answers of several handlers, read by a host that is late, come as whole lines."""
    session = tell(lab, WIRE, stalled_host).session
    for message in session.faults(after=session.begins):
        raise Failed(f"a line is no message ({message.fault}): {message.line[:60]!r}...{message.line[-60:]!r}")
    expect(not session.process.unfinished_line, f"half a frame: {session.process.unfinished_line[:120]!r}")
