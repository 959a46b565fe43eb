"""How a host starts and ends its workers, and what it makes of their log."""

from __future__ import annotations

from sandport_conformance.impostors.hellos import LAST_WORDS
from sandport_conformance.impostors.processes import LogFlood
from sandport_conformance.outcomes import expect

from .declaration import host_check
from .stage import Stage

_STOP_S = 40.0
"""All steps of a stop, with the host's own start, on a busy machine."""

_WRITERS = 12
_OPEN_WRITES = 4


@host_check(
    "PROC-20",
    part="session",
    why="A Ctrl-C at the terminal goes to every process of the foreground group, and would end all workers at once.",
    broken="starts a worker in its own session or process group",
)
def session(stage: Stage) -> None:
    """A worker leads a session of its own."""
    for start in stage.ordinary.starts:
        expect(start["session"] == start["pid"], f"the worker {start['pid']} is in session {start['session']}")


@host_check(
    "PROC-20",
    part="descriptors",
    why="A descriptor that leaks keeps files, locks and pipes open when the host is gone.",
    broken="lets a worker inherit descriptors",
)
def descriptors(stage: Stage) -> None:
    """A worker has three pipes and no other descriptor."""
    for start in stage.ordinary.starts:
        numbers = [number for number, _ in start["descriptors"]]
        expect(numbers == [0, 1, 2], f"the worker has the descriptors {start['descriptors']}")
        pipes = all(target.startswith(("pipe:", "socket:")) for _, target in start["descriptors"])
        expect(pipes, f"the worker's descriptors are no pipes: {start['descriptors']}")


@host_check(
    "PROC-20",
    part="environment",
    why="A provider's code, and every library that it brings, could read the host's secrets.",
    broken="hands its whole environment to a worker",
)
def environment(stage: Stage) -> None:
    """A worker sees none of the host's own variables, and has a token."""
    for start in stage.ordinary.starts:
        expect(not start["canary"], f"the worker sees secrets of the host's: {', '.join(start['canary'])}")
        expect(start["token"], "the worker has no SANDPORT_WORKER_TOKEN")


@host_check(
    "PROC-21",
    why="Who is killed at once cannot clean up; who is waited for without end is never gone.",
    broken="waits for ever for a worker that does not end, or kills it without asking",
)
def ladder(stage: Stage) -> None:
    """A worker that ends for nothing is told to shut down, gets the end of input and SIGTERM, and is killed."""
    played = stage.play("processes:Deaf", bound_s=_STOP_S)
    played.succeeded()
    steps = [
        ("shutdown", played.received("shutdown")),
        ("the end of input", played.events("end")),
        ("SIGTERM", played.events("term")),
    ]
    for name, seen in steps:
        expect(seen, f"the worker never saw {name}")
    times = [seen[0]["at"] for _, seen in steps]
    expect(times == sorted(times), "the steps should be shutdown, the end of input, SIGTERM")


@host_check(
    "PROC-21",
    part="pipes",
    why="A daemon that a worker left holds its pipes for ever; a host that waits for them hangs at its exit.",
    broken="waits for the end of pipes that a daemon holds",
)
def pipes(stage: Stage) -> None:
    """A worker that has exited has ended, whoever holds its pipes."""
    played = stage.play("processes:LeavesADaemon", bound_s=_STOP_S)
    played.succeeded()


@host_check(
    "PROC-22",
    why="What a worker leaves behind holds ports, files and a processor until the machine is started again.",
    broken="ends a worker, and not what it started",
)
def group(stage: Stage) -> None:
    """Nothing in a worker's group lives after its stop."""
    stage.play("processes:LeavesAChild", bound_s=_STOP_S).succeeded()


@host_check(
    "PROC-22",
    part="crash",
    why="A crash leaves more behind than a stop, and nobody is there to tidy up but the host.",
    broken="forgets what a worker leaves that crashed",
)
def group_of_a_crash(stage: Stage) -> None:
    """Nothing in a worker's group lives after its crash."""
    played = stage.play("processes:LeavesAChildAndCrashes", "--again", bound_s=_STOP_S)
    played.failed("crashed", says=(LAST_WORDS,))
    played.succeeded("next")


@host_check(
    "PROC-23",
    why="A worker that is started again during the stop is an orphan a moment later.",
    broken="takes an exit during its own stop for a crash",
    source="microsoft/vscode-languageserver-node#597",
)
def no_restart(stage: Stage) -> None:
    """A worker that exits when it is told to shut down is not started again."""
    played = stage.play("processes:ExitsAtShutdown", bound_s=_STOP_S)
    played.succeeded()
    played.one_worker()


@host_check(
    "LOG-2",
    part="lines",
    why="A worker that waits for room in its log does not answer, and a host that waits for the answer reads no log.",
    broken="does not drain the log while it waits for an answer, or loses lines",
    source="anthropics/claude-agent-sdk-python#103",
)
def log_flood(stage: Stage) -> None:
    """8 MiB of log before an answer hold nothing up and are all there, in bounded memory."""
    played = stage.play("processes:LogFlood", "--again", memory="log flood")
    played.succeeded()
    played.succeeded("next")
    told = played.logged(b"flood 0")
    expect(told == LogFlood.count, f"the worker logged {LogFlood.count} lines, the host told {told}")


@host_check(
    "LOG-2",
    part="piece",
    why="A line of log has no ceiling on the wire; memory has.",
    broken="gathers a line of the log without bound",
)
def long_log_line(stage: Stage) -> None:
    """64 MiB of log without a line feed are taken in pieces."""
    played = stage.play("processes:LongLogLine", "--again", memory="long log line")
    played.succeeded()
    played.succeeded("next")


@host_check(
    "PRC-11",
    why="Input that a process does not read piles up at its worker, and takes the places of all other calls.",
    broken="sends whatever its callers write at once, and lets the worker keep it",
)
def few_writes(stage: Stage) -> None:
    """Of what many callers write to one process at once, four writes are open at the worker, and all of it arrives."""
    played = stage.play("processes:TakesInputSlowly", "--start", "--write", str(_WRITERS), argv=("cat",))
    played.succeeded(stdout_bytes=_WRITERS)
    most = max((entry["open"] for entry in played.events("writes")), default=0)
    expect(0 < most <= _OPEN_WRITES, f"{most} writes were open at once")
