"""What a worker is doing, told apart as data; a change of state is a row of one table.

```text
starting --said hello--> importing --got ready--> serving <==pong / pong late==> busy
    any of them --wedge--> wedged     --violation--> broken     --stop--> stopping
    all of them --gone--> dead
```

Busy is not wedged: a handler may hold the interpreter for seconds, and its worker is left alone until the wedge limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

State = Literal["starting", "importing", "serving", "busy", "wedged", "broken", "stopping", "dead"]
Event = Literal["said hello", "got ready", "pong late", "pong", "wedge", "violation", "stop", "gone"]

_LIVE: Final[tuple[State, ...]] = ("starting", "importing", "serving", "busy")

TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    ("starting", "said hello"): "importing",
    ("importing", "got ready"): "serving",
    ("serving", "pong late"): "busy",
    ("busy", "pong"): "serving",
    **{(state, "wedge"): "wedged" for state in (*_LIVE, "stopping")},
    **{(state, "violation"): "broken" for state in (*_LIVE, "stopping")},
    **{(state, "stop"): "stopping" for state in _LIVE},
    **{(state, "gone"): "dead" for state in (*_LIVE, "wedged", "broken", "stopping")},
}
"""What changes a state; every other event leaves it as it is: what is told late changes nothing."""

USABLE: Final[frozenset[State]] = frozenset({"serving", "busy"})
"""Calls may be sent to it."""

MEANS: Final[Mapping[State, str]] = {
    "starting": "it was spawned and has not said hello",
    "importing": "it said hello and is getting ready",
    "serving": "it answers",
    "busy": "its answer to a ping is late: a handler may hold it up",
    "wedged": "it did not answer for the wedge limit and is being ended",
    "broken": "it broke the rules of the wire and is being ended",
    "stopping": "it was asked to end",
    "dead": "its process is gone",
}
"""Each state in words."""


def after(state: State, event: Event) -> State:
    """The state after an event."""
    return TRANSITIONS.get((state, event), state)
