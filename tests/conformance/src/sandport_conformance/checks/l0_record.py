"""L0: what must hold for every line that a worker ever wrote, read once at the end of the run."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from sandport_conformance import schema
from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.members import Twice, half_pair, no_member_twice
from sandport_conformance.messages import Message, same_id
from sandport_conformance.outcomes import Failed, expect
from sandport_conformance.schema import Json
from sandport_conformance.session import Session

from .l0_lines import WIDE, filled
from .l0_messages import NO_IDS, NO_JSON, NO_MESSAGES
from .l0_text import HALF_PAIRS

_REFUSED_BY_THE_WIRE = ("ParseFailed", "InvalidRequest", "MethodNotFound", "NotInitialized")
"""Nothing was given to a handler for these, so that nothing can have been dispatched."""
_UNKNOWN_SANDBOX = "sp" + "z" * 26


class Fraction(float):
    """A number that was written with a fraction or an exponent."""


@dataclass(slots=True)
class Record:
    """What every line of the run says.

    Attributes:
        broken: The first line that breaks a requirement, by that, with its session.
        errors: How many errors were answered.
    """

    broken: dict[str, tuple[Session, str]] = field(default_factory=dict)
    errors: int = 0

    def add(self, requirement: str, session: Session, text: str) -> None:
        """Keep the first line that breaks a requirement."""
        self.broken.setdefault(requirement, (session, text))


def odd_day(lab: Lab) -> None:
    """A session in which the host says whatever makes a worker write something unusual."""
    session = lab.spawn()
    sandbox = {"sandboxId": _UNKNOWN_SANDBOX}
    for text in (WIDE, "\u2028", "", 'quote " \\', "x" * 10_000):
        session.request("ping", {}, request_id=f"p{text}")
        session.request(f"x-none/{text}", {}, request_id=f"m{text}")
        session.request("validateConfig", {"config": {text: text}}, request_id=f"c{text}")
    for half in HALF_PAIRS:
        session.send_line(filled('{"jsonrpc":"2.0","id":"h%","method":"ping"}', half))
        session.send_line(filled('{"jsonrpc":"2.0","id":"m1","method":"x-none/%"}', half))
        session.send_line(
            filled('{"jsonrpc":"2.0","id":"c1","method":"validateConfig","params":{"config":{"a":"%"}}}', half)
        )
        session.send_line(
            filled('{"jsonrpc":"2.0","id":"c2","method":"validateConfig","params":{"config":{"%":1}}}', half)
        )
    for huge in ("1e999", "-1e999", "1.0", "1e3"):
        # JSON, but beyond the numbers of most languages: read as infinity by many, and then written as such.
        session.send_line(filled('{"jsonrpc":"2.0","id":"n1","method":"ping","params":{"x":%}}', huge))
        session.send_line(
            filled('{"jsonrpc":"2.0","id":"n2","method":"validateConfig","params":{"config":{"a":%}}}', huge)
        )
        session.send_line(filled('{"jsonrpc":"2.0","id":"n3","method":"listLeases","params":{"cursor":%}}', huge))
    for line in (*NO_JSON, *(text.encode() for text, _ in NO_MESSAGES)):
        session.send_line(line)
    for text in NO_IDS:
        session.send_line(filled('{"jsonrpc":"2.0","id":%,"method":"ping"}', text))
    session.request("initialize", session.offered)
    session.request("execute", {**sandbox, "argv": ["true"]})
    session.request("destroyLease", sandbox)
    session.request("execute", {"sandboxId": "none", "argv": []})
    session.request("acquireLease", {"sandboxId": 7})
    session.request("attachLease", {})
    session.notify("x-future/tick", {"n": 1})
    session.ping()
    session.call("shutdown", {"drainMs": 1_000})
    session.exit()


def read_record(lab: Lab) -> Record:
    """Every line of every session, the odd day and the tour among them."""
    with contextlib.suppress(Failed):  # what a worker fails at there has checks of its own; what it wrote is read here
        odd_day(lab)
    record = Record()
    for session in lab.sessions(sandbox=True):
        for message in session.messages:
            read_message(record, session, message)
    return record


def read_message(record: Record, session: Session, message: Message) -> None:
    """Judge one line."""
    shown = f"{message.line[:200]!r}"
    if message.fault is not None:
        record.add(message.breaks, session, f"{message.fault}: {shown}")
    fractions: list[str] = []

    def fraction(text: str) -> Fraction:
        fractions.append(text)
        return Fraction(text)

    try:
        body = json.loads(message.line, object_pairs_hook=no_member_twice, parse_float=fraction)
    except Twice as twice:
        record.add("MSG-18", session, f"the member {twice} stands twice in one object: {shown}")
        body = json.loads(message.line, parse_float=fraction)
    except (ValueError, RecursionError):
        return  # no JSON at all, which is another requirement's
    if half := half_pair(body):
        record.add("FRAME-18", session, f"half a surrogate pair in {half!r:.80}: {shown}")
    if not isinstance(body, dict):
        return
    if fractions:
        for text in _fractions(session, body):
            record.add("MSG-17", session, f"{text}: {shown}")
    for text in _out_of_range(session, body):
        record.add("MSG-23", session, f"{text}: {shown}")
    if "error" in body and "method" not in body:
        record.errors += 1
        for requirement, text in _faults_of_error(body["error"]):
            record.add(requirement, session, f"{text}: {shown}")


def _fractions(session: Session, body: Json) -> list[str]:
    """Where an integer of the protocol was written with a fraction or an exponent."""
    root = schema.protocol()
    found = ["the id is an integer"] if isinstance(body.get("id"), Fraction) else []
    rule, value = _ruled(session, body)
    fractions = [fault for fault in schema.faults(value, rule, root, "it") if "not of type integer" in fault]
    # What is no number at all is another fault; a whole one in its place would be none here.
    whole = schema.faults(_whole(value), rule, root, "it")
    return found + [fault for fault in fractions if fault not in whole]


def _out_of_range(session: Session, body: Json) -> list[str]:
    """Numbers of a message that lie outside of what the schema gives them."""
    if body.get("method") == "output":
        return []  # most of what is written, and its offsets are judged one by one (OUT-2)
    rule, value = _ruled(session, body)
    faults = schema.faults(value, rule, schema.protocol(), "it")
    return [fault for fault in faults if re.search(r", (below|above) -?\d+$", fault)]


def _ruled(session: Session, body: Json) -> tuple[Json, Any]:
    """What a message holds, and the schema of that; an empty one where it has none."""
    root = schema.protocol()
    if "method" in body:
        note = root["notifications"].get(body["method"]) if isinstance(body["method"], str) else None
        return (note["params"], body.get("params")) if note else ({}, None)
    if "error" in body:
        return {"$ref": "#/$defs/ErrorObject"}, body["error"]
    method = next((method for sent, method, _ in session.requests if same_id(sent, body.get("id"))), "")
    known = root["methods"].get(method)
    return (known["result"], body.get("result")) if known else ({}, None)


def _whole(value: Any) -> Any:
    if isinstance(value, Fraction):
        return int(value) if abs(value) < 1e15 else 0
    if isinstance(value, dict):
        return {name: _whole(member) for name, member in value.items()}
    return [_whole(member) for member in value] if isinstance(value, list) else value


def _faults_of_error(error: object) -> list[tuple[str, str]]:
    """The requirements that an error object breaks, with the reason for each."""
    if not isinstance(error, dict):
        return [("ERR-1", "an error is an object")]
    found = []
    code, data = error.get("code"), error.get("data")
    conditions = [name for name, entry in schema.protocol()["errors"].items() if entry["code"] == code]
    if isinstance(code, bool) or not isinstance(code, int) or not conditions:
        found.append(("ERR-1", f"the code {code!r:.40} is not in the table"))
    if not isinstance(error.get("message"), str) or not error["message"].strip():
        found.append(("ERR-1", "an error needs a message"))
    if not isinstance(data, dict) or data.get("condition") not in conditions:
        found.append(("ERR-2", f"an error with code {code!r:.40} needs data with condition {conditions}"))
        return found
    if data.get("retry", "never") not in ("now", "later", "never"):
        found.append(("ERR-2", f"retry is {data['retry']!r:.40}"))
    dispatched = data.get("dispatched", "unknown")
    if dispatched not in ("no", "yes", "unknown"):
        found.append(("ERR-2", f"dispatched is {dispatched!r:.40}"))
    elif data["condition"] in _REFUSED_BY_THE_WIRE and dispatched != "no":
        found.append(("ERR-2", f"{data['condition']} comes before any effect, so dispatched is no, not {dispatched}"))
    return found


def expect_unbroken(lab: Lab, requirement: str) -> None:
    """Nothing in the record breaks a requirement."""
    record = lab.once(read_record)
    lab.used = []
    if requirement in record.broken:
        session, text = record.broken[requirement]
        lab.used = [session]
        raise Failed(text)
    if requirement.startswith("ERR"):
        expect(record.errors, "no error came in the whole run, whatever was said: there is nothing to judge")


@check(
    "FRAME-5",
    uses=Uses.RECORD,
    why="The other side decodes each line as UTF-8; in another encoding one accent costs the whole message.",
    broken="writes text in the encoding of its locale, or begins its output with a byte order mark",
    fix="Encode as UTF-8 by yourself, and write bytes.",
)
def what_is_written_is_utf8(lab: Lab) -> None:
    """Every line is UTF-8 without a byte order mark."""
    expect_unbroken(lab, "FRAME-5")


@check(
    "FRAME-7",
    uses=Uses.RECORD,
    why="NaN and Infinity are no JSON; one of them costs the whole message.",
    broken="writes a number that is none, as its JSON library does by default",
    fix="Tell the library to refuse them, and answer Internal where a handler gives one.",
    source="conbench/conbench#1163, apify/apify-client-python#87",
)
def nan_is_never_written(lab: Lab) -> None:
    """No line has NaN or an infinity in it, also after numbers that most languages cannot hold."""
    expect_unbroken(lab, "FRAME-7")


@check(
    "FRAME-18",
    uses=Uses.RECORD,
    why="Half a surrogate pair cannot be encoded as UTF-8: the reader fails, or the one that it passes the text on to.",
    broken="echoes a text that it should not have read, or names files with bytes that it could not decode",
    fix="Refuse it when reading, and use the form `b64` for what is not UTF-8.",
)
def half_a_pair_is_never_written(lab: Lab) -> None:
    """No string has half a surrogate pair in it."""
    expect_unbroken(lab, "FRAME-18")


@check(
    "MSG-2",
    uses=Uses.RECORD,
    why="It tells a message from whatever else may be JSON on a pipe.",
    broken="leaves `jsonrpc` out of some of its messages",
    fix="Write every message through one function.",
)
def every_message_names_its_version(lab: Lab) -> None:
    """Every message is one object of JSON-RPC 2.0."""
    expect_unbroken(lab, "MSG-2")


@check(
    "MSG-6",
    uses=Uses.RECORD,
    why="A reader that finds both must guess which one is meant.",
    broken="writes `error: null` beside a result, or an answer with neither",
    fix="Write the one that there is.",
)
def every_answer_has_one_outcome(lab: Lab) -> None:
    """Every answer has either a result or an error."""
    expect_unbroken(lab, "MSG-6")


@check(
    "MSG-16",
    uses=Uses.RECORD,
    why="A host serves nothing: a worker that asks it waits for ever.",
    broken="sends a message with a method and an id",
    fix="Use a notification, or do without.",
)
def a_worker_asks_nothing(lab: Lab) -> None:
    """No message of the worker's is a request."""
    expect_unbroken(lab, "MSG-16")


@check(
    "MSG-17",
    uses=Uses.RECORD,
    why="Strict readers take 1.0 and 1e3 for no integers, and are right.",
    broken="keeps integers as doubles, and writes them as such",
    fix="Write integers without fraction and exponent.",
)
def integers_are_written_as_such(lab: Lab) -> None:
    """No integer of the protocol is written with a fraction or an exponent."""
    expect_unbroken(lab, "MSG-17")


@check(
    "MSG-18",
    uses=Uses.RECORD,
    why="Of a member that stands twice some readers take the first, others the last.",
    broken="appends members to an object that has them already",
    fix="Build the object in a map, and write that.",
)
def no_member_is_written_twice(lab: Lab) -> None:
    """No object has a member twice."""
    expect_unbroken(lab, "MSG-18")


@check(
    "MSG-23",
    uses=Uses.RECORD,
    why="A host refuses the answer; one that does not shows nonsense, or keeps the low bits: exit code 256 becomes 0.",
    broken="measures a duration with a clock that can be set back, or passes a vendor's number on as it is",
    fix="Take the ranges from the schema (`minimum`, `maximum`), and durations from a monotonic clock.",
)
def every_number_lies_in_its_range(lab: Lab) -> None:
    """No number in any answer or notification of the run lies outside of the range that the schema gives it."""
    expect_unbroken(lab, "MSG-23")


@check(
    "ERR-1",
    uses=Uses.RECORD,
    why="A host acts by the code and shows the message.",
    broken="uses codes of its own, or leaves the message empty",
    fix="Take the code from the table, and say in the message what happened.",
)
def every_error_is_in_the_table(lab: Lab) -> None:
    """Every error has a code of the table and a message."""
    expect_unbroken(lab, "ERR-1")


@check(
    "ERR-2",
    uses=Uses.RECORD,
    why="What an error does not say is no permission to repeat: a call fails that could have been repeated.",
    broken="leaves out `data`, or does not say that nothing was dispatched",
    fix="Fill in `condition`, `retry` and `dispatched` in the one place where errors are made.",
)
def every_error_answers_the_three_questions(lab: Lab) -> None:
    """Every error has the condition of its code, and says `dispatched` where nothing can have been."""
    expect_unbroken(lab, "ERR-2")
