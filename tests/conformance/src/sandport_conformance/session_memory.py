"""How much memory the processes of a session had at the most."""

from __future__ import annotations

from .processes import in_session, peak_memory_bytes, stat_of


class SessionMemory:
    """The most memory that each process of a session had, one that leaves it not counted.

    A child that was forked is one of the session, and has all that its parent has, until it leads a session of its own
    or runs its program: who looks in between has seen the parent once more, and not the child.

    Args:
        leader: The process that leads the session.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._peaks = {leader: (True, 0)}
        """By process, whether that was before its own program, and how much."""

    def look_for_more(self) -> None:
        """Look for what joined the session; this reads what the machine knows of every process."""
        for pid in in_session(self._leader):
            self._peaks.setdefault(pid, (True, 0))

    def look(self) -> None:
        """See how much those have that are known."""
        for pid, (was_forked, peak) in tuple(self._peaks.items()):
            before, has, after = stat_of(pid), peak_memory_bytes(pid), stat_of(pid)
            if before is None or after is None:
                continue  # it has ended, perhaps before it was read
            if after.session != self._leader:
                del self._peaks[pid]
            elif before.is_forked == after.is_forked:  # else it cannot be said which program has so much
                changed = was_forked and not after.is_forked
                self._peaks[pid] = (after.is_forked, has if changed else max(peak, has))

    @property
    def peak_bytes(self) -> int:
        """The sum of it."""
        return sum(peak for _, peak in self._peaks.values())
