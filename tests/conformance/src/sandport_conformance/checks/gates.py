"""Calls that stay open until a check lets them go; no check is in here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sandport_conformance.lab import Lab
from sandport_conformance.messages import Message
from sandport_conformance.outcomes import Failed, NotApplicable
from sandport_conformance.sandbox import Sandbox
from sandport_conformance.session import Id

TEXT = "through the gate"
"""What a held command writes when it was let go."""


class Held:
    """A command that waits for a file.

    Attributes:
        id: The id of its `execute`.
    """

    def __init__(self, lab: Lab, sandbox: Sandbox, request_id: Id | None, members: dict[str, object]) -> None:
        session = sandbox.session
        self.id = session.next_id() if request_id is None else request_id
        self._lab = lab
        self._sandbox = sandbox
        self._file = f"gate-{session.next_id()}"
        argv = lab.command("wait_for_file", name=self._file, text=TEXT)
        session.request("execute", sandbox.params(argv, **members), request_id=self.id)

    @property
    def answers(self) -> list[Message]:
        """The answers to it so far."""
        return self._sandbox.session.answers(self.id)

    def let_go(self) -> None:
        """Make the file, by a command of the same sandbox."""
        self._sandbox.execute(self._lab.command("write_file", name=self._file, text="open"))


@contextmanager
def held(lab: Lab, sandbox: Sandbox, *, request_id: Id | None = None, **members: object) -> Iterator[Held]:
    """A command that runs until it is let go or cancelled; cancelled at the end where it still runs.

    Args:
        lab: Knows the command.
        sandbox: Where it runs.
        request_id: The id of its `execute`; a new one where None.
        **members: Further members of its params.

    Raises:
        NotApplicable: The sandbox takes one command at a time, so that none could let it go.
    """
    need_room(sandbox, 2)
    gate = Held(lab, sandbox, request_id, members)
    try:
        yield gate
    finally:
        # Quietly: what the worker did wrong was told already, and a session that is gone has nothing open.
        with suppress(Failed):
            if not gate.answers:
                sandbox.session.cancel(gate.id)


def need_room(sandbox: Sandbox, commands: int) -> None:
    """Say that a check is about more commands at once than the sandbox takes.

    Raises:
        NotApplicable: The lease allows fewer.
    """
    most = sandbox.lease.get("maxProcesses")
    if most is not None and most < commands:
        raise NotApplicable(f"the lease's maxProcesses is {most}, and the check runs {commands} commands at once")
