"""L0: what is a message, what is none, and what a worker says to each."""

from __future__ import annotations

from collections.abc import Iterable

from sandport_conformance import schema
from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.messages import Message
from sandport_conformance.outcomes import Failed, TimedOut, WorkerGone, expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.schema import Json
from sandport_conformance.session import Session, encode
from sandport_conformance.stories import WIRE, Stage, tell

from .l0_lines import filled

NO_MESSAGES: tuple[tuple[str, str | None], ...] = (
    ("{}", None),
    ("7", None),
    ('"ping"', None),
    ("null", None),
    ("true", None),
    ('{"jsonrpc":"2.0"}', None),
    ('{"id":"no version","method":"ping"}', "no version"),
    ('{"jsonrpc":"1.0","id":"old","method":"ping"}', "old"),
    ('{"jsonrpc":2.0,"id":"number","method":"ping"}', "number"),
    ('{"jsonrpc":"2.0","id":"no method"}', "no method"),
    ('{"jsonrpc":"2.0","id":"odd method","method":7}', "odd method"),
    ('{"jsonrpc":"2.0","id":"null method","method":null}', "null method"),
    ('{"jsonrpc":"2.0","id":"an answer","result":{}}', "an answer"),
)
"""JSON that is no request and no notification, and the id that can be read in it."""

NO_IDS = ("null", "true", "false", "1.5", "[]", '["a"]', "{}", '{"a":1}')

NO_JSON = (
    b"no JSON",
    b'{"jsonrpc":"2.0","id":1,',
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}}',
    b"{'jsonrpc':'2.0'}",
    b'\xff{"jsonrpc":"2.0","id":1,"method":"ping"}',
)

FUTURE = {"x-future": {"deep": [{"er": None}]}, "x-more": True}
"""Members that no reader of version 1 knows."""


def answers_since(worker: Session, seen: int) -> list[Message]:
    """The answers that came after so many messages, up to a pong that is not among them."""
    pong = worker.request("ping")
    worker.result_of(pong)
    return [message for message in worker.messages[seen:] if message.kind == "answer" and not message.answers(pong)]


def expect_refusals(worker: Session, lines: Iterable[tuple[bytes, str | None]], condition: str) -> None:
    """Send lines, each with the id that can be read in it: each gets one error; the failure tells of all that do not.

    Raises:
        Failed: Some were not refused so.
        WorkerGone: It ended; what came before is told too.
    """
    wrong: list[str] = []
    patience_s = worker.times.answer_s
    for line, own_id in lines:
        try:
            expect_one_refusal(worker, line, condition, own_id=own_id, timeout_s=patience_s)
        except WorkerGone as gone:
            raise WorkerGone("; ".join([*wrong, str(gone)])) from gone
        except TimedOut as silence:
            wrong.append(str(silence))
            patience_s = worker.times.moment_s  # a worker that was silent once is not waited for again
        except Failed as failure:
            wrong.append(str(failure))
    if wrong:
        raise Failed("; ".join(wrong))


def expect_one_refusal(
    worker: Session, line: bytes, condition: str, *, own_id: str | None = None, timeout_s: float | None = None
) -> None:
    """Send a line; exactly one error comes, of this condition, whose id is null or the line's own."""
    seen = len(worker.messages)
    shown = f"{line[:100]!r}"
    worker.send_line(line)
    wanted = f"answer to {shown}"
    limit_s = worker.times.answer_s if timeout_s is None else timeout_s
    worker.wait(lambda message: message.kind == "answer", wanted, timeout_s=limit_s, after=seen)
    answers = answers_since(worker, seen)
    expect(len(answers) == 1, f"{shown} should be answered with one error, but {len(answers)} answers came")
    body = answers[0].body
    expect("error" in body, f"{shown} was answered with a result: {body.get('result')!r:.100}")
    error = body["error"]
    faults = schema.faults_of_error(error)
    expect(not faults, f"the error to {shown} does not fit the schema: {'; '.join(faults[:3])}")
    code = schema.error_code(condition)
    expect(error["code"] == code, f"{shown} should be answered {condition} ({code}), not {error['code']}")
    allowed = (None,) if own_id is None else (None, own_id)
    expect(body["id"] in allowed, f"the error to {shown} has the id {body['id']!r:.60}, not {allowed[-1]!r}")


def expect_same_answer(worker: Session, method: str, plain: Json, other: Json, what: str) -> None:
    """Two requests get the same answer, or an error of the same code: without credentials that is all there is."""
    answers = []
    for params in (plain, other):
        body = worker.answer(worker.unthrottled(worker.request(method, params))).body
        answers.append(body["error"].get("code") if "error" in body else gist(method, body["result"]))
    one, two = answers
    expect(one == two, f"{method} with {what} is answered {two!r:.200}, without {one!r:.200}")


def gist(method: str, result: Json) -> object:
    """What of a result does not change from one call to the next."""
    if method == "listLeases":
        return sorted(lease.get("sandboxId", "") for lease in result.get("leases", []))
    return result if method == "validateConfig" else "a result"


@check(
    "MSG-3",
    why="A host with a fault learns of it only from an answer; silence looks like a slow worker.",
    broken="drops JSON that is no message, or takes what has another version for one",
    fix="Look at `jsonrpc`, `method` and `id`; answer InvalidRequest where they are not those of a message.",
)
def json_that_is_no_message_is_refused(lab: Lab) -> None:
    """JSON that is no request and no notification is answered InvalidRequest."""
    expect_refusals(lab.worker, [(line.encode(), own_id) for line, own_id in NO_MESSAGES], "InvalidRequest")


@check(
    "MSG-4",
    why="Batches have no use here and cost every reader a second way; a host that sends one must be told.",
    broken="serves what is in an array",
    fix="Answer any array with one InvalidRequest whose id is null.",
    source="modelcontextprotocol/modelcontextprotocol#416",
)
def a_batch_is_refused_as_a_whole(lab: Lab) -> None:
    """An array is answered with one InvalidRequest, and nothing in it is served."""
    ping = '{"jsonrpc":"2.0","id":"in a batch","method":"ping"}'
    note = '{"jsonrpc":"2.0","method":"initialized"}'
    batches = ("[]", f"[{ping}]", f" [{ping},{ping}]", f"[{note}]", "[1,2]", "[[]]")
    expect_refusals(lab.worker, [(line.encode(), None) for line in batches], "InvalidRequest")


@check(
    "MSG-5",
    why="An id that cannot be compared exactly cannot find its caller.",
    broken="serves a request whose id is null, a fraction or an object",
    fix="Take strings and integers; answer the others InvalidRequest with id null.",
)
def an_odd_id_is_refused(lab: Lab) -> None:
    """A request whose id is neither string nor integer is answered InvalidRequest with id null."""
    lines = [filled('{"jsonrpc":"2.0","id":%,"method":"ping","params":{}}', text) for text in NO_IDS]
    expect_refusals(lab.worker, [(line.encode(), None) for line in lines], "InvalidRequest")


@check(
    "MSG-7",
    why="An answer that nobody waits for is taken for the answer to something else.",
    broken="answers a message without an id, mostly with an error",
    fix="Where a message has no id, log what is wrong with it and say nothing.",
)
def a_notification_is_never_answered(lab: Lab) -> None:
    """Notifications are not answered: known or not, with wrong params, or named like a request."""
    worker = lab.worker
    seen = len(worker.messages)
    for note in (
        {"method": "cancel", "params": {"id": "nobody's"}},
        {"method": "cancel", "params": {}},
        {"method": "cancel", "params": ["nobody's"]},
        {"method": "cancel"},
        {"method": "credit", "params": {"id": "nobody's", "stream": "stdout", "bytes": 1}},
        {"method": "credit", "params": {"id": 1, "stream": 7, "bytes": "many"}},
        {"method": "initialized", "params": {}},
        {"method": "ping", "params": {}},
        {"method": "validateConfig", "params": {"config": 7}},
        {"method": "x-future/tick", "params": {"n": 1}},
    ):
        worker.send({"jsonrpc": "2.0", **note})
    answers = answers_since(worker, seen)
    expect(not answers, f"notifications were answered: {[message.body for message in answers]!r:.400}")


@check(
    "MSG-8",
    why="A newer host says more; a reader that refuses what it does not know makes every addition a new version.",
    broken="holds messages or params to a closed list of members",
    fix="Read the members that you know, and pass over the rest.",
)
def unknown_members_are_ignored(lab: Lab) -> None:
    """Members of the future are passed over: in the message, in its params, and deeper."""
    worker = lab.worker
    worker.send({"jsonrpc": "2.0", "id": "outside", "method": "ping", "params": {}, **FUTURE})
    expect("result" in worker.answer("outside").body, "a message with further members was refused")
    future = {"_meta": {"deadlineMs": 60_000, **FUTURE}, **FUTURE}
    worker.call("ping", future)
    for method in ("validateConfig", "probe"):
        expect_same_answer(worker, method, lab.with_config(), lab.with_config(**future), "members of the future")


@check(
    "MSG-9",
    why="Notifications are how a newer host tells what an older worker need not know.",
    broken="ends, or falls silent, after a notification that it does not know",
    fix="Ignore it.",
)
def unknown_notifications_are_ignored(lab: Lab) -> None:
    """Notifications of the future change nothing, whatever their params."""
    worker = lab.worker
    for note in (
        {"method": "x-future/tick", "params": {"n": 1}},
        {"method": "x-future/tick"},
        {"method": "x-future/tick", "params": [1, 2]},
        {"method": "x-future/tick", "params": None},
        {"method": ""},
        {"method": "ready", "params": {}},
    ):
        worker.send({"jsonrpc": "2.0", **note})
        worker.ping()


@check(
    "MSG-19",
    why="JSON-RPC lets a caller leave `params` out; many do where there is nothing to say.",
    broken="refuses a request without params, or fails inside",
    fix="Take missing params for an empty object.",
)
def missing_params_are_an_empty_object(lab: Lab) -> None:
    """Requests without params are served, and so is the end of the hello."""
    worker = lab.worker
    for method in ("ping", "validateConfig"):
        request_id = f"{method} without params"
        worker.requests.append((request_id, method, {}))
        worker.send({"jsonrpc": "2.0", "id": request_id, "method": method})
        worker.result_of(request_id)
    session = lab.spawn(greet=False)
    session.greet(initialized=False)
    session.send({"jsonrpc": "2.0", "method": "initialized"})
    session.wait(lambda message: message.method == "ready", "`ready`", timeout_s=lab.times.start_s)
    session.ping()


@check(
    "MSG-20",
    part="calls",
    why="Some languages write null for what is not there, others leave it out; both must mean the same.",
    broken="takes null for a value, or refuses it",
    fix="Treat null like a missing member, wherever null is the default.",
)
def null_is_the_same_as_missing(lab: Lab) -> None:
    """A member that is null by default may be sent as null."""
    worker = lab.worker
    worker.call("ping", {"_meta": None})
    meta = {"deadlineMs": None, "traceparent": None}
    for method, nulls in (
        ("validateConfig", {"_meta": meta}),
        ("probe", {"_meta": None}),
        ("listLeases", {"sandboxId": None, "cursor": None, "_meta": meta}),
    ):
        expect_same_answer(worker, method, lab.with_config(), lab.with_config(**nulls), f"null for {', '.join(nulls)}")


@check(
    "MSG-20",
    part="command",
    needs=Needs(commands=("print",)),
    why="A command has the most members that may be null; a null `cwd` or `timeoutMs` is no value either.",
    broken="takes a null `timeoutMs` for no time at all, or a null `user` for a user",
    fix="Treat null like a missing member, wherever null is the default.",
)
def a_command_takes_null_for_missing(lab: Lab) -> None:
    """A command runs the same where its optional members are null."""
    sandbox = lab.sandbox
    argv = lab.command("print", text="the same")
    nulls = {"shell": None, "cwd": None, "user": None, "timeoutMs": None, "_meta": None}
    result = sandbox.execute(argv, **nulls)
    expect(result.get("ended") == "exited" and result.get("exitCode") == 0, f"it ended {result.get('ended')!r}")
    expect(output_of(result) == b"the same", f"it printed {output_of(result)!r:.80}")


@WIRE.story
def volley(stage: Stage) -> None:
    """A hundred messages that must be refused, of every kind, all at once."""
    session = stage.spawn()
    bad = [line.encode() for line, _ in NO_MESSAGES]
    bad += [filled('{"jsonrpc":"2.0","id":%,"method":"ping"}', text).encode() for text in NO_IDS]
    bad += [b"[]", *NO_JSON]
    bad += [encode({"jsonrpc": "2.0", "id": f"u{n}", "method": "x-none/of it"}) for n in range(4)]
    bad += [encode({"jsonrpc": "2.0", "id": f"e{n}", "method": "execute", "params": {}}) for n in range(4)]
    bad_messages = bad * 3
    seen = len(session.messages)
    # The same id again is no fault here: the one before it was refused, or is still open, and both are errors.
    session.send_bytes(b"".join(line + b"\n" for line in bad_messages))

    def answered() -> list[Message]:
        return [message for message in session.messages[seen:] if message.kind == "answer"]

    session.pump(lambda: len(answered()) >= len(bad_messages), stage.times.answer_s)
    answers = answers_since(session, seen)
    errors = [message for message in answers if "error" in message.body]
    expect(
        len(errors) == len(answers) == len(bad_messages),
        f"{len(bad_messages)} bad messages got {len(errors)} errors and {len(answers) - len(errors)} results",
    )


@check(
    "MSG-22",
    uses=Uses.OWN,
    why="A connection carries every lease of its worker: one bad message must not end them all, nor the hundredth one.",
    broken="hangs up, or stops answering, after a number of bad messages",
    fix="Answer each for itself and read on; only a ceiling that was passed ends a connection.",
    source="modelcontextprotocol/python-sdk#2454",
)
def a_worker_serves_on_after_any_number_of_refusals(lab: Lab) -> None:
    """A hundred refused messages of every kind, all at once, are answered one by one, and the next is served."""
    tell(lab, WIRE, volley)
