"""How much memory the processes of a session had at the most."""

from __future__ import annotations

from .processes import in_session, peak_memory_bytes, stat_of

_FORKNOEXEC = 0x40
"""Of the kernel's flags of a process (`PF_FORKNOEXEC`): it still runs the program of the one that forked it."""


class SessionMemory:
    """The most memory that each process of a session had, one that leaves it not counted.

    A child that was forked is one of the session, and has all that its parent has, until it leads a session of its own
    and runs its program: who looks in between has seen the parent once more, and not the child.

    Args:
        leader: The process that leads the session.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._peaks = {leader: 0}
        self._before_exec: dict[int, int] = {}

    def look_for_more(self) -> None:
        """Look for what joined the session; this reads what the machine knows of every process."""
        for pid in in_session(self._leader):
            self._peaks.setdefault(pid, 0)

    def look(self) -> None:
        """See how much those have that are known."""
        for pid in tuple(self._peaks):
            before = stat_of(pid)
            bytes_ = peak_memory_bytes(pid)
            after = stat_of(pid)
            if after is not None and after.session != self._leader:
                del self._peaks[pid]
                self._before_exec.pop(pid, None)
            # What it had is its own, as it is now, only if it is the same afterwards.
            elif before is not None and after is not None and before.flags & _FORKNOEXEC == after.flags & _FORKNOEXEC:
                self._seen(pid, bytes_, forked=bool(after.flags & _FORKNOEXEC))

    def _seen(self, pid: int, bytes_: int, *, forked: bool) -> None:
        if forked and pid != self._leader:
            self._before_exec[pid] = max(self._before_exec.get(pid, 0), bytes_)
        else:
            self._before_exec.pop(pid, None)
            self._peaks[pid] = max(self._peaks[pid], bytes_)

    @property
    def peak_bytes(self) -> int:
        """The sum of it."""
        return sum(self._peaks.values()) + sum(self._before_exec.values())
