"""L1: how a worker ends: when its input ends, at SIGTERM, and when its host has fallen silent."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, TimedOut, expect
from sandport_conformance.session import Id, Session, encode
from sandport_conformance.stories import PROCESS, Stage, tell

DRAIN_MS = 1_000
_GRACE_S = 3.0
"""What PROC-5 and PROC-10 give beside `drainMs`."""
_QUICK = 30
_SILENCE_S = 1.0
_BETWEEN_SIGNALS_S = 0.002
_LONGEST_SILENCE_S = 8.0
_HOLDS_THE_PIPE = ("sh", "-c", '"$@"; :', "sh")
"""Stays between the host and the worker, with the worker's stdin open, and does nothing."""
BUSY = Needs(commands=("print_then_sleep", "sleep"))


def time_to_end(session: Session) -> float:
    """`drainMs` and three seconds, on this machine."""
    return float(session.offered["limits"]["drainMs"] / 1000 + _GRACE_S) * session.times.factor


def greet_with_short_drain(session: Session) -> None:
    """The hello of a host that gives a second to drain."""
    session.offered = {**session.offered, "limits": {**session.offered["limits"], "drainMs": DRAIN_MS}}
    session.greet()


@dataclass(frozen=True, slots=True)
class Busy:
    """A worker that ended while a command ran in it.

    Attributes:
        session: The worker.
        running: The call that ran the command.
        cause: How the worker ended.
        left: What outlived it for longer than the orphan grace.
    """

    session: Session
    running: Id
    cause: str
    left: tuple[str, ...]


def begin(stage: Stage, session: Session, command: str = "print_then_sleep") -> Id:
    """A command that has begun, and would run for minutes."""
    sandbox = stage.sandbox(session)
    running = sandbox.start(stage.lab.command(command, text="up", seconds=300), live=True)
    session.wait(lambda m: m.method == "output", "output of a command", timeout_s=stage.times.call_s)
    return running


def end_busy(session: Session, running: Id) -> Busy:
    """How a worker with a running command ends, which has to be in time, and what is left of it."""
    cause = session.exit(time_to_end(session))
    grace_s = session.offered["limits"]["orphanGraceMs"] / 1000 + session.times.exit_s
    left = session.process.wait_survivors(grace_s)
    return Busy(session, running, cause, tuple(survivor.command for survivor in left))


# ------------------------------------------------------------------ the end of input


@PROCESS.story
def never_greeted(stage: Stage) -> None:
    """No word, then the end; the same in the middle of a hello, with half a line."""
    silent = stage.spawn(greet=False)
    half_greeted = stage.spawn(greet=False)
    half_greeted.greet(initialized=False)
    half_greeted.send_bytes(b'{"jsonrpc":"2.0","method":"init')
    silent.ping()
    for session in (silent, half_greeted):
        session.process.close_input()
    for session in (silent, half_greeted):
        session.exit()


@PROCESS.story
def quick_calls(stage: Stage) -> tuple[Session, list[Id]]:
    """Many quick calls and the end of input behind them, at once."""
    session = stage.spawn()
    ids: list[Id] = []
    lines = []
    for n in range(_QUICK):
        ids.append(session.next_id())
        method = "ping" if n % 3 == 0 else "validateConfig"
        session.requests.append((ids[-1], method, {}))
        lines.append(encode({"jsonrpc": "2.0", "id": ids[-1], "method": method, "params": {}}) + b"\n")
    session.send_bytes(b"".join(lines))
    session.process.close_input()
    session.exit()
    return session, ids


@PROCESS.story
def input_ends_while_busy(stage: Stage) -> Busy:
    """The end of input while a command runs that does not listen to SIGTERM."""
    session = stage.spawn(greet=False)
    greet_with_short_drain(session)
    running = begin(stage, session, "ignore_term")
    session.process.close_input()
    return end_busy(session, running)


@PROCESS.story
def input_ends_while_stdout_is_full(stage: Stage) -> None:
    """The end of input while answers wait that nobody reads, now or later."""
    session = stage.spawn(greet=False)
    greet_with_short_drain(session)
    lines = [encode({"jsonrpc": "2.0", "id": f"{n} " + "x" * 50_000, "method": "ping"}) + b"\n" for n in range(60)]
    session.process.write_unheard(b"".join(lines), timeout_s=stage.times.answer_s)
    session.process.close_input()
    limit = time_to_end(session)
    if session.process.wait_exit(limit, read=False) is None:
        raise TimedOut(f"the worker still lives {limit:.1f} s after the end of its input, and nobody reads its output")
    session.process.close_output()  # what is left there may end in the middle of a frame, and nobody wanted it


@check(
    "PROC-3",
    part="phases",
    uses=Uses.OWN,
    why="A host may die at any moment, also before it said a word.",
    broken="waits for its hello without looking for the end of its input",
    fix="Read in one place, in every phase, and end there.",
    source="modelcontextprotocol/python-sdk#2231, modelcontextprotocol/typescript-sdk#2002",
)
def the_end_of_input_ends_a_worker_in_any_phase(lab: Lab) -> None:
    """A worker that was never greeted ends with its input, and one in the middle of a hello and of a line too."""
    tell(lab, PROCESS, never_greeted)


@check(
    "PROC-4",
    part="quick",
    uses=Uses.OWN,
    why="A host that asks its last questions and closes wants the answers.",
    broken="closes its output, or exits, as soon as its input ends",
    fix="Let what runs finish for a moment before anything is cancelled.",
    source="modelcontextprotocol/python-sdk#2678",
)
def quick_calls_are_answered_after_the_end(lab: Lab) -> None:
    """Quick calls that came before the end of input are all answered."""
    session, ids = tell(lab, PROCESS, quick_calls)
    missing = [request_id for request_id in ids if len(session.answers(request_id)) != 1]
    expect(not missing, f"{len(missing)} of {len(ids)} quick calls were not answered once")


@check(
    "PROC-4",
    part="rest",
    uses=Uses.OWN,
    needs=Needs(commands=("ignore_term",)),
    why="Nobody will take the result of what still runs, and nobody else will end it.",
    broken="exits without a word about what ran, or leaves it running",
    fix="Cancel what does not finish by itself, wait until it has ended, and answer it Cancelled.",
    source="microsoft/vs-streamjsonrpc#64",
)
def long_calls_are_cancelled_after_the_end(lab: Lab) -> None:
    """A command that runs at the end of input is cancelled: it is answered Cancelled, and nothing of it is left."""
    told = tell(lab, PROCESS, input_ends_while_busy)
    told.session.error_of(told.running, "Cancelled")
    expect(not told.left, f"still there: {told.left}")


@check(
    "PROC-5",
    part="busy",
    uses=Uses.OWN,
    needs=Needs(commands=("ignore_term",)),
    why="A host that stops waits for its workers; who lets it wait is killed, with whatever it had still to do.",
    broken="waits for its handlers for as long as they take",
    fix="Cancel what runs, and exit after `drainMs` whatever became of it.",
    source="pulumi/pulumi#9780, pulumi/pulumi#19603",
)
def a_busy_worker_ends_in_time(lab: Lab) -> None:
    """With a command running, the worker has ended `drainMs` and three seconds after its input."""
    tell(lab, PROCESS, input_ends_while_busy)


@check(
    "PROC-5",
    part="full",
    uses=Uses.OWN,
    why="A host that hangs holds the pipe and reads no more; its supervisor ends the input and expects an end.",
    broken="sits in a write to its full stdout, and sees nothing else",
    fix="Write without blocking, and give up what nobody reads when the time is over.",
    source="modelcontextprotocol/python-sdk#547",
)
def a_worker_with_a_full_stdout_ends_in_time(lab: Lab) -> None:
    """With answers waiting that nobody reads, the worker has ended `drainMs` and three seconds after its input."""
    tell(lab, PROCESS, input_ends_while_stdout_is_full)


# ------------------------------------------------------------------ signals and silence


@PROCESS.story
def sigterm_while_idle(stage: Stage) -> str:
    """SIGTERM to an idle worker whose input stays open: how it ends."""
    session = stage.spawn(greet=False)
    greet_with_short_drain(session)
    session.ping()
    session.process.signal(signal.SIGTERM)
    return session.exit(time_to_end(session))


@PROCESS.story
def sigterm_until_the_end(stage: Stage) -> str:
    """SIGTERM again and again, every few milliseconds, until the process is gone: how it ended."""
    session = stage.spawn(greet=False)
    greet_with_short_drain(session)
    session.ping()
    over_s = time.monotonic() + time_to_end(session)
    session.process.signal(signal.SIGTERM)
    while session.process.exit_cause is None and time.monotonic() < over_s:
        os.kill(session.process.pid, signal.SIGTERM)  # past the record, in which the first one stands for all
        session.process.wait_exit(_BETWEEN_SIGNALS_S)
    return session.exit(time_to_end(session))


@PROCESS.story
def sigterm_while_busy(stage: Stage) -> Busy:
    """SIGTERM, twice, to a worker in which a command runs."""
    session = stage.spawn(greet=False)
    greet_with_short_drain(session)
    running = begin(stage, session)
    session.process.signal(signal.SIGTERM)
    session.pump(lambda: False, stage.times.moment_s)  # the second one should find it on its way out
    session.process.signal(signal.SIGTERM)
    return end_busy(session, running)


@dataclass(frozen=True, slots=True)
class Silence:
    """Two workers with the same patience: one heard nothing more, the other a ping now and then.

    Attributes:
        ended: Whether the first has ended.
        failure: What the second failed at until some time after that.
    """

    ended: bool
    failure: Failed | None


@PROCESS.story
def silent_host(stage: Stage) -> Silence:
    """A host that falls silent behind a program that holds the pipe, and beside it one that pings."""
    silence_s = _SILENCE_S
    while True:
        told, longest_gap_s = _fall_silent(stage, silence_s)
        # A machine that stops the kit for so long makes it the silent host that it only meant to play.
        if told.failure is None or longest_gap_s < silence_s / 2 or silence_s >= _LONGEST_SILENCE_S:
            return told
        silence_s *= 2


def _fall_silent(stage: Stage, silence_s: float) -> tuple[Silence, float]:
    silent, pinged = stage.spawn(greet=False, wrapper=_HOLDS_THE_PIPE), stage.spawn(greet=False)
    for session in (silent, pinged):
        session.beats = False
        session.greet(limits={**session.offered["limits"], "hostSilenceMs": round(silence_s * 1000)})
    began = heard = time.monotonic()
    longest_gap_s = 0.0
    while True:
        try:
            pinged.ping()
        except Failed as failure:
            return Silence(silent.process.wait_exit(silence_s + stage.times.exit_s) is not None, failure), longest_gap_s
        now = time.monotonic()
        longest_gap_s, heard = max(longest_gap_s, now - heard), now
        ended = silent.process.wait_exit(0) is not None
        if now - began > silence_s * 1.5 and (ended or now - began > silence_s + stage.times.exit_s):
            return Silence(ended, None), longest_gap_s
        pinged.pump(lambda: False, silence_s / 10)


def expect_orderly(cause: str) -> None:
    """The process ended by itself."""
    expect(cause.startswith("exit code"), f"the worker should end by itself, but SIGTERM ended it: {cause}")


@check(
    "PROC-10",
    part="idle",
    uses=Uses.OWN,
    why="SIGTERM is what service managers and hosts in a hurry send; it asks, and does not kill.",
    broken="ignores SIGTERM, or dies of it where it stands",
    fix="Treat it like the end of input.",
    source="dask/distributed#1303",
)
def sigterm_ends_an_idle_worker(lab: Lab) -> None:
    """SIGTERM ends an idle worker, which exits by itself in time."""
    expect_orderly(tell(lab, PROCESS, sigterm_while_idle))


@check(
    "PROC-10",
    part="repeated",
    uses=Uses.OWN,
    why="Who waits for a worker asks again; what ends by the signal then looks like a crash.",
    broken="gives the signal back to the system before it exits, so that the next one kills it on its way out",
    fix="Keep the handler, or ignore the signal, up to the last instruction; an exit that runs clean-up resets it.",
)
def sigterm_ends_a_worker_in_order_however_often_it_comes(lab: Lab) -> None:
    """SIGTERM that comes again until the process is gone ends it by its own exit all the same."""
    expect_orderly(tell(lab, PROCESS, sigterm_until_the_end))


@check(
    "PROC-10",
    part="busy",
    uses=Uses.OWN,
    needs=BUSY,
    why="The host still listens: it should learn what became of its calls.",
    broken="exits without answering what runs, or falls over the second signal",
    fix="Cancel what does not finish, answer it, exit; take a second SIGTERM for the first.",
    source="docker/cli#4402, docker/cli#4769",
)
def sigterm_ends_a_busy_worker_in_order(lab: Lab) -> None:
    """SIGTERM, also twice, ends a worker in which a command runs: the call is answered, the exit comes in time."""
    told = tell(lab, PROCESS, sigterm_while_busy)
    expect_orderly(told.cause)
    told.session.error_of(told.running, "Cancelled")
    expect(not told.left, f"still there: {told.left}")


# ------------------------------------------------------------------ the host's death


@check(
    "PROC-13",
    part="silence",
    uses=Uses.OWN,
    why="A wrapper, or a sibling that inherited the pipe, can hold it open: the end of input then never comes.",
    broken="relies on the end of its input alone",
    fix="Note when something was heard last; after `hostSilenceMs` end as at the end of input.",
    source="verygoodplugins/mcp-automem#137",
)
def silence_ends_a_worker(lab: Lab) -> None:
    """A worker that hears nothing for `hostSilenceMs` ends, though its pipe is open and its parent lives."""
    told = tell(lab, PROCESS, silent_host)
    expect(told.ended, "the worker lives on, long after `hostSilenceMs` without a message")


@check(
    "PROC-13",
    part="heard",
    uses=Uses.OWN,
    why="A host that pings lives; a worker that ends all the same takes its sandboxes with it.",
    broken="counts the silence from the hello, or pings for nothing",
    fix="Let every message begin the silence anew.",
)
def a_host_that_pings_is_not_dead(lab: Lab) -> None:
    """A worker that hears a ping now and then lives on for longer than `hostSilenceMs`."""
    told = tell(lab, PROCESS, silent_host)
    if told.failure is not None:
        raise Failed(f"a worker whose host pings should serve on: {told.failure}")
