"""L4: sandboxes and the workers that come and go: what outlives whom, for how long, and who is told."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.home import SHORT_GRACE_MS, Home, kill, shut_down, wait_until
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.sandbox import Sandbox, output_of
from sandport_conformance.session import Session
from sandport_conformance.stories import LIFE, Stage, tell

from .gates import Held, held
from .leases import path_of, settled

_TEXT = "of the first worker"


def note(stage: Stage, sandbox: Sandbox) -> None:
    """Leave a file in a sandbox."""
    sandbox.execute(stage.lab.command("write_file", name="mine", text=_TEXT))


def noted(stage: Stage, sandbox: Sandbox) -> bool:
    """Whether the file is there, by a command."""
    return output_of(sandbox.execute(stage.lab.command("read_file", name="mine"))) == _TEXT.encode()


# ------------------------------------------------------------------ the end of a worker


def _outlives(stage: Stage, end: Callable[[Session], None]) -> None:
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        note(stage, sandbox)
        end(first)
        opened = home.open(home.worker(), sandbox)
        expect(noted(stage, opened), "what was written before its worker ended is not in the sandbox any more")


def _close(session: Session) -> None:
    session.process.close_input()
    session.exit()


def _terminate(session: Session) -> None:
    session.process.signal(signal.SIGTERM)
    session.exit()


@LIFE.story
def after_a_shutdown(stage: Stage) -> None:
    """A shutdown in order, and a later worker."""
    _outlives(stage, shut_down)


@LIFE.story
def after_an_end_without_a_word(stage: Stage) -> None:
    """The end of input, SIGTERM, and a later worker each time."""
    _outlives(stage, _close)
    _outlives(stage, _terminate)


@LIFE.story
def after_a_kill(stage: Stage) -> None:
    """SIGKILL, and a later worker."""
    _outlives(stage, kill)


@check(
    "LEASE-21",
    part="order",
    uses=Uses.OWN,
    why="A host that is upgraded stops its workers in order; its runs go on with the next one.",
    broken="destroys its sandboxes, or what is in them, when it is shut down",
    fix="Let go of them: whoever ends them when nobody comes is not the worker.",
)
def a_sandbox_outlives_a_shutdown(lab: Lab) -> None:
    """After a shutdown, an end of input or SIGTERM a later worker attaches the sandbox, with its files."""
    tell(lab, LIFE, after_a_shutdown)
    tell(lab, LIFE, after_an_end_without_a_word)


@check(
    "LEASE-21",
    part="crash",
    uses=Uses.OWN,
    why="A worker that crashes costs its host a restart, and must not cost it the sandboxes.",
    broken="has sandboxes that die with the process that made them",
    fix="Keep them apart from the worker, under something that waits for the next one.",
)
def a_sandbox_outlives_a_crash(lab: Lab) -> None:
    """After a SIGKILL a later worker attaches the sandbox, with its files."""
    tell(lab, LIFE, after_a_kill)


# ------------------------------------------------------------------ kept or not


@dataclass(frozen=True, slots=True)
class Fate:
    """What had become of a sandbox when its workers had been gone for longer than the grace.

    Attributes:
        local: Whether the lease had a `localRoot`: only of such a one is it known that it lives on this machine.
        there: Whether it was listed, or its files were there.
        usable: Whether a later worker attached it and found its file.
    """

    local: bool
    there: bool
    usable: bool

    def expect_ended(self, what: str) -> None:
        """Hold it to have ended."""
        if not self.local:
            raise NotApplicable("the lease has no localRoot, so that nothing says on which machine it lives")
        expect(not self.there, f"{what} is there when its workers have been gone for longer than `orphanGraceMs`")

    def expect_kept(self, what: str) -> None:
        """Hold it to be there."""
        expect(self.there, f"{what} was gone when its workers had been gone for longer than `orphanGraceMs`")
        expect(self.usable, f"{what} was there, and a later worker could not use it")


@LIFE.story
def longer_than_the_grace(stage: Stage) -> dict[str, Fate]:
    """Four sandboxes whose workers are killed, and that nobody comes for until the grace is over."""
    with stage.home(grace_ms=SHORT_GRACE_MS) as home:
        first, second = home.worker(), home.worker()
        made = {
            "plain": home.acquire(first),
            "kept": home.acquire(first, keep=True),
            "kept later": home.acquire(first),
            "let go": home.acquire(first, keep=True),
        }
        for sandbox in made.values():
            note(stage, sandbox)
        home.open(second, made["kept later"], keep=True)
        home.open(second, made["let go"], keep=False)
        plain_kept = home.open(second, made["kept"])  # what is left out changes nothing
        expect(noted(stage, plain_kept), "the second worker does not see the first one's file")
        watcher = home.worker()
        began = time.monotonic()
        kill(first, second)
        _wait_gone(stage, home, watcher, [made["plain"], made["let go"]], began)
        return {name: _fate(stage, home, watcher, sandbox) for name, sandbox in made.items()}


def _is_there(home: Home, watcher: Session, sandbox: Sandbox) -> bool:
    root = path_of(sandbox.lease.get("localRoot"))
    return bool(home.listed(watcher, sandbox.id)) or (root is not None and root.exists())


def _wait_gone(stage: Stage, home: Home, watcher: Session, ending: list[Sandbox], began: float) -> None:
    """Wait until what should end has ended; where nothing on this machine does, for as long as it would have taken."""
    grace_s = home.grace_ms / 1000
    local = [sandbox for sandbox in ending if path_of(sandbox.lease.get("localRoot")) is not None]
    if local:
        wait_until(lambda: not any(_is_there(home, watcher, one) for one in local), grace_s + stage.times.exit_s)
    wait_until(lambda: time.monotonic() > began + grace_s + stage.times.moment_s, grace_s * 2 + stage.times.exit_s)


def _fate(stage: Stage, home: Home, watcher: Session, sandbox: Sandbox) -> Fate:
    there = _is_there(home, watcher, sandbox)
    usable = False
    if there:
        result = home.attach(watcher, sandbox.id, sandbox.handle)
        if result["state"] == "attached" and result.get("lease"):
            usable = noted(stage, Sandbox(watcher, sandbox.id, result["lease"]))
    return Fate(local=sandbox.lease.get("localRoot") is not None, there=there, usable=usable)


@check(
    "LEASE-19",
    part="ends",
    uses=Uses.OWN,
    why="When host and worker are gone for good, nobody else will ever end what they had made on this machine.",
    broken="leaves the sandbox of a worker that was killed",
    fix="Have something beside the worker that ends the sandbox one `orphanGraceMs` after the last one.",
)
def a_sandbox_ends_after_its_last_worker(lab: Lab) -> None:
    """A sandbox on this machine that is not kept is gone one `orphanGraceMs` after its worker was killed."""
    tell(lab, LIFE, longer_than_the_grace)["plain"].expect_ended("a sandbox without `keep`")


@check(
    "LEASE-19",
    part="keep",
    uses=Uses.OWN,
    why="`--keep` is a promise to a person who comes back tomorrow.",
    broken="takes no notice of `keep`",
    fix="Write `keep` beside the sandbox, where what ends it reads it.",
)
def a_kept_sandbox_stays(lab: Lab) -> None:
    """A sandbox acquired with `keep` is there when its workers have been gone for longer than the grace."""
    tell(lab, LIFE, longer_than_the_grace)["kept"].expect_kept("a sandbox with `keep`")


@check(
    "LEASE-19",
    part="attach-keep",
    uses=Uses.OWN,
    why="A run decides at its end whether its sandbox is worth keeping.",
    broken="reads `keep` when it acquires, and never again",
    fix="Take `keep` of every attach, and leave it as it was where it is missing.",
)
def an_attach_keeps_a_sandbox(lab: Lab) -> None:
    """A sandbox that an attach said to keep stays like one that was acquired so."""
    tell(lab, LIFE, longer_than_the_grace)["kept later"].expect_kept("a sandbox that an attach said to keep")


@check(
    "LEASE-19",
    part="let-go",
    uses=Uses.OWN,
    why="What nobody wants to keep any more must end like any other.",
    broken="keeps for ever what was kept once",
    fix="Take `keep: false` of an attach for what it says.",
)
def an_attach_lets_a_sandbox_go(lab: Lab) -> None:
    """A kept sandbox that an attach said to keep no longer ends after its last worker."""
    tell(lab, LIFE, longer_than_the_grace)["let go"].expect_ended("a sandbox that an attach said to keep no longer")


# ------------------------------------------------------------------ several workers


@dataclass(frozen=True, slots=True)
class Shared:
    """What the end of two workers did to the third one's call.

    Attributes:
        interrupted: Whether the call of the third had an answer before it was let go.
        result: Its answer then, as text; empty where it was right.
        stays: What was wrong with the sandbox after the grace of the others; empty where nothing was.
    """

    interrupted: bool
    result: str
    stays: str


@LIFE.story
def three_workers_in_one_sandbox(stage: Stage) -> Shared:
    """Three workers with one sandbox: its maker is killed, another is shut down, the last has a command running."""
    lab = stage.lab
    with stage.home(grace_ms=SHORT_GRACE_MS) as home:
        maker, other, last = home.worker(), home.worker(), home.worker()
        sandbox, control = home.acquire(maker), home.acquire(maker)
        in_other, in_last = home.open(other, sandbox), home.open(last, sandbox)
        for opened in (sandbox, in_other, in_last):
            result = opened.execute(lab.command("print", text="together"))
            expect(output_of(result) == b"together", f"of three workers in one sandbox, one gets {result!r:.200}")
        with held(lab, in_last) as call:
            running = in_other.start(lab.command("sleep", seconds=300), live=True)
            in_last.execute(lab.command("write_file", name="sign", text="it runs"))
            began = time.monotonic()
            kill(maker)
            other.cancel(running)
            other.answer(running)
            shut_down(other)
            _wait_gone(stage, home, last, [control], began)
            last.ping()
            interrupted = bool(call.answers)
            wrong = "" if interrupted else _let_go(in_last, call)
            stays = ""
            try:
                if output_of(in_last.execute(lab.command("read_file", name="sign"))) != b"it runs":
                    stays = "its files are not as they were"
            except Failed as failure:
                stays = str(failure)
            if not stays and not settled(stage.lab, lambda: home.listed(last, sandbox.id), bool):
                stays = "it is not listed"
        return Shared(interrupted, wrong, stays)


def _let_go(sandbox: Sandbox, call: Held) -> str:
    try:
        call.let_go()
        result = sandbox.session.result_of(call.id)
    except Failed as failure:
        return str(failure)
    return "" if result.get("exitCode") == 0 else f"{result!r:.200}"


@check(
    "LEASE-20",
    part="calls",
    uses=Uses.OWN,
    why="Two terminals have one sandbox: closing the first must not kill what runs in the second.",
    broken="ends what runs in a sandbox with the worker that made it, or lets only one worker in",
    fix="Bind each command to the worker that started it, and the sandbox to all of them.",
)
def the_end_of_one_worker_leaves_anothers_calls(lab: Lab) -> None:
    """A command goes on, and ends as it should, when the other workers of its sandbox are killed or shut down."""
    told = tell(lab, LIFE, three_workers_in_one_sandbox)
    expect(not told.interrupted, "a worker's command was ended by the end of another worker of the sandbox")
    expect(not told.result, f"a command whose sandbox lost another worker ended wrongly: {told.result}")


@check(
    "LEASE-20",
    part="stays",
    uses=Uses.OWN,
    why="The grace is for a sandbox that nobody has any more.",
    broken="counts the grace from the end of the worker that made the sandbox",
    fix="Count from the end of the last worker that has it attached.",
)
def a_sandbox_stays_while_one_worker_has_it(lab: Lab) -> None:
    """A sandbox that a worker has attached is there when the worker that made it has been gone for the grace."""
    told = tell(lab, LIFE, three_workers_in_one_sandbox)
    expect(not told.stays, f"a worker has the sandbox attached, whose maker is gone, and {told.stays}")


# ------------------------------------------------------------------ what was lost


@dataclass(frozen=True, slots=True)
class Loss:
    """What a later worker said of processes, and what was true.

    Attributes:
        said: Its `processesLost`.
        alive: How many of the two processes lived, at the end of what was waited for.
    """

    said: bool
    alive: int


def _loss(stage: Stage, home: Home, sandbox: Sandbox, later: Session, *, ended: bool) -> Loss:
    result = home.attach(later, sandbox.id, sandbox.handle)
    if result["state"] != "attached" or result.get("lease") is None:
        raise Failed(f"a worker that attaches the sandbox should find it, but says {result!r:.200}")
    said = bool(result.get("processesLost"))
    opened = Sandbox(later, sandbox.id, result["lease"])

    def alive() -> int:
        text = output_of(opened.execute(stage.lab.command("count_alive", name="ids")))
        if text not in (b"0", b"1", b"2"):
            raise Failed(f"the file with the processes' ids is not as it was: counted {text!r:.60}")
        return int(text)

    if ended and said:
        wait_until(lambda: alive() < 2, stage.times.exit_s)  # they may be ending still
    return Loss(said, alive())


def _begin(stage: Stage, sandbox: Sandbox) -> None:
    sandbox.start(stage.lab.command("note_ids", name="ids", text="up", seconds=300), live=True)
    sandbox.execute(stage.lab.command("wait_for_file", name="ids", text="it runs"))


@LIFE.story
def processes_of_a_killed_worker(stage: Stage) -> Loss:
    """A worker is killed while a command runs, and another attaches."""
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        _begin(stage, sandbox)
        kill(first)
        return _loss(stage, home, sandbox, home.worker(), ended=True)


@LIFE.story
def processes_of_a_live_worker(stage: Stage) -> Loss:
    """Another worker attaches while a command of the first runs."""
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        _begin(stage, sandbox)
        return _loss(stage, home, sandbox, home.worker(), ended=False)


@check(
    "LEASE-18",
    part="lost",
    uses=Uses.OWN,
    needs=Needs(commands=("note_ids", "count_alive")),
    why="A host that is not told waits for the end of something that is not there any more.",
    broken="attaches a sandbox in which what ran has ended, and says nothing about it",
    fix="Keep a note of what runs, and compare it when a worker attaches.",
)
def lost_processes_are_told(lab: Lab) -> None:
    """Attached after a crash, a sandbox in which what ran is gone says `processesLost`, and only then."""
    told = tell(lab, LIFE, processes_of_a_killed_worker)
    if told.said:
        expect(told.alive < 2, "it is said that what ran was lost, and it runs")
    else:
        expect(told.alive == 2, f"of two processes that ran {told.alive} are there, and processesLost is not said")


@check(
    "LEASE-18",
    part="runs",
    uses=Uses.OWN,
    needs=Needs(commands=("note_ids", "count_alive")),
    why="A host that believes its processes lost starts them again, beside the first.",
    broken="says `processesLost` whenever it attaches what it did not know",
    fix="Say it only where something is gone.",
)
def processes_that_run_are_not_lost(lab: Lab) -> None:
    """Attached by a second worker, a sandbox in which the first one's command runs does not say `processesLost`."""
    told = tell(lab, LIFE, processes_of_a_live_worker)
    expect(told.alive == 2, f"a second worker attached, and of the two processes that ran {told.alive} are there")
    expect(not told.said, "a command runs, and a second worker that attaches says that what ran was lost")


@LIFE.story
def a_process_of_an_earlier_worker(stage: Stage) -> None:
    """`waitProcess` for a process whose worker was killed."""
    if not stage.lab.facts.has_group("process"):
        raise NotApplicable("the worker does not advertise startProcess")
    lab, how = stage.lab, stage.lab.facts.capabilities.get("attach")
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        argv = lab.command("wait_then_exit", name="gate", text="begun", code=7)
        first.call("startProcess", sandbox.params(argv, processId="p1"))
        follower = first.request("waitProcess", sandbox.params(processId="p1"))
        first.wait(lambda m: m.method == "output", "output of a process", timeout_s=stage.times.call_s)
        expect(not first.answers(follower), "waitProcess was answered before the process's end")
        kill(first)
        later = home.worker()
        opened = home.open(later, sandbox)
        waiting = later.request("waitProcess", opened.params(processId="p1"))
        later.pump(partial(later.answers, waiting), stage.times.moment_s)
        opened.execute(lab.command("write_file", name="gate", text="open"))
        if how == "none":
            later.error_of(waiting)
            return
        live = opened.follow(waiting)
        expect(
            live.result.get("exitCode") == 7, f"a process that ended with 7 is said to have ended as {live.result!r}"
        )
        if how == "replay":
            expect(live.data() == b"begun", f"all of its output is {live.data()!r:.60}")


@check(
    "PRC-12",
    uses=Uses.OWN,
    needs=Needs(groups=("process",), commands=("wait_then_exit",)),
    why="A status that nobody saw is the worst of answers: the run goes on as if all were well.",
    broken="answers a result for a process that it cannot know",
    fix="Answer ProcessNotFound, or keep what a later worker needs and declare `attach`.",
)
def a_later_worker_makes_up_no_result(lab: Lab) -> None:
    """`waitProcess` in a later worker gives the true result where `attach` says so, and an error where it is `none`."""
    tell(lab, LIFE, a_process_of_an_earlier_worker)
