"""What a host makes of a sandbox of which it does not know whether it is gone."""

from __future__ import annotations

from sandport_conformance.impostors.leases import SETTLE_S
from sandport_conformance.outcomes import expect

from .declaration import host_check
from .played import Played
from .stage import Stage

_LATER_S = 3.0
"""What the second host has for what the first one left."""


@host_check(
    "LEASE-15",
    why="What a host forgets runs on, and is paid for, until somebody finds it by hand.",
    broken="forgets a sandbox once it has asked for its end, whatever the answer is",
)
def unconfirmed_end(stage: Stage) -> None:
    """A sandbox whose end was refused is asked for again, by this host or by the next one of its home."""
    first = stage.play("leases:CannotDestroy")
    made = first.received("acquireLease")[0]["sandboxId"]
    _expect_destroyed(stage, first, made, times=2, later="impostor:Impostor", linger_s=_LATER_S)


@host_check(
    "LEASE-15",
    part="list",
    why="A create whose answer was lost may be on no list yet; who looks once and forgets leaves a sandbox behind.",
    broken="takes a list without a sandbox for its end, although the create was a moment ago",
    also=("LEASE-12",),
)
def unlisted_create(stage: Stage) -> None:
    """A create whose worker crashed is looked for until `createSettleMs` is over, and what it made is destroyed."""
    linger_s = SETTLE_S + _LATER_S
    first = stage.play("leases:CrashesInAcquire", "--linger", str(linger_s))
    first.failed("crashed")
    made = first.received("acquireLease")[0]["sandboxId"]
    _expect_destroyed(stage, first, made, times=1, later="leases:ListsLater", linger_s=linger_s)


def _expect_destroyed(stage: Stage, first: Played, sandbox_id: str, *, times: int, later: str, linger_s: float) -> None:
    asked = _destroys(first, sandbox_id)
    if asked < times:
        asked += _destroys(stage.play(later, "--linger", str(linger_s), after=first), sandbox_id)
    expect(asked >= times, f"the end of {sandbox_id} was asked for {asked} times, and never confirmed")


def _destroys(played: Played, sandbox_id: str) -> int:
    return sum(entry["sandboxId"] == sandbox_id for entry in played.received("destroyLease"))
