"""L2: how a worker is greeted, and what becomes of those who do it wrong."""

from __future__ import annotations

import re
from typing import Any

from sandport_conformance import schema
from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.outcomes import expect
from sandport_conformance.schema import Json
from sandport_conformance.session import PROTOCOL_VERSION, Session

from .claims import expect_no_effect

NEVER = 1_000_007
"""A version that nobody speaks."""
_CEILINGS = [name for name, limit in schema.protocol()["limits"].items() if limit["kind"] == "ceiling"]


def _served(lab: Lab, session: Session) -> None:
    """End the hello and be served."""
    session.initialized()
    session.call("validateConfig", lab.with_config())


@check(
    "HELLO-2",
    uses=Uses.OWN,
    why="Both sides speak the chosen version from then on; one that only one side knows is no common language.",
    broken="answers the highest version that the host offers, or its own, whatever the host offers",
    fix="Intersect the host's `protocolVersions` with the versions that you implement, and answer the highest of them.",
)
def the_highest_common_version_is_chosen(lab: Lab) -> None:
    """The version of the answer is the highest that both sides speak."""
    session = lab.spawn(greet=False)
    hello = session.greet(protocolVersions=[PROTOCOL_VERSION, NEVER])
    chosen = hello["protocolVersion"]
    expect(chosen == PROTOCOL_VERSION, f"offered {[PROTOCOL_VERSION, NEVER]}, the worker chose {chosen}")


@check(
    "HELLO-3",
    uses=Uses.OWN,
    why="Whoever meets two versions that do not fit must learn from the message which of them is old.",
    broken="ends, or names only its own versions, when it meets a host of another time",
    fix="Answer VersionMismatch, name the host's versions and yours in the message, and wait for another `initialize`.",
    source="hashicorp/terraform#12580",
)
def no_common_version_is_told_with_both_sets(lab: Lab) -> None:
    """A hello without a common version is refused with both sets of versions, and a good one is served after it."""
    session = lab.spawn(greet=False)
    offered = [NEVER, NEVER + 1]
    params = {**session.offered, "protocolVersions": offered}
    error = session.refused("initialize", params, "VersionMismatch", timeout_s=lab.times.start_s)
    for version in (*offered, PROTOCOL_VERSION):
        named = re.search(rf"(?<![0-9]){version}(?![0-9])", error["message"])
        expect(named, f"the message names no version {version}: {error['message']!r:.200}")
    session.greet(initialized=False)
    _served(lab, session)


@check(
    "HELLO-4",
    uses=Uses.OWN,
    why="Before the hello nothing is agreed; a call then is the host's fault and must not cost the worker.",
    broken="ends, or serves the call, when a request comes before the hello is done",
    fix="Refuse everything but `initialize`, `ping` and `shutdown` with NotInitialized until `initialized` has come.",
    source="modelcontextprotocol/python-sdk#423",
)
def nothing_is_served_before_the_hello_is_done(lab: Lab) -> None:
    """Calls before the hello, and before `initialized`, are refused with NotInitialized; the worker serves on."""
    session = lab.spawn(greet=False)
    early: list[tuple[str, Json]] = [
        ("validateConfig", lab.with_config()),
        ("execute", {"sandboxId": lab.new_sandbox_id(), "argv": ["true"]}),
        ("conformance/noSuchMethod", {}),
    ]
    for when in ("before the hello", "before `initialized`"):
        for method, params in early:
            error = session.refused(method, params, "NotInitialized", timeout_s=lab.times.start_s)
            expect_no_effect(error, f"{method} {when}")
        if when == "before the hello":
            session.greet(initialized=False)
    _served(lab, session)


@check(
    "HELLO-5",
    uses=Uses.OWN,
    why="A second hello would change limits and identity under calls that run.",
    broken="takes a second `initialize` and replaces what was agreed, or forgets that it was greeted",
    fix="Refuse `initialize` with InvalidRequest once one was answered with a result, and change nothing.",
    source="modelcontextprotocol/python-sdk#2605",
)
def a_second_hello_is_refused(lab: Lab) -> None:
    """A second `initialize` is refused with InvalidRequest, and the first hello holds."""
    session = lab.spawn(greet=False)
    session.greet(initialized=False)
    session.refused("initialize", session.offered, "InvalidRequest")
    _served(lab, session)
    session.refused("initialize", {**session.offered, "protocolVersions": [NEVER]}, "InvalidRequest")
    session.call("validateConfig", lab.with_config())


@check(
    "HELLO-10",
    uses=Uses.OWN,
    why="A ceiling of 0 forbids everything; and a host that is content with a default does not have to send it.",
    broken="answers a ceiling of 0 for `no limit`, or refuses a hello that does not name every limit",
    fix="Answer what you can keep, above 0, or leave the member out; take the schema's default for what is missing.",
)
def limits_may_be_left_out(lab: Lab) -> None:
    """Every ceiling of the answer is above 0, also where the host names one limit or none."""
    for limits in ({"frameBytes": 1 << 20}, None):
        session = lab.spawn(greet=False)
        offered = {name: value for name, value in session.offered.items() if name != "limits"}
        session.offered = offered if limits is None else {**offered, "limits": limits}
        answered = session.greet().get("limits", {})
        wrong = {name: answered[name] for name in _CEILINGS if answered.get(name, 1) < 1}
        expect(not wrong, f"ceilings must be above 0: {wrong}")
        session.call("validateConfig", lab.with_config())


@check(
    "HELLO-11",
    uses=Uses.OWN,
    why="A newer host greets with what it knows; a worker that refuses what it does not know ends every upgrade.",
    broken="decodes the hello strictly, and refuses a member, a feature or a version that it does not know",
    fix="Ignore members and features that you do not know, at every level, and versions beside a common one.",
    source="hashicorp/go-plugin#139",
    also=("MSG-8",),
)
def a_hello_of_the_future_is_accepted(lab: Lab) -> None:
    """A hello with further versions, features and members, deep ones too, is accepted and served."""
    session = lab.spawn(greet=False)
    offered = session.offered
    session.greet(
        initialized=False,
        protocolVersions=[PROTOCOL_VERSION, NEVER],
        features=["conformance-future", "x-conformance/future"],
        host={**offered["host"], "future": {"deep": [None, {"er": 1}]}},
        limits={**offered["limits"], "futureBytes": 0},
        future=[True],
        _meta={"future": {}},
    )
    _served(lab, session)


WRONG_HELLOS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("protocolVersions is missing", {"protocolVersions": ...}),
    ("protocolVersions is a string", {"protocolVersions": "1"}),
    ("protocolVersions holds a string", {"protocolVersions": ["1"]}),
    ("host is missing", {"host": ...}),
    ("host has no version", {"host": {"name": "conformance"}}),
    ("storeId is missing", {"storeId": ...}),
    ("storeId is a number", {"storeId": 7}),
    ("stateDir is missing", {"stateDir": ...}),
    ("limits is a list", {"limits": []}),
    ("a limit is a string", {"limits": {"frameBytes": "large"}}),
)
"""What is wrong, and the member that makes it so; one that is `...` is left out."""


@check(
    "HELLO-12",
    uses=Uses.OWN,
    why="Whoever writes a host gets the hello wrong at first, and needs to be told which member.",
    broken="ends with a traceback, or greets back, when a member of the hello is missing or of a wrong type",
    fix="Hold the params to the schema, answer InvalidParams, and stay as if no hello had come.",
)
def a_wrong_hello_is_refused(lab: Lab) -> None:
    """Each wrong hello is refused with InvalidParams, and a good one is served after all of them."""
    session = lab.spawn(greet=False)
    for fault, changes in WRONG_HELLOS:
        params = {name: value for name, value in {**session.offered, **changes}.items() if value is not ...}
        answer = session.answer(session.request("initialize", params), timeout_s=lab.times.start_s)
        expect("error" in answer.body, f"a hello was accepted in which {fault}")
        session.error_of(answer.body["id"], "InvalidParams")
    session.greet(initialized=False)
    _served(lab, session)


@check(
    "HELLO-20",
    uses=Uses.OWN,
    why="A ceiling protects the memory of whoever announced it, and nobody else's.",
    broken="writes frames as long as it may read itself, or reads only as much as the host may",
    fix="Write by the smaller of both `frameBytes`, and read by your own.",
    also=("HELLO-10",),
)
def each_side_keeps_its_own_ceiling(lab: Lab) -> None:
    """With a small ceiling of the host's, a worker writes short frames and still reads long ones."""
    session = lab.spawn(greet=False)
    longest = min(1 << 16, lab.facts.limits["frameBytes"] // 4)
    session.greet(limits={**session.offered["limits"], "frameBytes": longest})
    session.call("ping", {"_meta": {"conformance": "x" * (longest * 2)}})
    # What is said of this config names the key; as an answer it would be too long, however it is said.
    answer = session.answer(session.request("validateConfig", lab.with_config(config={"x" * (longest * 2): 1})))
    expect(
        "result" in answer.body or session.error_of(answer.body["id"], "TooLarge", "InvalidParams"),
        "validateConfig was not answered",
    )
    for message in session.messages:
        length = len(message.line)
        expect(length <= longest, f"a frame of {length} bytes, where the host's ceiling is {longest}")
    session.ping()


@check(
    "HELLO-21",
    uses=Uses.OWN,
    why="A notification has no answer, so the only harm that an early one can do is to the worker itself.",
    broken="ends, or answers, when `cancel` comes before the hello is done",
    fix="Drop `cancel`, `credit` and unknown notifications in every phase that does not serve them.",
)
def early_notifications_are_dropped(lab: Lab) -> None:
    """Notifications before the hello, and before `initialized`, are dropped: no answer, no end."""
    session = lab.spawn(greet=False)

    def tell() -> None:
        session.cancel(1)
        session.notify("credit", {"id": "x", "stream": "stdout", "bytes": 1})
        session.notify("conformance/noSuchNotification", {"id": 1})

    tell()
    session.call("ping", timeout_s=lab.times.start_s)
    session.greet(initialized=False)
    tell()
    session.ping()
    sent = [request_id for request_id, _, _ in session.requests]
    strange = [m.line for m in session.messages[session.begins :] if m.body.get("id") not in sent]
    expect(not strange, f"early notifications were answered: {strange[:3]!r:.300}")
    _served(lab, session)
