"""L4: how sandboxes end: destroyed, expired or in a crash, and what becomes of what runs in them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.home import Home, kill, patient_answer, wait_until
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.processes import a_mark, kill_running, running
from sandport_conformance.sandbox import Sandbox
from sandport_conformance.schema import Json, condition_of
from sandport_conformance.session import Id, Session
from sandport_conformance.stories import LIFE, Stage, tell

from .l3_lost import LOST, expect_partial, expect_ran
from .l4_leases import expires_at, time_of_an_acquire
from .leases import path_of, settle

_CUTS = 5
_CRASH_GRACE_MS = 2_000
"""Long enough to find what a crash left, short enough to wait for the end of what is not to be found."""
_SHORT_LIFE_MS = 2_000
_SKEW_MS = 1_000
"""What the clock of whoever ends a sandbox may be ahead of ours."""


def gone_from_here(sandbox: Sandbox, *marks: int) -> str:
    """What of a sandbox is still on this machine; empty where nothing is."""
    left = [one for mark in marks for one in running(str(mark))]
    if left:
        return f"process {left[0].pid} of it lives: {left[0].command:.100}"
    root = path_of(sandbox.lease.get("localRoot"))
    return f"{root} is there" if root is not None and root.exists() else ""


# ------------------------------------------------------------------ destroyed


@LIFE.story
def destroyed_with_all_that_runs(stage: Stage) -> Json:
    """A command, its child, and what has left everything, when their sandbox is destroyed."""
    lab = stage.lab
    with stage.home() as home:
        session = home.worker()
        sandbox = home.acquire(session)
        marks = (a_mark(), a_mark(), a_mark())
        live = sandbox.start(lab.command("note_ids", name="ids", text="up", seconds=marks[0]), live=True)
        kept = sandbox.start(lab.command("print_then_sleep", text="half", seconds=marks[1]))
        sandbox.execute(lab.command("leave_daemon", name="daemon", seconds=marks[2]))
        sandbox.execute(lab.command("wait_for_file", name="ids", text="it runs"))
        state = sandbox.destroy()["state"]
        left = gone_from_here(sandbox, *marks)
        expect(state == "destroyed", f"a sandbox that was there was {state!r}")
        return {"left": left, "live": _answer(session, live), "kept": _answer(session, kept)}


@LIFE.story
def destroyed_with_what_an_earlier_worker_left(stage: Stage) -> str:
    """What the first worker left running, when the second one destroys the sandbox."""
    lab = stage.lab
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        mark = a_mark()
        sandbox.execute(lab.command("leave_daemon", name="daemon", seconds=mark))
        kill(first)
        opened = home.open(home.worker(), sandbox)
        opened.destroy()
        return gone_from_here(sandbox, mark)


@LIFE.story
def destroyed_with_strangers(stage: Stage) -> str:
    """What has shed all that it could be known by, of this worker and of one before, when the sandbox is destroyed."""
    lab = stage.lab
    marks = (a_mark(), a_mark())
    try:
        with stage.home() as home:
            first = home.worker()
            sandbox = home.acquire(first)
            sandbox.execute(lab.command("leave_stranger", name="first", seconds=marks[0], text="up", stay=0))
            kill(first)
            opened = home.open(home.worker(), sandbox)
            opened.execute(lab.command("leave_stranger", name="second", seconds=marks[1], text="up", stay=0))
            opened.destroy()
            return gone_from_here(sandbox, *marks)
    finally:
        for mark in marks:
            kill_running(str(mark))


@LIFE.story
def destroyed_by_another_worker(stage: Stage) -> Json:
    """A command of one worker, when another destroys its sandbox."""
    lab = stage.lab
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        mark = a_mark()
        live = sandbox.start(lab.command("note_ids", name="ids", text="up", seconds=mark), live=True)
        sandbox.execute(lab.command("wait_for_file", name="ids", text="it runs"))
        opened = home.open(home.worker(), sandbox)
        opened.destroy()
        left = gone_from_here(sandbox, mark)
        return {"left": left, "live": _answer(first, live)}


def _answer(session: Session, request_id: Id) -> Json:
    """The answer to a command, held to the schema."""
    body = patient_answer(session, request_id, session.times.call_s).body
    if "error" in body:
        return {"error": session.error_of(request_id)}
    return {"result": session.result_of(request_id)}


def expect_lost(answer: Json, what: str) -> None:
    """Hold a command whose sandbox ended to an error that says so."""
    if "result" in answer:
        raise Failed(f"{what} is answered with a result: {answer['result']!r:.200}")
    condition = condition_of(answer["error"]["code"])
    expect(condition in LOST, f"{what} is answered {condition}, and should be one of {', '.join(LOST)}")


@check(
    "LEASE-22",
    part="daemon",
    uses=Uses.OWN,
    needs=Needs(commands=("leave_daemon", "note_ids", "print_then_sleep")),
    why="What outlives its sandbox works on, holds its port and its files, and belongs to nobody.",
    broken="ends what it remembers having started, and misses what called setsid",
    fix="Keep a sandbox's processes under one init, cgroup or namespace, and end that; or find them by a mark.",
    source="NVIDIA-NeMo/Gym#1572",
)
def destroying_ends_what_left_its_group(lab: Lab) -> None:
    """When `destroyLease` is answered, no command of the sandbox lives, no child and no daemon; its files are gone."""
    told = tell(lab, LIFE, destroyed_with_all_that_runs)
    expect(not told["left"], f"the sandbox was destroyed, and {told['left']}")


@check(
    "LEASE-22",
    part="earlier",
    uses=Uses.OWN,
    needs=Needs(commands=("leave_daemon", "note_ids")),
    why="Whoever cleans up after a crash started nothing of what it must end.",
    broken="ends only what this worker has started",
    fix="Find what runs by the sandbox, not by the worker's memory.",
)
def destroying_ends_what_others_started(lab: Lab) -> None:
    """What a worker that was killed left in a sandbox, and what another one runs there, ends with its destroy."""
    left = tell(lab, LIFE, destroyed_with_what_an_earlier_worker_left)
    expect(not left, f"a later worker destroyed the sandbox, and {left}")
    left = tell(lab, LIFE, destroyed_by_another_worker)["left"]
    expect(not left, f"another worker destroyed the sandbox, and {left}")


@check(
    "LEASE-22",
    part="stranger",
    uses=Uses.OWN,
    needs=Needs(commands=("leave_stranger",)),
    why="A daemon takes a fresh environment as a matter of course; it must end with its sandbox all the same.",
    broken="finds a sandbox's processes by a mark in their environment, which `env -i` takes away",
    fix="Keep all of a sandbox's processes below a child subreaper, or in a PID namespace or cgroup, and end that.",
)
def destroying_ends_what_shed_its_environment(lab: Lab) -> None:
    """No child that cleared its environment, forked twice, and left group and session outlives `destroyLease`."""
    left = tell(lab, LIFE, destroyed_with_strangers)
    expect(not left, f"the sandbox was destroyed, and {left}")


@check(
    "LEASE-23",
    part="destroy",
    uses=Uses.OWN,
    needs=Needs(commands=("print_then_sleep", "note_ids", "leave_daemon")),
    why="A command that did not finish must not look like one that did, or that failed by itself.",
    broken="answers with exit code 0, or with a signal that nobody sent it",
    fix="Answer what still runs when the sandbox is destroyed with SandboxLost, and with `partial`.",
)
def a_command_whose_sandbox_is_destroyed_is_an_error(lab: Lab) -> None:
    """Commands that run when their sandbox is destroyed are answered with an error that says so."""
    told = tell(lab, LIFE, destroyed_with_all_that_runs)
    expect_lost(told["live"], "a live command whose sandbox was destroyed")
    expect_lost(told["kept"], "a command whose sandbox was destroyed")
    expect_ran(told["live"]["error"], "a live command whose sandbox was destroyed")
    expect_partial(told["kept"]["error"], b"half", "a command whose sandbox was destroyed")


@check(
    "LEASE-23",
    part="other",
    uses=Uses.OWN,
    needs=Needs(commands=("note_ids",)),
    why="Another terminal may end the lease: the first one's command must not wait for ever, or succeed.",
    broken="does not notice that the sandbox has ended, or tells it as the program's own end",
    fix="Look at the sandbox when a command ends unasked, and answer SandboxLost where it is gone.",
)
def a_command_whose_sandbox_another_destroys_is_an_error(lab: Lab) -> None:
    """A command whose sandbox another worker destroys is answered with an error that says so."""
    told = tell(lab, LIFE, destroyed_by_another_worker)
    expect_lost(told["live"], "a command whose sandbox another worker destroyed")
    expect_ran(told["live"]["error"], "a command whose sandbox another worker destroyed")


# ------------------------------------------------------------------ expired


@dataclass(frozen=True, slots=True)
class Expired:
    """What an expiry did.

    Attributes:
        answer: The answer to the command that ran.
        early_ms: How long before `expiresAtMs` it came.
        left: What is left of the sandbox on this machine.
        listed: Whether it was on the list afterwards.
        state: What an attach said.
    """

    answer: Json
    early_ms: float
    left: str
    listed: bool
    state: str

    def expect_gone(self) -> None:
        """Hold the sandbox to have ended."""
        expect(not self.left, f"`expiresAtMs` is over, and {self.left}")
        expect(not self.listed, "`expiresAtMs` is over, and the sandbox is listed")
        expect(self.state == "gone", f"`expiresAtMs` is over, and the sandbox attaches as {self.state!r}")


def _in_time(stage: Stage, begin: Callable[[Home, int], Expired | None]) -> Expired:
    """Tell of an expiry, with a longer life where the sandbox had ended before anything ran in it.

    Args:
        stage: The story's.
        begin: Tells it in a home, with this `ttlMs`; None where that was too short.
    """
    if stage.lab.facts.capabilities.get("expiry") == "none":
        raise NotApplicable("the capability expiry is 'none'")
    ttl_ms = _SHORT_LIFE_MS
    for longer in (1, 4, 16):
        ttl_ms = _SHORT_LIFE_MS * longer
        with stage.home() as home:
            if (told := begin(home, ttl_ms)) is not None:
                return told
    raise Failed(f"a sandbox with a ttlMs of {ttl_ms} ends before a command runs in it")


def _end_of(sandbox: Sandbox) -> int:
    end_ms = expires_at(sandbox.lease)
    if end_ms is None:
        raise Failed("the lease has no expiresAtMs")
    return end_ms


def _wait_for(end_ms: int) -> None:
    wait_until(lambda: time.time() * 1000 > end_ms, max(0.0, end_ms / 1000 - time.time()) + 1)


def _ended(home: Home, later: Session, sandbox: Sandbox, mark: int) -> tuple[str, bool, str]:
    """Wait for the end; what is left, whether it is listed, and what an attach says."""

    def over() -> bool:
        return not gone_from_here(sandbox, mark) and not home.listed(later, sandbox.id)

    wait_until(over, later.times.call_s)
    left, listed = gone_from_here(sandbox, mark), bool(home.listed(later, sandbox.id))
    return left, listed, home.attach(later, sandbox.id, sandbox.handle)["state"]


@LIFE.story
def expired_while_a_command_runs(stage: Stage) -> Expired:
    """A command that would outlast its sandbox."""

    def begin(home: Home, ttl_ms: int) -> Expired | None:
        session = home.worker()
        sandbox = home.acquire(session, ttlMs=ttl_ms)
        end_ms, mark = _end_of(sandbox), a_mark()
        call = sandbox.start(stage.lab.command("print_then_sleep", text="up", seconds=mark), live=True)
        session.pump(lambda: session.notifications("output") or session.answers(call), stage.times.call_s)
        if not session.notifications("output") and time.time() * 1000 > end_ms:
            return None
        patient_answer(session, call, max(0.0, end_ms / 1000 - time.time()) + stage.times.call_s)
        early_ms = end_ms - time.time() * 1000
        answer = _answer(session, call)
        _wait_for(end_ms)
        return Expired(answer, early_ms, *_ended(home, session, sandbox, mark))

    return _in_time(stage, begin)


@LIFE.story
def expired_without_a_worker(stage: Stage) -> Expired:
    """A kept sandbox whose worker was killed, at its expiry."""

    def begin(home: Home, ttl_ms: int) -> Expired | None:
        first = home.worker()
        sandbox = home.acquire(first, ttlMs=ttl_ms, keep=True)
        end_ms, mark = _end_of(sandbox), a_mark()
        call = sandbox.start(stage.lab.command("leave_daemon", name="daemon", seconds=mark))
        left = first.answer(call).body
        kill(first)
        if time.time() * 1000 > end_ms:
            return None
        expect("result" in left, f"a command before its sandbox's expiry is answered {left.get('error')!r:.200}")
        _wait_for(end_ms)
        return Expired({}, 0.0, *_ended(home, home.worker(), sandbox, mark))

    return _in_time(stage, begin)


_EXPIRY = Needs(capabilities={"expiry": ("agent", "vendor")}, commands=("print_then_sleep", "leave_daemon"))


@check(
    "LEASE-26",
    part="ends",
    uses=Uses.OWN,
    needs=_EXPIRY,
    why="The expiry is the last line: what all others missed ends here.",
    broken="answers an `expiresAtMs` and does nothing about it, or ends the files and not what runs",
    fix="Let the init, the agent or the vendor end everything, as a destroy would.",
)
def a_sandbox_ends_at_its_expiry(lab: Lab) -> None:
    """At `expiresAtMs` a sandbox ends with all that runs in it: not listed, and `gone`."""
    tell(lab, LIFE, expired_while_a_command_runs).expect_gone()


@check(
    "LEASE-26",
    part="early",
    uses=Uses.OWN,
    needs=_EXPIRY,
    why="A host begins what fits into the rest of the life: an earlier end costs a run.",
    broken="ends a sandbox before its time, as by a clock that counts from another moment",
    fix="End it by the instant that you answered.",
)
def a_sandbox_is_there_until_its_expiry(lab: Lab) -> None:
    """A command goes on until `expiresAtMs` of its sandbox, and not shorter."""
    early_ms = tell(lab, LIFE, expired_while_a_command_runs).early_ms
    expect(early_ms < _SKEW_MS, f"a command was ended {early_ms:.0f} ms before `expiresAtMs` of its sandbox")


@check(
    "LEASE-26",
    part="alone",
    uses=Uses.OWN,
    needs=_EXPIRY,
    why="It is for the case that host and worker are gone for good.",
    broken="keeps the time in the worker, so that nobody ends the sandbox when that is gone",
    fix="Keep the time beside the sandbox.",
)
def a_sandbox_expires_without_a_worker(lab: Lab) -> None:
    """A kept sandbox whose worker was killed ends at `expiresAtMs` all the same."""
    tell(lab, LIFE, expired_without_a_worker).expect_gone()


@check(
    "LEASE-23",
    part="expiry",
    uses=Uses.OWN,
    needs=_EXPIRY,
    why="A command that was cut by the clock must not look like one that finished.",
    broken="answers with exit code 0, or with a signal that the program did not get from anybody it knows",
    fix="Answer SandboxLost for what runs when the sandbox expires.",
)
def a_command_that_outlasts_its_sandbox_is_an_error(lab: Lab) -> None:
    """A command that runs at `expiresAtMs` of its sandbox is answered with an error that says so."""
    told = tell(lab, LIFE, expired_while_a_command_runs)
    expect_lost(told.answer, "a command whose sandbox expired")
    expect_ran(told.answer["error"], "a command whose sandbox expired")


# ------------------------------------------------------------------ crashed in the middle


@LIFE.story
def crashed_while_acquiring(stage: Stage) -> None:
    """Workers that are killed at several moments of an acquire."""
    with stage.home(grace_ms=_CRASH_GRACE_MS) as home:
        warm = home.worker()
        took_s = time_of_an_acquire(home, warm)
        asked: list[str] = []
        crashed: list[Session] = []
        for cut in range(_CUTS):
            session = home.worker()
            sandbox_id, request_id = home.begin_acquire(session)
            session.pump(partial(session.answers, request_id), took_s * cut / (_CUTS - 1))
            kill(session)
            asked.append(sandbox_id)
            crashed.append(session)
        _find_again(stage, home, asked, crashed)


@LIFE.story
def crashed_while_destroying(stage: Stage) -> None:
    """Workers that are killed at several moments of a destroy."""
    with stage.home(grace_ms=_CRASH_GRACE_MS) as home:
        asked: list[str] = []
        crashed: list[Session] = []
        took_s = 0.0
        for cut in range(_CUTS):
            session = home.worker()
            sandbox = home.acquire(session)
            sandbox.execute(stage.lab.command("leave_daemon", name="daemon", seconds=a_mark()))
            began = time.monotonic()
            call = session.request("destroyLease", {"sandboxId": sandbox.id})
            session.pump(partial(session.answers, call), took_s * cut / _CUTS if cut else stage.times.call_s)
            took_s = took_s or time.monotonic() - began  # the first one shows how long it takes
            kill(session)
            asked.append(sandbox.id)
            crashed.append(session)
        _find_again(stage, home, asked, crashed)


def _find_again(stage: Stage, home: Home, asked: list[str], crashed: list[Session]) -> None:
    """What is listed can be ended; what is not listed never is again, and nothing of it lives."""
    settle(stage.lab)
    later = home.worker()
    listed = home.listed(later)
    for sandbox_id in asked:
        by_id = bool(home.listed(later, sandbox_id))
        # What ends by itself may go from the list at any moment; nothing may come to it.
        expect(sandbox_id in listed or not by_id, f"{sandbox_id} is listed by its id, and not among all")
        if by_id and (wrong := home.end(later, sandbox_id)):
            raise Failed(f"what a crash left cannot be ended: {wrong}")
    for session in crashed:
        left = session.process.wait_survivors(_CRASH_GRACE_MS / 1000 + stage.times.exit_s)
        expect(not left, f"everything was ended, and of a worker that crashed there lives {left[:1]}")
    again = set(home.listed(later)) & set(asked)
    expect(not again, f"{', '.join(sorted(again))} was not listed after a crash, or was ended, and is listed now")


@check(
    "LEASE-24",
    part="acquire",
    uses=Uses.OWN,
    why="The host never got a handle: the id on the list is all by which it can find what the worker had begun.",
    broken="lists only what was finished, or lists something half made and cannot end it",
    fix="Write the id in the create call itself, list by it, and end whatever has it.",
)
def a_crash_while_acquiring_leaves_nothing_unlisted(lab: Lab) -> None:
    """Killed at any moment of an acquire, a worker leaves nothing, or something that is listed and can be ended."""
    tell(lab, LIFE, crashed_while_acquiring)


@check(
    "LEASE-24",
    part="destroy",
    uses=Uses.OWN,
    needs=Needs(commands=("leave_daemon",)),
    why="What is off the list is forgotten: it may go from there only when everything else of it has gone.",
    broken="takes the sandbox off its list first, and then ends what runs",
    fix="End what runs, remove the files, and take it off the list last.",
)
def a_crash_while_destroying_leaves_nothing_unlisted(lab: Lab) -> None:
    """Killed at any moment of a destroy, a worker leaves a sandbox on the list until a later destroy has ended it."""
    tell(lab, LIFE, crashed_while_destroying)
