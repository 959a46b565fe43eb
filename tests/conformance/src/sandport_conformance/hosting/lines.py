"""What a host makes of lines that are wrong."""

from __future__ import annotations

from sandport_conformance.outcomes import expect

from .declaration import host_check
from .stage import Stage


@host_check(
    "FRAME-15",
    part="endless",
    why="One broken worker must not take the host's memory, and with it every other lease.",
    broken="gathers a line that never ends until memory is gone",
    source="modelcontextprotocol/typescript-sdk#2245, modelcontextprotocol/typescript-sdk#88",
)
def endless(stage: Stage) -> None:
    """A line without an end costs three times its ceiling at most, and the error names the ceiling."""
    played = stage.play("lines:EndlessLine", "--again", memory="endless line")
    played.failed(says=("frameBytes",))
    played.succeeded("next")


@host_check(
    "FRAME-15",
    part="depth",
    why="A parser that recurses dies of brackets, and takes the host along.",
    broken="parses any nesting, and crashes of it",
)
def depth(stage: Stage) -> None:
    """200,000 arrays in one line end the worker, and the error names the ceiling."""
    played = stage.play("lines:ManyBrackets", "--again", memory="200,000 brackets")
    played.failed(says=("depth",))
    played.succeeded("next")


@host_check(
    "FRAME-16",
    part="debug",
    why="A print left in a provider is common; it should cost its author a line of log, and nobody a lease.",
    broken="closes the connection for a line that is no message, or says nothing of it",
    source="bazelbuild/bazel#4897",
)
def debug_line(stage: Stage) -> None:
    """A line that is no JSON is logged with its first bytes, and costs nothing else."""
    played = stage.play("lines:DebugLine", "--again")
    played.succeeded()
    played.succeeded("next")
    played.one_worker()
    expect(played.logged(b"debug: x = 1") > 0, "the log should have the first bytes of the line, 'debug: x = 1'")


@host_check(
    "FRAME-16",
    part="bytes",
    why="A library that prints in another encoding must not end every call of the worker.",
    broken="ends with an exception where a line is no UTF-8",
    source="modelcontextprotocol/python-sdk#2454",
)
def not_text(stage: Stage) -> None:
    """A line that is no UTF-8 costs nothing else."""
    played = stage.play("lines:NotText", "--again")
    played.succeeded()
    played.succeeded("next")
    played.one_worker()


@host_check(
    "FRAME-16",
    part="glued",
    why="An answer behind a print is gone; its caller must be told, and not wait for it.",
    broken="loses its place in the stream, or lets the caller wait for ever",
    source="openlawlibrary/pygls#240, openlawlibrary/pygls#133",
    also=("PING-4",),
)
def glued(stage: Stage) -> None:
    """An answer that a print has spoilt is told as lost, and the connection lives."""
    played = stage.play("lines:GluedLine", "--again")
    played.failed("ProtocolViolation", dispatched=("unknown",))
    played.succeeded("next")
    played.one_worker()


@host_check(
    "FRAME-17",
    why="Runtimes warn on stdout before a provider's own code runs, and its author cannot prevent it.",
    broken="fails a start because a runtime prints warnings first",
    source="hashicorp/go-plugin#164, hashicorp/go-plugin#199, bazelbuild/rules_java#158",
)
def banner(stage: Stage) -> None:
    """60 KiB of lines before the hello are logged with the provider's name, and the worker serves."""
    played = stage.play("lines:Banner")
    played.succeeded()
    played.one_worker()
    expect(played.logged(b"warn: banner 0") > 0, "the log should have what was printed, 'warn: banner 0'")
    expect(played.logged(b"impostor") > 0, "the log should name the provider, 'impostor'")


@host_check(
    "HELLO-18",
    part="flood",
    why="A wrong program under a provider's name may print without end.",
    broken="reads what comes before the hello without bound",
)
def junk_flood(stage: Stage) -> None:
    """Half a gibibyte of lines before the hello ends the start in bounded memory."""
    played = stage.play("lines:JunkFlood", "--again", memory="lines before the hello")
    if played.outcome().get("error") is not None:
        played.failed("startFailed")
    played.succeeded("next")


@host_check(
    "MSG-15",
    why="A late or doubled answer is one mistake, and no reason to lose all calls that run.",
    broken="closes the connection for an answer that nobody waits for",
    source="microsoft/vs-streamjsonrpc#489, microsoft/vs-streamjsonrpc#492",
)
def stray(stage: Stage) -> None:
    """Answers to ids that are not open are logged and dropped."""
    played = stage.play("lines:StrayAnswers", "--again")
    played.succeeded()
    played.succeeded("next")
    played.one_worker()
    expect(played.logged(b"999999") > 0, "the log should name the id of the stray answer, 999999")


@host_check(
    "ERR-6",
    why="A later version of the protocol may have errors that this host has no name for; a person can read them.",
    broken="takes an unknown code for a fault of the wire",
)
def unknown_code(stage: Stage) -> None:
    """An unknown code is told with its message."""
    played = stage.play("lines:UnknownCode", "--again")
    error = played.failed(says=("out of fish",))
    expect(error.get("condition") not in ("ProtocolViolation", "crashed"), f"it is no violation: {error}")
    played.succeeded("next")
    played.one_worker()


@host_check(
    "ERR-9",
    why="The message is what its reader needs; an effect that nobody knows must not be taken for none.",
    broken="loses the message of an error whose data it cannot read",
)
def odd_data(stage: Stage) -> None:
    """An error whose data has no known form keeps code and message; its effect is unknown."""
    played = stage.play("lines:OddData", "--again")
    error = played.failed(says=("out of fish",), dispatched=("unknown",))
    expect(error.get("condition") not in ("ProtocolViolation", "crashed"), f"it is no violation: {error}")
    played.succeeded("next")
    played.one_worker()
