"""What must become of every line, by the published lifecycle: the simple books that both connections are held to.

Each side's book takes the lines that its connection was given and says, as plain tuples, which events must come.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from .lifecycle import CODES, KIND_OF, METHODS, MOVES, OUTCOMES, REFUSALS, REQUEST_MOVES
from .pipe import Line

Event = tuple[Any, ...]


class Said(Struct, frozen=True):
    """What a line means to whoever reads it."""

    kind: str
    """`ask`, `answer`, `note`, `garbage` (also JSON that is no message), `fatal` or `blank`."""
    id: int | str | None = None
    method: str = ""
    content: Any = None
    """Of a request or a note its params, of an answer what it says, as `result_of` and `error_of` write it."""
    happening: str = ""
    """Of an answer: `result`, `error`, `confirmed`, or what becomes of a hello."""
    condition: str = ""
    """Of garbage: which error a worker answers."""


def result_of(value: Any) -> Event:
    """What a result says."""
    return ("result", value)


def error_of(code: int, partial: str | None = None) -> Event:
    """What an error says."""
    return ("error", code, partial)


LOST = error_of(CODES["ProtocolViolation"])


class Asked(Struct):
    """One request in the host's book."""

    method: str
    number: int = 0
    """What its params say; of a hello, the version that it offers."""
    state: str = "open"
    cause: str | None = None
    outcome: str | None = None
    spoiled: bool = False
    """Its answer, or the request itself, became unreadable on its way."""
    granted: dict[str, int] = field(default_factory=dict)
    """Credit that was given, by stream."""


class HostBook:
    """The host's side: its phase, and every request from its sending to its one outcome."""

    def __init__(self, junk_bytes: int) -> None:
        self.phase = "new"
        self.asked: dict[int, Asked] = {}
        self._greeted = False
        self._junk_bytes = junk_bytes
        self._junk = 0

    @property
    def open(self) -> list[int]:
        """Ids without an end, oldest first."""
        return [number for number, asked in self.asked.items() if asked.state != "ended"]

    def may(self, kind: str) -> bool:
        """Whether the phase allows it."""
        return (self.phase, kind) in MOVES

    def move(self, kind: str) -> None:
        """It was done."""
        self.phase = MOVES[self.phase, kind]

    def settle(self, number: int, happening: str, said: Event | None) -> Event:
        """One move of a request, and the event that must tell of it."""
        asked = self.asked[number]
        asked.state, outcome = REQUEST_MOVES[asked.state, happening]
        if outcome is None:
            return ("late", number, asked.method, said)
        if outcome == "cause":
            outcome = asked.cause
        assert asked.outcome is None, f"request {number} has two outcomes"
        assert outcome in OUTCOMES
        asked.outcome = outcome
        return ("ended", number, asked.method, outcome, said)

    def crash(self) -> list[Event]:
        """The worker is gone."""
        self.phase = "closed"
        return [self.settle(number, "crash", None) for number in self.open]

    def hear(self, line: Line[Said]) -> list[Event]:
        """The events of one line from the worker."""
        said = _read(line)
        if self.phase == "closed" or said.kind == "blank":
            return []
        if said.kind == "garbage" and not self._greeted:
            self._junk += len(line.text) + 1
            if self._junk <= self._junk_bytes:
                return [("junk", line.text)]
            return self._fatal()
        if said.kind == "fatal":
            return self._fatal()
        if said.kind == "note" and said.method not in KIND_OF:
            return []
        if said.kind == "note" and self.may("report"):
            return [("note", said.method, said.content)]
        number = said.id
        if said.kind != "answer" or not isinstance(number, int) or number not in self.open:
            return [("violation", False)]
        if said.happening == "unreadable":
            return self._fatal()
        return self._answered(number, said)

    def _answered(self, number: int, said: Said) -> list[Event]:
        asked = self.asked[number]
        if asked.method == "initialize":
            return [self._hello(number, said)]
        events = [self.settle(number, said.happening, said.content)]
        if asked.method == "ping" and said.happening == "result":
            taken = said.content[1].get("open", ())
            for other in self.open:
                lost = self.asked[other]
                if other < number and other not in taken and lost.method not in ("ping", "initialize"):
                    assert lost.spoiled, f"{lost.method} {other} lives and was taken for lost"
                    events.append(self.settle(other, "lost", LOST))
        return events

    def _hello(self, number: int, said: Said) -> Event:
        if said.happening != "result":
            self.move("initialize.error")
            return self.settle(number, "error", said.content)
        self.move("initialize.result")
        self._greeted = True
        event = self.settle(number, "result", said.content)
        return ("hello", number) if event[0] == "ended" else event

    def _fatal(self) -> list[Event]:
        self.phase = "closed"
        return [("violation", True)]


class WorkerBook:
    """The worker's side: its phase, and which requests are open."""

    def __init__(self, in_flight: int) -> None:
        self.phase = "new"
        self.open: dict[int | str, str] = {}
        self._in_flight = in_flight

    def answered(self, number: int | str, kind: str) -> None:
        """A request that was taken is answered; `kind` is for a hello."""
        if self.open.pop(number) == "initialize":
            self.phase = MOVES.get((self.phase, kind), self.phase)

    def hear(self, line: Line[Said]) -> list[Event]:
        """The events of one line from the host."""
        said = _read(line)
        if self.phase == "closed" or said.kind == "blank":
            return []
        if said.kind in ("garbage", "fatal"):
            fatal = said.kind == "fatal"
            if fatal:
                self.phase = "closed"
            return [("refusal", None, CODES[said.condition]), ("violation", fatal)]
        if said.kind == "note":
            return self._noted(said)
        assert said.id is not None
        return self._asked(said.id, said)

    def _noted(self, said: Said) -> list[Event]:
        if said.method not in KIND_OF:
            return []
        move = (self.phase, KIND_OF[said.method])
        if move not in MOVES:
            return [("violation", False)]
        self.phase = MOVES[move]
        return [("note", said.method, said.content)]

    def _asked(self, number: int | str, said: Said) -> list[Event]:
        if number in self.open:
            return [("refusal", number, CODES["InvalidRequest"])]
        kind = KIND_OF.get(said.method, "call")
        if (self.phase, kind) not in MOVES:
            second_hello = kind == "initialize" and self.phase != "draining"
            return [("refusal", number, CODES["InvalidRequest" if second_hello else REFUSALS[self.phase]])]
        if kind == "ping":
            return [("pong", number, tuple(self.open))]
        if kind == "call":
            if said.method not in METHODS:
                return [("refusal", number, CODES["MethodNotFound"])]
            if len(self.open) >= self._in_flight:
                return [("refusal", number, CODES["Overloaded"])]
        self.phase = MOVES[self.phase, kind]
        self.open[number] = said.method
        return [("request", number, said.method, said.content)]


def _read(line: Line[Said]) -> Said:
    """What a line says; half a line before it leaves nothing of that, and a ceiling that it passed is passed."""
    if not line.spoiled or line.meaning.kind == "fatal":
        return line.meaning
    return Said("garbage", condition="ParseFailed")
