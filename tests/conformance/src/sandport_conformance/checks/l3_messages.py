"""L3: params that do not fit, ids that are used twice, and values that are no text."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from sandport_conformance import schema
from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.messages import Message, same_id
from sandport_conformance.outcomes import Severity, expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.schema import Json
from sandport_conformance.session import Session

from .claims import expect_no_effect, field_of
from .gates import TEXT, held

_OCTETS = b"\xff\xfe caf\xe9"
"""Bytes that are no UTF-8, and that every program may be given."""


def _misfits(lab: Lab) -> Iterator[tuple[str, str, Json]]:
    """Methods with params of which one member does not fit, and the member's name."""
    a_sandbox = {"sandboxId": lab.new_sandbox_id()}
    created = lab.with_config(sandboxId=lab.new_sandbox_id())
    yield "validateConfig", "secrets", {"secrets": ["a"]}
    yield "probe", "secrets", lab.with_config(secrets={"name": 7})
    yield "acquireLease", "ttlMs", created
    yield "acquireLease", "ttlMs", {**created, "ttlMs": "3600000"}
    yield "acquireLease", "ttlMs", {**created, "ttlMs": 0}
    yield "acquireLease", "mode", {**created, "ttlMs": 60_000, "egress": {"mode": "some"}}
    yield "acquireLease", "sandboxId", lab.with_config(ttlMs=60_000)
    yield "attachLease", "handle", lab.with_config(**a_sandbox)
    yield "attachLease", "handle", lab.with_config(**a_sandbox, handle=7)
    yield "listLeases", "cursor", lab.with_config(cursor=7)
    yield "destroyLease", "sandboxId", {}
    yield "execute", "argv", {**a_sandbox, "argv": "echo hi"}
    yield "execute", "argv", {**a_sandbox, "argv": ["echo", 7]}
    yield "execute", "env", {**a_sandbox, "argv": ["true"], "env": [["A", "b"]]}
    yield "execute", "stdin", {**a_sandbox, "argv": ["true"], "stdin": "no base64!"}
    yield "execute", "timeoutMs", {**a_sandbox, "argv": ["true"], "timeoutMs": 1.5}
    yield "execute", "live", {**a_sandbox, "argv": ["true"], "live": "yes"}
    if lab.facts.has_group("process"):
        a_process = {**a_sandbox, "processId": "p1"}
        yield "startProcess", "processId", {**a_sandbox, "argv": ["true"]}
        yield "startProcess", "processId", {**a_process, "argv": ["true"], "processId": "a/b"}
        yield "writeProcess", "data", {**a_process, "data": 7}
        yield "waitProcess", "fromOffset", {**a_process, "fromOffset": 7}


@check(
    "MSG-11",
    part="refused",
    why="Params that do not fit are the caller's fault; told as anything else, the fault is looked for in the worker.",
    broken="answers Internal with the text of an exception, or takes a value of another type for what it looks like",
    fix="Hold the params to the schema before the handler sees them, and answer InvalidParams with `dispatched` `no`.",
)
def params_that_do_not_fit_are_refused(lab: Lab) -> None:
    """A member that is missing, of a wrong type or out of range is answered InvalidParams."""
    for method, member, params in _misfits(lab):
        answer = lab.worker.answer(lab.worker.unthrottled(lab.worker.request(method, params)))
        expect("error" in answer.body, f"{method} took params whose {member} does not fit: {params!r:.200}")
        expect_no_effect(lab.worker.error_of(answer.body["id"], "InvalidParams"), f"{method} with a wrong {member}")


@check(
    "MSG-11",
    part="named",
    severity=Severity.SHOULD,
    why="An error that does not say which member is wrong sends its reader through all of them.",
    broken="answers `invalid params` and nothing else",
    fix="Put the member's path into the message, and into `detail.field`.",
)
def what_does_not_fit_is_named(lab: Lab) -> None:
    """The message of InvalidParams names the member."""
    for method, member, params in _misfits(lab):
        error = lab.worker.refused(method, params, "InvalidParams")
        expect(member in error["message"], f"{method}: the message does not name {member}: {error['message']!r:.200}")


@check(
    "MSG-12",
    why="Params by position have no names, so nothing could ever be added to them.",
    broken="takes an array for params by position, or falls over it",
    fix="Answer InvalidParams where `params` is no object.",
)
def params_are_an_object(lab: Lab) -> None:
    """Params given as an array, whatever is in it, as null, a number or text are answered InvalidParams."""
    for method in lab.facts.methods:
        known = schema.protocol()["methods"].get(method)
        if known is None or known["group"] == "session":
            continue
        for params in ([], [{"sandboxId": lab.new_sandbox_id()}], None, 7, "text"):
            request_id = lab.worker.next_id()
            lab.worker.requests.append((request_id, method, {}))
            lab.worker.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
            lab.worker.error_of(request_id, "InvalidParams")


@check(
    "MSG-13",
    why="Two open calls of one id have one answer between them: the second would take the first one's.",
    broken="serves a second request under an id that is open, or forgets the first for it",
    fix="Look the id up in the table of open calls first; refuse the second and leave the entry as it is.",
    source="modelcontextprotocol/python-sdk#3137",
)
def an_open_id_is_taken(lab: Lab) -> None:
    """A second request with an open id is answered InvalidRequest, and the first one gets its own answer."""
    worker = lab.worker
    with held(lab, lab.sandbox) as first:
        worker.request("validateConfig", lab.with_config(), request_id=first.id)
        refusal = worker.answer(first.id, timeout_s=lab.times.answer_s)
        worker.error_of(first.id, "InvalidRequest")
        listed = [opened for opened in worker.ping() if same_id(opened, first.id)]
        expect(len(listed) == 1, f"after the refusal a ping lists the first call {len(listed)} times")
        first.let_go()
        answer = worker.wait(
            lambda message: message.answers(first.id),
            "answer to the first call of an id that was used twice",
            timeout_s=lab.times.call_s,
            after=worker.messages.index(refusal) + 1,
        )
        _expect_text(answer, TEXT.encode(), "the first call of an id that was used twice")
        worker.ping()
        expect(len(first.answers) == 2, f"two requests of one id got {len(first.answers)} answers")


def _expect_text(answer: Message, text: bytes, what: str) -> None:
    """Fail unless an `execute` was answered with a result that has this output."""
    result = answer.body.get("result")
    expect(
        not schema.faults_of_result("execute", result) and isinstance(result, dict) and output_of(result) == text,
        f"{what} should have a result with the output {text!r}, but got {answer.line[:300]!r}",
    )


def _with_octets(argv: list[str], blank: str) -> list[Any]:
    """An argument list in which bytes stand for the blank."""
    octets = {"b64": base64.b64encode(_OCTETS).decode()}
    return [octets if argument == blank else argument for argument in argv]


@check(
    "OCT-1",
    why="Names of files and values of variables are bytes on most systems; who cannot pass them cannot be used there.",
    broken="refuses the form for bytes, or turns them into text on the way",
    fix="Decode both forms to bytes and pass those on; where that cannot be, answer NotSupported and name the member.",
)
def bytes_reach_a_command(lab: Lab) -> None:
    """Arguments and variables that are no UTF-8 reach the command as they are, or are NotSupported by name."""
    sandbox = lab.sandbox
    value = {"b64": base64.b64encode(_OCTETS).decode()}
    printed = _with_octets(lab.command("print", text="BLANK"), "BLANK")
    cases: list[tuple[str, Json]] = [
        ("argv", {"argv": printed}),
        ("env", {"argv": lab.command("variable", name="OCTETS"), "env": {"OCTETS": value, "TEXT": "t\u00e9xt"}}),
    ]
    for member, params in cases:
        answer = lab.worker.answer(sandbox.start(**params))
        if "error" in answer.body:
            error = lab.worker.error_of(answer.body["id"], "NotSupported")
            expect_no_effect(error, f"bytes in {member}")
            named = member in error["message"] or member in field_of(error)
            expect(named, f"the message does not name {member}: {error['message']!r:.200}")
        else:
            _expect_text(answer, _OCTETS, f"a command with bytes in {member}")


def _octets_in(session: Session) -> Iterator[tuple[str, object]]:
    """What a worker said in places that may hold text or bytes, with the name of each place."""
    for sent, method, _ in session.requests:
        for answer in session.answers(sent):
            error, lease = answer.body.get("error"), answer.body.get("result")
            if method == "attachLease" and isinstance(lease, dict):
                lease = lease.get("lease")
            if isinstance(lease, dict) and method in ("acquireLease", "attachLease"):
                yield from ((member, lease.get(member)) for member in ("workingDirectory", "shell", "localRoot"))
            data = error.get("data") if isinstance(error, dict) else None
            detail = data.get("detail") if isinstance(data, dict) else None
            if isinstance(detail, dict):
                yield "detail.path", detail.get("path")


@check(
    "OCT-2",
    uses=Uses.RECORD,
    why="Text is for people too; encoded without need, no log and no error can be read.",
    broken="writes every path as base64",
    fix="Write a string where the bytes are UTF-8, and `b64` only where they are not.",
)
def text_is_written_as_text(lab: Lab) -> None:
    """No path that is UTF-8 is written in the form for bytes."""
    for session in lab.sessions(sandbox=True):
        for place, value in _octets_in(session):
            encoded = value.get("b64") if isinstance(value, dict) else None
            if isinstance(encoded, str):
                expect(not _is_text(encoded), f"{place} is text, written as bytes: {encoded!r:.100}")


def _is_text(encoded: str) -> bool:
    try:
        base64.b64decode(encoded, validate=True).decode("utf-8")
    except ValueError:
        return False
    return True
