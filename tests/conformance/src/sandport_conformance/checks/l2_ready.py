"""L2: when a worker speaks first, and when it is ready."""

from __future__ import annotations

from typing import Any

from sandport_conformance.declaration import Uses, check
from sandport_conformance.lab import Lab
from sandport_conformance.messages import Message
from sandport_conformance.outcomes import Failed, Severity, expect
from sandport_conformance.session import encode


def _tells_its_state(message: Message) -> bool:
    return message.kind == "notification" and message.method in ("ready", "failed")


@check(
    "HELLO-13",
    uses=Uses.OWN,
    why="The host counts on `ready` to know that a slow start is over, and on `failed` to know why there is none.",
    broken="notifies `ready` with the hello, twice or never, or ends with code 0 after `failed`",
    fix="Send `ready` once, after `initialized` and whatever is slow; or `failed`, and end with a non-zero code.",
)
def a_worker_is_ready_once(lab: Lab) -> None:
    """After `initialized`, and not before, the worker is ready exactly once, or says that it failed and ends."""
    session = lab.spawn(greet=False)
    session.greet(initialized=False)
    session.ping()
    early = session.first(_tells_its_state)
    expect(early is None, f"before `initialized` the worker said {early.line if early else b''!r:.200}")
    session.initialized()
    state = session.wait(_tells_its_state, "`ready` or `failed`", timeout_s=lab.times.start_s)
    if state.method == "failed":
        cause = session.exit()
        expect(cause != "exit code 0", f"after `failed` the worker ended with {cause}")
        return
    session.call("validateConfig", lab.with_config())
    session.call("shutdown", {"drainMs": 1_000})
    session.process.close_input()
    session.exit()
    told = [message.method for message in session.messages if _tells_its_state(message)]
    expect(told == ["ready"], f"the worker said {told}, and must be ready once")


@check(
    "HELLO-14",
    uses=Uses.OWN,
    why="A host need not wait for `ready`: it sends its first call at once, and loses no time.",
    broken="refuses calls until it is ready, or answers them before it says so",
    fix="Keep calls that come early, and serve them in their order once `ready` is on its way.",
)
def a_call_before_ready_waits(lab: Lab) -> None:
    """Calls that come together with `initialized` are answered after `ready`; a ping is answered too."""
    session = lab.spawn(greet=False)
    session.greet(initialized=False)
    first, second, ping = session.next_id(), session.next_id(), session.next_id()
    sent: list[dict[str, Any]] = [
        {"method": "initialized", "params": {}},
        {"id": first, "method": "validateConfig", "params": lab.with_config()},
        {"id": second, "method": "listLeases", "params": lab.with_config()},
        {"id": ping, "method": "ping", "params": {}},
    ]
    session.requests += [(m["id"], m["method"], m["params"]) for m in sent if "id" in m]
    session.send_bytes(b"".join(encode({"jsonrpc": "2.0", **message}) + b"\n" for message in sent))
    session.result_of(ping)
    session.result_of(first, timeout_s=lab.times.start_s)
    session.answer(second)
    ready = session.wait(_tells_its_state, "`ready`", timeout_s=lab.times.start_s)
    for request_id in (first, second):
        answer = session.answer(request_id)
        overtook = session.messages.index(answer) < session.messages.index(ready)
        expect(not overtook, f"a call was answered before `ready`: {answer.line[:200]!r}")


@check(
    "HELLO-15",
    part="frame",
    uses=Uses.RECORD,
    why="A host takes the first frame for the answer to its first message.",
    broken="greets, or says that it is ready, before it was spoken to",
    fix="Write no frame before the host's first message was read.",
    source="hashicorp/go-plugin#164, hashicorp/go-plugin#199",
)
def the_host_speaks_first(lab: Lab) -> None:
    """The first frame of every session is the answer to the host's first message."""
    for session in lab.sessions():
        frame = next((message for message in session.messages if message.kind != "fault"), None)
        expect(
            frame is None or frame.kind == "answer",
            f"the first frame answers nothing: {frame.line if frame else b''!r:.200}",
        )


@check(
    "HELLO-15",
    part="silence",
    uses=Uses.RECORD,
    severity=Severity.SHOULD,
    why="A banner is tolerated, and logged as a warning each time: whoever reads the log looks for its cause.",
    broken="starts with a banner, or has a library that does",
    fix="Point descriptor 1 at stderr before anything is imported, and give the wire a descriptor of its own.",
    source="hashicorp/go-plugin#164, bazelbuild/rules_java#158, hashicorp/go-plugin#199",
)
def nothing_is_printed_before_the_hello(lab: Lab) -> None:
    """Nothing at all is written before the first answer."""
    for session in lab.sessions():
        for message in session.messages:
            if message.kind == "answer":
                break
            if message.kind == "fault":
                raise Failed(f"a line before the first answer: {message.line[:120]!r}")


@check(
    "HELLO-16",
    uses=Uses.RECORD,
    why="A host starts many workers, and somebody waits for each; what is slow can be imported while it goes on.",
    broken="imports the vendor's client before it answers the hello",
    fix="Import what is heavy after `initialized`, and say `ready` then.",
)
def the_hello_is_answered_soon(lab: Lab) -> None:
    """The quickest start of the run answered the hello two seconds after its begin at most, later on a slow machine."""
    took_s = [
        message.at_s
        for session in lab.sessions()
        for sent, method, _ in session.requests
        if method == "initialize"
        for message in session.answers(sent)
        if "result" in message.body
    ]
    limit_s = 2 * lab.times.factor
    expect(took_s, "no hello was answered")
    limit = f"two seconds, which are {limit_s:.1f} s here (time limits times {lab.times.factor:.1f})"
    expect(min(took_s) <= limit_s, f"the quickest hello took {min(took_s):.1f} s, more than {limit}")
