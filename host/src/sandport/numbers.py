"""The bounds of the host's own waits that can be set, with their reasons.

Those that go over the wire are in sandport_protocol.limits; those that are nobody's to set stand where they are used,
as in `store`, `hooks` and `worker.survivors`. Seconds are floats. All waits of a closing are in `StopLadder`; nothing
else may wait while something is closed.
"""

from __future__ import annotations

from msgspec import Struct


class StopLadder(Struct, frozen=True, kw_only=True):
    """How a worker is ended: each step is tried for so long, then comes the next."""

    drain_s: float = 5.0
    """`shutdown` is answered once what runs has finished."""
    eof_s: float = 1.0
    """After the end of input a worker only has to exit."""
    term_s: float = 2.0
    """SIGTERM to the group."""
    kill_s: float = 2.0
    """SIGKILL; the kernel needs this long only for a process in uninterruptible sleep."""


class Restart(Struct, frozen=True, kw_only=True):
    """How often a worker is started again; failed starts, crashes and wedges each have a count of their own."""

    at_most: int = 5
    window_s: float = 60.0
    """More than `at_most` crashes in this window and the provider is given up until there are fewer in it."""
    start_failures_at_most: int = 5
    """The same for starts that failed, in the same window; each of them was told to whoever asked."""
    wedges_at_most: int = 3
    wedge_window_s: float = 600.0
    """It takes half a minute to see that a worker is wedged: a window of one minute would never fill."""
    first_delay_s: float = 0.1
    longest_delay_s: float = 10.0
    """The delay before a start doubles with every failure of one kind, with jitter, between these two."""
    stable_s: float = 60.0
    """A worker that has served for so long and still answers clears all three counts."""


class RateLimit(Struct, frozen=True, kw_only=True):
    """How the host holds back when a vendor says that it is asked too much."""

    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0
    """Where the vendor does not say when to come back the pause doubles from the one to the other."""
    shortest_pause_s: float = 0.1
    """Where it does say so, and refuses again, the pause is at least this long, then at least twice as long, and on."""
    spread_s: float = 0.05
    """Who waited is let go one after the other, at most so far apart, so that a pause does not end in a burst."""
    relearn_s: float = 60.0
    """A ceiling on creates that the vendor taught is raised by one when nothing was refused for so long."""


class Timing(Struct, frozen=True, kw_only=True):
    """The host's waits."""

    start_s: float = 30.0
    """From the spawn to the hello. A cold Python on a busy machine takes 2; a container's first pull is not ours."""
    ready_s: float = 120.0
    """From `initialized` to `ready`: vendors' clients take 0.5 to 2.5 s to import."""
    call_s: float = 60.0
    """Calls that only ask."""
    list_s: float = 300.0
    """All pages of a vendor's list together; each page is a call that only asks."""
    acquire_s: float = 600.0
    """A vendor's slowest create that succeeds."""
    destroy_s: float = 60.0
    embedder_s: float = 5.0
    """What the embedder is asked in the midst of the host's own work: a look into a table of runs takes
    milliseconds."""
    command_margin_s: float = 15.0
    """On top of a command's own time-out: kill (5), drain of its streams (1), the way back, and a busy machine."""
    suspect_s: float = 1.0
    """In a closing, a worker that left a cancel unanswered gets so long for a ping; a good one takes milliseconds."""
    busy_s: float = 1.0
    """A worker whose pong is so late is called busy; it is ended only at the wedge limit."""
    survivors_s: float = 0.5
    """The report of a worker's end waits so long for the look at what it left: a thousand processes take 7 ms. What is
    found later is in the log only."""
    exit_drain_s: float = 0.5
    """What a worker wrote before it ended is still read for so long, when a child of it holds the pipe."""
    close_grace_s: float = 10.0
    """A cancelled call or block returns within this."""
    stop: StopLadder = StopLadder()
    restart: Restart = Restart()
    rate_limit: RateLimit = RateLimit()


DEFAULT_TIMING = Timing()
