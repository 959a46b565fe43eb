"""L1: what is around a worker: a terminal's signals, its children, an environment, and no way to start."""

from __future__ import annotations

import contextlib
import signal

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import WorkerGone, expect
from sandport_conformance.stories import PROCESS, Stage, tell

from .l0_lines import WIDE

_STDOUT_FOR_READING_ONLY = ("sh", "-c", 'exec "$@" 1</dev/null', "sh")


@check(
    "PROC-11",
    why="Ctrl-C in a terminal is sent to everything that runs there; what ends then is for the host to say.",
    broken="dies of the Ctrl-C that was meant for its host, with its sandboxes",
    fix="Catch SIGINT and do nothing. Not by ignoring it: what a sandbox runs would inherit that.",
    source="docker/cli#4402, docker/cli#4769",
)
def ctrl_c_does_not_end_a_worker(lab: Lab) -> None:
    """SIGINT, several times, changes nothing: not at once, and not a moment later."""
    worker = lab.worker
    for _ in range(3):
        worker.process.signal(signal.SIGINT)
        worker.ping()
    ended = worker.process.wait_exit(3 * lab.times.moment_s)
    expect(ended is None, f"a moment after it had answered it ended: {ended}")
    worker.ping()


@PROCESS.story
def killed_with_a_child_in_the_background(stage: Stage) -> None:
    """A command ends and leaves a child; then the worker is killed, and the child must go."""
    session = stage.spawn()
    stage.sandbox(session).execute(stage.lab.command("leave_child", text="left", seconds=300))
    session.process.signal(signal.SIGKILL)
    session.exit()
    grace_s = session.offered["limits"]["orphanGraceMs"] / 1000
    left = session.process.wait_survivors(grace_s + stage.times.exit_s)
    expect(not left, f"still there: {[survivor.command for survivor in left]}")


@check(
    "PROC-12",
    part="background",
    uses=Uses.OWN,
    needs=Needs(commands=("leave_child",)),
    why="What a finished command left in the background has no owner but the sandbox, and that one's end is its end.",
    broken="forgets a command when it ends, and with it what it left running",
    fix="Keep everything of a sandbox under one init or in one group that ends with the worker.",
    source="ray-project/ray#42861, pulumi/pulumi#9780, pulumi/pulumi#19603, ray-project/ray#56476",
)
def grandchildren_end_with_a_killed_worker(lab: Lab) -> None:
    """What a finished command left in the background is gone, at most one orphan grace after the worker was killed."""
    tell(lab, PROCESS, killed_with_a_child_in_the_background)


# ------------------------------------------------------------------ the start


@check(
    "PROC-17",
    why="A host passes on what it was told to and no more; a worker that needs more fails on another machine.",
    broken="reads a variable, a file of the current directory or a terminal that its author happens to have",
    fix="List what you need in `wantsEnv`, and have a default for everything else.",
    source="griptape-ai/griptape-nodes-engine#4791",
)
def a_bare_environment_is_enough(lab: Lab) -> None:
    """A worker serves in `/`, without a terminal, with no variables but PATH and those of its `wantsEnv`."""
    wanted = lab.worker.hello.get("wantsEnv", [])
    taken_away = [name for name in lab.settings.environ if name != "PATH" and name not in wanted]
    session = lab.spawn(greet=False, wrapper=("env", *(part for name in taken_away for part in ("-u", name))))
    session.greet()
    request_id = session.request("ping", {}, request_id=WIDE)  # without a locale some runtimes speak ASCII only
    session.result_of(request_id)
    session.call("validateConfig", {"config": {WIDE: WIDE}})
    session.call("shutdown", {"drainMs": 1_000})
    session.process.close_input()
    cause = session.exit()
    expect(cause == "exit code 0", f"it should end with exit code 0, not {cause}")


@PROCESS.story
def started_without_an_output(stage: Stage) -> None:
    """A worker whose stdout cannot be written, and a hello that it cannot answer."""
    session = stage.spawn(greet=False, wrapper=_STDOUT_FOR_READING_ONLY)
    with contextlib.suppress(WorkerGone):  # it may see at once that it cannot answer
        session.request("initialize", session.offered)
    session.exit()
    cause = session.process.exit_cause
    expect(cause is not None and cause.code not in (0, None), f"it should exit with a code above 0, not {cause}")
    session.process.drained(stage.times.exit_s)
    expect(session.process.stderr_text().strip(), f"it ended with {cause} and said nothing on stderr")


@check(
    "PROC-18",
    uses=Uses.OWN,
    why="All that a host can tell of a worker that did not come up is its exit code and its last words.",
    broken="ends with exit code 0, or without a word, or hangs",
    fix="Look at the descriptors first; say on stderr what is missing, and exit with 1.",
    source="modelcontextprotocol/python-sdk#401",
)
def a_worker_that_cannot_start_says_so(lab: Lab) -> None:
    """With a stdout that cannot be written, a worker exits with a code that is not 0, and says why on stderr."""
    tell(lab, PROCESS, started_without_an_output)
