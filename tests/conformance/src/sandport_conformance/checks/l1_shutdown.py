"""L1: how a worker ends that is asked to: what runs is finished or cut short, and the answer means that it may go."""

from __future__ import annotations

from dataclasses import dataclass

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.schema import Json
from sandport_conformance.session import Id, Session, encode
from sandport_conformance.stories import PROCESS, Stage, tell

from .l1_ending import BUSY, DRAIN_MS, begin

_PROMPTLY_S = 2.0


@PROCESS.story
def asked_while_idle(stage: Stage) -> str:
    """A shutdown and the end of input of an idle worker: how it ends, which has to be soon."""
    session = stage.spawn()
    session.call("shutdown", {"drainMs": DRAIN_MS})
    session.process.close_input()
    return session.exit(_PROMPTLY_S * stage.times.factor)


@PROCESS.story
def asked_to_let_finish(stage: Stage) -> tuple[Session, Id, Id]:
    """A shutdown with much time, while something short runs."""
    session = stage.spawn()
    sandbox = stage.sandbox(session)
    running = sandbox.start(stage.lab.command("sleep", seconds=1))
    shutdown = session.request("shutdown", {"drainMs": 60_000})
    session.answer(shutdown, timeout_s=stage.times.call_s)
    return session, running, shutdown


@dataclass(frozen=True, slots=True)
class Draining:
    """What a worker said while it was asked to end."""

    session: Session
    running: Id
    shutdown: Id
    late: Id
    ping: Id


@PROCESS.story
def asked_to_cut_short(stage: Stage) -> Draining:
    """A shutdown with little time, while something long runs; then a call and a ping."""
    session = stage.spawn()
    running = begin(stage, session)
    told = Draining(session, running, session.next_id(), session.next_id(), session.next_id())
    asked: list[tuple[Id, str, Json]] = [
        (told.shutdown, "shutdown", {"drainMs": 500}),
        (told.late, "validateConfig", {}),
        (told.ping, "ping", {}),
    ]
    session.requests += asked
    # In one write, so that the call comes while the worker drains.
    session.send_bytes(
        b"".join(encode({"jsonrpc": "2.0", "id": id_, "method": m, "params": p}) + b"\n" for id_, m, p in asked)
    )
    session.answer(told.ping)
    session.answer(told.shutdown, timeout_s=stage.times.call_s)
    return told


@PROCESS.story
def asked_early(stage: Stage) -> list[str]:
    """A shutdown before the hello, and in the middle of it: how both end."""
    ungreeted = stage.spawn(greet=False)
    half_greeted = stage.spawn(greet=False)
    half_greeted.greet(initialized=False)
    for session in (ungreeted, half_greeted):
        session.call("shutdown", {"drainMs": DRAIN_MS})
        session.process.close_input()
    return [session.exit() for session in (ungreeted, half_greeted)]


def expect_before(session: Session, first: Id, second: Id, what: str) -> None:
    """One answer came before another."""
    order = [message for message in session.messages if message.answers(first) or message.answers(second)]
    expect(
        bool(order) and order[0].answers(first),
        f"shutdown was answered before {what}; the answer means that the worker may be killed",
    )


@check(
    "PROC-6",
    part="finish",
    uses=Uses.OWN,
    needs=Needs(commands=("sleep",)),
    why="The answer to shutdown tells the host that it may kill; a result that comes later is lost.",
    broken="answers shutdown at once, and finishes or drops its calls afterwards",
    fix="Answer shutdown last.",
    source="clangd/clangd#855",
)
def shutdown_waits_for_what_runs(lab: Lab) -> None:
    """A call that ends within `drainMs` gets its result, and shutdown is answered after it."""
    session, running, shutdown = tell(lab, PROCESS, asked_to_let_finish)
    expect_before(session, running, shutdown, "a call that ran")
    result = session.result_of(running)
    expect(
        result.get("ended") == "exited" and result.get("exitCode") == 0,
        f"what could finish ended {result.get('ended')!r}",
    )
    session.result_of(shutdown)


@check(
    "PROC-6",
    part="cut",
    uses=Uses.OWN,
    needs=BUSY,
    why="A host waits `drainMs` and not for ever.",
    broken="waits for what runs for as long as that takes, or answers shutdown without it",
    fix="After `drainMs` cancel what runs, answer it, then answer shutdown.",
    source="clangd/clangd#855",
)
def shutdown_cancels_what_does_not_finish(lab: Lab) -> None:
    """A call that runs longer than `drainMs` is cancelled and answered, and shutdown after it."""
    told = tell(lab, PROCESS, asked_to_cut_short)
    expect_before(told.session, told.running, told.shutdown, "a call that ran")
    told.session.error_of(told.running, "Cancelled")
    told.session.result_of(told.shutdown)


@check(
    "PROC-7",
    uses=Uses.OWN,
    needs=BUSY,
    why="A call that is refused with `dispatched` `no` can be given to another worker; one that is dropped cannot.",
    broken="serves new calls while it drains, or does not answer them; or answers no ping any more",
    fix="After shutdown answer every call but `ping` Unavailable, with `dispatched` `no`.",
)
def a_draining_worker_refuses_new_calls(lab: Lab) -> None:
    """While a shutdown waits, a new call is answered Unavailable with `dispatched` `no`, and a ping as ever."""
    told = tell(lab, PROCESS, asked_to_cut_short)
    error = told.session.error_of(told.late, "Unavailable")
    dispatched = (error.get("data") or {}).get("dispatched")
    expect(dispatched == "no", f"the call was refused, so dispatched should be no, not {dispatched!r}")
    told.session.result_of(told.ping)


@check(
    "PROC-8",
    part="prompt",
    uses=Uses.OWN,
    why="What is slow belongs before the answer to shutdown: after it the host no longer waits.",
    broken="closes its connections after it said that it was done",
    fix="Answer shutdown when everything is closed, then exit.",
    source="clangd/clangd#855",
)
def an_idle_worker_is_gone_soon(lab: Lab) -> None:
    """Two seconds after the answer to shutdown and the end of input, the worker has ended with exit code 0."""
    cause = tell(lab, PROCESS, asked_while_idle)
    expect(cause == "exit code 0", f"after a shutdown the worker should end with exit code 0, not {cause}")


@check(
    "PROC-9",
    uses=Uses.OWN,
    why="A host stops when it must, also while it starts a worker.",
    broken="refuses shutdown as it refuses other calls before the hello",
    fix="Serve shutdown in the reader, in every phase.",
)
def shutdown_is_served_in_every_phase(lab: Lab) -> None:
    """Shutdown is served before the hello and in the middle of it, and ends the worker with exit code 0."""
    for cause in tell(lab, PROCESS, asked_early):
        expect(cause == "exit code 0", f"after a shutdown the worker should end with exit code 0, not {cause}")
