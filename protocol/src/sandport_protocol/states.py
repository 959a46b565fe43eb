"""The life of a connection and of a request, as tables.

Everything that decides what is allowed stands here as data: the connection looks moves up, the published schema
contains them, a monitor and a fuzzer can walk them.

Phases of a connection, the same words on both sides:

```text
new --initialize--> greeting --initialize.result--> negotiated --initialized--> serving --shutdown--> draining
 ^------initialize.error-----'                                                      any --eof, fatal--> closed
```

States of a request, as the host sees it:

```text
open --result, error, crash, lost--> ended
open --cancel--> cancelling --result, error, confirmed, crash, lost--> ended
                 cancelling --tell--> told --result, error, confirmed, crash, lost--> ended (late: settled elsewhere)
```
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Phase = Literal["new", "greeting", "negotiated", "serving", "draining", "closed"]
NEW: Final = "new"
GREETING: Final = "greeting"
NEGOTIATED: Final = "negotiated"
SERVING: Final = "serving"
DRAINING: Final = "draining"
CLOSED: Final = "closed"
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

Kind = Literal[
    "initialize",
    "initialize.result",
    "initialize.error",
    "initialized",
    "ping",
    "shutdown",
    "call",
    "control",
    "report",
]
"""`call`: any other request. `control`: cancel and credit. `report`: a worker's notifications."""

MOVES: Final[dict[tuple[Phase, Kind], Phase]] = {
    (NEW, "initialize"): GREETING,
    (NEW, "ping"): NEW,
    (NEW, "shutdown"): DRAINING,
    (GREETING, "initialize.result"): NEGOTIATED,
    (GREETING, "initialize.error"): NEW,
    (GREETING, "ping"): GREETING,
    (GREETING, "shutdown"): DRAINING,
    (NEGOTIATED, "initialized"): SERVING,
    (NEGOTIATED, "ping"): NEGOTIATED,
    (NEGOTIATED, "shutdown"): DRAINING,
    (SERVING, "ping"): SERVING,
    (SERVING, "call"): SERVING,
    (SERVING, "control"): SERVING,
    (SERVING, "report"): SERVING,
    (SERVING, "shutdown"): DRAINING,
    (DRAINING, "ping"): DRAINING,
    (DRAINING, "control"): DRAINING,
    (DRAINING, "report"): DRAINING,
    (DRAINING, "shutdown"): DRAINING,
    (DRAINING, "initialize.result"): DRAINING,
    (DRAINING, "initialize.error"): DRAINING,
}
"""What may be sent in which phase, and where it leads. What is not here is refused."""

REFUSALS: Final[dict[Phase, str]] = {
    NEW: "NotInitialized",
    GREETING: "NotInitialized",
    NEGOTIATED: "NotInitialized",
    SERVING: "InvalidRequest",
    DRAINING: "Unavailable",
}
"""The condition that answers a request which the phase does not allow; a second `initialize` is InvalidRequest."""

RequestState = Literal["open", "cancelling", "told", "ended"]
OPEN: Final = "open"
CANCELLING: Final = "cancelling"
TOLD: Final = "told"
ENDED: Final = "ended"
REQUEST_STATES: Final[tuple[RequestState, ...]] = get_args(RequestState)

Happening = Literal["result", "error", "confirmed", "cancel", "tell", "crash", "lost"]
"""`confirmed`: the error Cancelled. `tell`: the grace is over, the caller is told. `lost`: a pong proved it."""

Outcome = Literal["result", "error", "cancelled", "deadline", "crashed"]
"""How a request ends for its caller: exactly one of these, exactly once."""
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)

BY_CAUSE: Final = "cause"
"""Cancelled or deadline, whichever made the host cancel first."""

REQUEST_MOVES: Final[dict[tuple[RequestState, Happening], tuple[RequestState, Outcome | Literal["cause"] | None]]] = {
    (OPEN, "result"): (ENDED, "result"),
    (OPEN, "error"): (ENDED, "error"),
    (OPEN, "confirmed"): (ENDED, "error"),
    (OPEN, "crash"): (ENDED, "crashed"),
    (OPEN, "lost"): (ENDED, "error"),
    (OPEN, "cancel"): (CANCELLING, None),
    (CANCELLING, "cancel"): (CANCELLING, None),
    (CANCELLING, "result"): (ENDED, "result"),
    (CANCELLING, "error"): (ENDED, "error"),
    (CANCELLING, "confirmed"): (ENDED, BY_CAUSE),
    (CANCELLING, "crash"): (ENDED, "crashed"),
    (CANCELLING, "lost"): (ENDED, BY_CAUSE),
    (CANCELLING, "tell"): (TOLD, BY_CAUSE),
    (TOLD, "cancel"): (TOLD, None),
    (TOLD, "result"): (ENDED, None),
    (TOLD, "error"): (ENDED, None),
    (TOLD, "confirmed"): (ENDED, None),
    (TOLD, "crash"): (ENDED, None),
    (TOLD, "lost"): (ENDED, None),
}
"""Next state, and the outcome that the caller gets at this move; None where the caller gets nothing (more)."""

TIMERS: Final[dict[str, str]] = {
    "heartbeatMs": "between pings of an otherwise quiet host",
    "wedgeMs": "no answer to a ping, or an id open past its cancel: the worker is ended",
    "cancelGraceMs": "cancelling -> told",
    "hostSilenceMs": "a worker that heard nothing ends itself",
    "drainMs": "draining -> closed",
    "orphanGraceMs": "a sandbox on the worker's machine outlives its worker for so long",
}
"""The waits of the lifecycle, by their names in `limits`."""
