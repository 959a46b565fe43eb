"""What a host makes of a worker that does not greet as it should."""

from __future__ import annotations

from sandport_conformance.impostors.hellos import BROKEN_CODE, LAST_WORDS, SMALL_FRAME_BYTES
from sandport_conformance.outcomes import expect

from .declaration import host_check
from .stage import ECHO, Stage

_SPARE_S = 20.0


@host_check(
    "HELLO-18",
    part="silent",
    why="A provider that hangs at its start holds up whoever waits for a sandbox.",
    broken="waits for ever for a worker that does not greet",
    source="ElementsProject/lightning#4189, ElementsProject/lightning#2835",
    also=("LOG-3",),
)
def silent(stage: Stage) -> None:
    """A worker that does not greet is ended after the start limit, and the error has the end of its log."""
    played = stage.play("hellos:Silent", "--again", bound_s=120.0)
    played.failed("startFailed", says=(LAST_WORDS,), dispatched=("no",))
    took, limit = played.outcome().get("tookS", 0.0), stage.settings["startS"] + _SPARE_S * stage.times.factor
    expect(took < limit, f"the start took {took:.1f} s, its limit with all steps of a stop is {limit:.1f} s")
    played.succeeded("next")


@host_check(
    "LOG-3",
    part="start",
    why="Why a program did not start is in its last words; without them its author can only guess.",
    broken="says that the start failed, and not why",
    source="modelcontextprotocol/python-sdk#401",
)
def broken_start(stage: Stage) -> None:
    """A worker that ends before its hello fails the start with its exit code and the end of its log."""
    played = stage.play("hellos:Broken")
    played.failed("startFailed", says=(LAST_WORDS, str(BROKEN_CODE)), dispatched=("no",))
    waited = played.outcome().get("tookS", 0.0)
    expect(waited < stage.settings["startS"], f"the exit was seen at once by the kernel, by the host after {waited} s")


@host_check(
    "HELLO-19",
    part="version",
    why="Who of the two has to be updated is the first question; the error should answer it.",
    broken="goes on with a version that it does not speak",
)
def version(stage: Stage) -> None:
    """A version that was not offered fails the start; the error names it, and the versions of the host."""
    stage.play("hellos:OtherVersion").failed("startFailed", "VersionMismatch", says=("99", "1"))


@host_check(
    "HELLO-19",
    part="schema",
    why="An author mends what is named.",
    broken="crashes of a hello that does not fit the schema",
)
def schema(stage: Stage) -> None:
    """A hello that does not fit the schema fails the start; the error names the member."""
    stage.play("hellos:OddHello").failed(says=("supportedMethods",))


@host_check(
    "HELLO-17",
    why="What a worker does not have must be told before anything is sent, and not by a fault in the middle of a run.",
    broken="sends a method that was not advertised",
)
def not_advertised(stage: Stage) -> None:
    """A process is refused by the host itself where the worker has none."""
    played = stage.play("hellos:Plain", "--start", "--again")
    played.failed(dispatched=("no",))
    expect(not played.received("startProcess"), "startProcess was sent, and is not advertised")
    played.succeeded("next")


@host_check(
    "HELLO-22",
    why="A process that can be started and not ended is worse than none.",
    broken="takes one method of a group for the group",
)
def half_a_group(stage: Stage) -> None:
    """A group that is advertised in part is not used."""
    played = stage.play("hellos:HalfAGroup", "--start", "--again")
    played.failed(dispatched=("no",))
    expect(not played.received("startProcess"), "startProcess was sent, and its group is not advertised")
    played.succeeded("next")


@host_check(
    "HELLO-25",
    why="A worker that is told to prepare before it has answered can take neither for granted.",
    broken="sends initialized before it has read the hello",
)
def order(stage: Stage) -> None:
    """`initialized` comes after the result of the hello."""
    played = stage.ordinary
    played.succeeded()
    greets = played.events("greets")
    expect(greets and played.received("initialized"), "there should be a hello and an initialized")
    expect(not greets[0]["hasty"], "there was more from the host before the hello was answered")


@host_check(
    "HELLO-20",
    part="said",
    why="A line beyond a worker's ceiling ends the worker, and every other call with it.",
    broken="writes by its own ceiling alone",
)
def smaller_ceiling(stage: Stage) -> None:
    """A command that does not fit in the worker's frame is refused by the host itself."""
    played = stage.play("hellos:SmallFrames", argv=(*ECHO, "x" * SMALL_FRAME_BYTES))
    played.failed(dispatched=("no",))
    played.one_worker()
    expect(not played.received("execute"), "a line was sent that the worker had said it does not take")
