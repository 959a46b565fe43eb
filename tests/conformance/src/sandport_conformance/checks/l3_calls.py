"""L3: one answer for each call, in its time, and no call at another's expense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from sandport_conformance import schema
from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.messages import same_id
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.schema import Json
from sandport_conformance.session import Id, Session, encode, show_error

from .claims import expect_no_effect
from .gates import TEXT, held, need_room
from .leases import listed, settled

# ------------------------------------------------------------------ one answer


@check(
    "CALL-1",
    part="cancels",
    why="A host waits for one answer to each request: without it a caller hangs, with two the second one finds nobody.",
    broken="answers a cancelled call at once, and again when its handler ends, or not at all",
    fix="Take the id out of the table of open calls when the answer is written, and answer only what stands there.",
    source="modelcontextprotocol/python-sdk#3188, modelcontextprotocol/python-sdk#1153",
)
def every_call_is_answered_once(lab: Lab) -> None:
    """Calls of several kinds, some of them cancelled at some moment, are answered exactly once each."""
    worker, sandbox = lab.worker, lab.sandbox
    commands = min(8, sandbox.lease.get("maxProcesses") or 8)
    calls: list[Id] = []
    for number in range(24):
        if number % 3 == 0 and number < commands * 3:
            calls.append(sandbox.start(lab.command("print", text=str(number)), live=bool(number % 2)))
        elif number % 3 == 1:
            calls.append(worker.request("listLeases", lab.with_config()))
        else:
            calls.append(worker.request("validateConfig", lab.with_config()))
        if lab.random.random() < 0.5:
            worker.cancel(lab.random.choice(calls))
        if lab.random.random() < 0.2:
            worker.ping()
    for call in calls:
        worker.answer(call)
    worker.ping()
    for call in calls:
        count = len(worker.answers(call))
        expect(count == 1, f"call {call} was answered {count} times")


@check(
    "CALL-1",
    part="record",
    uses=Uses.RECORD,
    why="A second answer may meet an id that means something else to its host by then.",
    broken="answers twice where an error and a result meet",
    fix="Take the id out of the table of open calls when the answer is written, and answer only what stands there.",
    source="microsoft/vs-streamjsonrpc#489, microsoft/vs-streamjsonrpc#492",
)
def no_call_of_the_run_was_answered_twice(lab: Lab) -> None:
    """No request of the whole run has more than one answer."""
    for session in lab.sessions(sandbox=True):
        for sent, method, _ in session.requests:
            times = sum(same_id(sent, other) for other, _, _ in session.requests)
            count = len(session.answers(sent))
            expect(count <= times, f"{method} (id {sent!r:.60}) was sent {times} and answered {count} times")


# ------------------------------------------------------------------ beside each other


@check(
    "CALL-2",
    why="One slow call must not be everybody's: a host has many runs on one worker.",
    broken="serves one call after the other, or has the reader wait for a handler",
    fix="Give each call a task or a thread; let the reader do nothing that waits.",
    source="modelcontextprotocol/python-sdk#188, ykuwai/ppt-mcp#198",
)
def a_slow_call_holds_up_no_other(lab: Lab) -> None:
    """While a command runs, pings, other methods and another command are answered."""
    worker, sandbox = lab.worker, lab.sandbox
    need_room(sandbox, 2)
    with held(lab, sandbox) as slow:
        worker.ping(timeout_s=lab.times.answer_s)
        worker.call("validateConfig", lab.with_config())
        worker.call("listLeases", lab.with_config(), timeout_s=lab.times.call_s)
        expect(not slow.answers, "a command was answered that waits for a file which is not there yet")
        slow.let_go()
        expect(output_of(worker.result_of(slow.id)) == TEXT.encode(), "the slow command lost its output")


@check(
    "CALL-3",
    why="Whoever has the answer goes on: what is not done by then is not done for the next call.",
    broken="answers when the work is begun, and does it in the background",
    fix="Answer when the effect can be seen by everybody.",
)
def an_answer_means_that_it_is_done(lab: Lab) -> None:
    """An acquired lease can be used, what a command wrote is there, and a destroyed lease is not, by the answer."""
    worker = lab.worker
    for _ in range(2):
        sandbox = lab.new_sandbox()
        asked = worker.request("listLeases", lab.with_config(sandboxId=sandbox.id))
        sandbox.execute(lab.command("write_file", name="effect", text="settled"))
        seen = output_of(sandbox.execute(lab.command("read_file", name="effect")))
        expect(seen == b"settled", f"what a command wrote before its answer is {seen!r:.60} for the next one")
        first_look = {one["sandboxId"]: one["handle"] for one in worker.result_of(asked).get("leases", [])}
        there = first_look or settled(lab, partial(listed, lab, sandbox.id), bool)
        expect(there, "a lease that was acquired is not listed")
        sandbox.destroy()
        left = settled(lab, partial(listed, lab, sandbox.id), lambda found: not found)
        expect(not left, "a lease that was destroyed is listed")


# ------------------------------------------------------------------ too many


@check(
    "CALL-4",
    uses=Uses.OWN,
    why="A worker that queues without a bound looks dead to its host, and its memory is its host's to fill.",
    broken="queues what is beyond the agreed number, ends, or loses a place with each cancelled call",
    fix="Count the open calls; answer Overloaded beyond the agreed number, and give the place back with every answer.",
    source="bazelbuild/bazel#26292, modelcontextprotocol/python-sdk#1333",
    also=("HELLO-10",),
)
def too_many_calls_are_refused(lab: Lab) -> None:
    """Calls beyond the agreed number are Overloaded, pings are not, and the open ones end well and free places."""
    session = lab.spawn(greet=False)
    places = min(2, lab.facts.limits["inFlight"])
    session.greet(limits={**session.offered["limits"], "inFlight": places})
    sandbox = lab.new_sandbox(session)
    need_room(sandbox, places)
    _use_up(lab, session, places)
    for _ in range(2):
        with ExitStack() as stack:
            calls = [stack.enter_context(held(lab, sandbox)) for _ in range(places)]
            opened = session.ping()
            expect(len(opened) == places, f"{places} calls may be open, and of so many only {opened} are")
            excess = _flood(lab, session, 100)
            expect(len(session.ping()) == places, "a refused call took a place, or an open one lost its own")
            for request_id in excess:
                expect_no_effect(session.error_of(request_id, "Overloaded"), "a call beyond limits.inFlight")
            for call in calls[1:]:
                session.cancel(call.id)
                session.answer(call.id)
            if places == 1:
                session.cancel(calls[0].id)
            else:
                calls[0].let_go()
                expect("result" in session.answer(calls[0].id).body, "an open call was lost to those beyond the limit")
            session.answer(calls[0].id)


def _use_up(lab: Lab, session: Session, places: int) -> None:
    """Send and cancel more calls than there are places; where cancels leak places, none is left then."""
    for _ in range(places * 5):
        call = session.request("listLeases", lab.with_config())
        session.cancel(call)
        session.answer(call)


def _flood(lab: Lab, session: Session, count: int) -> list[Id]:
    """Send calls, all in one write."""
    calls: list[Id] = [session.next_id() for _ in range(count)]
    session.requests += [(request_id, "validateConfig", {}) for request_id in calls]
    message = {"jsonrpc": "2.0", "method": "validateConfig", "params": lab.with_config()}
    session.send_bytes(b"".join(encode({**message, "id": request_id}) + b"\n" for request_id in calls))
    return calls


# ------------------------------------------------------------------ advice, repeats, progress


@check(
    "CALL-5",
    why="Two clocks that both end a call disagree about how it ended; the host's is the one that counts.",
    broken="refuses `_meta`, or gives a call up by itself when `deadlineMs` is over",
    fix="Use `deadlineMs` for the time-outs of requests to the vendor, and nothing else.",
)
def a_deadline_is_advice(lab: Lab) -> None:
    """Every method takes `_meta`, and a command that outlasts `deadlineMs` has its result."""
    worker, sandbox = lab.worker, lab.sandbox
    meta: Json = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "future": [1]}
    for params in ({**meta, "deadlineMs": 60_000}, {**meta, "deadlineMs": None}, {}):
        for method in ("validateConfig", "probe", "listLeases"):
            worker.call(method, lab.with_config(_meta=params))
        worker.call("ping", {"_meta": params})
    call = sandbox.start(lab.command("sleep", seconds=1), _meta={**meta, "deadlineMs": 100})
    if "result" in worker.answer(call).body:
        ended = worker.result_of(call)["ended"]
        expect(ended == "exited", f"a command without timeoutMs ended {ended!r} at the deadline that was advice")
    else:
        error = worker.error_of(call)
        unreachable = error["code"] == schema.error_code("Unavailable")
        expect(unreachable, f"a worker gave a call up at its deadlineMs: {show_error(error)}")


def _repeatable(lab: Lab, sandbox_id: str, handle: str) -> Iterator[tuple[str, Json]]:
    """Each repeatable method but `shutdown`, with params that it succeeds with; `destroyLease` comes last."""
    mine = lab.with_config(sandboxId=sandbox_id)
    params: dict[str, Json] = {
        "ping": {},
        "validateConfig": lab.with_config(),
        "probe": lab.with_config(),
        "attachLease": {**mine, "handle": handle},
        "listLeases": mine,
        "destroyLease": {"sandboxId": sandbox_id},
    }
    for method, each in params.items():
        if schema.protocol()["methods"][method]["repeatable"]:
            yield method, each


@check(
    "CALL-9",
    why="A host repeats these by itself when an answer was lost; a failure then would undo what has succeeded.",
    broken="refuses to attach twice, or fails to destroy what is gone",
    fix="Answer what is the case now, whether this call or an earlier one has brought it about.",
)
def repeatable_methods_succeed_again(lab: Lab) -> None:
    """Each repeatable method succeeds three times with the same params, and says the same."""
    worker, sandbox = lab.worker, lab.new_sandbox()
    for method, params in _repeatable(lab, sandbox.id, sandbox.handle):
        results = [worker.call(method, params) for _ in range(3)]
        if method in ("validateConfig", "attachLease", "listLeases"):
            same = all(_steady(result) == _steady(results[0]) for result in results)
            expect(same, f"{method} answers differently when it is repeated: {results!r:.300}")


def _steady(result: Json) -> Json:
    """A result without what may change from one call to the next."""

    def steady(lease: Json) -> Json:
        return {name: value for name, value in lease.items() if name != "expiresAtMs"}

    lease = result.get("lease")
    leases = [steady(each) for each in result.get("leases", [])]
    return {**result, "lease": lease and steady(lease), "leases": leases, "processesLost": None}


@check(
    "CALL-12",
    uses=Uses.RECORD,
    why="Progress without its call has nowhere to be shown, and after the answer it contradicts it.",
    broken="reports progress under an id of its own, or after the answer",
    fix="Send `progress` with the request's id, and none once it was answered.",
)
def progress_belongs_to_an_open_call(lab: Lab) -> None:
    """Every `progress` carries the id of a request that is open."""
    reports = 0
    for session in lab.sessions(sandbox=True):
        asked = [sent for sent, _, _ in session.requests]
        over: list[object] = []
        for message in session.messages:
            if message.kind == "answer":
                over.append(message.body.get("id"))
            elif message.kind == "notification" and message.method == "progress":
                reports += 1
                request_id = message.params.get("id")
                known = any(same_id(request_id, each) for each in asked)
                late = any(same_id(request_id, each) for each in over)
                if not known or late:
                    raise Failed(f"progress of a call that is not open: {message.line[:200]!r}")
    if not reports:
        raise NotApplicable("the worker reported no progress in this run")


# ------------------------------------------------------------------ what is not declared


@check(
    "CAP-2",
    part="user",
    why="A command that runs as another user than the one that was asked for may do what it must not.",
    broken="ignores `user`, and runs the command as it runs every other",
    fix="Declare `user`, or refuse a command that names one with NotSupported before it starts.",
    needs=Needs(capabilities={"user": (False,)}),
)
def a_user_is_not_ignored(lab: Lab) -> None:
    """Without the capability `user`, a command for another user is NotSupported and does not run."""
    worker, sandbox = lab.worker, lab.sandbox
    name = f"user-{worker.next_id()}"
    argv = lab.command("write_file", name=name, text="it ran")
    error = worker.error_of(sandbox.start(argv, user="sandport-conformance-nobody"), "NotSupported")
    expect_no_effect(error, "a command for another user")
    ended = sandbox.execute(lab.command("read_file", name=name))
    expect(ended.get("exitCode") != 0, "the command ran though its user was refused")


@check(
    "CAP-2",
    part="pty",
    why="A program that was promised a terminal and gets pipes behaves as another program.",
    broken="ignores `pty`, and starts the process with pipes",
    fix="Declare `pty`, or refuse a process that wants a terminal with NotSupported before it starts.",
    needs=Needs(groups=("process",), capabilities={"pty": (False,)}),
)
def a_terminal_is_not_ignored(lab: Lab) -> None:
    """Without the capability `pty`, a process that wants a terminal is NotSupported and does not run."""
    worker, sandbox = lab.worker, lab.sandbox
    name = f"pty-{worker.next_id()}"
    argv = lab.command("write_file", name=name, text="it ran")
    params = sandbox.params(argv, processId=name, pty={"columns": 80, "rows": 24})
    expect_no_effect(worker.refused("startProcess", params, "NotSupported"), "a process that wants a terminal")
    ended = sandbox.execute(lab.command("read_file", name=name))
    expect(ended.get("exitCode") != 0, "the process ran though its terminal was refused")
