"""What came of one run of a host with an impostor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandport_conformance.outcomes import expect
from sandport_conformance.processes import ExitCause, Survivor

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a hostile worker cost the host, in bytes."""

    name: str
    grown_bytes: int
    bound_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One run of the host command.

    Attributes:
        impostor: The worker that it was given, `module:Class`.
        answer: The JSON object on its stdout; None where there was none.
        exit: How it ended; None where it had to be killed after `bound_s`.
        took_s: From its start to its exit.
        peak_bytes: The most memory that it had in RAM at once, its own workers not counted.
        home: What it was given to keep its own things in.
        log: The file with its stderr.
        journal: What the workers wrote down.
        left: Processes of its workers that lived after it; they were killed.
        environ: Variables that it was given beside those of the contract.
    """

    impostor: str
    answer: Json | None
    exit: ExitCause | None
    bound_s: float
    took_s: float
    peak_bytes: int
    home: Path
    log: Path
    journal: list[Json] = field(default_factory=list)
    left: tuple[Survivor, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    # -------------------------------------------------------------- what it answered

    def outcome(self, which: str = "") -> Json:
        """How the command ended for its caller, or the one that the answer has under a name."""
        answer = self.answer if not which else (self.answer or {}).get(which)
        expect(isinstance(answer, dict), f"the host's answer has no outcome{which and f' {which!r}'}: {self.answer}")
        assert answer is not None
        return answer

    def succeeded(self, which: str = "", *, stdout_bytes: int | None = None) -> None:
        """Expect that the command exited with 0."""
        outcome = self.outcome(which)
        what = f"the {which} command" if which else "the command"
        expect(
            outcome.get("ended") == "exited" and outcome.get("exitCode") == 0 and not outcome.get("error"),
            f"{what} should have exited with 0: {_short(outcome)}",
        )
        if stdout_bytes is not None:
            got = outcome.get("stdoutBytes")
            expect(got == stdout_bytes, f"{what} wrote {stdout_bytes} bytes, the host tells {got}")

    def failed(
        self, *conditions: str, says: tuple[str, ...] = (), dispatched: tuple[str, ...] = (), which: str = ""
    ) -> Json:
        """Expect an error with one of these conditions, these texts and one of these values of `dispatched`."""
        outcome = self.outcome(which)
        error = outcome.get("error")
        expect(isinstance(error, dict), f"there should have been an error: {_short(outcome)}")
        assert isinstance(error, dict)
        expect(outcome.get("ended") is None, f"an error came with a result: {_short(outcome)}")
        if conditions:
            condition = error.get("condition")
            expect(condition in conditions, f"the condition should be {' or '.join(conditions)}: {_short(error)}")
        for text in says:
            expect(text in str(error.get("message")), f"the message should contain {text!r}: {_short(error)}")
        if dispatched:
            expect(error.get("dispatched") in dispatched, f"dispatched should be in {dispatched}: {_short(error)}")
        return error

    def transfer(self, which: str) -> Json:
        """How files went, `sent` or `fetched`: an object whose `error` is null or as that of a command."""
        answer = (self.answer or {}).get(which)
        expect(isinstance(answer, dict) and "error" in answer, f"the host's answer has no {which!r}: {self.answer}")
        assert isinstance(answer, dict)
        return answer

    def transferred(self, which: str) -> None:
        """Expect that files were sent, or fetched, without an error."""
        expect(self.transfer(which)["error"] is None, f"{which!r} should be without an error: {self.transfer(which)}")

    def logged(self, text: bytes) -> int:
        """How often the host's log contains a text, read a piece at a time."""
        found = 0
        with self.log.open("rb") as file:
            rest = b""
            while data := file.read(1 << 20):
                whole = rest + data
                found += whole.count(text)
                rest = whole[-(len(text) - 1) :] if len(text) > 1 else b""
        return found

    # -------------------------------------------------------------- what the workers saw

    @property
    def starts(self) -> list[Json]:
        """Every worker that it started."""
        return [entry for entry in self.journal if entry["event"] == "started"]

    def events(self, name: str) -> list[Json]:
        """Entries of the journal of this kind."""
        return [entry for entry in self.journal if entry["event"] == name]

    def received(self, method: str) -> list[Json]:
        """What the workers received of a method."""
        return [entry for entry in self.events("received") if entry["method"] == method]

    def one_worker(self) -> None:
        """Expect that the first worker lived through it."""
        expect(len(self.starts) == 1, f"the worker should have lived; {len(self.starts)} were started")

    def limits(self) -> dict[str, int]:
        """The limits that the host offered."""
        greeting = self.received("initialize")
        return dict(greeting[0].get("limits", {})) if greeting else {}


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) < 600 else f"{text[:300]} ... {text[-200:]}"
