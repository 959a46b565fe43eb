"""L3: whether an error can be believed, and what it must not say."""

from __future__ import annotations

import base64
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sandport_conformance import schema
from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.messages import Message
from sandport_conformance.outcomes import Failed, Severity, expect
from sandport_conformance.sandbox import Sandbox
from sandport_conformance.schema import Json
from sandport_conformance.session import Session

from .claims import dispatched
from .gates import need_room
from .leases import attach, listed

_CREATES = 3
"""So many times as long as a create takes is looked for one that was said not to be."""
_LOOK_S = 0.05
_SECONDS = 300
"""How long a command sleeps that is cancelled."""


# ------------------------------------------------------------------ what it claims


@check(
    "ERR-3",
    part="command",
    why="`no` is permission to repeat: a command that ran, and is said not to have, runs twice.",
    broken="answers a cancelled command with `dispatched` `no`, though it has written already",
    fix="Say `no` only until the command is handed over, and `unknown` from then on.",
)
def a_command_that_ran_is_not_denied(lab: Lab) -> None:
    """The error of a command that was cancelled after it had written does not say that nothing happened."""
    worker, sandbox = lab.worker, lab.sandbox
    call = sandbox.start(lab.command("print_then_sleep", text="up", seconds=_SECONDS), live=True)
    worker.wait(
        lambda m: m.method == "output" and m.params.get("id") == call and m.params.get("data"),
        "output of a command",
        timeout_s=lab.times.call_s,
    )
    worker.cancel(call)
    if "error" in worker.answer(call).body:
        claim = dispatched(worker.error_of(call))
        expect(claim != "no", "the command had written, and the error says that nothing was dispatched")


@check(
    "ERR-3",
    part="create",
    why="A create that is said not to have happened is never looked for: what it left is paid for ever.",
    broken="answers a cancelled acquire with `dispatched` `no`, and leaves the sandbox",
    fix="Destroy what was created before the answer, or say `unknown`.",
)
def a_create_is_not_denied(lab: Lab) -> None:
    """A cancelled acquire that says that nothing was dispatched has left nothing that is listed."""
    worker = lab.worker
    began = time.monotonic()
    lab.new_sandbox().destroy()
    took_s = time.monotonic() - began
    denied: set[str] = set()
    for _ in range(3):
        sandbox_id = lab.new_sandbox_id()
        call = worker.request("acquireLease", lab.with_config(sandboxId=sandbox_id, ttlMs=600_000))
        worker.cancel(call)
        if "result" in worker.answer(call).body:
            Sandbox(worker, sandbox_id, worker.result_of(call)).destroy()
            continue
        if dispatched(worker.error_of(call)) == "no":
            denied.add(sandbox_id)
        else:
            _end_listed(lab, listed(lab, sandbox_id))
    if not denied:
        return
    # What goes on behind the answer is there as late as a create that was not cancelled would be, or later.
    deadline = time.monotonic() + _CREATES * took_s + lab.facts.settle_s
    while not (found := denied & set(listed(lab))) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for sandbox_id in found:
        _end_listed(lab, listed(lab, sandbox_id))
    expect(not found, "an acquire was said not to have been dispatched, and its sandbox is listed")


def _end_listed(lab: Lab, handles: dict[str, str]) -> None:
    for sandbox_id, handle in handles.items():
        if attach(lab, sandbox_id, handle)["state"] == "attached":
            lab.worker.call("destroyLease", {"sandboxId": sandbox_id})


# ------------------------------------------------------------------ the provider's own faults


@check(
    "ERR-4",
    part="state",
    uses=Uses.OWN,
    why="A call without an answer holds its caller for ever, and a worker that ends takes every other call with it.",
    broken="ends, or lets the call's thread die without an answer, when its handler meets what it did not expect",
    fix="Catch whatever leaves a handler, answer Internal, log the traceback, and serve on.",
    source="bazelbuild/bazel#10288",
)
def a_fault_of_the_provider_is_answered(lab: Lab) -> None:
    """Calls are answered, and the worker serves on, when its state directory has become a file."""
    session = lab.spawn(greet=False)
    with _spoilt_state(session):
        new_id = lab.new_sandbox_id()
        acquire = session.request("acquireLease", lab.with_config(sandboxId=new_id, ttlMs=600_000))
        created = "result" in session.answer(acquire).body
        if not created:
            session.error_of(acquire)
        other = lab.new_sandbox_id()
        attach = session.request("attachLease", lab.with_config(sandboxId=other, handle=other))
        for request_id in (attach, session.request("listLeases", lab.with_config())):
            answer = session.answer(request_id)
            faults = schema.faults_of_error(answer.body["error"]) if "error" in answer.body else []
            expect(not faults, f"the error does not fit the schema: {'; '.join(faults[:3])}")
        if created:
            session.call("destroyLease", {"sandboxId": new_id})
    session.ping()


@contextmanager
def _spoilt_state(session: Session) -> Iterator[None]:
    """Greet a worker with a state directory of its own, and put a file into its place."""
    state = Path(tempfile.mkdtemp(prefix="sandport-conformance-"))
    try:
        session.greet(stateDir=str(state))
        session.wait(lambda m: m.method == "ready", "`ready`", timeout_s=session.times.start_s)
        shutil.rmtree(state)
        state.write_text("where a directory was", encoding="utf-8")
        yield
    finally:
        if state.is_dir():
            shutil.rmtree(state, ignore_errors=True)
        else:
            state.unlink(missing_ok=True)


@check(
    "ERR-4",
    part="size",
    why="What a system cannot start fails in another place than what does not exist, often outside of any handler.",
    broken="falls over a command that the system refuses to start",
    fix="Turn whatever the start of a program raises into an error of this call.",
)
def a_command_that_cannot_start_is_answered(lab: Lab) -> None:
    """A command with an argument that is too long for most systems is answered, and the worker serves on."""
    sandbox = lab.sandbox
    argument = "x" * min(4_000_000, lab.facts.limits["frameBytes"] // 2)
    call = sandbox.start(lab.command("print", text=argument), live=True)
    live = sandbox.follow(call)
    if "error" in live.answer.body:
        lab.worker.error_of(call)
    else:
        expect(live.data() == argument.encode(), "the command lost a part of its argument")


# ------------------------------------------------------------------ secrets


class Canaries:
    """A secret, and everything that a worker said after it was passed."""

    def __init__(self, secret: str, messages: list[Message], methods: dict[int | str, str]) -> None:
        self.secret = secret
        self.messages = messages
        self.methods = methods
        """The method of each request, by its id."""


def canaries(lab: Lab) -> Canaries:
    """Pass a secret wherever the protocol has a place for it, in calls that are right and in calls that are wrong."""
    worker = lab.worker
    begin = len(worker.messages)
    value = f"canary-{secrets.token_hex(12)}"
    passed = {**lab.settings.secrets, "conformance": value}
    known = lab.with_config(secrets=passed)
    wrong = lab.with_config(secrets=passed, config={**lab.settings.config, "conformanceNoSuchKey": 1})
    new_id = lab.new_sandbox_id
    asked = [
        ("validateConfig", known),
        ("validateConfig", wrong),
        ("validateConfig", {**known, "secrets": [value]}),
        ("probe", known),
        ("probe", {**known, "secrets": {"conformance": [value]}}),
        ("acquireLease", {**wrong, "sandboxId": new_id(), "ttlMs": 600_000}),
        ("acquireLease", {**known, "sandboxId": new_id()}),
        ("attachLease", {**known, "sandboxId": new_id(), "handle": "conformance: no handle"}),
        ("attachLease", {**known, "sandboxId": new_id(), "handle": {"of": value}}),
        ("listLeases", known),
        ("listLeases", {**known, "cursor": 7}),
    ]
    methods: dict[int | str, str] = {}
    for method, params in asked:
        request_id = worker.request(method, params)
        methods[request_id] = method
        worker.answer(request_id)
    return Canaries(value, worker.messages[begin:], methods)


@check(
    "ERR-5",
    part="secrets",
    why="Errors go to logs, tickets and chats; a secret in one is a secret no longer.",
    broken="puts the params that it could not use into the message",
    fix="Name the member that is wrong and never its value; replace the values of secrets in what a vendor says.",
)
def no_error_holds_a_secret(lab: Lab) -> None:
    """No error holds a secret that was passed to the worker, whatever was wrong with the call."""
    story = lab.once(canaries)
    for value in (story.secret, *lab.settings.secrets.values()):
        for message in story.messages:
            if "error" in message.body and value.encode() in message.line:
                raise Failed(f"an error holds a secret: {message.line[:300].replace(value.encode(), b'***')!r}")


@check(
    "ERR-5",
    part="says",
    uses=Uses.RECORD,
    severity=Severity.SHOULD,
    why="The message is all that most people will ever read of a failure.",
    broken="sends the name of the condition for a message",
    fix="Say what happened, in one or two lines: what was asked, what was found, what to do.",
)
def every_message_says_something(lab: Lab) -> None:
    """Every error's message says more than its condition's name."""
    for session in lab.sessions():
        for message in session.messages:
            error = message.body.get("error")
            if isinstance(error, dict) and not schema.faults_of_error(error):
                said = error["message"].strip(" .!")
                empty = said.replace(" ", "").lower() in ("", schema.condition_of(error["code"]).lower(), "error")
                expect(not empty, f"the message of an error says nothing: {error['message']!r}")


# ------------------------------------------------------------------ what an interrupted command had written


def _interrupted(lab: Lab, sandbox: Sandbox, text: str, **members: object) -> Message:
    """The answer to a command that was cancelled after it had written a text."""
    session = sandbox.session
    need_room(sandbox, 2)
    name = f"ids-{session.next_id()}"
    call = sandbox.start(lab.command("note_ids", name=name, text=text, seconds=_SECONDS), **members)
    sandbox.execute(lab.command("wait_for_file", name=name, text="it wrote"))
    session.cancel(call)
    answer = session.answer(call)
    session.error_of(call, "Cancelled")
    return answer


@check(
    "ERR-7",
    why="What a command had written before it was interrupted is often all that says what it was doing.",
    broken="throws the output away with the command, or counts only what it kept",
    fix="Put what was kept into `partial`, counted as in a result, when an error ends a command.",
    also=("CANCEL-6",),
)
def an_interrupted_command_keeps_its_output(lab: Lab) -> None:
    """The error of a cancelled command has what it had written: all of it, or head and tail within the limit."""
    text = "".join(f"line {number:04}\n" for number in range(500))
    for limit in (1 << 20, 1_000):
        answer = _interrupted(lab, lab.sandbox, text, outputLimitBytes=limit)
        partial = (answer.body["error"].get("data") or {}).get("partial")
        if not partial:
            raise Failed(f"a cancelled command had written {len(text)} bytes, and its error has no `partial`")
        kept: Json = partial.get("stdout", {})
        head, tail = base64.b64decode(kept.get("data", "")), base64.b64decode(kept.get("tail", ""))
        total, dropped = kept.get("totalBytes", 0), kept.get("droppedBytes", 0)
        expect(total == len(text), f"partial.stdout counts {total} bytes, and the command had written {len(text)}")
        expect(len(head) + len(tail) + dropped == total, f"{len(head)} + {len(tail)} + {dropped} bytes are not {total}")
        expect(len(head) + len(tail) <= limit, f"{len(head) + len(tail)} bytes are kept, beyond the limit of {limit}")
        same = text.encode().startswith(head) and text.encode().endswith(tail) and (head or tail)
        expect(same, "partial.stdout is not what the command had written")
        expect(limit < total or not dropped, f"{dropped} bytes were dropped within a limit of {limit}")


@check(
    "ERR-8",
    uses=Uses.OWN,
    why="An error that does not fit is never read; what it says must not be lost with what it carries.",
    broken="sends an error longer than the frame, or another error in its place",
    fix="Encode the error; where it is too long, encode it again without `partial`.",
)
def an_error_loses_its_output_first(lab: Lab) -> None:
    """An error whose output would not fit in a frame comes without it, and says all else."""
    session = lab.spawn(greet=False)
    longest = 1 << 15
    session.greet(limits={**session.offered["limits"], "frameBytes": longest})
    answer = _interrupted(lab, lab.new_sandbox(session), "x" * 100_000)
    expect(len(answer.line) <= longest, f"an error of {len(answer.line)} bytes, where frames may have {longest}")
    data = answer.body["error"].get("data") or {}
    expect(data.get("condition") == "Cancelled", f"the error lost its condition: {answer.line[:200]!r}")
    claim = dispatched(answer.body["error"])
    expect(claim != "no", "the command had written, and the error says that nothing was dispatched")
