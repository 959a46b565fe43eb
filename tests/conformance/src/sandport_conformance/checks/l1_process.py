"""L1: how a worker's process begins and ends."""

from __future__ import annotations

from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect


@check(
    "PROC-3",
    uses=Uses.OWN,
    why="The end of stdin is how a worker learns that its host is gone; one that misses it stays for ever.",
    broken="waits in another thread and never sees the end of its stdin",
    fix="End the process when stdin ends, also while idle and while threads of the provider live.",
    source="modelcontextprotocol/python-sdk#2231, modelcontextprotocol/typescript-sdk#2002",
)
def the_end_of_input_ends_an_idle_worker(lab: Lab) -> None:
    """An idle worker ends by itself when its stdin ends."""
    session = lab.spawn()
    session.ping()
    session.process.close_input()
    session.exit()


@check(
    "PROC-8",
    uses=Uses.OWN,
    why="A host asks before it forces; only a worker that answers and ends can give its sandboxes back first.",
    broken="answers shutdown and goes on serving",
    fix="Finish what runs, answer, and end with exit code 0.",
    source="clangd/clangd#855",
)
def shutdown_ends_the_worker(lab: Lab) -> None:
    """After `shutdown` was answered and stdin ended, the worker ends with exit code 0."""
    session = lab.spawn()
    session.call("shutdown", {"drainMs": 1_000}, timeout_s=lab.times.exit_s)
    session.process.close_input()
    cause = session.exit()
    expect(cause == "exit code 0", f"after a shutdown the worker should end with exit code 0, not {cause}")


@check(
    "PROC-12",
    uses=Uses.OWN,
    why="A worker that is killed cannot tidy up; what it started must not run on without an owner.",
    broken="runs commands in a session of their own, with nothing that ends them when the worker is gone",
    fix="Keep them in the worker's process group, or under an init that ends when its pipe from the worker ends.",
    source="ray-project/ray#42861, ray-project/ray#56476",
)
def nothing_outlives_a_killed_worker(lab: Lab) -> None:
    """What a worker started is gone, at most one orphan grace after the worker was killed."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    sandbox.start(lab.command("print_then_sleep", text="up", seconds=300), live=True)
    session.wait(lambda m: m.method == "output", "output of a command", timeout_s=lab.times.call_s)
    session.process.signal(9)
    session.exit()
    grace_s = session.offered["limits"]["orphanGraceMs"] / 1000
    left = session.process.wait_survivors(grace_s + lab.times.exit_s)
    expect(not left, f"still there: {[survivor.command for survivor in left]}")
