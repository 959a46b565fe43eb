"""What a machine did, as JSON: written when it fails, and played again as an ordinary test.

Hypothesis can repeat a failure from its own database or from a blob, but only in the version that found it and only
while the rules stay as they are. A trace is the list of steps with their arguments, and needs nothing but the world
that they were done to.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine

FIXTURES = Path(__file__).parent / "fixtures"
"""Traces that are played again in every run."""

PATIENCE_S = 600
"""A machine computes for half a minute, and for minutes on a processor that it shares; this ends one that hangs."""

_FOUND = Path(__file__).parents[2] / ".hypothesis" / "traces"


class World(Protocol):
    """What the steps are done to; every step is a method whose arguments JSON can say."""

    def check(self) -> None:
        """Raise AssertionError where something does not hold."""

    def finish(self) -> None:
        """Bring everything to its end, and raise AssertionError where something is left."""

    def close(self) -> None:
        """Let go of everything, whatever state it is in."""


def play(world: World, steps: list[tuple[str, dict[str, Any]]]) -> None:
    """Do the steps again and look at everything after each, as the machine did."""
    try:
        for name, arguments in steps:
            getattr(world, name)(**arguments)
            world.check()
        world.finish()
    finally:
        world.close()


def read(path: Path) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The name of the machine, and the steps."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["machine"], [(name, arguments) for name, arguments in found["steps"]]


class TracedMachine(RuleBasedStateMachine):
    """A machine whose rules do nothing but steps of a world.

    What failed last is in `.hypothesis/traces`; where hypothesis shrinks, that is the smallest failure.
    """

    machine: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.world = self.new_world()
        self._steps: list[tuple[str, dict[str, Any]]] = []
        self._failed = False

    def new_world(self) -> World:
        """The world at its beginning."""
        raise NotImplementedError

    def step(self, name: str, **arguments: Any) -> None:
        """Do one step and look at everything."""
        self._steps.append((name, arguments))
        with self._kept_on_failure():
            getattr(self.world, name)(**arguments)
            self.world.check()

    def teardown(self) -> None:
        try:
            if not self._failed:
                with self._kept_on_failure():
                    self.world.finish()
        finally:
            self.world.close()

    @contextmanager
    def _kept_on_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = True
            path = self._write()
            error.add_note(f"the steps are in {path}; in {FIXTURES.name}/ they are played again in every run")
            raise

    def _write(self) -> Path:
        folder = Path(os.environ.get("SANDPORT_TRACES") or _FOUND)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.machine.replace(' ', '-')}.json"
        path.write_text(render(self.machine, self._steps), encoding="utf-8")
        return path


def render(machine: str, steps: list[tuple[str, dict[str, Any]]]) -> str:
    """A trace as text, one step a line."""
    lines = ",\n".join("    " + json.dumps(step) for step in steps)
    return f'{{\n  "machine": {json.dumps(machine)},\n  "steps": [\n{lines}\n  ]\n}}\n'


def budget(examples: int, steps: int) -> settings:
    """How long a machine looks.

    `SANDPORT_MACHINE_EXAMPLES` sets another number of examples, and `SANDPORT_MACHINE_SHRINK=0` leaves the first
    failure as it was found: what the search for planted bugs needs.
    """
    phases = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
    if os.environ.get("SANDPORT_MACHINE_SHRINK") == "0":
        phases.remove(Phase.shrink)
    wanted = int(os.environ.get("SANDPORT_MACHINE_EXAMPLES") or examples)
    return settings(max_examples=wanted, stateful_step_count=steps, phases=phases, report_multiple_bugs=False)
