"""L3: what a kill reaches of a command whose child sheds all that it could be known by."""

from __future__ import annotations

import time

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, expect
from sandport_conformance.sandbox import Sandbox, output_of, output_size
from sandport_conformance.schema import Json

from .l3_cancel import KERNEL_S
from .l3_processes import Process

_SECONDS = 60
"""A stranger that a worker leaves ends by itself: no one can find it to end it."""
_STAY_S = 300
_PATIENCE_MS = (1_000, 4_000, 16_000)
"""The time-outs: a longer one where the stranger had not begun yet."""
_TREE = Needs(capabilities={"kill": ("tree",)}, commands=("leave_stranger", "count_alive"))
_FIX = (
    "A mark in the environment, a group and a session are all shed by `env -i setsid`. Kill by PID namespace, cgroup "
    "or child subreaper, until the kernel says that nothing is left"
)


def _alive(lab: Lab, sandbox: Sandbox, name: str) -> bool:
    """Whether the stranger lives; what was killed takes the kernel a moment to be gone on a busy machine."""
    deadline = time.monotonic() + KERNEL_S
    while output_of(sandbox.execute(lab.command("count_alive", name=name))) != b"0":
        if time.monotonic() > deadline:
            return True
        time.sleep(0.02)
    return False


def _strange(lab: Lab, name: str) -> list[str]:
    return lab.command("leave_stranger", name=name, seconds=_SECONDS, text="up", stay=_STAY_S)


def timed_out(lab: Lab) -> tuple[Json, bool]:
    """The result of a command that timed out after it had left a stranger, and whether that lives."""
    sandbox = lab.new_sandbox()
    for turn, patience_ms in enumerate(_PATIENCE_MS):
        name = f"stranger-{turn}"
        result = sandbox.execute(_strange(lab, name), timeoutMs=patience_ms)
        expect(result.get("ended") == "timedOut", f"it should have timed out: {result!r:.200}")
        if output_of(result) == b"up":
            return result, _alive(lab, sandbox, name)
    raise Failed(f"a command had not written two bytes within {_PATIENCE_MS[-1] / 1000:.0f} s")


@check(
    "CMD-11",
    part="stranger",
    uses=Uses.SHARED,
    needs=Needs(commands=("leave_stranger", "count_alive")),
    why="`gone` is a proof: a host that has it gives the sandbox to the next run.",
    broken="says `gone` when it finds nothing more that carries its mark, which `env -i` takes away",
    fix=f"{_FIX}; where you look for a mark, say `signalled`.",
)
def gone_is_not_said_of_a_stranger(lab: Lab) -> None:
    """`tree` is not `gone` while a child lives that cleared its environment, forked twice, and left all."""
    result, alive = lab.once(timed_out)
    tree = result.get("tree")
    expect(tree in ("gone", "signalled", "unreachable"), f"tree is {tree!r} after a kill")
    expect(
        not (alive and tree == "gone"),
        "the tree is told gone, and a child that has cleared its environment and left group and session lives",
    )


@check(
    "CMD-19",
    part="stranger",
    uses=Uses.SHARED,
    needs=_TREE,
    why="What daemonizes in full, as servers do, must not outlive the time-out either.",
    broken="finds what has left the group by a mark in the environment, and declares `kill: tree`",
    fix=f"{_FIX}; or declare `kill: group`.",
)
def a_time_out_ends_a_stranger(lab: Lab) -> None:
    """With `kill: tree`, a child that cleared its environment, forked twice and left all does not survive a limit."""
    _, alive = lab.once(timed_out)
    expect(not alive, "a child that has cleared its environment and left group and session survived the time-out")


@check(
    "CANCEL-6",
    part="stranger",
    needs=_TREE,
    why="A cancel kills as a time-out does: what it misses works on in a sandbox that is thought to be idle.",
    broken="finds what has left the group by a mark in the environment, and declares `kill: tree`",
    fix=f"{_FIX}; or declare `kill: group`.",
)
def a_cancel_ends_a_stranger(lab: Lab) -> None:
    """With `kill: tree`, a child that cleared its environment, forked twice and left all does not survive a cancel."""
    sandbox, session = lab.new_sandbox(), lab.worker
    # Known by its output and not by another command: beside that one, whose child it is would be a second question.
    call = sandbox.start(_strange(lab, "stranger"), live=True)
    session.wait(lambda m: output_size(m, call), "its output", timeout_s=lab.times.call_s)
    session.cancel(call)
    session.error_of(call, "Cancelled")
    alive = _alive(lab, sandbox, "stranger")
    expect(not alive, "a child that has cleared its environment and left group and session survived the cancel")


@check(
    "PRC-5",
    part="stranger",
    uses=Uses.SHARED,
    needs=Needs(groups=("process",), capabilities={"kill": ("tree",)}, commands=("leave_stranger", "count_alive")),
    why="A kill reaches what a time-out would: a process that is killed leaves nothing behind.",
    broken="finds what has left the group by a mark in the environment, and declares `kill: tree`",
    fix=f"{_FIX}; or declare `kill: group`.",
)
def a_kill_ends_a_stranger(lab: Lab) -> None:
    """With `kill: tree`, a child that cleared its environment, forked twice and left all does not survive `kill`."""
    sandbox = lab.new_sandbox()
    process = Process(lab, sandbox, _strange(lab, "stranger"))
    waiting = process.begin_wait()
    process.session.wait(lambda m: output_size(m, waiting), "its output", timeout_s=lab.times.call_s)
    process.kill()
    result = sandbox.follow(waiting).result
    expect(result.get("ended") == "signalled", f"it should have been ended by a signal: {result!r:.200}")
    expect(result.get("tree") in ("gone", "signalled", "unreachable"), f"tree is {result.get('tree')!r} after a kill")
    alive = _alive(lab, sandbox, "stranger")
    expect(not alive, "a child that has cleared its environment and left group and session survived a kill")
