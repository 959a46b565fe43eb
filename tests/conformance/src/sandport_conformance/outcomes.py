"""How a check ends, and the exceptions by which a check says so.

A check that returns has passed. Everything that is the worker's fault is `Failed`; an exception of any other kind that
leaves a check is a fault of the kit and is never counted against the worker.
"""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """The four outcomes of a check; there is no other, and none of them is silence."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"
    """The worker does not declare what the requirement is about."""
    UNTESTABLE = "untestable"
    """The worker declares it, and what the check needs from the author is missing; counts as a failure."""


class Severity(StrEnum):
    """What a failure means: a MUST fails the run, a SHOULD warns."""

    MUST = "MUST"
    SHOULD = "SHOULD"


class Failed(Exception):
    """The worker breaks the requirement; the message says what was expected and what came instead."""


class TimedOut(Failed):
    """What the worker owed did not come in time."""


class NoAnswer(TimedOut):
    """A request was not answered in time.

    Args:
        message: What was waited for.
        method: The request's; empty where it is not known.
        request_id: Its id.
    """

    def __init__(self, message: str, method: str = "", request_id: int | str | None = None) -> None:
        super().__init__(message)
        self.method = method
        self.request_id = request_id

    def told_again(self, check_id: str) -> NoAnswer:
        """The same failure for another check, which has not waited itself."""
        return NoAnswer(f"{self} (waited for in {check_id}, which tells the same story)", self.method, self.request_id)


class NoLease(Failed):
    """An ordinary acquire, without which most checks see nothing, does not succeed."""


class WorkerGone(Failed):
    """The worker ended, or closed its pipe, where it had to go on."""


class NotApplicable(Exception):
    """The worker does not declare this; the message names what it would have to declare.

    Args:
        message: As above.
        without: The group, or the capability of yes and no, that is not there; empty where it is something else.
    """

    def __init__(self, message: str, without: str = "") -> None:
        super().__init__(message)
        self.without = without


class Untestable(Exception):
    """A fixture is missing; the message says which line of the author's file would bring it."""


class NoSandbox(Untestable):
    """An earlier check has found that no sandbox can be had; the message names it."""


class NotStarted(Exception):
    """The worker could not be started, or never answered its first hello: there is nothing to judge."""


class Misuse(Exception):
    """What the author or the caller gave cannot be used; nothing was judged."""


def expect(condition: object, message: str) -> None:
    """Fail the check with a message unless the condition holds.

    Raises:
        Failed: It does not hold.
    """
    if not condition:
        raise Failed(message)
