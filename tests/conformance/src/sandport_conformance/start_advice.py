"""What to do next about a worker that never served: what it did say, and the usual cause of just that."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from .outcomes import Failed
from .session import Session

_ASK = '{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}'
_SHOWN_LINES = 3
_SHOWN = 120


def told(session: Session, failure: Failed) -> str:
    """Why a session never began, and what its author can look at.

    Args:
        session: The worker that was asked for its hello and is not ended yet.
        failure: What was missed.
    """
    process = session.process
    strays = [message.line[:_SHOWN] for message in session.faults()]
    log = process.stderr_text().strip()
    ended = process.exit_cause
    lines = [str(failure)]
    if strays:
        lines.append("it wrote on stdout: " + ", ".join(map(repr, strays[:_SHOWN_LINES])))
    if log and log[-_SHOWN:] not in lines[0]:
        lines.append(f"the end of its stderr: {log[-600:]}")
    if ended is None and strays:
        lines.append("next: stdout belongs to the protocol, one JSON object a line; print to stderr")
    elif ended is None:
        lines.append(
            f"next: does it read lines from stdin, and flush each line that it writes? Ask it by hand: "
            f"{_by_hand(process.command)}"
        )
    elif ended.code == 0:
        lines.append(
            "next: a worker serves until its stdin ends, and this program ended by itself: does the command reach its "
            f"loop? Ask it by hand: {_by_hand(process.command)}"
        )
    else:
        lines.append(
            "next: start it as the kit does, in `/` and with few variables; those that it needs go into `env` of the "
            f"file's [worker]: cd / && {_by_hand(process.command, bare=True)}"
        )
    return "\n".join(lines)


def _by_hand(command: Sequence[str], *, bare: bool = False) -> str:
    environ = 'env -i PATH="$PATH" ' if bare else ""
    return f"echo {shlex.quote(_ASK)} | {environ}{shlex.join(command)}"
