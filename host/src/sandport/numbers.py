"""Every bound of the host's own waits, with its reason; those that go over the wire are in sandport_protocol.limits.

Seconds are floats. All waits of a closing are in `StopLadder`; nothing else may wait while something is closed.
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

    @property
    def total_s(self) -> float:
        """The longest time that a stop can take."""
        return self.drain_s + self.eof_s + self.term_s + self.kill_s


class Restart(Struct, frozen=True, kw_only=True):
    """How often a worker that crashed is started again."""

    at_most: int = 5
    window_s: float = 60.0
    """More than `at_most` crashes in this window and the provider is given up until the window has passed."""
    first_delay_s: float = 0.1
    longest_delay_s: float = 10.0


class Timing(Struct, frozen=True, kw_only=True):
    """The host's waits."""

    start_s: float = 30.0
    """From the spawn to the hello. A cold Python on a busy machine takes 2; a container's first pull is not ours."""
    ready_s: float = 120.0
    """From `initialized` to `ready`: vendors' clients take 0.5 to 2.5 s to import."""
    call_s: float = 60.0
    """Calls that only ask."""
    acquire_s: float = 600.0
    """A vendor's slowest create that succeeds."""
    destroy_s: float = 60.0
    command_margin_s: float = 15.0
    """On top of a command's own time-out: kill (5), drain of its streams (1), the way back, and a busy machine."""
    suspect_s: float = 1.0
    """In a closing, a worker that left a cancel unanswered gets so long for a ping; a good one takes milliseconds."""
    exit_drain_s: float = 0.5
    """What a worker wrote before it ended is still read for so long, when a child of it holds the pipe."""
    close_grace_s: float = 10.0
    """A cancelled call or block returns within this."""
    stop: StopLadder = StopLadder()
    restart: Restart = Restart()


DEFAULT_TIMING = Timing()
