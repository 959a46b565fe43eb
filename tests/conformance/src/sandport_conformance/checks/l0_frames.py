"""L0: what a line is, and what becomes of one that is no message."""

from __future__ import annotations

from functools import partial

from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.messages import Message, same_id
from sandport_conformance.outcomes import Failed, WorkerGone, expect
from sandport_conformance.session import Session

from .l0_messages import expect_refusals

SEPARATORS = "a\u2028b\u2029c\u0085d"
"""What some line readers take for an end of line, and the wire does not; a string of JSON may hold them as they are."""


def _has_id(request_id: str, message: Message) -> bool:
    return same_id(message.body.get("id"), request_id)


def strays(session: Session) -> list[Message]:
    """Lines that are no JSON object; what a runtime says before the worker's first message is for HELLO-15."""
    return session.faults("FRAME-1", after=session.begins)


@check(
    "FRAME-1",
    uses=Uses.RECORD,
    why="A reader can only find the next message when each line is one; a stray print takes an answer with it.",
    broken="prints a debugging line on stdout while it serves",
    fix="Give the wire a descriptor of its own at the start, then point descriptor 1 at stderr.",
    source="openlawlibrary/pygls#240, openlawlibrary/pygls#133",
)
def every_line_is_a_message(lab: Lab) -> None:
    """Every line on stdout is one JSON text, and the last one has its line feed too."""
    for session in lab.sessions(sandbox=True):
        for message in strays(session):
            raise Failed(f"a line is no message ({message.fault}): {message.line[:120]!r}")
        process = session.process
        if process.exit_cause is not None and process.exit_cause.code == 0:
            expect(not process.unfinished_line, f"the last line has no line feed: {process.unfinished_line[:120]!r}")


@check(
    "FRAME-2",
    why="U+2028, U+0085 and their like are legal inside a JSON string; a reader that splits there breaks the message.",
    broken="reads its stdin with a line reader that also splits at Unicode's separators",
    fix="Split the bytes at 0x0A, and decode each line afterwards.",
    source="earendil-works/pi#1910, anthropics/claude-agent-sdk-typescript#137",
)
def only_a_line_feed_ends_a_frame(lab: Lab) -> None:
    """A message that contains other line separators is read as one message."""
    # A carriage return is white space between two members, and no end either.
    sent = {
        "a carriage return": ("with a return", '{"jsonrpc":"2.0",\r"id":"with a return","method":"ping","params":{}}'),
        "U+2028, U+2029 and U+0085": (SEPARATORS, '{"jsonrpc":"2.0","id":"' + SEPARATORS + '","method":"ping"}'),
    }
    wrong = []
    for what, (request_id, line) in sent.items():
        lab.worker.send_line(line)
        try:
            answer = lab.worker.wait(
                partial(_has_id, request_id),
                f"answer to a ping that has {what} in it",
                timeout_s=lab.times.answer_s,
            )
            expect("result" in answer.body, f"a ping with {what} was refused: {answer.body.get('error')!r:.200}")
        except WorkerGone:
            raise
        except Failed as failure:
            wrong.append(str(failure))
    expect(not wrong, "; ".join(wrong))


@check(
    "FRAME-4",
    why="A wrapper or a terminal may add an empty line; it says nothing and must cost nothing.",
    broken="answers an empty line with an error, or ends",
    fix="Skip a line that holds nothing but white space before it is parsed.",
)
def a_blank_line_is_ignored(lab: Lab) -> None:
    """Blank lines are ignored, and a carriage return before the line feed too."""
    worker = lab.worker
    seen = len(worker.messages)
    worker.send_bytes(b"\n  \t\n\r\n")
    worker.send_bytes(b'{"jsonrpc":"2.0","id":"after","method":"ping","params":{}}\r\n')
    worker.wait(lambda message: message.answers("after"), "answer to a ping", timeout_s=lab.times.answer_s)
    answers = [message for message in worker.messages[seen:] if message.kind == "answer"]
    expect(len(answers) == 1, f"blank lines were answered: {[message.body for message in answers[:-1]]}")


@check(
    "FRAME-6",
    why="One bad line must not cost the connection: it may be a print of the host's own, or a line cut in two.",
    broken="ends, or falls silent, after a line that is no JSON",
    fix="Answer it with ParseFailed and id null, then read the next line.",
    source="modelcontextprotocol/python-sdk#2454",
)
def a_bad_line_is_one_error(lab: Lab) -> None:
    """A line that is no JSON is answered with ParseFailed and id null, and the next one is served."""
    lines = (b"this is no JSON", b'{"jsonrpc":"2.0","id":1,', b"\xff\xfe", b'{"a":NaN}')
    expect_refusals(lab.worker, [(line, None) for line in lines], "ParseFailed")


@check(
    "MSG-1",
    why='A host finds the caller of an answer by its id; 1 and "1" are two callers.',
    broken="turns every id into a string, or into a number",
    fix="Keep the id as the JSON value that it was, and send it back.",
    source="modelcontextprotocol/python-sdk#192, modelcontextprotocol/python-sdk#961",
)
def an_id_comes_back_as_it_was(lab: Lab) -> None:
    """Ids come back in the same type and value."""
    worker = lab.worker
    for request_id in (0, "0", -7, "", "a b\u00e9\U0001f600", 9_007_199_254_740_993, 'quote " and \\'):
        worker.request("ping", {}, request_id=request_id)
        worker.answer(request_id)
