"""L3: sandboxes by their ids: made once, found again, ended for good."""

from __future__ import annotations

import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

from sandport_conformance.declaration import Needs, Uses, check
from sandport_conformance.home import wait_until
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.processes import Survivor, a_mark, running
from sandport_conformance.sandbox import Sandbox, output_of
from sandport_conformance.schema import Json
from sandport_conformance.session import Id, Session

from .claims import expect_no_effect
from .gates import need_room
from .leases import attach, listed, pages, path_of, settle, settled

_SHAPES = ("", "sp", "sp{25}", "sp{27}", "SP{26}", "sq{26}", "sp../../{20}", "sp{25}1", "sp{25}A", "sp{26}\n", "{26}sp")
"""Ids of other forms; `{n}` stands for n characters that an id may have."""

_TURNS = 60
_ENOUGH_S = 1.0
"""After so long no further turn begins."""
_LATER_S = 0.005
_DYING_S = 2.0


def _other_forms(lab: Lab) -> list[str]:
    letters = lab.new_sandbox_id().removeprefix("sp") * 2
    forms = []
    for shape in _SHAPES:
        before, brace, rest = shape.partition("{")
        count, _, after = rest.partition("}")
        forms.append(before + letters[: int(count or 0)] + after if brace else shape)
    return forms


@check(
    "LEASE-1",
    why="The id becomes a label, a host name and the name of a folder; one of another form may name anything.",
    broken="takes whatever comes for an id, or looks only at how it begins",
    fix="Hold every `sandboxId` to `^sp[a-z2-7]{26}$`, to its very end.",
)
def an_id_has_its_form(lab: Lab) -> None:
    """A `sandboxId` of another form is answered InvalidParams by every method that takes one."""
    calls: dict[str, Json] = {
        "acquireLease": lab.with_config(ttlMs=600_000),
        "attachLease": lab.with_config(handle="conformance: no handle"),
        "listLeases": lab.with_config(),
        "destroyLease": {},
        "execute": {"argv": ["true"]},
    }
    if lab.facts.has_group("process"):
        calls["startProcess"] = {"argv": ["true"], "processId": "p1"}
        calls["waitProcess"] = {"processId": "p1"}
    for sandbox_id in _other_forms(lab):
        for method, params in calls.items():
            error = lab.worker.refused(method, {**params, "sandboxId": sandbox_id}, "InvalidParams")
            expect_no_effect(error, f"{method} with the sandboxId {sandbox_id!r}")


@check(
    "LEASE-3",
    why="By the handle a host finds the sandbox again when its worker is gone, and commands start in the directory.",
    broken="answers an empty handle, or a directory that it makes later",
    fix="Make the directory before you answer, and answer what finds the sandbox in a new process.",
)
def a_lease_can_be_used(lab: Lab) -> None:
    """A lease has a handle, and a working directory that exists."""
    sandbox = lab.new_sandbox()
    expect(sandbox.handle, "the handle of a lease is empty")
    directory = sandbox.lease["workingDirectory"]
    expect(directory, "the working directory of a lease is empty")
    sandbox.execute(lab.command("write_file", name="here", text="in the working directory"))
    seen = output_of(sandbox.execute(lab.command("read_file", name="here"), cwd=directory))
    expect(seen == b"in the working directory", f"commands start elsewhere than in {directory!r:.200}")


@check(
    "LEASE-4",
    why="Two sandboxes of one id cannot be told apart, and the wrong one is destroyed.",
    broken="makes another sandbox, or gives the same one out again, when an id comes twice",
    fix="Let the create itself fail where the id is taken, and answer InvalidParams.",
)
def an_id_serves_one_create(lab: Lab) -> None:
    """A second acquire with the id of a sandbox that is there is refused, and the sandbox stays as it was."""
    worker, sandbox = lab.worker, lab.new_sandbox()
    sandbox.execute(lab.command("write_file", name="mine", text="of the first"))
    params = lab.with_config(sandboxId=sandbox.id, ttlMs=600_000)
    for _ in range(2):
        answer = worker.answer(worker.unthrottled(worker.request("acquireLease", params)))
        if "result" in answer.body:
            raise Failed(f"an id was taken for a second create: {answer.line[:200]!r}")
        expect_no_effect(worker.error_of(answer.body["id"], "InvalidParams"), "a second create of an id")
    kept = output_of(sandbox.execute(lab.command("read_file", name="mine")))
    expect(kept == b"of the first", "a refused acquire changed the sandbox that has the id")
    new_id = lab.new_sandbox_id()
    both = [worker.request("acquireLease", {**params, "sandboxId": new_id}) for _ in range(2)]
    both = [worker.unthrottled(call) for call in both]
    made = [call for call in both if "result" in worker.answer(call).body]
    for call in set(both) - set(made):
        worker.error_of(call, "InvalidParams")
    if made:
        Sandbox(worker, new_id, worker.result_of(made[0])).destroy()
    expect(len(made) == 1, f"of two acquires of one id at once {len(made)} succeeded")


@check(
    "LEASE-6",
    why="`NotAttached` makes a host attach and repeat; any other answer is a failure of the run.",
    broken="answers that there is no such sandbox, or makes one",
    fix="Look the id up among those that this worker acquired or attached, and answer NotAttached before all else.",
)
def an_unknown_sandbox_is_not_attached(lab: Lab) -> None:
    """Commands for a sandbox that this worker neither acquired nor attached are NotAttached, `dispatched` `no`."""
    named = {"sandboxId": lab.new_sandbox_id()}
    calls: list[tuple[str, Json]] = [("execute", {**named, "argv": lab.command("print", text="nowhere")})]
    if lab.facts.has_group("process"):
        process = {**named, "processId": "p1"}
        calls += [
            ("startProcess", {**process, "argv": lab.command("print", text="nowhere")}),
            ("writeProcess", {**process, "end": True}),
            ("signalProcess", {**process, "kill": True}),
            ("waitProcess", process),
        ]
    for method, params in calls:
        expect_no_effect(lab.worker.refused(method, params, "NotAttached"), f"{method} in an unknown sandbox")


@check(
    "LEASE-7",
    why="`gone` lets a host forget a sandbox, whatever it costs; nothing else does.",
    broken="says `attached` for whatever it is asked, or `gone` for what it has not looked up",
    fix="Look the sandbox up by its handle; answer the lease with `attached`, and `gone` only where it is known.",
)
def attaching_tells_what_is_there(lab: Lab) -> None:
    """Attaching answers `attached` with a lease that works, and `gone` once the sandbox was destroyed."""
    worker, sandbox = lab.worker, lab.new_sandbox()
    sandbox.execute(lab.command("write_file", name="mine", text="before"))
    result = attach(lab, sandbox.id, sandbox.handle)
    expect(result["state"] == "attached", f"a sandbox that is there is {result['state']!r}")
    lease = result.get("lease")
    if lease is None:
        raise Failed("a sandbox was attached without a lease")
    expect(lease["handle"] == sandbox.handle, f"the handle became {lease['handle']!r:.100}")
    again = Sandbox(worker, sandbox.id, lease)
    kept = output_of(again.execute(lab.command("read_file", name="mine"), cwd=lease["workingDirectory"]))
    expect(kept == b"before", "what was attached is not the sandbox that was acquired")
    sandbox.destroy()
    for _ in range(2):
        state = attach(lab, sandbox.id, sandbox.handle)["state"]
        expect(state == "gone", f"a sandbox that was destroyed is {state!r}")


@check(
    "LEASE-8",
    part="lists",
    why="What is not listed is not cleaned up, and is paid for until somebody finds it by hand.",
    broken="lists what it remembers and not what is there, or forgets the filter",
    fix="Ask the vendor for everything with the store's id on it; with `sandboxId`, for that one.",
)
def everything_acquired_is_listed(lab: Lab) -> None:
    """A list has each sandbox with a handle that attaches it; with `sandboxId` that one only; destroyed ones never."""
    first, second = lab.new_sandbox(), lab.new_sandbox()
    everything = settled(lab, lambda: listed(lab), lambda found: {first.id, second.id} <= set(found))
    for sandbox in (first, second):
        expect(sandbox.id in everything, f"sandbox {sandbox.id} was acquired and is not listed")
        state = attach(lab, sandbox.id, everything[sandbox.id])["state"]
        expect(state == "attached", f"the listed handle of {sandbox.id} attaches as {state!r}")
        one = settled(lab, partial(listed, lab, sandbox.id), bool)
        expect(set(one) == {sandbox.id}, f"asked for {sandbox.id}, the list has {sorted(one)}")
    second.destroy()
    left = settled(lab, lambda: listed(lab), lambda found: second.id not in found)
    expect(first.id in left, f"sandbox {first.id} is not listed any more, while another was destroyed")
    by_id = settled(lab, lambda: listed(lab, second.id), lambda found: not found)
    expect(second.id not in left and not by_id, f"sandbox {second.id} was destroyed and is listed")


@check(
    "LEASE-8",
    part="store",
    uses=Uses.OWN,
    why="A host destroys what it finds on the list and does not know: another store's sandboxes must not be there.",
    broken="lists everything that the credentials can see",
    fix="Write the store's id on the resource when you create it, and list by it.",
)
def another_stores_sandboxes_are_not_listed(lab: Lab) -> None:
    """A worker with another store's id does not list the sandboxes of this one."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    state = Path(tempfile.mkdtemp(prefix="sandport-conformance-"))
    try:
        other = lab.spawn(greet=False)
        other.greet(storeId=f"{lab.store_id}-other", stateDir=str(state))
        settle(lab)
        for found in (listed(lab, session=other), listed(lab, sandbox.id, session=other)):
            expect(sandbox.id not in found, f"sandbox {sandbox.id} is listed to another store")
    finally:
        shutil.rmtree(state, ignore_errors=True)


@check(
    "LEASE-9",
    part="gone",
    uses=Uses.OWN,
    why="What outlives its sandbox works on without an owner, and a destroy that cannot be repeated is never certain.",
    broken="answers before all is gone, leaves what ran, or fails where there is nothing any more",
    fix="End everything, look that it is gone, answer `destroyed`; answer `gone` where it was gone already.",
)
def a_destroyed_sandbox_is_gone(lab: Lab) -> None:
    """A destroy ends what runs, the files and the lease, is answered then, and answers `gone` when it is repeated."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    need_room(sandbox, 2)
    seconds = lab.random.randrange(100_000, 999_999)
    call = sandbox.start(lab.command("note_ids", name="ids", text="up", seconds=seconds), live=True)
    sandbox.execute(lab.command("wait_for_file", name="ids", text="it runs"))
    state = sandbox.destroy()["state"]
    expect(state == "destroyed", f"a sandbox that was there was {state!r}")
    left = [survivor.command for survivor in session.process.survivors() if str(seconds) in survivor.command]
    expect(not left, f"the sandbox was destroyed, and what ran in it lives: {left!r:.300}")
    root = path_of(sandbox.lease.get("localRoot"))
    expect(root is None or not root.exists(), f"the sandbox was destroyed, and {root} is there")
    session.answer(call)
    for _ in range(2):
        state = sandbox.destroy()["state"]
        expect(state == "gone", f"a sandbox that was destroyed is {state!r} when it is destroyed again")
    refusal = session.refused("execute", sandbox.params(["true"]), "NotAttached", "LeaseNotFound")
    expect_no_effect(refusal, "a command in a sandbox that was destroyed")
    left_on_it = settled(lab, lambda: listed(lab, sandbox.id, session=session), lambda found: not found)
    expect(not left_on_it, "the sandbox was destroyed and is listed")


@check(
    "LEASE-9",
    part="starting",
    uses=Uses.OWN,
    needs=Needs(commands=("sleep",)),
    why="What starts while its sandbox ends works on for ever: nobody knows of it, and nobody looks for it again.",
    broken="starts a command and notes that it has in two steps, between which a destroy finds nothing to end",
    fix="Look that the sandbox is there, start, and note it in one step, for which a destroy waits before it looks.",
)
def a_command_that_is_starting_ends_with_its_sandbox(lab: Lab) -> None:
    """Of a command and the destroy of its sandbox, sent back to back, both are answered, and the command is gone."""
    session, mark = lab.spawn(), a_mark()
    began = time.monotonic()
    for turn in range(_TURNS):
        sandbox = lab.acquire(session, {})
        command = sandbox.start(lab.command("sleep", seconds=mark))
        if turn % 2:  # not every worker begins with a command at once
            session.pump(lambda: False, lab.random.uniform(0, _LATER_S))
        state = sandbox.destroy()["state"]
        expect(state == "destroyed", f"a sandbox that was there was {state!r}")
        dying_s = _DYING_S * lab.times.factor
        answered = session.pump(partial(session.answers, command), dying_s)
        expect_none_left(mark, dying_s if answered else 0.0)
        expect_ended(session, command)
        if time.monotonic() - began > _ENOUGH_S:
            break


def expect_none_left(mark: int, dying_s: float) -> None:
    """Hold a command whose sandbox was destroyed to be gone; what was killed is seen until it has died."""
    left: list[Survivor] = []

    def look() -> bool:
        left[:] = running(str(mark))
        return not left

    if not wait_until(look, dying_s):
        raise Failed(f"a command was starting when its sandbox was destroyed, and lives: process {left[0].pid}")


def expect_ended(session: Session, command: Id) -> None:
    """Hold the answer of a command that cannot have come to its end, and whose sandbox is gone, to say no more."""
    answer = session.answer(command).body
    if "error" in answer:
        session.error_of(command, "NotAttached", "LeaseNotFound", "SandboxLost", "Cancelled")
    else:
        ended = session.result_of(command)["ended"]
        expect(ended != "exited", "a command whose sandbox was destroyed is answered as one that ended by itself")


@check(
    "LEASE-16",
    why="A list that does not fit in a frame cannot be read, and what is on it cannot be cleaned up.",
    broken="puts everything on one page, loses what lies between two, or has no last page",
    fix="Answer as many as fit, with a cursor that names the last one; null once there is nothing more.",
)
def a_list_has_a_last_page(lab: Lab) -> None:
    """Page after page a list has every sandbox once, each page fits in a frame, and the last has no cursor."""
    wanted = {lab.sandbox.id, *(lab.new_sandbox().id for _ in range(3))}
    settle(lab)
    begin = len(lab.worker.messages)
    found = [lease["sandboxId"] for page in pages(lab) for lease in page]
    expect(len(found) == len(set(found)), f"a sandbox stands on two pages: {sorted(found)}")
    missing = wanted - set(found)
    expect(not missing, f"no page has {', '.join(sorted(missing))}")
    longest = max(len(message.line) for message in lab.worker.messages[begin:])
    expect(longest <= lab.facts.limits["frameBytes"], f"a page of {longest} bytes does not fit in a frame")


@check(
    "LEASE-17",
    why="A host copies files straight into this directory: if it is another one, a run works on nothing.",
    broken="answers the path inside of a container or of another machine",
    fix="Answer `localRoot` only where the working directory is that directory of this machine.",
)
def the_local_root_is_the_working_directory(lab: Lab) -> None:
    """What is written into `localRoot` is in the working directory, and the other way round."""
    sandbox = lab.new_sandbox()
    root = path_of(sandbox.lease.get("localRoot"))
    if root is None:
        raise NotApplicable("the lease has no localRoot")
    sandbox.execute(lab.command("write_file", name="from-inside", text="inside"))
    try:
        seen = (root / "from-inside").read_bytes()
        (root / "from-outside").write_bytes(b"outside")
    except OSError as error:
        raise Failed(f"localRoot {root} is not the working directory of this machine: {error}") from error
    expect(seen == b"inside", f"what a command wrote is {seen!r:.60} under localRoot")
    read = output_of(sandbox.execute(lab.command("read_file", name="from-outside")))
    expect(read == b"outside", f"what was written under localRoot is {read!r:.60} for a command")
