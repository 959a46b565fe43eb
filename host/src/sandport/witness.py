"""Who is told of what leases and commands do, where nobody is: what the host calls costs nothing then.

`sandport.lease.events` tells plugins; it is imported only where there are some.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from .outcome import Outcome

if TYPE_CHECKING:
    from .command import CommandLine
    from .lease.request import LeaseRequest
    from .process import Process
    from .store.records import SandboxRow

OnLost = Callable[[str], None]
Done = Callable[[Outcome], Outcome]
"""Takes the outcome of a command, and answers the same."""


class _Nothing:
    __slots__ = ()

    def __enter__(self) -> Done:
        return _same

    def __exit__(self, *_: object) -> None:
        """What is raised is for the caller alone."""


def _same(outcome: Outcome) -> Outcome:
    return outcome


_NOTHING: Final = _Nothing()


class SandboxWitness:
    """Sees what is done in one sandbox. This one tells nobody."""

    def command(self, line: CommandLine) -> AbstractContextManager[Done]:
        """Around a command that has its turn; the block hands its outcome to what it gets, or raises."""
        return _NOTHING

    def process(self, line: CommandLine, process: Process) -> None:
        """A process that was started."""

    def on_lost(self, on_lost: OnLost | None) -> OnLost | None:
        """What is called when the sandbox turns out to be gone; `on_lost` in any case."""
        return on_lost


class LeaseWitness:
    """Sees what becomes of the leases of a host. This one tells nobody."""

    def asked(self, request: LeaseRequest) -> None:
        """It is about to be asked for."""

    def undone(self, request: LeaseRequest) -> None:
        """It was given up, and the journal has what became of it."""

    def started(self, request: LeaseRequest, expires_at_ms: int | None) -> None:
        """Its sandbox is there, and the journal has it."""

    def ended(self, request: LeaseRequest, reason: str, *, confirmed: bool) -> None:
        """A lease of this host is over, and the journal could not be told."""

    def ended_elsewhere(self, request: LeaseRequest, *, confirmed: bool) -> None:
        """A lease that a block of this host held was ended by somebody else."""

    async def keeping(self, request: LeaseRequest, name: str | None) -> None:
        """It is to outlive its block, under this name or the one that it has; whoever refuses raises."""

    def released(self, request: LeaseRequest) -> None:
        """Its block is over, and it is kept."""

    async def row_ended(self, row: SandboxRow, *, confirmed: bool) -> None:
        """The end of a sandbox of the journal was tried; the journal has what came of it."""

    def sandbox(self, request: LeaseRequest) -> SandboxWitness:
        """Who sees what is done in the sandbox of this lease."""
        return NO_SANDBOX_WITNESS


NO_SANDBOX_WITNESS: Final = SandboxWitness()
NO_LEASE_WITNESS: Final = LeaseWitness()
