"""What a host makes of workers that crash, wedge, or answer too late."""

from __future__ import annotations

from sandport_conformance.impostors.calls import CRASH_WITH
from sandport_conformance.impostors.hellos import LAST_WORDS
from sandport_conformance.outcomes import expect

from .declaration import host_check
from .played import Played
from .stage import Stage

_SPARE_S = 20.0
"""For the steps of a stop, and a busy machine."""


@host_check(
    "CALL-7",
    why="A caller that is not told waits for its time-out, and thirty callers with thirty reports hide one cause.",
    broken="lets callers wait for a worker that is gone, or tells only one of them",
    source="anomalyco/opencode#43258",
    also=("CALL-6", "LOG-3"),
)
def crash(stage: Stage) -> None:
    """A crash ends every open call at once, each with the same report and the end of the log."""
    played = stage.play("calls:CrashesWithOpenCalls", "--parallel", str(CRASH_WITH), "--again", timeout_s=60.0)
    others = played.outcome().get("others")
    expect(isinstance(others, list) and len(others) == CRASH_WITH - 1, "each command should have one outcome")
    first = played.failed("crashed", says=(LAST_WORDS,))
    for other in others or []:
        expect(isinstance(other.get("error"), dict), f"each command should have failed: {other}")
        same = all(other["error"].get(name) == first.get(name) for name in ("condition", "message"))
        expect(same, f"all should have the same report: {first} and {other['error']}")
    expect(played.outcome().get("tookS", 0.0) < 45, "the calls ended by their time-out and not by the crash")
    played.succeeded("next")


@host_check(
    "CMD-21",
    why="A command that ran twice has deleted, paid or sent twice.",
    broken="sends a command again whose worker crashed",
    also=("CALL-8",),
)
def never_again(stage: Stage) -> None:
    """A command that was sent to a worker that crashed is not sent again."""
    played = stage.play("processes:LeavesAChildAndCrashes")
    error = played.failed("crashed")
    expect(error.get("dispatched") != "no", f"it was sent, and may have run: {error}")
    sent = len(played.received("execute"))
    expect(sent == 1, f"execute was sent {sent} times")


@host_check(
    "CMD-21",
    part="create",
    why="A create that is repeated leaves a sandbox that somebody pays for and nobody knows.",
    broken="repeats a create whose worker crashed",
    also=("LEASE-12", "CALL-8"),
)
def create_once(stage: Stage) -> None:
    """A create whose worker crashed is not sent again."""
    played = stage.play("calls:CrashesInAcquire", "--again")
    played.failed("crashed", says=(LAST_WORDS,))
    played.succeeded("next")
    ids = [entry["sandboxId"] for entry in played.received("acquireLease")]
    expect(len(ids) == 2 == len(set(ids)), f"two leases are two creates with ids of their own: {ids}")


@host_check(
    "CALL-10",
    why="What was done was done; a result in hand is worth more than an error that says unknown.",
    broken="throws a result away that came after the cancel",
    also=("CANCEL-7",),
)
def crossing(stage: Stage) -> None:
    """A result that crosses the cancel is what the caller gets."""
    played = stage.play("calls:ResultAfterTheCancel", timeout_s=1.0)
    played.succeeded()
    _one_cancel(played)


@host_check(
    "CANCEL-7",
    why="A command that nobody waits for runs on, and is paid for, until its worker is told.",
    broken="gives a call up and does not say so, or says it again and again",
    source="modelcontextprotocol/java-sdk#147",
)
def one_cancel(stage: Stage) -> None:
    """A deadline sends one cancel."""
    played = _wedged_call(stage)
    _one_cancel(played)


@host_check(
    "CANCEL-8",
    why="A caller that gives up must get its thread back, whatever the worker does.",
    broken="lets its caller wait as long as the worker likes",
    also=("CALL-6",),
)
def grace(stage: Stage) -> None:
    """The caller of a command that ignores its cancel is told after the grace."""
    played = _wedged_call(stage)
    played.failed("deadline", "cancelled")
    cancels = played.received("cancel")
    expect(cancels, "no cancel was sent")
    took = played.outcome().get("tookS", 0.0)
    limit = 1.0 + stage.settings["marginS"] + stage.limit_s(played, "cancelGraceMs") + _SPARE_S * stage.times.factor
    expect(took < limit, f"the caller was told after {took:.1f} s; {limit:.1f} s are enough")


@host_check(
    "CANCEL-10",
    why="A call that cannot be ended holds its slot, and what it does, for ever.",
    broken="keeps a worker for ever that cannot be cancelled",
)
def wedged_call(stage: Stage) -> None:
    """A worker whose call cannot be cancelled is ended, and the next call has another."""
    played = _wedged_call(stage)
    expect(len(played.starts) == 2, f"the worker should have been ended; {len(played.starts)} were started")
    played.succeeded("next")


@host_check(
    "CANCEL-8",
    part="create",
    why="A sandbox that comes after its caller has gone is paid for until somebody finds it.",
    broken="forgets a sandbox that was made too late",
    also=("CALL-11",),
)
def late_create(stage: Stage) -> None:
    """A create that succeeds after its caller was told is undone."""
    linger = 6 * stage.settings["limits"]["cancelGraceMs"] / 1000
    played = stage.play("calls:LateCreate", "--give-up", "1", "--linger", str(linger), bound_s=120.0)
    played.failed()
    late = played.events("late")
    expect(late, "the worker never got so far: it was ended, or not cancelled")
    made = late[0]["sandboxId"]
    destroyed = [entry["sandboxId"] for entry in played.received("destroyLease")]
    expect(made in destroyed, f"{made} was made too late and not destroyed: {destroyed}")


@host_check(
    "PING-4",
    why="An answer can be lost in a worker's fault; a ping tells so in seconds, a time-out in an hour.",
    broken="waits for an answer that the worker does not owe any more",
)
def lost(stage: Stage) -> None:
    """A call that a pong does not list ends as lost, long before its time-out."""
    played = stage.play("calls:LosesAnAnswer", "--again", timeout_s=100.0)
    played.failed("ProtocolViolation", dispatched=("unknown",))
    took = played.outcome().get("tookS", 0.0)
    expect(took < 50, f"the call ended after {took:.1f} s, by its time-out and not by a ping")
    played.succeeded("next")


@host_check(
    "PING-5",
    why="A worker that is stopped answers nothing and closes nothing; without a limit all its callers hang.",
    broken="waits for ever for a process that is stopped, or cannot end it",
)
def stopped(stage: Stage) -> None:
    """A worker that is stopped with SIGSTOP is ended, and the next call has another."""
    played = stage.play("calls:StopsItself", "--again", timeout_s=100.0, bound_s=120.0, memory="stopped worker")
    played.failed("wedged", "crashed", dispatched=("unknown", "yes"))
    took, wedge = played.outcome().get("tookS", 0.0), stage.limit_s(played, "wedgeMs")
    limit = 2 * wedge + _SPARE_S * stage.times.factor
    expect(took >= wedge * 0.9, f"it was given up after {took:.1f} s; wedgeMs is {wedge:.1f} s")
    expect(took < limit, f"it was given up after {took:.1f} s; wedgeMs is {wedge:.1f} s")
    played.succeeded("next")


@host_check(
    "PING-5",
    part="busy",
    why="Who is busy for a moment is not dead; to kill it costs every command that runs.",
    broken="ends a worker that is busy for a moment",
)
def busy(stage: Stage) -> None:
    """A worker that answers nothing for half of `wedgeMs` is left alone."""
    played = stage.play("calls:BusyForAWhile", "--again")
    played.succeeded()
    played.succeeded("next")
    played.one_worker()


def _wedged_call(stage: Stage) -> Played:
    """A command that no cancel ends, while its lease is kept for longer than `wedgeMs`."""
    for played in stage.all_played:
        if played.impostor == "calls:KnowsNoCancel" and played.answer is not None and not played.left:
            return played
    linger = 2 * stage.settings["limits"]["wedgeMs"] / 1000 + 2
    return stage.play("calls:KnowsNoCancel", "--linger", str(linger), "--again", timeout_s=1.0, bound_s=120.0)


def _one_cancel(played: Played) -> None:
    calls = [entry["id"] for entry in played.received("execute")[:1]]
    cancels = [entry["target"] for entry in played.received("cancel") if entry["target"] in calls]
    expect(cancels == calls, f"execute {calls} should have been cancelled once; the cancels: {cancels}")
