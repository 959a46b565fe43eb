"""L3: what a ping proves."""

from __future__ import annotations

from contextlib import ExitStack

from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.messages import same_id
from sandport_conformance.outcomes import Failed, expect
from sandport_conformance.session import Id

from .gates import held, need_room


@check(
    "PING-1",
    uses=Uses.OWN,
    why="A host that gets no pong takes the worker for wedged, and ends it with every call that it has.",
    broken="queues pings behind calls, or serves them in one phase only",
    fix="Answer `ping` in the reader itself, in every phase, before anything is looked up.",
    source="modelcontextprotocol/python-sdk#188, ykuwai/ppt-mcp#198",
)
def every_phase_has_its_pong(lab: Lab) -> None:
    """Pings are answered before the hello, between its halves, while a call runs, and while the worker drains."""
    session = lab.spawn(greet=False)
    session.call("ping", timeout_s=lab.times.start_s)
    session.greet(initialized=False)
    session.ping()
    session.initialized()
    sandbox = lab.new_sandbox(session)
    with held(lab, sandbox) as call:
        session.ping()
        shutdown = session.request("shutdown", {"drainMs": round(lab.times.call_s * 1000)})
        session.ping()
        expect(not call.answers, "a call that runs was ended before its time to drain was over")
        expect(not session.answers(shutdown), "shutdown was answered while a call was open")
        session.cancel(call.id)
    session.answer(call.id)
    session.result_of(shutdown, timeout_s=lab.times.call_s)


@check(
    "PING-2",
    why="By this list a host finds an answer that was lost; an id that is missing there ends its call.",
    broken="lists the ping itself, turns ids into strings, or forgets to take an answered one out",
    fix="Keep a table of the ids that were taken and not answered, with the values as they came.",
)
def a_pong_lists_what_is_open(lab: Lab) -> None:
    """`open` lists exactly the calls that are open, each id as it was sent."""
    worker, sandbox = lab.worker, lab.sandbox
    ids: list[Id] = [worker.next_id(), "770001", 9_007_199_254_740_995, "\u00e9 770002"]
    need_room(sandbox, len(ids))
    with ExitStack() as calls:
        for request_id in ids:
            calls.enter_context(held(lab, sandbox, request_id=request_id))
        _expect_open(worker.ping(), ids)
        worker.cancel(ids[0])
        worker.answer(ids[0])
        _expect_open(worker.ping(), ids[1:])
    for request_id in ids[1:]:
        worker.answer(request_id)
    _expect_open(worker.ping(), [])


def _expect_open(listed: list[Id], wanted: list[Id]) -> None:
    same = len(listed) == len(wanted) and all(any(same_id(one, other) for other in listed) for one in wanted)
    expect(same, f"a ping lists {listed!r:.200}, while {wanted!r:.200} are open")


@check(
    "PING-3",
    why="A call that is in no pong and has no answer is taken for lost.",
    broken="takes the id out of its table, then writes the answer when the writer comes to it",
    fix="Hand the answer to the one writer in the same step in which the id leaves the table.",
)
def no_pong_overtakes_an_answer(lab: Lab) -> None:
    """Whatever a pong no longer lists was answered before it."""
    worker = lab.worker
    calls: list[Id] = []
    pings: list[tuple[Id, list[Id]]] = []
    for _ in range(50):
        calls.append(worker.request("validateConfig", lab.with_config()))
        pings.append((worker.request("ping"), list(calls)))
    for ping, before in pings:
        opened = worker.result_of(ping).get("open", [])
        pong = worker.messages.index(worker.answer(ping))
        for call in before:
            if not any(same_id(call, each) for each in opened):
                answers = worker.answers(call)
                if not answers or worker.messages.index(answers[0]) > pong:
                    raise Failed(f"a pong does not list call {call}, and comes before its answer")
    for call in calls:
        worker.result_of(call)
