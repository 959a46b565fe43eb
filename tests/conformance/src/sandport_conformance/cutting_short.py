"""The end of a run that a signal cuts short: what was made is destroyed where that is quick, the rest is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from .outcomes import Failed
from .schema import Json
from .session import Id, Session

_DESTROY_S = 2.0
"""So long workers have for destroying their sandboxes, all of them together."""
_LEAVE_S = 0.5
"""And so long for leaving by themselves, when their input has ended."""
_WRITE_S = 0.2
_LEAST_S = 0.02


def destroy_all(sessions: Sequence[Session], with_config: Json) -> list[str]:
    """Destroy the sandboxes that workers hold, and end their input; what is not known to be gone, in words.

    A sandbox whose own worker has ended is destroyed through another one of its store, where one serves.
    """
    deadline = time.monotonic() + _DESTROY_S
    serving = [session for session in sessions if _serves(session)]
    made = {sandbox: (session, handle) for session in sessions for sandbox, handle in _acquired(session)}
    gone = {sandbox for session in sessions for sandbox in _destroyed(session)}
    asked: dict[str, tuple[Session, Id]] = {}
    orphans: dict[str, tuple[Session, Id]] = {}
    for sandbox, (maker, handle) in made.items():
        if sandbox in gone:
            continue
        if maker in serving:
            asked |= _ask(maker, sandbox, "destroyLease", {"sandboxId": sandbox}, deadline)
        elif others := [one for one in serving if one.offered["storeId"] == maker.offered["storeId"]]:
            params = {"sandboxId": sandbox, "handle": handle, **with_config}
            orphans |= _ask(others[-1], sandbox, "attachLease", params, deadline)
    for sandbox, (session, request_id) in orphans.items():
        if _succeeded(session, request_id, deadline):
            asked |= _ask(session, sandbox, "destroyLease", {"sandboxId": sandbox}, deadline)
    gone |= {sandbox for sandbox, one in asked.items() if _succeeded(*one, deadline)}
    return [f"sandbox {name} ({handle})" for name, (_, handle) in made.items() if name not in gone]


def leave_all(sessions: Sequence[Session]) -> None:
    """End the input of all of them, and give them a moment."""
    for session in sessions:
        session.process.drain_stderr()
        session.process.close_input()
    deadline = time.monotonic() + _LEAVE_S
    for session in sessions:
        session.process.wait_exit(max(_LEAST_S, deadline - time.monotonic()))


def _serves(session: Session) -> bool:
    return session.greeted and session.alive() and not session.process.out_ended


def _acquired(session: Session) -> Iterator[tuple[str, str]]:
    """Each sandbox that may be there because of a session, with its handle; an empty one where none was answered."""
    for request_id, method, params in session.requests:
        answers = session.answers(request_id)
        if method == "acquireLease" and "sandboxId" in params and not any("error" in one.body for one in answers):
            result = answers[0].body["result"] if answers else {}
            yield str(params["sandboxId"]), str(result.get("handle", "")) if isinstance(result, dict) else ""


def _destroyed(session: Session) -> Iterator[str]:
    for request_id, method, params in session.requests:
        if method == "destroyLease" and any("result" in answer.body for answer in session.answers(request_id)):
            yield str(params.get("sandboxId"))


def _ask(session: Session, sandbox: str, method: str, params: Json, deadline: float) -> dict[str, tuple[Session, Id]]:
    try:
        left_s = max(_LEAST_S, min(_WRITE_S, deadline - time.monotonic()))
        return {sandbox: (session, session.request_at_last(method, params, timeout_s=left_s))}
    except Failed:  # it does not read, or has ended: then the sandbox is told as left
        return {}


def _succeeded(session: Session, request_id: Id, deadline: float) -> bool:
    session.pump(lambda: session.answers(request_id), max(_LEAST_S, deadline - time.monotonic()))
    return any("result" in answer.body for answer in session.answers(request_id))
