"""What an answer that does not come may mean: the worker is asked what it has open."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import same_id
from .outcomes import NoAnswer
from .session import Session


def look_into(failure: NoAnswer, sessions: Iterable[Session]) -> tuple[str, str]:
    """What a ping says of a request that was not answered, and what its author should look for.

    Args:
        failure: Names the request.
        sessions: The workers of the check; the one that was asked is among them, where it is known.
    """
    for session in sessions:
        sent = any(same_id(one, failure.request_id) and method == failure.method for one, method, _ in session.requests)
        if sent and session.hello and session.alive() and not session.process.out_ended:
            return _of(session, failure)
    return "", "Find out whether the request was taken, and where its answer was lost."


def _of(session: Session, failure: NoAnswer) -> tuple[str, str]:
    opened = session.look(timeout_s=session.times.answer_s / 2)
    if opened is None:
        return (
            "a ping after it is not answered either",
            "Find out what keeps the worker from reading its stdin, or from writing: it is stuck as a whole.",
        )
    if any(same_id(one, failure.request_id) for one in opened):
        return (
            "a ping is answered, and has the request in `open`: it was taken",
            f"Find out what {failure.method} waits for: the request was taken, and is not done.",
        )
    return (
        "a ping is answered, and does not have the request in `open`: it was not taken, or its answer was lost",
        f"Find out whether {failure.method} was taken at all, and whether its answer, or its error, was written.",
    )
