"""L4: what of the worker a command must not get: its variables, and its memory."""

from __future__ import annotations

import os

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import NotApplicable, expect
from sandport_conformance.sandbox import Sandbox, output_of

_VARIABLE = "SANDPORT_CONFORMANCE_CANARY"
_CREDIT = 65_536
_FLOOD = 256 << 20
_MOST_GROWTH = 64 << 20
_WAIT_MS = 2_000
_LONG_S = 30.0
"""For commands that write much; where it is short, a broken worker is told by its memory and not by the time."""


@check(
    "CMD-28",
    uses=Uses.OWN,
    needs=Needs(commands=("environment",)),
    why="A worker is given credentials by its variables, and commands are what nobody trusts.",
    broken="starts commands with its own environment, as most languages do where nothing is said",
    fix="Start from an empty environment, add what the sandbox has (PATH, HOME, LANG), then the call's `env`.",
)
def a_command_has_nothing_of_the_workers_environment(lab: Lab) -> None:
    """A variable that the worker was started with is not among a command's, nor among those of its sandbox's init."""
    secret = lab.canary()
    session = lab.spawn(environ={_VARIABLE: secret})
    sandbox = lab.new_sandbox(session)
    seen = {"execute": output_of(sandbox.execute(lab.command("environment")))}
    if sandbox.lease.get("shell") is not None:
        seen["a shell"] = output_of(sandbox.execute(shell="env"))
    if lab.facts.has_group("process"):
        session.call("startProcess", sandbox.params(lab.command("environment"), processId="env"))
        seen["startProcess"] = sandbox.follow(session.request("waitProcess", sandbox.params(processId="env"))).data()
    for how, said in seen.items():
        expect(secret.encode() not in said, f"a command of {how} has the worker's own {_VARIABLE} in its environment")
    around = _seen_around(lab, sandbox)
    expect(secret.encode() not in around, f"a process of the sandbox shows the worker's own {_VARIABLE}")


def _seen_around(lab: Lab, sandbox: Sandbox) -> bytes:
    """The environments that a command can read around it, where its processes are numbered apart from this machine's.

    Where they are not, a command of the worker's user can read the worker's own, and nothing is said of that.
    """
    if not lab.settings.commands.has("environments"):
        return b""
    said = output_of(sandbox.execute(lab.command("environments"), outputLimitBytes=1 << 20))
    namespace, _, variables = said.partition(b"\n")
    try:
        ours = os.readlink("/proc/self/ns/pid").encode()
    except OSError:
        return b""
    return variables if namespace not in (b"", ours) else b""


# ------------------------------------------------------------------ memory


@check(
    "CRED-10",
    part="live",
    uses=Uses.OWN,
    needs=Needs(commands=("flood",)),
    why="A consumer that stalls for a night meets a command that prints: what nobody takes must not fill a memory.",
    broken="reads all that a command writes, and keeps what the host has no room for",
    fix="Read a pipe only while there is credit (or a bounded buffer is not full), and let the command wait.",
)
def live_output_without_credit_takes_no_memory(lab: Lab) -> None:
    """While a command would write 256 MiB and no credit comes, the worker's memory stays where it was."""
    session = lab.spawn(greet=False)
    session.greet(limits={**session.offered["limits"], "creditBytes": _CREDIT})
    sandbox = lab.new_sandbox(session)
    sandbox.execute(lab.command("flood", bytes=1 << 20), live=False)
    before = _peak(sandbox)
    call = sandbox.start(lab.command("flood", bytes=_FLOOD), live=True, timeoutMs=_WAIT_MS)
    # What gathers lets the command end before its limit, and then waits for credit: it has no answer here.
    session.pump(lambda: session.answers(call), _WAIT_MS / 1000 + lab.times.exit_s)
    grown = _peak(sandbox) - before
    expect(grown < _MOST_GROWTH, f"with credit for {_CREDIT} bytes the worker grew by {grown >> 20} MiB")
    session.answer(call)


@check(
    "CRED-10",
    part="kept",
    uses=Uses.OWN,
    needs=Needs(commands=("flood",)),
    why="What is printed is not the caller's to bound: a limit of some kilobytes has to hold for a flood as well.",
    broken="gathers the whole output and cuts it in the end",
    fix="Keep a head, and a tail that forgets its beginning, while you count.",
)
def what_passes_the_limit_takes_no_memory(lab: Lab) -> None:
    """While a command without live output writes 256 MiB, the worker's memory stays where it was."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    sandbox.execute(lab.command("flood", bytes=1 << 20), outputLimitBytes=_CREDIT)
    before = _peak(sandbox)
    call = sandbox.start(lab.command("flood", bytes=_FLOOD), outputLimitBytes=_CREDIT)
    result = session.result_of(call, timeout_s=_LONG_S + lab.times.call_s)
    total = result.get("stdout", {}).get("totalBytes")
    expect(total == _FLOOD, f"of a flood of {_FLOOD} bytes {total!r} are counted")
    grown = _peak(sandbox) - before
    expect(grown < _MOST_GROWTH, f"{_FLOOD >> 20} MiB of output made the worker grow by {grown >> 20} MiB")


def _peak(sandbox: Sandbox) -> int:
    peak = sandbox.session.process.peak_memory_bytes()
    if not peak:
        raise NotApplicable("this machine does not tell how much memory a process has had")
    return peak
