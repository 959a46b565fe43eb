"""L4: two sandboxes of one worker have nothing of each other."""

from __future__ import annotations

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.sandbox import output_of
from sandport_conformance.session import Id

from .gates import held, need_room


@check(
    "LEASE-27",
    part="files",
    why="Two runs write `result.json` at the same time.",
    broken="gives all sandboxes one directory",
    fix="Make a directory, or a file system, for each sandbox.",
)
def files_are_apart(lab: Lab) -> None:
    """A file that one sandbox writes, by name or under its working directory, is not in another's."""
    one, two = lab.new_sandbox(), lab.new_sandbox()
    for sandbox, text in ((one, "of one"), (two, "of two")):
        sandbox.execute(lab.command("write_file", name="mine", text=text))
    one.execute(lab.command("write_file", name="only-here", text="of one"))
    for sandbox, text in ((one, "of one"), (two, "of two")):
        read = output_of(sandbox.execute(lab.command("read_file", name="mine")))
        expect(read == text.encode(), f"one sandbox wrote {text!r}, and reads {read!r:.60}: two have one file")
    result = two.execute(lab.command("read_file", name="only-here"))
    expect(result.get("exitCode") != 0, f"a file of one sandbox is in another: {output_of(result)!r:.60}")


@check(
    "LEASE-27",
    part="processes",
    needs=Needs(groups=("process",), commands=("print_then_sleep",)),
    why="The host mints a `processId` for a sandbox, and may use it in each.",
    broken="keeps processes by their id alone",
    fix="Keep them by sandbox and id.",
)
def processes_are_apart(lab: Lab) -> None:
    """One `processId` is free in each sandbox, names another process in each, and a kill reaches only its own."""
    worker, one, two = lab.worker, lab.new_sandbox(), lab.new_sandbox()
    need_room(one, 1)
    argv = lab.command("print_then_sleep", text="of one", seconds=300)
    worker.call("startProcess", one.params(argv, processId="p1"))
    worker.refused("waitProcess", two.params(processId="p1"), "ProcessNotFound")
    worker.refused("signalProcess", two.params(processId="p1", kill=True), "ProcessNotFound")
    worker.call("startProcess", two.params(lab.command("exit", code=5), processId="p1"))
    ended = two.follow(worker.request("waitProcess", two.params(processId="p1"))).result
    expect(ended.get("exitCode") == 5, f"a process of the second sandbox ended as {ended!r:.200}")
    follower: Id = worker.request("waitProcess", one.params(processId="p1"))
    worker.call("signalProcess", two.params(processId="p1", kill=True))
    worker.ping()
    expect(not worker.answers(follower), "a process of one sandbox ended with that of another")
    worker.call("signalProcess", one.params(processId="p1", kill=True))
    expect(one.follow(follower).data() == b"of one", "the output of a process of one sandbox is not its own")


@check(
    "LEASE-27",
    part="ends",
    uses=Uses.OWN,
    needs=Needs(commands=("sleep", "note_ids")),
    why="One run times out, or is over, and the others know nothing of it.",
    broken="kills by the worker, the user or the name, and hits what belongs to another sandbox",
    fix="End what has the sandbox's own mark, group, container or init.",
)
def ends_are_apart(lab: Lab) -> None:
    """A command goes on when commands of another sandbox time out or are cancelled, and when that one is destroyed."""
    session = lab.spawn()
    one, two = lab.new_sandbox(session), lab.new_sandbox(session)
    with held(lab, one) as call:
        timed_out = two.execute(lab.command("sleep", seconds=300), timeoutMs=100)
        expect(timed_out.get("ended") == "timedOut", f"it should have timed out: {timed_out!r:.200}")
        cancelled = two.start(lab.command("sleep", seconds=300))
        session.ping()
        session.cancel(cancelled)
        session.answer(cancelled)
        destroyed = two.start(lab.command("note_ids", name="ids", text="up", seconds=300), live=True)
        two.execute(lab.command("wait_for_file", name="ids", text="it runs"))
        two.destroy()
        session.answer(destroyed)
        expect(not call.answers, "a command ended with what ran in another sandbox")
        call.let_go()
        result = session.result_of(call.id)
    expect(result.get("exitCode") == 0, f"a command ended wrongly after the end of another sandbox: {result!r:.200}")
