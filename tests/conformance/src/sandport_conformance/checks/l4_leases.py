"""L4: sandboxes that are made, found and opened again, by one worker and the next."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from sandport_conformance.declaration import Uses, check
from sandport_conformance.home import Home, wait_until
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import Failed, NotApplicable, expect
from sandport_conformance.sandbox import Sandbox, output_of
from sandport_conformance.schema import Json
from sandport_conformance.session import Session
from sandport_conformance.stories import LIFE, Stage, tell

from .claims import dispatched
from .gates import held, need_room
from .leases import attach, listed, settle, settled

_GRAIN_MS = 60_000
"""What LEASE-25 lets a vendor round up."""
_TTL_MS = 600_000
_CUTS = 5
"""At so many moments of an acquire it is cancelled."""


def expires_at(lease: Json) -> int | None:
    """The lease's `expiresAtMs`."""
    value = lease.get("expiresAtMs")
    return None if value is None else int(value)


# ------------------------------------------------------------------ what an acquire promises


@check(
    "CAP-3",
    why="A grant that is not enforced is a sandbox that reaches what it must not.",
    broken="takes any grant, or makes the sandbox before it looks at it",
    fix="Compare the grant with what you declare before anything else, and answer NotSupported.",
)
def a_grant_that_is_not_declared_is_refused(lab: Lab) -> None:
    """An egress grant that is not among `capabilities.egress` is NotSupported, and nothing was created."""
    grants: list[Json] = [{"mode": "all"}, {"mode": "none"}, {"mode": "listed", "hosts": ["example.com"]}]
    refused = [grant for grant in grants if grant["mode"] not in lab.facts.capabilities.get("egress", ())]
    if not refused:
        raise NotApplicable("every egress grant is declared")
    for grant in refused:
        sandbox_id = lab.new_sandbox_id()
        params = lab.with_config(sandboxId=sandbox_id, ttlMs=_TTL_MS, egress=grant)
        error = lab.worker.refused("acquireLease", params, "NotSupported")
        expect(dispatched(error) == "no", f"a refused grant says dispatched {dispatched(error)!r}, and must say 'no'")
        settle(lab)
        expect(not listed(lab, sandbox_id), f"the grant {grant['mode']!r} was refused, and a sandbox is listed for it")


@check(
    "LEASE-14",
    why="The host holds the answer against the grant: whatever differs is a failure of the acquire.",
    broken="does not say what is enforced, or says something else than was granted",
    fix="Enforce the grant before you answer, and answer `egress` as it is enforced.",
)
def a_granted_egress_is_answered(lab: Lab) -> None:
    """An acquire with a grant that is declared answers in `egress` that this is what is enforced."""
    declared = lab.facts.capabilities.get("egress", ())
    refused = []
    for mode in declared:
        grant: Json = {"mode": mode, **({"hosts": ["example.com"]} if mode == "listed" else {})}
        try:
            said = lab.new_sandbox(egress=grant).lease.get("egress")
        except Failed as failed:  # With the config of this run it may be one that cannot be enforced.
            refused.append(mode)
            if "NotSupported" not in str(failed) or len(refused) == len(declared):
                raise
            continue
        if said is None:
            raise Failed(f"the grant {mode!r} was taken, and the lease does not say what egress is enforced")
        expect(said["mode"] == mode, f"granted was {mode!r}, enforced is said to be {said['mode']!r}")
        hosts = sorted(said.get("hosts", []))
        expect(hosts == sorted(grant.get("hosts", [])), f"granted was {grant!r}, enforced is said to be {said!r:.200}")


@LIFE.story
def two_stores_in_one_directory(stage: Stage) -> None:
    """A store's sandbox, and a worker of another store with the same state directory."""
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        found = settled(stage.lab, lambda: home.listed(first, sandbox.id), lambda found: sandbox.id in found)
        expect(sandbox.id in found, f"sandbox {sandbox.id} was acquired and is not listed")
        other = home.worker(storeId=f"{home.store_id}-other")
        for found in (home.listed(other), home.listed(other, sandbox.id)):
            expect(sandbox.id not in found, f"sandbox {sandbox.id} is listed to another store")


@check(
    "LEASE-2",
    uses=Uses.OWN,
    why="A host destroys what is listed to it: only the store's id on the sandbox itself says whose it is.",
    broken="does not write the store's id on what it creates, and lists by the place alone",
    fix="Write the sandbox id and the store id in the create call itself, and list by both.",
)
def the_store_is_written_on_the_sandbox(lab: Lab) -> None:
    """A sandbox is not listed to a worker of another store, also where both have one `stateDir`."""
    tell(lab, LIFE, two_stores_in_one_directory)


@LIFE.story
def cancelled_acquires(stage: Stage) -> None:
    """Acquires that are cancelled at several moments, and what the list says then."""
    with stage.home() as home:
        session = home.worker()
        took_s = time_of_an_acquire(home, session)
        for cut in range(_CUTS):
            sandbox_id, request_id = home.begin_acquire(session)
            session.pump(partial(session.answers, request_id), took_s * cut / (_CUTS - 1))
            session.cancel(request_id)
            answer = session.answer(request_id)
            if "result" in answer.body:
                lease = session.result_of(request_id)
                expect(
                    Sandbox(session, sandbox_id, lease).destroy()["state"] == "destroyed", "it was there, and is not"
                )
                continue
            error = session.error_of(request_id, "Cancelled", "RateLimited")
            settle(stage.lab)
            if dispatched(error) == "no":
                found = home.listed(session, sandbox_id)
                expect(not found, "an acquire was cancelled and says that nothing was done, and its sandbox is listed")
            elif wrong := home.end(session, sandbox_id):
                raise Failed(f"what a cancelled acquire left cannot be destroyed: {wrong}")


def time_of_an_acquire(home: Home, session: Session) -> float:
    """How long one takes; it is destroyed again."""
    began = time.monotonic()
    sandbox = home.acquire(session)
    took_s = time.monotonic() - began
    sandbox.destroy()
    return took_s


@check(
    "LEASE-5",
    uses=Uses.OWN,
    why="A cancelled acquire has no owner: what it made runs on, and is paid for, until somebody finds it.",
    broken="answers Cancelled and leaves what it had made",
    fix="Destroy what was created before you answer; where that fails, say `dispatched` `unknown`.",
)
def a_cancelled_acquire_leaves_nothing(lab: Lab) -> None:
    """An acquire that was cancelled, early or late, has its result, or nothing of it is left or cannot be ended."""
    tell(lab, LIFE, cancelled_acquires)


# ------------------------------------------------------------------ a later worker


@dataclass(frozen=True, slots=True)
class Later:
    """What a second worker did with the sandbox of the first, which lived on beside it.

    Attributes:
        handle: What the list gave it.
        state: What its attach said.
        read: What the sandbox's file held for it.
        destroyed: What its destroy said.
        listed: Whether the sandbox was on its list afterwards.
        attached_again: What an attach said afterwards.
    """

    handle: str | None
    state: str
    read: bytes
    destroyed: str
    listed: bool
    attached_again: str


@LIFE.story
def attached_and_destroyed_by_another(stage: Stage) -> Later:
    """A second worker finds a sandbox by the list, works in it and destroys it."""
    with stage.home() as home:
        first = home.worker()
        sandbox = home.acquire(first)
        sandbox.execute(stage.lab.command("write_file", name="mine", text="by the first"))
        later = home.worker()
        handle = settled(stage.lab, lambda: home.listed(later, sandbox.id), bool).get(sandbox.id)
        result = home.attach(later, sandbox.id, handle or sandbox.handle)
        if result["state"] != "attached" or result.get("lease") is None:
            return Later(handle, f"{result!r:.100}", b"", "", False, "")
        opened = Sandbox(later, sandbox.id, result["lease"])
        read = output_of(opened.execute(stage.lab.command("read_file", name="mine")))
        destroyed = opened.destroy()["state"]
        return Later(
            handle=handle,
            state=result["state"],
            read=read,
            destroyed=destroyed,
            listed=bool(settled(stage.lab, lambda: home.listed(later, sandbox.id), lambda found: not found)),
            attached_again=home.attach(later, sandbox.id, sandbox.handle)["state"],
        )


@check(
    "LEASE-10",
    part="attach",
    uses=Uses.OWN,
    why="A handle is all that a host keeps: what only the worker knew is lost with it.",
    broken="keeps what it needs in memory, so that its handles mean nothing to another worker",
    fix="Put everything into the handle, the resource or `stateDir` that a new process needs.",
)
def a_handle_works_in_another_worker(lab: Lab) -> None:
    """A worker that did not make a sandbox lists it, attaches it by the handle, and works with its files."""
    told = tell(lab, LIFE, attached_and_destroyed_by_another)
    expect(told.handle is not None, "the sandbox of one worker is not on the list of another of the same store")
    expect(told.state == "attached", f"another worker of the store attaches the sandbox as {told.state}")
    expect(told.read == b"by the first", f"a file of the sandbox is {told.read!r:.60} for another worker")


@check(
    "LEASE-10",
    part="destroy",
    uses=Uses.OWN,
    why="After a crash the one who cleans up is never the one who made it.",
    broken="destroys only what it made itself, or forgets the files of the others",
    fix="Destroy by the handle, whoever made the sandbox.",
)
def another_worker_destroys_a_sandbox(lab: Lab) -> None:
    """A worker that only attached a sandbox destroys it: it is not listed then, and attaches as `gone`."""
    told = tell(lab, LIFE, attached_and_destroyed_by_another)
    expect(told.destroyed == "destroyed", f"another worker's destroyLease says {told.destroyed or told.state!r}")
    expect(not told.listed, "another worker destroyed the sandbox, and it is listed")
    expect(told.attached_again == "gone", f"another worker destroyed it, and it attaches as {told.attached_again!r}")


# ------------------------------------------------------------------ how long


@check(
    "LEASE-11",
    why="A host that believes in an end which nobody brings leaves the sandbox to nobody.",
    broken="works out an end that nobody keeps, or keeps one and does not say so",
    fix="Answer what the one who ends the sandbox says; null where `expiry` is `none`.",
)
def an_expiry_is_answered_where_somebody_keeps_it(lab: Lab) -> None:
    """`expiresAtMs` is null where `capabilities.expiry` is `none`, and there where it is not."""
    keeper = lab.facts.capabilities.get("expiry")
    said = expires_at(lab.new_sandbox(ttlMs=_TTL_MS).lease)
    if keeper == "none":
        expect(said is None, f"nobody ends this provider's sandboxes, and expiresAtMs is {said}")
    else:
        expect(said is not None, f"capabilities.expiry is {keeper!r}, and the lease has no expiresAtMs")


@check(
    "LEASE-25",
    why="The host plans by it: a command that would outlast it is not begun.",
    broken="answers seconds for milliseconds, its own favourite lifetime, or another end with each attach",
    fix="Ask for `ttlMs`, and answer the instant that the vendor gives back, in milliseconds of Unix time.",
)
def an_expiry_is_what_was_asked_for(lab: Lab) -> None:
    """`expiresAtMs` is after the create and not later than `ttlMs` asks, but for a minute; an attach says the same."""
    if lab.facts.capabilities.get("expiry") == "none":
        raise NotApplicable("the capability expiry is 'none'")
    for ttl_ms in (_TTL_MS, 2 * _TTL_MS):
        began_ms = time.time() * 1000
        sandbox = lab.new_sandbox(ttlMs=ttl_ms)
        latest_ms = time.time() * 1000 + ttl_ms + _GRAIN_MS
        said = expires_at(sandbox.lease)
        if said is None:
            raise Failed("the lease has no expiresAtMs")
        expect(said > began_ms, f"expiresAtMs is {said}, which was over when the sandbox was asked for")
        late_s = (said - latest_ms + _GRAIN_MS) / 1000
        expect(said <= latest_ms, f"expiresAtMs is {late_s:.0f} s later than the {ttl_ms / 1000:.0f} s asked for")
        again = attach(lab, sandbox.id, sandbox.handle).get("lease") or {}
        expect(expires_at(again) == said, f"an attach says {expires_at(again)} where the acquire said {said}")


# ------------------------------------------------------------------ again


@check(
    "LEASE-28",
    part="attach",
    why="A host attaches whenever it is not sure; what runs must not notice.",
    broken="opens the sandbox anew, and with it ends what runs",
    fix="Answer what is known where the sandbox is attached already.",
)
def attaching_again_changes_nothing(lab: Lab) -> None:
    """Attached again and again a sandbox keeps its lease, and a command that runs in it goes on."""
    sandbox = lab.new_sandbox()
    with held(lab, sandbox) as call:
        # One that comes and goes behind it: by then it runs, also where the machine is busy.
        sandbox.execute(lab.command("print", text="behind"))
        for _ in range(3):
            result = attach(lab, sandbox.id, sandbox.handle)
            expect(result["state"] == "attached", f"a sandbox that is attached attaches as {result['state']!r}")
            lease = result.get("lease") or {}
            for member in ("handle", "workingDirectory", "expiresAtMs", "localRoot"):
                was, now = sandbox.lease.get(member), lease.get(member)
                expect(was == now, f"attached again, its {member} is {now!r:.100} and was {was!r:.100}")
            expect(not result.get("processesLost"), "attached again, what runs in it is said to be lost")
        sandbox.execute(lab.command("print", text="after"))
        expect(not call.answers, "a command ended when its sandbox was attached again")
        call.let_go()
        result = lab.worker.result_of(call.id)
    expect(result.get("exitCode") == 0, f"a command whose sandbox was attached again ended as {result!r:.200}")


@check(
    "LEASE-28",
    part="destroy",
    uses=Uses.OWN,
    why="Clean-up repeats what it is not sure of, and several may clean up at once.",
    broken="fails where there is nothing any more, or where another call is at it already",
    fix="Take what is not there for gone; let a second call wait for the first one's end.",
)
def destroying_can_be_repeated_at_once(lab: Lab) -> None:
    """Several destroys at once all succeed, one of them with `destroyed`; one for what never was is no failure."""
    session = lab.spawn()
    sandbox = lab.new_sandbox(session)
    need_room(sandbox, 1)
    sandbox.start(lab.command("sleep", seconds=300), live=True)
    calls = [session.request("destroyLease", {"sandboxId": sandbox.id}) for _ in range(4)]
    states = [session.result_of(call)["state"] for call in calls]
    expect("destroyed" in states, f"of {len(states)} destroys at once none answers `destroyed`: {states}")
    never = session.unthrottled(session.request("destroyLease", {"sandboxId": lab.new_sandbox_id()}))
    answer = session.answer(never)
    if "error" in answer.body:
        error = session.error_of(never, "NotAttached")
        expect(dispatched(error) == "no", "NotAttached must say dispatched 'no'")
    else:
        state = session.result_of(never)["state"]
        expect(state == "gone", f"a sandbox that never was is answered {state!r}")


@LIFE.story
def handles_of_others(stage: Stage) -> None:
    """Handles that come with the id of another sandbox."""
    with stage.home() as home:
        first = home.worker()
        one, two = home.acquire(first), home.acquire(first)
        later = home.worker()
        for session in (later, first):
            for sandbox_id, handle in ((one.id, two.handle), (stage.lab.new_sandbox_id(), one.handle)):
                params = stage.lab.with_config(sandboxId=sandbox_id, handle=handle)
                answer = session.answer(session.unthrottled(session.request("attachLease", params))).body
                state = (answer.get("result") or {}).get("state")
                expect(state != "attached", f"{sandbox_id} was attached with the handle {handle!r:.100} of another")
                expect(state != "gone", f"with another's handle {sandbox_id} is told `gone`: its host forgets it")
                expect(state is None, f"with another's handle {sandbox_id} attaches as {state!r}")
                error = session.error_of(answer["id"], "InvalidParams")
                expect(dispatched(error) == "no", f"a wrong handle says dispatched {dispatched(error)!r}, not 'no'")
        for sandbox in (one, two):
            state = home.attach(later, sandbox.id, sandbox.handle)["state"]
            expect(state == "attached", f"after attaches with wrong handles, {sandbox.id} attaches as {state!r}")


@check(
    "LEASE-29",
    uses=Uses.OWN,
    why="Ids are checked by the host, handles by nobody else: a mix-up would destroy another run's sandbox.",
    broken="looks only at the handle, or only at the id, or answers `gone` where the two do not belong together",
    fix="Compare the id on the resource with the one that came; answer InvalidParams where they differ.",
)
def a_handle_attaches_its_own_sandbox_only(lab: Lab) -> None:
    """A handle that comes with the id of another sandbox is InvalidParams, attaches nothing, and harms neither."""
    tell(lab, LIFE, handles_of_others)


@check(
    "LEASE-30",
    uses=Uses.RECORD,
    why="What is on the list when everything was destroyed is paid for, or makes every clean-up look again.",
    broken="lists what it was told to destroy, or leaves what a failed acquire had made",
    fix="Take a sandbox off the list when it is gone, and not before.",
)
def nothing_is_listed_in_the_end(lab: Lab) -> None:
    """When every sandbox of the run was destroyed, the provider lists none for the run's store."""
    for _ in lab.sessions(sandbox=True):
        pass
    limit_s = lab.facts.settle_s
    left: list[str] = []

    def is_empty() -> bool:
        left[:] = lab.listed_after_all()
        return not left

    _ = is_empty() or wait_until(is_empty, limit_s)  # the first look is what ends the last sandbox
    expect(not left, f"after everything was destroyed, the list has {', '.join(left)}")
