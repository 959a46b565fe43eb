"""The published lifecycle, as data: what the machines hold both connections to.

It is read from the schema and not from `sandport_protocol.states`, so that a wrong row in the code's own table has
something to disagree with.
"""

from __future__ import annotations

import json
from importlib.resources import files

_SCHEMA = json.loads(files("sandport_protocol").joinpath("schema/v1.json").read_text(encoding="utf-8"))
_LIFECYCLE = _SCHEMA["lifecycle"]

MOVES: dict[tuple[str, str], str] = {(move["phase"], move["kind"]): move["next"] for move in _LIFECYCLE["moves"]}
"""(phase, kind of message) to the next phase; what is not here is refused."""

REFUSALS: dict[str, str] = _LIFECYCLE["refusals"]
"""The condition that answers a request which the phase does not allow."""

REQUEST_MOVES: dict[tuple[str, str], tuple[str, str | None]] = {
    (move["state"], move["happening"]): (move["next"], move["outcome"]) for move in _LIFECYCLE["requestMoves"]
}
"""(state of a request, what happens) to its next state and the outcome that its caller gets then."""

OUTCOMES: frozenset[str] = frozenset(_LIFECYCLE["outcomes"])

METHODS: tuple[str, ...] = tuple(_LIFECYCLE["kinds"]["call"])

KIND_OF: dict[str, str] = {name: kind for kind, names in _LIFECYCLE["kinds"].items() for name in names}
"""The kind of each message, by its method."""

CODES: dict[str, int] = {condition: error["code"] for condition, error in _SCHEMA["errors"].items()}
