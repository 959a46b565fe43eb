"""What a host makes of what is sound, and new to it."""

from __future__ import annotations

from .declaration import host_check
from .stage import Stage


def _is_borne(stage: Stage, impostor: str) -> None:
    played = stage.play(impostor, "--again")
    played.succeeded()
    played.succeeded("next")
    played.one_worker()


@host_check(
    "FRAME-2",
    part="heard",
    why="Libraries split text at more characters than one; an answer that is cut in two is none.",
    broken="splits what it reads as text, at U+2028, U+2029 or U+0085",
)
def other_separators(stage: Stage) -> None:
    """Other separators of lines are content."""
    _is_borne(stage, "novelties:OtherSeparators")


@host_check(
    "MSG-8",
    part="heard",
    why="The next version of a worker says more; hosts of today must work with it.",
    broken="refuses an object with a member that it does not know",
)
def later_members(stage: Stage) -> None:
    """A member that is not known is ignored in every object of every message."""
    _is_borne(stage, "novelties:LaterMembers")


@host_check(
    "MSG-9",
    part="heard",
    why="The next version of a worker tells more, unasked; hosts of today must work with it.",
    broken="closes the connection for a notification that it does not know, or takes it for another",
)
def later_notifications(stage: Stage) -> None:
    """A notification that is not known is ignored, whatever its params look like."""
    _is_borne(stage, "novelties:LaterNotifications")


@host_check(
    "MSG-20",
    part="heard",
    why="Half of all languages write what is not there as null, the other half leave it out.",
    broken="takes a null for a value, or refuses it",
)
def nulls(stage: Stage) -> None:
    """A member that may be left out may be null."""
    _is_borne(stage, "novelties:SaysNull")
